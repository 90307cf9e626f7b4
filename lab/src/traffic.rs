//! What all load is made of: request schedules, client connections, workers, an upstream, a Redis server and latency histograms.

mod connection;
mod redis_server;
mod schedule;
mod upstream;
mod workers;

use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_server::command::Failure;
use tokio::runtime::Runtime;

pub(crate) use connection::{Connection, DEFAULT_TIMEOUT, Protocol, RequestError};
pub(crate) use redis_server::RedisServer;
pub(crate) use schedule::Schedule;
pub(crate) use upstream::{RESPONSE_BODY, Upstream};
pub(crate) use workers::{Pace, Workers};

/// Upper bound of the histograms: one hour. Longer latencies are recorded as one hour.
const MAX_LATENCY_MICROS: u64 = 3_600_000_000;

/// Returns an empty histogram of microseconds up to one hour, exact to so many digits.
pub(crate) fn histogram(digits: u8) -> Histogram<u64> {
    // The bounds are constants, and the tests make one.
    Histogram::new_with_bounds(1, MAX_LATENCY_MICROS, digits).expect("constant histogram bounds are valid")
}

/// Whole microseconds; saturates at `u64::MAX`.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A runtime of several threads, as that of `tidegate serve`.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    Runtime::new().map_err(|error| runtime_failure(&error))
}

/// The failure to start a tokio runtime.
pub(crate) fn runtime_failure(error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot start the async runtime: {error}"))
}

/// The failure to install signal handlers.
pub(crate) fn signal_failure(error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot listen for signals: {error}"))
}

/// Raises the limit of this process, and of those that it starts, to `needed` files if it is lower. `what` needs them.
pub(crate) fn raise_file_limit(what: &str, needed: u64) -> Result<(), Failure> {
    let limits = getrlimit(Resource::Nofile);
    let suffices = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if suffices(limits.current) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), ..limits };
    if suffices(limits.maximum) && setrlimit(Resource::Nofile, raised).is_ok() {
        return Ok(());
    }
    let allowed = limits.maximum.unwrap_or(needed);
    Err(Failure::usage(format!(
        "{what} needs {needed} open files, and this system allows {allowed}; raise the limit (`ulimit -n`)"
    )))
}
