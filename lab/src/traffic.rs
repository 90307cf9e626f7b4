//! What all load is made of: request schedules, client connections, workers, an upstream, a Redis server and latency histograms.

mod connection;
mod redis_server;
mod schedule;
mod upstream;
mod workers;

use std::time::Duration;

use conformance::process::Process;
use hdrhistogram::Histogram;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_server::command::Failure;

pub(crate) use connection::{Connection, DEFAULT_TIMEOUT, HttpResponse, Protocol, RequestError};
pub(crate) use redis_server::RedisServer;
pub(crate) use schedule::Schedule;
pub(crate) use upstream::{RESPONSE_BODY, Upstream};
pub(crate) use workers::{Pace, Workers};

/// Upper bound of the histograms: one hour. Longer latencies are recorded as one hour.
const MAX_LATENCY_MICROS: u64 = 3_600_000_000;

/// Returns an empty histogram of microseconds up to one hour, exact to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    // The bounds are constants, and the tests make one.
    Histogram::new_with_bounds(1, MAX_LATENCY_MICROS, 3).expect("constant histogram bounds are valid")
}

/// Whole microseconds; saturates at `u64::MAX`.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The failure of a server that exits before it listens, with its output.
pub(crate) fn exit_failure(output: &str) -> Failure {
    Failure::usage(format!("a server to be measured exited:\n{}", output.trim_end()))
}

/// The CPU time of a server under load.
pub(crate) fn cpu_time(process: &Process) -> Result<Duration, Failure> {
    process.cpu_time().map_err(|error| Failure::usage(format!("cannot read the CPU time of a server: {error}")))
}

/// The failure to start a tokio runtime.
pub(crate) fn runtime_failure(error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot start the async runtime: {error}"))
}

/// The failure to install signal handlers.
pub(crate) fn signal_failure(error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot listen for signals: {error}"))
}

/// Raises the limit of this process, and of those that it starts, to `needed` files if it is lower. The error is the number that the
/// system allows.
pub(crate) fn raise_file_limit(needed: u64) -> Result<(), u64> {
    let limits = getrlimit(Resource::Nofile);
    let suffices = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if suffices(limits.current) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), ..limits };
    if suffices(limits.maximum) && setrlimit(Resource::Nofile, raised).is_ok() {
        return Ok(());
    }
    Err(limits.maximum.unwrap_or(needed))
}
