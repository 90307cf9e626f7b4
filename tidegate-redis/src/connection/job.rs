//! What callers hand to the task of a connection: [`PendingPlan`]s, which are combined, and [`PendingCall`]s, which are not.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::pending::Pending;
use crate::node_error::NodeError;
use crate::packed_plan::PackedPlan;
use crate::reply::PlanReply;
use crate::scripts::Script;
use crate::silence::MAX_UNANSWERED_BUDGETS;
use crate::timeouts::Timeouts;
use crate::timer;

/// A plan that a caller waits for.
pub(crate) struct PendingPlan {
    pub(super) packed: Arc<PackedPlan>,
    /// Whether `ASKING` precedes it, for a server that is importing the slot. Such a plan is sent alone.
    pub(super) asking: bool,
    pub(super) waits: WaitLimits,
    /// Whether it has waited together with another plan of its subject, which may have been sent since.
    pub(super) was_crowded: AtomicBool,
    pub(super) result: Pending<PlanReply>,
}

/// Commands that a caller waits for.
pub(crate) struct PendingCall {
    pub(super) commands: Vec<u8>,
    /// How many replies are expected, without that to `ASKING`.
    pub(super) replies: usize,
    /// The script of the only command.
    pub(super) script: Option<&'static Script>,
    pub(super) asking: bool,
    pub(super) waits: WaitLimits,
    pub(super) result: Pending<Vec<Value>>,
}

/// How long a job may wait, and for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitLimits {
    /// The server counts as silent after this time without a byte.
    pub(super) budget: Duration,
    pub(super) submitted_at: Instant,
    /// Until when it waits for a connection, unless its own deadline is earlier.
    setup_until: Instant,
    /// Until when it waits to be sent, unless its own deadline is earlier.
    queue_until: Instant,
    /// The deadline of the caller for everything.
    pub(super) deadline: Option<Instant>,
    /// Until when it is tried, without such a deadline.
    attempts_until: Option<Instant>,
    /// The number of connection attempts after which it fails, for a job that waits for the next attempt.
    pub(super) fails_after_attempt: Option<u64>,
}

/// A job in a queue.
pub(super) trait Job {
    fn waits(&self) -> &WaitLimits;

    /// Fails the job, unless it was sent or withdrawn. Returns whether it was waiting.
    fn fail_unsent(&self, error: NodeError) -> bool;

    fn is_waiting(&self) -> bool;
}

impl PendingPlan {
    pub(super) fn new(packed: &Arc<PackedPlan>, asking: bool, waits: WaitLimits) -> Self {
        Self { packed: Arc::clone(packed), asking, waits, was_crowded: AtomicBool::new(false), result: Pending::new() }
    }
}

impl WaitLimits {
    /// The limits of a job that is submitted `now`, after this many connection attempts.
    pub(super) fn new(timeouts: Timeouts, now: Instant, attempts: u64) -> Self {
        Self {
            budget: timeouts.budget,
            submitted_at: now,
            setup_until: timer::after(now, timeouts.setup),
            queue_until: timer::after(now, timeouts.queue_wait),
            deadline: timeouts.deadline,
            attempts_until: timeouts.attempts_until,
            fails_after_attempt: timeouts.waits_for_retry.then_some(attempts),
        }
    }

    /// Until when the job may be unsent, with or without a connection.
    pub(super) fn unsent_until(&self, is_connected: bool) -> Instant {
        let until = if is_connected { self.queue_until } else { self.setup_until };
        self.end().map_or(until, |end| end.min(until))
    }

    /// When all its time ends.
    pub(super) fn end(&self) -> Option<Instant> {
        [self.deadline, self.attempts_until].into_iter().flatten().min()
    }

    /// Whether all its time is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.end().is_some_and(|end| end <= now)
    }

    /// Whether the deadline of the caller has passed.
    pub(super) fn is_deadline_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether the job has waited to be sent for as long as it may, whatever its own deadline is.
    pub(super) fn is_queue_wait_over(&self, now: Instant) -> bool {
        self.queue_until <= now
    }

    /// Whether the job has waited for a connection for as long as it may, whatever its own deadline is.
    pub(super) fn is_setup_over(&self, now: Instant) -> bool {
        self.setup_until <= now
    }

    /// Until when the caller of a job that is sent `now` waits for the reply. Silence ends the wait much earlier.
    pub(super) fn reply_until(&self, now: Instant) -> Instant {
        self.deadline.unwrap_or_else(|| match self.attempts_until {
            // A job that was sent at the last moment, because this process was late, has a budget for its reply like any other.
            Some(until) => until.max(timer::after(now, self.budget)),
            None => timer::after(now, self.budget.saturating_mul(MAX_UNANSWERED_BUDGETS)),
        })
    }
}

impl Job for PendingPlan {
    fn waits(&self) -> &WaitLimits {
        &self.waits
    }

    fn fail_unsent(&self, error: NodeError) -> bool {
        self.result.fail_unsent(error)
    }

    fn is_waiting(&self) -> bool {
        self.result.is_waiting()
    }
}

impl Job for PendingCall {
    fn waits(&self) -> &WaitLimits {
        &self.waits
    }

    fn fail_unsent(&self, error: NodeError) -> bool {
        self.result.fail_unsent(error)
    }

    fn is_waiting(&self) -> bool {
        self.result.is_waiting()
    }
}
