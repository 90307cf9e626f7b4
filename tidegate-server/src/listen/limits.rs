//! `ConnectionLimits`: the numbers, sizes and times that bound the clients of a listener. It only holds the values.

use std::time::Duration;

/// The smallest read buffer that the HTTP/1.1 library accepts.
pub(crate) const MIN_HEADER_BYTES: usize = 8192;

/// The largest number that a semaphore can count.
const MAX_PERMITS: usize = tokio::sync::Semaphore::MAX_PERMITS;

/// Bounds of the connections of one [`Listener`](crate::Listener).
///
/// ```
/// use std::time::Duration;
/// use tidegate_server::ConnectionLimits;
///
/// let limits = ConnectionLimits::new().with_header_timeout(Duration::from_secs(5)).with_max_connections(500);
/// assert_eq!(limits.max_connections(), 500);
/// ```
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    pub(super) header_timeout: Duration,
    pub(super) write_timeout: Duration,
    pub(super) min_rate: u64,
    pub(super) drain_timeout: Duration,
    pub(super) max_header_bytes: usize,
    pub(super) max_connections: usize,
    pub(super) max_connections_per_client: usize,
    pub(super) max_requests: usize,
    pub(super) max_requests_per_client: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self::new()
    }
}

impl ConnectionLimits {
    /// The defaults: 30 seconds for the headers of a request and for draining; 60 seconds for a client to read
    /// what waits for it, of which each 1,024 bytes make up for one; 64 KiB of headers; 10,000 connections, 1,000 of them from one client;
    /// 1,024 requests at a time, 128 of them from one client.
    pub const fn new() -> Self {
        Self {
            header_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_mins(1),
            min_rate: 1024,
            drain_timeout: Duration::from_secs(30),
            max_header_bytes: 64 * 1024,
            max_connections: 10_000,
            max_connections_per_client: 1000,
            max_requests: 1024,
            max_requests_per_client: 128,
        }
    }

    /// Closes a connection whose client does not send complete request headers in time, counted from the accept (TLS handshake
    /// included) or from the previous response.
    pub const fn with_header_timeout(mut self, timeout: Duration) -> Self {
        self.header_timeout = timeout;
        self
    }

    /// Closes a connection whose client keeps bytes of a response waiting for this long. What it reads makes up for that time, at
    /// the [minimum rate](Self::with_min_rate). The time in which there is nothing to send does not count.
    pub const fn with_write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// The bytes that make up for a second of the [write timeout](Self::with_write_timeout): a client that always reads at this
    /// rate is never cut off. With 0, a client only has to read something within each write timeout.
    pub const fn with_min_rate(mut self, bytes_per_second: u64) -> Self {
        self.min_rate = bytes_per_second;
        self
    }

    /// Bounds how long requests and tunnels may continue after a shutdown began.
    pub const fn with_drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Answers 431 to longer request headers. Raised to 8 KiB if smaller.
    pub const fn with_max_header_bytes(mut self, bytes: usize) -> Self {
        self.max_header_bytes = if bytes < MIN_HEADER_BYTES { MIN_HEADER_BYTES } else { bytes };
        self
    }

    /// Bounds the open connections, at least 1. Further clients wait in the accept queue of the system.
    pub const fn with_max_connections(mut self, connections: usize) -> Self {
        self.max_connections = permits(connections);
        self
    }

    /// Bounds the open connections from one client, at least 1. Further ones are closed at once.
    pub const fn with_max_connections_per_client(mut self, connections: usize) -> Self {
        self.max_connections_per_client = permits(connections);
        self
    }

    /// Bounds the requests under way, at least 1, where the listener counts them: at the gateway. Further ones get 503.
    pub const fn with_max_requests(mut self, requests: usize) -> Self {
        self.max_requests = permits(requests);
        self
    }

    /// Bounds the requests under way of one client, at least 1. Further ones get 429.
    pub const fn with_max_requests_per_client(mut self, requests: usize) -> Self {
        self.max_requests_per_client = permits(requests);
        self
    }

    /// See [`with_write_timeout`](Self::with_write_timeout).
    pub const fn write_timeout(&self) -> Duration {
        self.write_timeout
    }

    /// See [`with_min_rate`](Self::with_min_rate).
    pub const fn min_rate(&self) -> u64 {
        self.min_rate
    }

    /// See [`with_max_connections`](Self::with_max_connections).
    pub const fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// See [`with_max_connections_per_client`](Self::with_max_connections_per_client).
    pub const fn max_connections_per_client(&self) -> usize {
        self.max_connections_per_client
    }

    /// See [`with_max_requests`](Self::with_max_requests).
    pub const fn max_requests(&self) -> usize {
        self.max_requests
    }

    /// See [`with_max_requests_per_client`](Self::with_max_requests_per_client).
    pub const fn max_requests_per_client(&self) -> usize {
        self.max_requests_per_client
    }
}

/// A number of permits that a semaphore accepts, at least 1.
const fn permits(number: usize) -> usize {
    if number == 0 {
        1
    } else if number > MAX_PERMITS {
        MAX_PERMITS
    } else {
        number
    }
}
