//! `Expiry`: which jobs that were not sent have waited for too long, and what their callers are told.
//!
//! While the server answers, a job that waits for longer than it may is *overloaded*. If the server has sent nothing since the
//! job arrived, it is not known yet whether it is busy or silent: the job waits until one of both shows, or until the deadline
//! of its caller.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::crowd::KeyCounts;
use super::job::{Job, PendingPlan, WaitLimits};
use super::shared::ConnectionShared;
use crate::breaker::BreakerState;
use crate::node_error::{DownReason, NodeError};

/// Which waits end a job that is not sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsOver {
    /// The deadline of the caller, and every wait if there is no connection.
    Deadline,
    Any,
}

/// The situation in which jobs expire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expiry {
    pub(super) now: Instant,
    pub(super) waits_over: WaitsOver,
    /// When the last byte arrived. `None` without a connection that has answered.
    pub(super) last_byte_at: Option<Instant>,
}

/// The jobs that still wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct StillWaiting {
    pub(super) first_deadline: Option<Instant>,
    /// Whether some of them wait only because the server has sent nothing since they arrived.
    pub(super) any_overdue: bool,
}

impl Expiry {
    /// Whether the job has waited for too long.
    fn is_due(&self, waits: &WaitLimits) -> bool {
        match self.waits_over {
            _ if self.last_byte_at.is_none() => waits.unsent_until(false) <= self.now,
            WaitsOver::Deadline => waits.is_deadline_over(self.now),
            WaitsOver::Any => {
                waits.is_over(self.now) || (waits.is_queue_wait_over(self.now) && self.has_answered(waits))
            }
        }
    }

    /// Whether the server has sent something since the job arrived.
    fn has_answered(&self, waits: &WaitLimits) -> bool {
        self.last_byte_at.is_some_and(|at| at > waits.submitted_at)
    }

    /// When the job expires.
    fn deadline(&self, waits: &WaitLimits) -> Option<Instant> {
        match self.last_byte_at {
            Some(_) if waits.is_queue_wait_over(self.now) => waits.end(),
            last_byte_at => Some(waits.unsent_until(last_byte_at.is_some())),
        }
    }

    /// What the caller is told.
    fn error(&self, waits: &WaitLimits, reason: &Arc<DownReason>, is_crowded: impl FnOnce() -> bool) -> NodeError {
        if self.last_byte_at.is_none() {
            return NodeError::Down(Arc::clone(reason));
        }
        // Whatever the server does, a crowd is refused: until it is silent, a flood must not gain by the wait.
        match (is_crowded(), self.has_answered(waits)) {
            (false, false) => NodeError::Down(Arc::new(DownReason::TIMED_OUT)),
            (is_crowded, _) => NodeError::Overloaded { is_crowded },
        }
    }
}

impl ConnectionShared {
    /// Fails the jobs that have waited for too long to be sent.
    pub(super) fn expire_unsent(&self, expiry: Expiry) -> StillWaiting {
        let mut state = self.lock();
        let is_slow = |waits: &WaitLimits| expiry.last_byte_at.is_none() && waits.is_setup_over(expiry.now);
        let is_slow_connect = state.plans.iter().any(|plan| is_slow(plan.waits()))
            || state.calls.iter().any(|call| is_slow(call.waits()));
        let reason = Arc::clone(&state.reason);
        let mut failed = 0;
        if state.plans.iter().any(|plan| expiry.is_due(plan.waits())) {
            let counts = KeyCounts::of_plans(state.plans.iter().map(|plan| plan.packed.key_hashes()));
            // The last plan of a flood is alone only because the others were sent.
            let is_crowded = |plan: &PendingPlan| {
                plan.was_crowded.load(Ordering::Relaxed) || counts.crowd(plan.packed.key_hashes()).0 > 1
            };
            failed += state.plans.fail(|plan| {
                let error = || expiry.error(plan.waits(), &reason, || is_crowded(plan));
                expiry.is_due(plan.waits()).then(error)
            });
        }
        failed +=
            state.calls.fail(|call| expiry.is_due(call.waits()).then(|| expiry.error(call.waits(), &reason, || false)));
        if expiry.last_byte_at.is_some() {
            self.overloaded.fetch_add(failed as u64, Ordering::Relaxed);
        } else if is_slow_connect && state.breaker.state() == BreakerState::Closed {
            // The first connection takes longer than callers wait. Further callers fail at once until it is made.
            state.breaker.record_slow_connect();
            state.fail_waiting();
        }
        let plans = state.plans.iter().map(|plan| *plan.waits());
        let waiting = plans.chain(state.calls.iter().map(|call| *call.waits()));
        let mut still_waiting = StillWaiting { first_deadline: None, any_overdue: false };
        for waits in waiting {
            still_waiting.first_deadline =
                still_waiting.first_deadline.into_iter().chain(expiry.deadline(&waits)).min();
            still_waiting.any_overdue |= expiry.last_byte_at.is_some() && waits.is_queue_wait_over(expiry.now);
        }
        still_waiting
    }
}
