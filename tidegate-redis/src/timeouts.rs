//! `Timeouts`: how long one call waits for a connection, to be sent, and for its reply.

use std::time::Duration;

use tokio::time::Instant;

use crate::options::RedisOptions;
use crate::silence::MAX_UNANSWERED_BUDGETS;
use crate::timer;

/// Lower bound of the budget of calls at startup, when a server may still be starting.
const MIN_STARTUP_BUDGET: Duration = Duration::from_secs(5);

/// Lower bound of the budget of calls that no decision waits for: topology queries and heartbeats.
const MIN_BACKGROUND_BUDGET: Duration = Duration::from_millis(100);

/// How long one call waits, and for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// The server counts as silent after this time without a byte. The reply is waited for at most four times as long.
    pub(crate) budget: Duration,
    /// For what the call needs before it can be sent: a connection, the name of the primary, the slot map.
    pub(crate) setup: Duration,
    /// How long the call waits to be sent while the server answers others.
    pub(crate) queue_wait: Duration,
    /// The caller's own deadline. That it passes says nothing about the server.
    pub(crate) deadline: Option<Instant>,
    /// Until when a call without such a deadline is tried. If this process is so late that it has passed before the call could be
    /// sent, the call is sent all the same.
    pub(crate) attempts_until: Option<Instant>,
    /// Whether the call waits for the next connection attempt when the last one failed. Decisions do not: they fail at once.
    pub(crate) waits_for_retry: bool,
}

impl Timeouts {
    /// Those of a decision.
    pub(crate) const fn for_decision(options: &RedisOptions) -> Self {
        Self {
            budget: options.timeout,
            setup: options.timeout,
            queue_wait: options.queue_wait,
            deadline: None,
            attempts_until: None,
            waits_for_retry: false,
        }
    }

    /// Those of a call that no decision waits for.
    pub(crate) fn for_background(options: &RedisOptions) -> Self {
        let budget = options.timeout.max(MIN_BACKGROUND_BUDGET);
        Self { budget, setup: options.connection_timeout, ..Self::for_decision(options) }
    }

    /// Those of a call at startup.
    pub(crate) fn for_startup(options: &RedisOptions) -> Self {
        let budget = MIN_STARTUP_BUDGET.max(options.timeout);
        Self {
            budget,
            setup: options.connection_timeout,
            queue_wait: budget.max(options.queue_wait),
            deadline: None,
            attempts_until: None,
            waits_for_retry: true,
        }
    }

    /// Sets the caller's own deadline.
    pub(crate) fn with_deadline(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = [self.deadline, deadline].into_iter().flatten().min();
        self
    }

    /// Bounds the time of all attempts to the longest time of one call, from now on.
    pub(crate) fn with_bounded_attempts(self) -> Self {
        Self { attempts_until: Some(timer::after(timer::now(), self.total())), ..self }
    }

    /// When the time for all attempts ends.
    pub(crate) fn end(&self) -> Option<Instant> {
        [self.deadline, self.attempts_until].into_iter().flatten().min()
    }

    /// How long the call still waits for what it needs before it can be sent.
    pub(crate) fn setup_left(&self) -> Duration {
        let left = |deadline: Instant| deadline.saturating_duration_since(timer::now());
        self.end().map_or(self.setup, |end| self.setup.min(left(end)))
    }

    /// The longest time that a call takes once there is a connection.
    pub(crate) fn total(&self) -> Duration {
        self.queue_wait.saturating_add(self.budget.saturating_mul(MAX_UNANSWERED_BUDGETS))
    }
}
