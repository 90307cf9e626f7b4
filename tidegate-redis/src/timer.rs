//! Timeouts and sleeps on tokio's clock. No other file of this crate reads that clock or sleeps.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// The output of `future`, or `None` if it takes longer than `limit`.
pub(crate) async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Sleeps for `duration`. A zero duration returns at once, without yielding.
#[allow(clippy::disallowed_methods, reason = "this is the only function of this crate that sleeps")]
pub(crate) async fn sleep(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

/// The current instant of tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    Instant::now()
}
