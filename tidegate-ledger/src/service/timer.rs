//! Timeouts and sleeps on tokio's clock. No other file of the service reads that clock or sleeps.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};

/// The output of `future`, or `None` if it takes longer than `limit`.
pub(super) async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Sleeps until `at`.
pub(super) async fn sleep_until(at: Instant) {
    tokio::time::sleep_until(at).await;
}

/// Sleeps for `span`.
pub(super) async fn sleep(span: Duration) {
    sleep_until(now() + span).await;
}

/// Ticks at intervals, for the first time after one.
pub(super) fn interval(period: Duration) -> Interval {
    let mut interval = tokio::time::interval_at(now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// The current instant.
pub(super) fn now() -> Instant {
    Instant::now()
}
