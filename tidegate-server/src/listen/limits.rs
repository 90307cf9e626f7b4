//! `ConnectionLimits`: how many connections an address takes, how long each may wait, and how much it may send before a
//! request is one. It only holds the numbers.

use std::time::Duration;

/// The smallest space for a head that HTTP/1.1 can be read with.
const SMALLEST_HEAD: usize = 8192;

/// What a connection may do.
///
/// ```
/// use std::time::Duration;
/// use tidegate_server::ConnectionLimits;
///
/// let limits = ConnectionLimits::new().header_timeout(Duration::from_secs(5)).max_connections(500);
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
    /// 30 seconds to send a head and for everything to end, 60 to take the next bytes of an answer; heads of 64 KiB; 10,000
    /// connections.
    pub const fn new() -> Self {
        Self {
            header_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            max_header_bytes: 64 * 1024,
            max_connections: 10_000,
        }
    }

    /// How long a client may take to send the head of a request, from when it connects (TLS included) or from the answer
    /// before. Then the connection ends.
    pub const fn header_timeout(mut self, timeout: Duration) -> Self {
        self.header_timeout = timeout;
        self
    }

    /// How long a client may take none of what is sent to it. Then the connection ends.
    pub const fn write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// How long requests and tunnels that are under way may go on after the listener was told to end.
    pub const fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// How long the head of a request may be, at least 8 KiB. Beyond it, the answer is 431.
    pub const fn max_header_bytes(mut self, bytes: usize) -> Self {
        self.max_header_bytes = if bytes < SMALLEST_HEAD { SMALLEST_HEAD } else { bytes };
        self
    }

    /// How many connections there may be, at least one. Others wait until one of them ends.
    pub const fn max_connections(mut self, connections: usize) -> Self {
        // More than that, and the semaphore that counts them would panic.
        let most = tokio::sync::Semaphore::MAX_PERMITS;
        self.max_connections = if connections == 0 {
            1
        } else if connections > most {
            most
        } else {
            connections
        };
        self
    }
}
