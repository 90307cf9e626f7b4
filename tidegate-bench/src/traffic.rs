//! What every kind of load is made of: when requests are due, lines to send them on, servers that are started for it, and
//! histograms of how long it took. What is asked, and what is found of it, is decided by `bench` and `surge`.

mod child;
mod line;
mod schedule;

use std::time::Duration;

use hdrhistogram::Histogram;
use tidegate_server::command::Failure;

pub(crate) use child::Child;
pub(crate) use line::{Answer, Line, NoAnswer, PATIENCE, Protocol};
pub(crate) use schedule::Schedule;

/// The longest time that is told from longer ones, in microseconds: an hour.
const LONGEST: u64 = 3_600_000_000;

/// An empty histogram of microseconds, up to an hour, by three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    // The bounds are constants, and the tests make one.
    Histogram::new_with_bounds(1, LONGEST, 3).expect("an hour of microseconds by three digits")
}

pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Why a runtime or its signals are not there.
pub(crate) fn no_runtime(error: &std::io::Error) -> Failure {
    Failure::usage(format!("no runtime can be started: {error}"))
}
