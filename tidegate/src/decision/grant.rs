//! What a decision took.

use super::{CheckResult, Decision};
use crate::grant::{Grant, GrantPart};
use crate::limit::Algorithm;
use crate::plan::Role;

impl Decision {
    /// What the request took, to be ended by [`Limiter::end`](crate::Limiter::end) or held by [`Limiter::hold`](crate::Limiter::hold). Only the
    /// first call returns it, later ones return an empty grant: so nothing ends twice.
    ///
    /// A denied request took nothing. What was decided without the store took nothing that could be given back, except for slots and holds, which
    /// are in the memory of this instance then.
    ///
    /// A request with a [delay](Self::delay) holds its slots from the decision on: renew them at the end of a long delay.
    pub fn take_grant(&mut self) -> Grant {
        let grant = self.grant();
        self.is_grant_taken = true;
        grant
    }

    pub(crate) fn grant(&self) -> Grant {
        if self.is_grant_taken {
            return Grant::default();
        }
        let checks = self.checks.iter().enumerate().filter(|(_, check)| self.has_taken(check));
        let units = self.granted.max(1);
        Grant::new(
            checks.map(|(index, check)| GrantPart::new(index, check, units, &self.budget_shares)),
            self.has_lost_place(),
        )
    }

    fn has_taken(&self, check: &CheckResult) -> bool {
        let is_slot = check.algorithm == Algorithm::Concurrency;
        if is_slot || check.hold {
            let is_kept = self.is_allowed() || is_slot && !check.local;
            return check.consumed && is_kept;
        }
        // A check without a cost consumed nothing, but a settlement may charge it.
        let is_penalty = check.algorithm == Algorithm::Penalty;
        let is_free = check.cost == 0 && self.is_allowed() && check.role != Role::Shadow && !is_penalty;
        !check.local && (check.consumed || is_free)
    }

    /// Whether the request has a place in a queue that cannot be given back.
    fn has_lost_place(&self) -> bool {
        let is_lost = |check: &CheckResult| {
            let is_place = check.algorithm == Algorithm::LeakyBucket && check.role != Role::Shadow && check.cost > 0;
            is_place && (check.local || check.overflowed && check.consumed)
        };
        self.is_allowed() && self.checks.iter().any(is_lost)
    }
}
