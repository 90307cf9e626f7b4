//! `Pace`: how long a client may keep bytes waiting. It is pure.

use std::time::Duration;

use super::ConnectionLimits;

/// The time that a client may keep bytes waiting. Each byte that it takes makes up for the time that it needs at the minimum rate, so
/// that a client at that rate is never cut off; time cannot be saved up for later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    timeout: Duration,
    /// Bytes a second; 0 for none.
    min_rate: u64,
}

impl Pace {
    pub(crate) const fn new(timeout: Duration, min_rate: u64) -> Self {
        Self { timeout, min_rate }
    }

    pub(super) const fn from_limits(limits: &ConnectionLimits) -> Self {
        Self::new(limits.write_timeout, limits.min_rate)
    }

    /// How long a client may keep bytes waiting if it takes none.
    pub(crate) const fn timeout(self) -> Duration {
        self.timeout
    }

    /// The time that `bytes` make up for. Without a minimum rate, one byte makes up for any.
    pub(crate) fn time_for(self, bytes: u64) -> Duration {
        match bytes.saturating_mul(1000).checked_div(self.min_rate) {
            Some(millis) => Duration::from_millis(millis),
            None if bytes > 0 => Duration::MAX,
            None => Duration::ZERO,
        }
    }

    /// What is left of the time that a client has kept bytes waiting, after it took `bytes`.
    pub(crate) fn wait_after(self, waited: Duration, bytes: u64) -> Duration {
        waited.saturating_sub(self.time_for(bytes))
    }

    /// Whether a client may have kept bytes waiting for so long.
    pub(crate) fn allows(self, waited: Duration) -> bool {
        waited <= self.timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The seconds after which a client that takes `bytes` in each second is cut off.
    fn cut_off(pace: Pace, bytes: u64) -> Option<u64> {
        let mut waited = Duration::ZERO;
        (1..=100_000).find(|_| {
            waited = pace.wait_after(waited, bytes) + SECOND;
            !pace.allows(waited)
        })
    }

    #[test]
    fn a_client_at_the_minimum_rate_is_not_cut_off_and_a_slower_one_is() {
        let pace = Pace::new(10 * SECOND, 100);
        assert_eq!(
            [0, 1, 50, 99, 100, 1000].map(|bytes| cut_off(pace, bytes)),
            [Some(11), Some(11), Some(20), Some(902), None, None]
        );
    }

    #[test]
    fn time_cannot_be_saved_up() {
        let pace = Pace::new(10 * SECOND, 100);
        let waited = pace.wait_after(5 * SECOND, 1 << 30);
        assert!(pace.allows(waited + 10 * SECOND) && !pace.allows(waited + 11 * SECOND));
    }

    #[test]
    fn without_a_minimum_rate_each_byte_starts_the_time_anew() {
        let pace = Pace::new(10 * SECOND, 0);
        assert_eq!((cut_off(pace, 0), cut_off(pace, 1)), (Some(11), None));
    }
}
