//! `Timeouts`: how long one call waits for a connection and for its response.

use std::time::Duration;

use crate::options::RedisOptions;

/// Lower bound of the response timeout of calls at startup, when a server may still be starting.
const MIN_STARTUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Lower bound of the response timeout of topology queries. They run in the background, so no decision waits this long.
const MIN_TOPOLOGY_TIMEOUT: Duration = Duration::from_millis(100);

/// How long one call waits, and for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For the response.
    pub(crate) response: Duration,
    /// For what the call needs before it can be sent: a connection, the name of the primary, the slot map.
    pub(crate) setup: Duration,
    /// Whether the call waits for the next connection attempt when the last one failed. Decisions do not: they fail at once.
    pub(crate) waits_for_retry: bool,
}

impl Timeouts {
    /// Those of a decision: four fifths of its `timeout`, so that a silent server is noticed before the timeout expires.
    pub(crate) fn for_decision(timeout: Duration) -> Self {
        let limit = timeout / 5 * 4;
        Self { response: limit, setup: limit, waits_for_retry: false }
    }

    /// Those of a topology query, which runs in the background.
    pub(crate) fn for_topology(options: &RedisOptions) -> Self {
        let response = Self::for_decision(options.timeout).response.max(MIN_TOPOLOGY_TIMEOUT);
        Self { response, setup: options.connection_timeout, waits_for_retry: false }
    }

    /// Those of a call at startup.
    pub(crate) fn for_startup(options: &RedisOptions) -> Self {
        let response = MIN_STARTUP_TIMEOUT.max(options.timeout);
        Self { response, setup: options.connection_timeout, waits_for_retry: true }
    }
}
