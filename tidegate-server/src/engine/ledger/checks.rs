//! `LedgerChecks`: opens a ledger, and checks that this instance may use it.

use std::time::Duration;

use tidegate::spi::Namespace;
use tidegate::{Clock, Secret, SystemClock, Timer};
use tidegate_ledger::{Ledger, LedgerError, LedgerErrorKind, LedgerLock, LedgerUrl};

use super::{LOCK_RETRY_INTERVAL, MAX_LOCK_ATTEMPTS};
use crate::command::tokio_timer;

/// Clocks that differ by more than this are reported.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(2);

/// Clocks that differ by more than this are an error: entries would count in the wrong periods.
const MAX_CLOCK_ERROR: Duration = Duration::from_hours(1);

/// What a ledger is opened and checked with.
#[derive(Debug)]
pub(super) struct LedgerChecks {
    pub(super) url: LedgerUrl,
    pub(super) secret: Secret,
    pub(super) namespace: Namespace,
    pub(super) is_store_shared: bool,
}

/// A ledger that this instance may use.
#[derive(Debug)]
pub(super) struct CheckedLedger {
    pub(super) ledger: Ledger,
    /// Keeps other instances with a memory store away.
    pub(super) lock: Option<LedgerLock>,
}

/// Why a ledger cannot be used now.
#[derive(Debug)]
pub(super) struct OpeningError {
    pub(super) error: LedgerError,
    /// The check that failed. `None` if the database did not answer as it should.
    pub(super) check: Option<LedgerCheck>,
}

/// What an instance must have in common with a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedgerCheck {
    Schema,
    Clock,
    Secret,
    /// No other instance with a memory store.
    Instance,
}

impl LedgerChecks {
    /// Opens the ledger. What was opened is closed if a check fails.
    pub(super) async fn open(&self) -> Result<CheckedLedger, OpeningError> {
        let opened = Ledger::open(&self.url).await;
        let ledger = opened.map_err(|error| OpeningError::new(error, LedgerErrorKind::Newer, LedgerCheck::Schema))?;
        match self.check(&ledger).await {
            Ok(lock) => Ok(CheckedLedger { ledger, lock }),
            Err(error) => {
                ledger.close().await;
                Err(error)
            }
        }
    }

    async fn check(&self, ledger: &Ledger) -> Result<Option<LedgerLock>, OpeningError> {
        use LedgerErrorKind::{Busy, Invalid, Mismatch};
        ledger.ping().await?;
        let difference = clock_difference(ledger).await?;
        judge_clock(difference).map_err(|error| OpeningError::new(error, Mismatch, LedgerCheck::Clock))?;
        let verified = ledger.verify_owner(&self.secret, &self.namespace).await;
        verified.map_err(|error| OpeningError::new(error, Invalid, LedgerCheck::Secret))?;
        let lock = if self.is_store_shared { None } else { Some(lock_for_memory_store(ledger).await) };
        let lock = lock.transpose().map_err(|error| OpeningError::new(error, Busy, LedgerCheck::Instance))?;
        warn_of_clock(difference);
        Ok(lock)
    }
}

impl OpeningError {
    /// The error of `check` if it is of this kind.
    fn new(error: LedgerError, kind: LedgerErrorKind, check: LedgerCheck) -> Self {
        let check = (error.kind() == kind).then_some(check);
        Self { error, check }
    }

    /// Whether the database may only be down.
    pub(super) fn is_silence(&self) -> bool {
        self.check.is_none() && self.error.kind() == LedgerErrorKind::Unavailable
    }
}

impl From<LedgerError> for OpeningError {
    fn from(error: LedgerError) -> Self {
        Self { error, check: None }
    }
}

impl LedgerCheck {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Schema => "schema",
            Self::Clock => "clock",
            Self::Secret => "secret",
            Self::Instance => "instance",
        }
    }
}

/// Waits until the process before this one has ended.
async fn lock_for_memory_store(ledger: &Ledger) -> Result<LedgerLock, LedgerError> {
    let timer = tokio_timer();
    let mut attempts = MAX_LOCK_ATTEMPTS;
    loop {
        attempts -= 1;
        match ledger.memory_store_lock().await {
            Err(error) if error.kind() == LedgerErrorKind::Busy && attempts > 0 => {
                timer.sleep(LOCK_RETRY_INTERVAL).await;
            }
            result => return result,
        }
    }
}

/// Compares the clock of this host with that of the ledger.
async fn clock_difference(ledger: &Ledger) -> Result<Duration, LedgerError> {
    let clock = SystemClock::new();
    let before = clock.now();
    let theirs = ledger.now().await?;
    let after = clock.now();
    // Their clock was read between the two.
    Ok(before.since(theirs).max(theirs.since(after)))
}

fn judge_clock(difference: Duration) -> Result<(), LedgerError> {
    if difference <= MAX_CLOCK_ERROR {
        return Ok(());
    }
    let seconds = difference.as_secs();
    Err(LedgerError::mismatch(format!(
        "the clocks of this host and of the ledger differ by {seconds} s, so entries would count in wrong periods: set both by NTP"
    )))
}

fn warn_of_clock(difference: Duration) {
    if difference > MAX_CLOCK_DIFFERENCE {
        let seconds = difference.as_secs();
        tracing::warn!(
            target: "tidegate::ledger", seconds,
            "the clocks of this host and of the ledger differ: near the end of a period, entries may count in the wrong one; set both by NTP"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::log::status_log::tests::logged_lines;

    #[test]
    fn a_clock_that_is_seconds_off_is_reported_and_one_that_is_hours_off_is_an_error() {
        let judge = |seconds: u64| {
            let difference = Duration::from_secs(seconds);
            (judge_clock(difference).is_ok(), logged_lines(|| warn_of_clock(difference)).len())
        };
        assert_eq!([judge(0), judge(2), judge(3), judge(3600)], [(true, 0), (true, 0), (true, 1), (true, 1)]);
        assert!(!judge(3601).0);
    }
}
