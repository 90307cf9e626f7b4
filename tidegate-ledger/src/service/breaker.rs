//! `LedgerBreaker`: whether the ledger is called. A pure state machine: it reads no clock and does no I/O.
//!
//! After a failure, one attempt is made per delay, in the background. Callers who would wait for the ledger get the error at once meanwhile.

use std::time::Duration;

use tokio::time::Instant;

use crate::LedgerError;

const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Whether the ledger is called.
#[derive(Debug, Default)]
pub(super) struct LedgerBreaker {
    failure: Option<LedgerFailure>,
}

#[derive(Debug)]
struct LedgerFailure {
    error: LedgerError,
    delay: Duration,
    retry_at: Instant,
}

impl LedgerBreaker {
    /// Records a failure. Returns whether the ledger was available before.
    pub(super) fn record_failure(&mut self, error: LedgerError, now: Instant) -> bool {
        let Some(failure) = &mut self.failure else {
            let (delay, retry_at) = (MIN_RETRY_DELAY, now + MIN_RETRY_DELAY);
            self.failure = Some(LedgerFailure { error, delay, retry_at });
            return true;
        };
        failure.error = error;
        // Calls that were under way together fail together; only a new attempt makes the delay longer.
        if now >= failure.retry_at {
            failure.delay = (failure.delay * 2).min(MAX_RETRY_DELAY);
            failure.retry_at = now + failure.delay;
        }
        false
    }

    /// Records a success. Returns whether the ledger was unavailable before.
    pub(super) fn record_success(&mut self) -> bool {
        self.failure.take().is_some()
    }

    /// The last error, while the ledger is unavailable.
    pub(super) fn error(&self) -> Option<&LedgerError> {
        self.failure.as_ref().map(|failure| &failure.error)
    }

    /// When the next attempt is made. `None` while the ledger is available.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.failure.as_ref().map(|failure| failure.retry_at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::timer;
    use super::*;
    use crate::LedgerErrorKind;

    fn error() -> LedgerError {
        LedgerError::new(LedgerErrorKind::Unavailable, "down")
    }

    #[test]
    fn the_retry_delay_doubles_up_to_two_seconds_and_a_success_resets_it() {
        let mut breaker = LedgerBreaker::default();
        let mut now = timer::now();
        assert!(breaker.record_failure(error(), now));
        let mut delays = Vec::new();
        for _ in 0..7 {
            let retry_at = breaker.retry_at().unwrap();
            delays.push((retry_at - now).as_millis());
            now = retry_at;
            assert!(!breaker.record_failure(error(), now));
        }
        assert_eq!(delays, [50, 100, 200, 400, 800, 1600, 2000]);
        assert!(breaker.record_success());
        assert_eq!((breaker.retry_at(), breaker.error()), (None, None));
        assert!(breaker.record_failure(error(), now));
        assert_eq!(breaker.retry_at(), Some(now + MIN_RETRY_DELAY));
    }

    #[test]
    fn calls_that_fail_together_do_not_make_the_delay_longer() {
        let mut breaker = LedgerBreaker::default();
        let now = timer::now();
        for _ in 0..10 {
            breaker.record_failure(error(), now);
        }
        assert_eq!(breaker.retry_at(), Some(now + MIN_RETRY_DELAY));
        assert!(breaker.record_success());
        assert!(!breaker.record_success());
    }
}
