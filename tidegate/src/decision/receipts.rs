//! What a decision has consumed, holds and reserves.

use super::{CheckResult, Decision};
use crate::limit::Algorithm;
use crate::plan::Role;
use crate::{Lease, Receipt, Reservation};

impl Decision {
    /// The receipt for a later refund or settlement. It is empty for a denied decision, and for one that was made without the store.
    /// What a [reservation](Self::reservation) holds is not part of it.
    /// It takes the decision, so that nothing is refunded twice.
    pub fn into_receipt(self) -> Receipt {
        self.consumed()
    }

    pub(crate) fn consumed(&self) -> Receipt {
        // A check without a cost consumed nothing, but a settlement may charge it.
        let free = |check: &CheckResult| {
            let is_penalty = check.algorithm == Algorithm::Penalty;
            check.cost == 0 && self.is_allowed() && check.role != Role::Shadow && !is_penalty
        };
        let is_taken = |check: &CheckResult| !check.local && !check.hold && (check.consumed || free(check));
        let taken = self.checks.iter().enumerate().filter(|(_, check)| is_taken(check));
        let is_lost = |check: &CheckResult| {
            let is_place = check.algorithm == Algorithm::LeakyBucket && check.role != Role::Shadow && check.cost > 0;
            is_place && (check.local || check.overflowed && check.consumed)
        };
        let has_lost_place = self.is_allowed() && self.checks.iter().any(is_lost);
        Receipt::new(self.granted.max(1), taken, &self.budget_shares, has_lost_place)
    }

    /// The slots of concurrency limits that the request holds, until they are [released](crate::Limiter::release) or run out. `None` if
    /// it holds none. A [refund](crate::Limiter::refund) of the whole request releases them, too.
    ///
    /// A request with a [delay](Self::delay) holds its slots from the decision on: renew them at the end of a long delay.
    pub fn lease(&self) -> Option<Lease> {
        let is_slot =
            |check: &CheckResult| self.is_allowed() && check.consumed && check.algorithm == Algorithm::Concurrency;
        let slots = || self.checks.iter().enumerate().filter(|(_, check)| is_slot(check));
        let duration = slots().filter_map(|(_, check)| check.window().duration()).min()?;
        let [stored, local] = [false, true].map(|is_local| {
            let slots = slots().filter(|(_, check)| check.local == is_local);
            Receipt::new(self.granted, slots, &self.budget_shares, false)
        });
        Lease::new(stored, local, duration)
    }

    /// What the request has reserved, until it is [committed](crate::Limiter::commit), [released](crate::Limiter::release_reservation)
    /// or runs out. `None` if the decision is not of a [reservation](crate::Limiter::reserve), or nothing is held.
    pub fn reservation(&self) -> Option<Reservation> {
        let is_held = |check: &CheckResult| {
            let is_held = check.hold || check.algorithm == Algorithm::Concurrency;
            self.is_reservation && self.is_allowed() && check.consumed && is_held
        };
        let [stored, local] = [false, true].map(|is_local| {
            let held = self.checks.iter().enumerate().filter(|(_, check)| is_held(check) && check.local == is_local);
            Receipt::new(self.granted, held, &self.budget_shares, false)
        });
        let leases = self.checks.iter().filter(|check| is_held(check) && !check.hold);
        Reservation::new(stored, local, leases.filter_map(|check| check.window().duration()).min())
    }
}
