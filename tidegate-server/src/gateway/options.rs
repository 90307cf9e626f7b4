//! `GatewayOptions`: how long the gateway waits for whom, and how much it takes from a client. It only holds the numbers.

use std::time::Duration;

/// The smallest space for a head that HTTP/1.1 can be read with.
const SMALLEST_HEAD: usize = 8192;

/// How long the gateway waits, and how much it takes.
///
/// ```
/// use std::time::Duration;
/// use tidegate_server::gateway::GatewayOptions;
///
/// let options = GatewayOptions::new().response_timeout(Duration::from_secs(5)).max_body_bytes(1 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    pub(super) header_timeout: Duration,
    pub(super) drain_timeout: Duration,
    pub(super) max_body_bytes: u64,
    pub(super) max_header_bytes: usize,
    pub(super) trust_forwarded: bool,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl GatewayOptions {
    /// 5 seconds to connect, 60 for an answer to begin, 30 for a client to send a head and for the gateway to end; bodies of
    /// any length, heads of 64 KiB.
    pub const fn new() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(60),
            header_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            max_body_bytes: u64::MAX,
            max_header_bytes: 64 * 1024,
            trust_forwarded: false,
        }
    }

    /// How long a connection to the upstream may take. Then the answer is 502.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long nothing may happen before the answer begins. If the upstream is waited for, the answer is 504 then, and if
    /// the client stops in the middle of its body, 408. Once the answer has begun, it may take as long as it wants.
    pub const fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// How long a client may take to send the head of a request, from when it connects or from the answer before.
    pub const fn header_timeout(mut self, timeout: Duration) -> Self {
        self.header_timeout = timeout;
        self
    }

    /// How long requests and tunnels that are under way may go on after the gateway was told to end.
    pub const fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// How long the body of a request may be. Beyond it, the answer is 413.
    pub const fn max_body_bytes(mut self, bytes: u64) -> Self {
        self.max_body_bytes = bytes;
        self
    }

    /// How long the head of a request may be, at least 8 KiB. Beyond it, the answer is 431.
    pub const fn max_header_bytes(mut self, bytes: usize) -> Self {
        self.max_header_bytes = if bytes < SMALLEST_HEAD { SMALLEST_HEAD } else { bytes };
        self
    }

    /// Whether `X-Forwarded-Proto` and `X-Forwarded-Host` are passed on as they come. Only right if all requests come
    /// through a proxy that sets them: otherwise every client can.
    pub const fn trust_forwarded(mut self, trust: bool) -> Self {
        self.trust_forwarded = trust;
        self
    }
}
