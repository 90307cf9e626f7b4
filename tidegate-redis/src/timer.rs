//! Timeouts and sleeps on tokio's clock. No other file of this crate reads that clock or sleeps.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Longer times are clamped to one year, so that arithmetic on instants does not overflow.
const MAX_DURATION: Duration = Duration::from_secs(31_557_600);

/// The output of `future`, or `None` if it takes longer than `limit`.
pub(crate) async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Sleeps for `duration`. A zero duration returns at once, without yielding.
#[allow(clippy::disallowed_methods, reason = "one of the two functions of this crate that sleep")]
pub(crate) async fn sleep(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

/// A timer that fires at `at` and can be reset.
#[allow(clippy::disallowed_methods, reason = "one of the two functions of this crate that sleep")]
pub(crate) fn sleep_until(at: Instant) -> Sleep {
    tokio::time::sleep_until(at)
}

/// The current instant of tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The instant `duration` after `instant`.
pub(crate) fn after(instant: Instant, duration: Duration) -> Instant {
    instant + duration.min(MAX_DURATION)
}
