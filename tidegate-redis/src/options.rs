//! `RedisOptions`: how a store uses its servers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::spi::Namespace;
use tidegate::{Clock, StoreError, StoreErrorKind};

const DEFAULT_TIMEOUT: Duration = Duration::from_millis(25);
const DEFAULT_CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);
const DEFAULT_QUEUE_WAIT: Duration = Duration::from_millis(250);
const DEFAULT_MAX_WAITING: usize = 4096;

/// How a store uses its servers.
///
/// ```
/// use std::time::Duration;
/// use tidegate_redis::RedisOptions;
///
/// let options = RedisOptions::new().with_namespace("shop".parse()?).with_timeout(Duration::from_millis(10));
/// assert_eq!(options.namespace().as_str(), "shop");
/// # Ok::<(), tidegate::spi::NamespaceError>(())
/// ```
#[derive(Clone)]
pub struct RedisOptions {
    pub(crate) namespace: Namespace,
    pub(crate) timeout: Duration,
    pub(crate) connection_timeout: Duration,
    pub(crate) queue_wait: Duration,
    pub(crate) max_waiting: usize,
    pub(crate) heartbeats: bool,
    pub(crate) clock: Option<Arc<dyn Clock>>,
}

/// Setting options
impl RedisOptions {
    /// The defaults: namespace `tg`, a budget of 25 ms, one second for a connection, at most 4,096 plans that wait for one server,
    /// for at most 250 ms.
    pub fn new() -> Self {
        Self {
            namespace: Namespace::default(),
            timeout: DEFAULT_TIMEOUT,
            connection_timeout: DEFAULT_CONNECTION_TIMEOUT,
            queue_wait: DEFAULT_QUEUE_WAIT,
            max_waiting: DEFAULT_MAX_WAITING,
            heartbeats: true,
            clock: None,
        }
    }

    /// Sets the namespace, which keeps this deployment apart from others on the same servers. All stores of a deployment need the same.
    pub fn with_namespace(mut self, namespace: Namespace) -> Self {
        self.namespace = namespace;
        self
    }

    /// Sets the budget of a server: one that sends no byte for this long while it owes a reply counts as silent, and so does
    /// one that owes the same reply for four times as long. Time in which this process itself was too busy to notice a reply
    /// does not count. A plan may set a [timeout](tidegate::spi::Plan::with_timeout) of its own, which says nothing about the
    /// server.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how long a connection attempt may take. Decisions wait only for the first connection, and within their timeout.
    pub fn with_connection_timeout(mut self, timeout: Duration) -> Self {
        self.connection_timeout = timeout;
        self
    }

    /// Sets how long a plan may wait to be sent while the server answers others. After that it fails as
    /// [overloaded](StoreErrorKind::Overloaded), and has consumed nothing.
    pub fn with_queue_wait(mut self, wait: Duration) -> Self {
        self.queue_wait = wait;
        self
    }

    /// Sets how many plans may wait for one server. When there are more, plans of the subjects with the most plans waiting
    /// fail as [overloaded](StoreErrorKind::Overloaded).
    pub fn with_max_waiting(mut self, plans: usize) -> Self {
        self.max_waiting = plans;
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
    /// The namespace.
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The budget of a server.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How long a connection attempt may take.
    pub const fn connection_timeout(&self) -> Duration {
        self.connection_timeout
    }

    /// How long a plan may wait to be sent.
    pub const fn queue_wait(&self) -> Duration {
        self.queue_wait
    }

    /// How many plans may wait for one server.
    pub const fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    /// Whether the store sends heartbeats.
    pub const fn heartbeats(&self) -> bool {
        self.heartbeats
    }

    pub(crate) fn validate(&self) -> Result<(), StoreError> {
        let times = [self.timeout, self.connection_timeout, self.queue_wait];
        if times.iter().any(Duration::is_zero) || self.max_waiting == 0 {
            let message = "the timeouts, the queue wait and the waiting plans must be greater than zero";
            return Err(StoreError::new(StoreErrorKind::Unexpected, message));
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
            .field("namespace", &self.namespace)
            .field("timeout", &self.timeout)
            .field("connection_timeout", &self.connection_timeout)
            .field("queue_wait", &self.queue_wait)
            .field("max_waiting", &self.max_waiting)
            .field("heartbeats", &self.heartbeats)
            .finish_non_exhaustive()
    }
}
