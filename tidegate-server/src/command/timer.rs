//! The clock and sleep of the tokio runtime as a [`Timer`].

use tidegate::Timer;

/// Time as the tokio runtime measures it. Sleeping needs a runtime.
#[allow(clippy::disallowed_methods, reason = "this is the one place that makes a `Timer` of it")]
pub fn tokio_timer() -> impl Timer {
    tidegate::SleepTimer::new(tokio::time::sleep)
}
