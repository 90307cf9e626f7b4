//! `ConnectionLimits`: the numbers, sizes and times that bound the clients of a listener, and their flags. It only holds the values.

use std::time::Duration;

use clap::Args;

use crate::args::LIMITS_HEADING;
use crate::args::flag_values::{MAX_SECONDS, seconds, whole_number};

/// The smallest read buffer that the HTTP/1.1 library accepts.
const MIN_HEADER_BYTES: usize = 8192;

/// The least number of connections that one client may have if no flag says otherwise.
const MIN_CONNECTIONS_PER_CLIENT: usize = 16;

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
#[derive(Args, Clone, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of connections to each address; further ones wait
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_CONNECTIONS", value_parser = parse_permits, default_value_t = Self::new().max_connections, help_heading = LIMITS_HEADING, display_order = 1)]
    pub(super) max_connections: usize,
    /// Maximum size of a request head, in bytes
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_HEADER_BYTES", value_parser = whole_number::<usize>(MIN_HEADER_BYTES as u64..=u64::MAX), default_value_t = Self::new().max_header_bytes, help_heading = LIMITS_HEADING, display_order = 2)]
    pub(crate) max_header_bytes: usize,
    /// Time within which a client must send the head of a request
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_HEADER_TIMEOUT", value_parser = seconds(1..=MAX_SECONDS), default_value = "30s", help_heading = LIMITS_HEADING, display_order = 4)]
    pub(crate) header_timeout: Duration,
    /// Maximum number of connections from one client (an address of IPv4, a /64 of IPv6) to each address; further ones are
    /// closed [default: a tenth of --max-connections]
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_CONNECTIONS_PER_CLIENT", value_parser = parse_permits, help_heading = LIMITS_HEADING, display_order = 10)]
    max_connections_per_client: Option<usize>,
    /// Maximum number of requests under way through the gateway; further ones get 503
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_REQUESTS", value_parser = parse_permits, default_value_t = Self::new().max_requests, help_heading = LIMITS_HEADING, display_order = 11)]
    pub(super) max_requests: usize,
    /// Maximum number of requests of one client under way through the gateway; further ones get 429 [default: an eighth of
    /// --max-requests]
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_REQUESTS_PER_CLIENT", value_parser = parse_permits, help_heading = LIMITS_HEADING, display_order = 12)]
    max_requests_per_client: Option<usize>,
    /// Time for which a client may keep the server waiting: to read a response, or to send a body through the gateway
    #[arg(long = "client-timeout", value_name = "DURATION", env = "TIDEGATE_CLIENT_TIMEOUT", value_parser = seconds(1..=MAX_SECONDS), default_value = "60s", help_heading = LIMITS_HEADING, display_order = 14)]
    pub(super) write_timeout: Duration,
    /// Bytes that make up for a second of --client-timeout: a client at this rate is never cut off; with 0, each byte starts that
    /// time anew
    #[arg(long, value_name = "N", env = "TIDEGATE_MIN_RATE", value_parser = whole_number::<u64>(0..=u64::MAX), default_value_t = Self::new().min_rate, help_heading = LIMITS_HEADING, display_order = 15)]
    pub(super) min_rate: u64,
    /// Time that open requests have to finish after a signal to stop
    #[arg(id = "drain", long = "drain", value_name = "DURATION", env = "TIDEGATE_DRAIN", value_parser = seconds(0..=MAX_SECONDS), default_value = "10s")]
    pub(super) drain_timeout: Duration,
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
            max_connections_per_client: Some(1000),
            max_requests: 1024,
            max_requests_per_client: Some(128),
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
        self.max_connections_per_client = Some(permits(connections));
        self
    }

    /// Bounds the requests under way, at least 1, where the listener counts them: at the gateway. Further ones get 503.
    pub const fn with_max_requests(mut self, requests: usize) -> Self {
        self.max_requests = permits(requests);
        self
    }

    /// Bounds the requests under way of one client, at least 1. Further ones get 429.
    pub const fn with_max_requests_per_client(mut self, requests: usize) -> Self {
        self.max_requests_per_client = Some(permits(requests));
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
    pub fn max_connections_per_client(&self) -> usize {
        let by_default = (self.max_connections / 10).max(MIN_CONNECTIONS_PER_CLIENT);
        self.max_connections_per_client.unwrap_or(by_default.min(self.max_connections.div_ceil(2)))
    }

    /// See [`with_max_requests`](Self::with_max_requests).
    pub const fn max_requests(&self) -> usize {
        self.max_requests
    }

    /// See [`with_max_requests_per_client`](Self::with_max_requests_per_client).
    pub fn max_requests_per_client(&self) -> usize {
        self.max_requests_per_client.unwrap_or((self.max_requests / 8).max(1))
    }
}

/// A flag's number of permits, at least 1.
fn parse_permits(text: &str) -> Result<usize, String> {
    whole_number::<usize>(1..=u64::MAX)(text).map(permits)
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
