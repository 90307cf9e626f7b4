//! `DeniedState`: the state on which the store denied a check, and the decision on a later request from it.

use std::time::Duration;

use tidegate::spi::algorithm::{self, DecidedTake, Op, State, TakePosition};
use tidegate::spi::{Check, CheckVerdict, Plan};
use tidegate::{Limit, Timestamp};

/// The state on which the store denied a check.
pub(super) struct DeniedState {
    limit: Limit,
    /// It has no holds beside it.
    state: Option<State>,
    /// The denied cost. The summary of a log is that for one cost.
    cost: u64,
    /// The store's time of the decision.
    decided_at: Timestamp,
    /// When the call was sent, by the monotonic clock. It was decided later.
    sent: Duration,
    /// How long after that the entry is used.
    life: Duration,
}

impl DeniedState {
    /// The state after the denial of `check` on `found`, decided at `decided_at` by the store's clock.
    pub(super) fn new(
        plan: &Plan<'_>,
        check: &Check<'_>,
        found: Option<&State>,
        decided_at: Timestamp,
        sent: Duration,
        life: Duration,
    ) -> Self {
        let (limit, take) = (check.gate().limit(), plan.take(check, 1));
        let mut state = found.cloned();
        // It may have been rebased.
        algorithm::apply(&mut state, limit, decided_at, Op::Take(take));
        Self { limit: *limit, state, cost: take.total(), decided_at, sent, life }
    }

    /// The denial of `check` at `now`, by the monotonic clock, and its time by the store's clock. `None` if only the store can
    /// decide it.
    pub(super) fn deny(&self, plan: &Plan<'_>, check: &Check<'_>, now: Duration) -> Option<(CheckVerdict, Timestamp)> {
        // An injected clock may have been set back.
        let age = now.checked_sub(self.sent).filter(|age| *age < self.life)?;
        let (limit, take) = (check.gate().limit(), plan.take(check, 1));
        if self.limit != *limit {
            return None;
        }
        let now = self.decided_at.plus(age);
        let is_denied = if self.is_summary() {
            take.total() == self.cost
        } else {
            !algorithm::decide(self.state.as_ref(), limit, now, Op::Take(take)).admitted
        };
        if !is_denied {
            return None;
        }
        let decided = DecidedTake { take, admitted: false, consumed: false };
        let outcome = algorithm::outcome(self.state.as_ref(), limit, now, decided);
        Some((CheckVerdict::new(outcome, false, TakePosition::default()), now))
    }

    /// Whether the entry is no longer used.
    pub(super) fn has_ended(&self, now: Duration) -> bool {
        now.checked_sub(self.sent).is_none_or(|age| age >= self.life)
    }

    /// Whether this entry is kept when a denial with the state `other` arrives: it is newer, or it is the log of a smaller cost,
    /// which more requests have.
    pub(super) fn is_kept_over(&self, other: &Self, now: Duration) -> bool {
        let smaller = self.is_summary() && self.cost < other.cost;
        self.limit == other.limit && !self.has_ended(now) && (smaller || self.decided_at > other.decided_at)
    }

    /// Whether the state is the summary of a log. Slots are never cached.
    fn is_summary(&self) -> bool {
        self.state.as_ref().is_some_and(State::is_summary)
    }
}
