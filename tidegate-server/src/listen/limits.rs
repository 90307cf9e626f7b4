//! `ConnectionLimits`: the timeouts and sizes that bound a connection. It only holds the values.

use std::time::Duration;

/// The smallest read buffer that the HTTP/1.1 library accepts.
const MIN_HEADER_BYTES: usize = 8192;

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
    pub(super) drain_timeout: Duration,
    pub(super) max_header_bytes: usize,
    pub(super) max_connections: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self::new()
    }
}

impl ConnectionLimits {
    /// The defaults: 30 seconds for the headers of a request and for draining, 60 seconds without progress of a write,
    /// 64 KiB of headers, 10,000 connections.
    pub const fn new() -> Self {
        Self {
            header_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            max_header_bytes: 64 * 1024,
            max_connections: 10_000,
        }
    }

    /// Closes a connection whose client does not send complete request headers in time, counted from the accept (TLS handshake
    /// included) or from the previous response.
    pub const fn with_header_timeout(mut self, timeout: Duration) -> Self {
        self.header_timeout = timeout;
        self
    }

    /// Closes a connection whose client reads nothing of a response for this long.
    pub const fn with_write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
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
        // The semaphore that counts connections panics above this.
        let max = tokio::sync::Semaphore::MAX_PERMITS;
        self.max_connections = if connections == 0 {
            1
        } else if connections > max {
            max
        } else {
            connections
        };
        self
    }

    /// See [`with_header_timeout`](Self::with_header_timeout).
    pub const fn header_timeout(&self) -> Duration {
        self.header_timeout
    }

    /// See [`with_write_timeout`](Self::with_write_timeout).
    pub const fn write_timeout(&self) -> Duration {
        self.write_timeout
    }

    /// See [`with_drain_timeout`](Self::with_drain_timeout).
    pub const fn drain_timeout(&self) -> Duration {
        self.drain_timeout
    }

    /// See [`with_max_header_bytes`](Self::with_max_header_bytes).
    pub const fn max_header_bytes(&self) -> usize {
        self.max_header_bytes
    }

    /// See [`with_max_connections`](Self::with_max_connections).
    pub const fn max_connections(&self) -> usize {
        self.max_connections
    }
}
