//! `RedisOptions`: how a store uses its servers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock, StoreError, StoreErrorKind};

/// The default prefix of every key.
pub const DEFAULT_PREFIX: &str = "tg";

const DEFAULT_TIMEOUT: Duration = Duration::from_millis(25);
const DEFAULT_CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);
const DEFAULT_MAX_IN_FLIGHT: usize = 1024;
const MAX_PREFIX_BYTES: usize = 32;

/// How a store uses its servers.
///
/// ```
/// use std::time::Duration;
/// use tidegate_redis::RedisOptions;
///
/// let options = RedisOptions::new().with_prefix("shop").with_timeout(Duration::from_millis(10));
/// assert_eq!(options.prefix(), "shop");
/// ```
#[derive(Clone)]
pub struct RedisOptions {
    pub(crate) prefix: Arc<str>,
    pub(crate) timeout: Duration,
    pub(crate) connection_timeout: Duration,
    pub(crate) max_in_flight: usize,
    pub(crate) heartbeats: bool,
    pub(crate) clock: Option<Arc<dyn Clock>>,
}

/// Setting options
impl RedisOptions {
    /// The defaults: prefix [`DEFAULT_PREFIX`], a timeout of 25 ms, one second for a connection, at most 1024 calls in
    /// flight to one server.
    pub fn new() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.into(),
            timeout: DEFAULT_TIMEOUT,
            connection_timeout: DEFAULT_CONNECTION_TIMEOUT,
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            heartbeats: true,
            clock: None,
        }
    }

    /// Sets the prefix of every key: at most 32 visible ASCII characters, without braces, which would change the slot.
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how long a decision or an adjustment may take in total. After that it fails as possibly applied. A server that
    /// has not responded within four fifths of the timeout counts as silent. A plan may set a
    /// [shorter timeout](tidegate::spi::Plan::with_timeout).
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how long a connection attempt may take. Decisions wait only for the first connection, and within their timeout.
    pub fn with_connection_timeout(mut self, timeout: Duration) -> Self {
        self.connection_timeout = timeout;
        self
    }

    /// Sets how many calls may be in flight to one server. Further calls fail at once as
    /// [overloaded](StoreErrorKind::Overloaded). A batch counts as one call.
    pub fn with_max_in_flight(mut self, calls: usize) -> Self {
        self.max_in_flight = calls;
        self
    }

    /// Sets whether this store counts as an [instance](crate::RedisStore::instances) and sends heartbeats. Short-lived
    /// programs should turn them off: otherwise the other instances reserve a share of local limits for them.
    pub fn with_heartbeats(mut self, enabled: bool) -> Self {
        self.heartbeats = enabled;
        self
    }

    /// Sets a clock to use instead of the server's, for tests. Keys then expire an hour later, since the server's clock may
    /// run ahead of the injected one.
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }
}

/// Reading options
impl RedisOptions {
    /// The prefix of every key.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// How long a decision may take.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How long a connection attempt may take.
    pub const fn connection_timeout(&self) -> Duration {
        self.connection_timeout
    }

    /// How many calls may be in flight to one server.
    pub const fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    /// Whether the store sends heartbeats.
    pub const fn heartbeats(&self) -> bool {
        self.heartbeats
    }

    pub(crate) fn validate(&self) -> Result<(), StoreError> {
        let invalid = |message| Err(StoreError::new(StoreErrorKind::Unexpected, message));
        let is_forbidden = |c: char| c == '{' || c == '}' || !c.is_ascii_graphic();
        if self.prefix.len() > MAX_PREFIX_BYTES || self.prefix.contains(is_forbidden) {
            return invalid("the prefix must be at most 32 visible ASCII characters without braces");
        }
        if self.timeout.is_zero() || self.connection_timeout.is_zero() || self.max_in_flight == 0 {
            return invalid("the timeout, the connection timeout and the calls in flight must be greater than zero");
        }
        Ok(())
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("connection_timeout", &self.connection_timeout)
            .field("max_in_flight", &self.max_in_flight)
            .field("heartbeats", &self.heartbeats)
            .finish_non_exhaustive()
    }
}
