//! `GatewayOptions`: how long the gateway waits for its upstream, and how much of a body it takes. It only holds the numbers.

use std::time::Duration;

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
    pub(super) max_body_bytes: u64,
    pub(super) trust_forwarded: bool,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl GatewayOptions {
    /// 5 seconds to connect, 60 for an answer to begin; bodies of any length.
    pub const fn new() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(60),
            max_body_bytes: u64::MAX,
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

    /// How long the body of a request may be. Beyond it, the answer is 413.
    pub const fn max_body_bytes(mut self, bytes: u64) -> Self {
        self.max_body_bytes = bytes;
        self
    }

    /// Whether `X-Forwarded-Proto` and `X-Forwarded-Host` are passed on as they come. Only right if all requests come
    /// through a proxy that sets them: otherwise every client can.
    pub const fn trust_forwarded(mut self, trust: bool) -> Self {
        self.trust_forwarded = trust;
        self
    }
}
