//! `GatewayOptions`: the timeouts of the gateway towards its upstream, and the bounds of requests, with their flags. It only holds the
//! values.

use std::time::Duration;

use clap::Args;

use crate::args::LIMITS_HEADING;
use crate::args::flag_values::{MAX_SECONDS, seconds, whole_number};

/// Timeouts and sizes of a [`Gateway`](super::Gateway).
///
/// ```
/// use std::time::Duration;
/// use tidegate_server::gateway::GatewayOptions;
///
/// let options = GatewayOptions::new().with_response_timeout(Duration::from_secs(5)).with_max_body_bytes(1 << 20);
/// assert_eq!(options.max_body_bytes(), 1 << 20);
/// ```
#[derive(Args, Clone, Debug)]
pub struct GatewayOptions {
    /// Maximum size of a request body through the gateway, in bytes; the default is unlimited
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_BODY_BYTES", value_parser = whole_number::<u64>(0..=u64::MAX), default_value_t = u64::MAX, hide_default_value = true, help_heading = LIMITS_HEADING, display_order = 3)]
    pub(super) max_body_bytes: u64,
    /// Time within which the response of --upstream must begin
    #[arg(long = "upstream-timeout", value_name = "DURATION", env = "TIDEGATE_UPSTREAM_TIMEOUT", value_parser = seconds(1..=MAX_SECONDS), default_value = "60s", help_heading = LIMITS_HEADING, display_order = 9)]
    pub(super) response_timeout: Duration,
    /// Time within which a body through the gateway must arrive, at any rate, if the response does not begin before
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_UPLOAD_TIMEOUT", value_parser = seconds(1..=MAX_SECONDS), default_value = "1h", help_heading = LIMITS_HEADING, display_order = 16)]
    pub(super) upload_timeout: Duration,
    /// Maximum number of connections to --upstream, and of requests at it; further requests wait for up to five seconds
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_UPSTREAM_CONNECTIONS", value_parser = whole_number::<usize>(1..=u64::MAX), default_value_t = Self::new().max_upstream_connections, help_heading = LIMITS_HEADING, display_order = 17)]
    pub(super) max_upstream_connections: usize,
    /// Maximum number of requests that wait for --upstream; further ones get 503
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_UPSTREAM_QUEUE", value_parser = whole_number::<usize>(0..=u64::MAX), default_value_t = Self::new().max_upstream_queue, help_heading = LIMITS_HEADING, display_order = 18)]
    pub(super) max_upstream_queue: usize,
    /// Log each request through the gateway when it is finished: its path without the query, no header values
    #[arg(long, env = "TIDEGATE_ACCESS_LOG", help_heading = "Log")]
    pub(super) access_log: bool,
    #[arg(skip = Self::new().connect_timeout)]
    pub(super) connect_timeout: Duration,
    #[arg(skip = Self::new().client_timeout)]
    pub(super) client_timeout: Duration,
    #[arg(skip = Self::new().min_rate)]
    pub(super) min_rate: u64,
    #[arg(skip)]
    pub(super) trust_forwarded: bool,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl GatewayOptions {
    /// The defaults: 5 seconds to connect, 60 seconds until the response begins; bodies of any length that arrive within an hour,
    /// for which a client may be waited for 60 seconds, of which each 1,024 bytes make up for one; 768 connections to the upstream, for
    /// which 256 requests may wait.
    pub const fn new() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_mins(1),
            max_body_bytes: u64::MAX,
            upload_timeout: Duration::from_hours(1),
            client_timeout: Duration::from_mins(1),
            min_rate: 1024,
            max_upstream_connections: 768,
            max_upstream_queue: 256,
            trust_forwarded: false,
            access_log: false,
        }
    }

    /// Answers 502 if a connection to the upstream takes longer.
    pub const fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Bounds the time without progress before the response begins: answers 504 if the upstream is slow, and 408 if the client
    /// stops in the middle of its body. A response that has begun may take any time.
    pub const fn with_response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Answers 413 to longer request bodies.
    pub const fn with_max_body_bytes(mut self, bytes: u64) -> Self {
        self.max_body_bytes = bytes;
        self
    }

    /// Answers 408 if the body of a request has not arrived in this time, as long as the response has not begun.
    pub const fn with_upload_timeout(mut self, timeout: Duration) -> Self {
        self.upload_timeout = timeout;
        self
    }

    /// Answers 408 if the client of a request has kept the gateway waiting for its body for `timeout`, before the response has
    /// begun. Each `min_rate` bytes make up for a second; with a `min_rate` of 0, each byte starts the time anew. The time in
    /// which the upstream does not read does not count. `timeout` also closes a tunnel of which one side has closed, when no byte
    /// has arrived from the other for that long.
    pub const fn with_upload_pace(mut self, timeout: Duration, min_rate: u64) -> Self {
        self.client_timeout = timeout;
        self.min_rate = min_rate;
        self
    }

    /// Bounds the connections to the upstream, and the requests and tunnels at it, at least 1. Further requests wait.
    pub const fn with_max_upstream_connections(mut self, connections: usize) -> Self {
        self.max_upstream_connections = connections;
        self
    }

    /// Bounds the requests that wait for the upstream. Further ones get 503, as do those that have waited for the
    /// [connect timeout](Self::with_connect_timeout).
    pub const fn with_max_upstream_queue(mut self, requests: usize) -> Self {
        self.max_upstream_queue = requests;
        self
    }

    /// Whether to forward `X-Forwarded-Proto` and `X-Forwarded-Host` unchanged. Only safe if all requests come through a proxy
    /// that sets them; otherwise any client can forge them.
    pub const fn with_trust_forwarded(mut self, trust: bool) -> Self {
        self.trust_forwarded = trust;
        self
    }

    /// Whether to emit a `tracing` event with the target `tidegate::access` for each finished request. It has the path without
    /// its query, and no header values.
    pub const fn with_access_log(mut self, access_log: bool) -> Self {
        self.access_log = access_log;
        self
    }

    /// See [`with_connect_timeout`](Self::with_connect_timeout).
    pub const fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// See [`with_max_body_bytes`](Self::with_max_body_bytes).
    pub const fn max_body_bytes(&self) -> u64 {
        self.max_body_bytes
    }

    /// See [`with_max_upstream_connections`](Self::with_max_upstream_connections).
    pub const fn max_upstream_connections(&self) -> usize {
        self.max_upstream_connections
    }

    /// See [`with_max_upstream_queue`](Self::with_max_upstream_queue).
    pub const fn max_upstream_queue(&self) -> usize {
        self.max_upstream_queue
    }

    /// See [`with_access_log`](Self::with_access_log).
    pub const fn access_log(&self) -> bool {
        self.access_log
    }
}
