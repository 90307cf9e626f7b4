//! `RedisOptions`: how a store uses its servers.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock, StoreError, StoreErrorKind};

/// The prefix of every key unless told otherwise.
pub const DEFAULT_PREFIX: &str = "tg";

/// How to use the server.
#[derive(Clone)]
pub struct RedisOptions {
    pub(crate) prefix: Arc<str>,
    pub(crate) budget: Duration,
    pub(crate) connection_timeout: Duration,
    pub(crate) most_in_flight: usize,
    pub(crate) heartbeats: bool,
    pub(crate) clock: Option<Arc<dyn Clock>>,
}

/// Options
impl RedisOptions {
    /// The prefix [`DEFAULT_PREFIX`], 25 milliseconds for a decision, a second for a connection, at most 1024 calls on their
    /// way to a server.
    pub fn new() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.into(),
            budget: Duration::from_millis(25),
            connection_timeout: Duration::from_secs(1),
            most_in_flight: 1024,
            heartbeats: true,
            clock: None,
        }
    }

    /// Puts `prefix` before every key: without braces, which would decide the slot, and short, since every key has it.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// What a decision, a peek, a correction may take, whatever happens on the way. Then it fails, as possibly applied. A
    /// server that has not answered after four fifths of it counts as silent. A plan may ask for
    /// [less](tidegate::spi::Plan::within).
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// What making a connection may take. Decisions wait for the first one only, and within their budget.
    pub fn connection_timeout(mut self, timeout: Duration) -> Self {
        self.connection_timeout = timeout;
        self
    }

    /// How many calls may be on their way to one server at the same time; one more fails at once, as
    /// [overloaded](StoreErrorKind::Overloaded). A batch counts as one.
    pub fn most_in_flight(mut self, calls: usize) -> Self {
        self.most_in_flight = calls;
        self
    }

    /// Whether this store counts as an instance, and says every few seconds that it lives. A program that only looks, and is
    /// gone in a moment, should not: others would leave it a share for as long as they remember it.
    pub fn heartbeats(mut self, beats: bool) -> Self {
        self.heartbeats = beats;
        self
    }

    /// Decides by `clock` instead of the server's time: for tests. Keys then live an hour longer, so that the real time
    /// does not take them away.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let wrong = |message| Err(StoreError::new(StoreErrorKind::Unexpected, message));
        if self.prefix.len() > 32 || self.prefix.contains(|c: char| c == '{' || c == '}' || !c.is_ascii_graphic()) {
            return wrong("the prefix must be at most 32 visible ASCII characters without braces");
        }
        if self.budget.is_zero() || self.connection_timeout.is_zero() || self.most_in_flight == 0 {
            return wrong("the budget, the connection timeout and the calls in flight must be more than none");
        }
        Ok(())
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self::new()
    }
}
