//! Holds: what reservations keep for themselves until the actual cost is known. They are the same beside every kind of limit.
//!
//! A hold has an owner, a number of units, and the instant a at which it was made. With a time to live of T, it is *open* at t if
//! a ≤ t < a + T and it was neither committed nor released. H(t) is the sum of the open holds; under a fixed window, only of those made
//! in the window of t. Whenever a request of cost c is admitted or reserved at t:
//!
//! ```text
//! the limit by itself would admit  c + H(t)
//! ```
//!
//! so no more than the limit is consumed and held together. Error bound: that of the limit.
//!
//! - **Take**: a cost of 0 is admitted as if there were no holds.
//! - **Reserve**: a hold with the cost of the take, which may be 0. An owner has one hold: its second reservation with the same cost
//!   changes nothing and is admitted, so a reservation that may have been applied can be repeated. With another cost, and after its
//!   end, it is refused.
//! - **Commit**: ends the hold and [charges](Op::Charge) the actual cost: at most what the limit by itself has left, whatever others hold, since it
//!   has occurred. Otherwise a client could hide what it consumes behind a hold of its own, and release that. Under a fixed
//!   window, the cost belongs to the window in which the hold was made; if that is over, nothing is charged.
//! - **Release**: ends the hold.
//! - **Charge**, **Refund**: on the limit, as if there were no holds.
//!
//! A hold or an end that has run out is equivalent to none. The next write drops it, without any sweeper. A peek, a repeat, a refusal, and
//! the end of a hold that is not open write nothing. Nor does a denial, except by a quota in debt: otherwise a list would be kept as long
//! as the debt. All but peeks and refusals write if something lies too far ahead or another window has begun.
//!
//! When the clock steps back, nothing is forgotten that had not run out by the later time: what lies more than the margin ahead moves to
//! now, and lasts for its time to live from then. What had run out counts again, unless it was dropped. So no unit is given out twice:
//! whatever consumes or holds units drops it first.
//!
//! The end of a *keyed* hold is remembered until the hold would have run out: the same end again changes nothing and is admitted, any other
//! step is refused. There are at most [`MAX_RESERVATIONS`] entries. Beyond, the oldest end is forgotten; if all are open,
//! reservations are denied.
//!
//! Others may end their holds at any time, so the retry of a request that the limit by itself would admit is always
//! [`RETRY`]. All other numbers are those of a limit from which the held units were consumed.
//!
//! A leaky bucket, a concurrency limit and a penalty keep no holds: a reservation is a take there, and its end releases the slot of its owner.
//!
//! A reservation is a hold, and not a take that is corrected later: its expiry is exact without a sweeper (counted units would have to be
//! given back to a bucket that has refilled since), the rule is the same beside every kind of limit, and holds can be listed.
//!
//! A value with holds begins with two zero bytes, which every limit rejects as unreadable. Only then `holds.lua` runs, so limits without
//! reservations keep their states and their scripts.
//!
//! Every operation on a key copies its list. A client could fill a list by reservations of nothing, flood the key, and keep the server from
//! everybody else. Three bounds prevent that: the length of a list; equal takes beside holds are counted together, as on any other state; and
//! a call has few operations on long lists.

mod hold_list;
#[cfg(test)]
mod tests;

use super::concurrency::RETRY;
use super::sliding_log::current;
use super::{
    AdjustmentOutcome, Change, DecidedTake, HoldOp, Op, OpResult, Outcome, State, StateView, Take, TakePosition,
};
use crate::ledger::GateHold;
use crate::limit::MAX_AMOUNT;
use crate::{Limit, Timestamp};
pub(crate) use hold_list::HoldEvent;
use hold_list::{CurrentHolds, Hold, HoldEdit, Holds};
pub use hold_list::{HoldStatus, HoldsChange, HoldsSummary, stored_summary};

/// The largest number of open and remembered holds under one key.
pub const MAX_RESERVATIONS: usize = 1_024;

/// The state of a limit with the holds beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateWithHolds {
    inner: Option<State>,
    holds: Holds,
}

impl StateWithHolds {
    /// The state of the limit.
    pub(super) const fn inner(&self) -> Option<&State> {
        self.inner.as_ref()
    }

    /// The same state with another one of the limit.
    pub(super) fn around(inner: Option<State>) -> Self {
        Self { inner, holds: Holds::default() }
    }

    /// The same holds beside another state of the limit.
    pub(crate) fn with_inner(&self, inner: Option<State>) -> Self {
        Self { inner, holds: self.holds.clone() }
    }

    /// The state of a quota and its reservations, as the ledger knows them.
    pub(crate) fn from_ledger(inner: Option<State>, holds: &[GateHold]) -> Self {
        Self { inner, holds: Holds::from_ledger(holds) }
    }

    /// The state of the limit, if no holds are left beside it.
    pub(super) fn into_inner(self) -> Result<State, Self> {
        match self {
            Self { inner: Some(inner), holds } if holds.entries.is_empty() => Ok(inner),
            with_holds => Err(with_holds),
        }
    }

    /// Applies a change that [`apply`] returned.
    pub(super) fn commit(&mut self, mut change: HoldsChange) {
        if let Some(inner) = change.inner.take() {
            match &mut self.inner {
                Some(state) => state.commit(inner),
                None => self.inner = Some(State::new(inner)),
            }
        }
        self.holds.commit(&change);
    }

    /// The first instant, in microseconds, at which it is equivalent to none.
    pub(super) fn expiry(&self, limit: &Limit) -> u64 {
        let inner = self.inner.as_ref().map_or(0, |inner| super::expiry(inner, limit));
        if self.holds.entries.is_empty() { inner } else { inner.max(self.holds.newest() + self.holds.ttl) }
    }
}

/// The state of the limit, without holds.
pub(super) fn limit_state(state: Option<&State>) -> Option<&State> {
    split(state).0
}

/// The state of the limit, and the holds.
fn split(state: Option<&State>) -> (Option<&State>, Option<&Holds>) {
    match state {
        Some(State::WithHolds(state)) => (state.inner.as_ref(), Some(&state.holds)),
        state => (state, None),
    }
}

/// Decides `op` on a state with holds, or a [`HoldOp`] on any. Twin: `holds.lua`.
pub(super) fn apply(state: Option<&State>, limit: &Limit, now: Timestamp, op: Op) -> OpResult<Change> {
    let (inner, holds) = split(state);
    let held = Holds::at(holds, inner, limit, now);
    let CurrentHolds { clock, since, is_stale, .. } = held;
    let change = |inner, edit| Change::Holds(Box::new(HoldsChange { inner, clock, since, edit }));
    let result = |admitted: bool, inner: Option<Change>, edit: HoldEdit| {
        let is_changed = inner.is_some() || edit != HoldEdit::Keep || is_stale;
        OpResult { admitted, change: is_changed.then(|| change(inner, edit)) }
    };
    match op {
        Op::Take(take) if holds.is_some() => {
            let OpResult { admitted, change } = held.decide(inner, limit, now, take);
            result(admitted, change, HoldEdit::Keep)
        }
        Op::Hold(op) if !limit.keeps_holds() => without_holds(state, limit, now, op),
        Op::Hold(HoldOp::Reserve { take, ttl_micros: ttl }) => {
            match status_in(holds, clock, take.owner) {
                HoldStatus::Absent => {}
                status => return result(status == HoldStatus::Open(take.total()), None, HoldEdit::Keep),
            }
            let OpResult { admitted, change } = held.decide(inner, limit, now, take);
            if !admitted || !holds.is_none_or(|holds| holds.has_room(clock)) {
                return result(false, change.filter(|_| !admitted), HoldEdit::Keep);
            }
            result(true, None, HoldEdit::Place { owner: take.owner, units: take.total(), ttl })
        }
        Op::Hold(HoldOp::Commit { cost, position }) => {
            let (owner, cost) = (position.index(), cost.min(MAX_AMOUNT));
            let Some(hold) = holds.and_then(|holds| holds.find(owner, clock)) else {
                return result(false, None, HoldEdit::Keep);
            };
            if !hold.is_open() {
                return result(hold.status == HoldStatus::Committed(cost), None, HoldEdit::Keep);
            }
            let charge = super::charge_at(inner, limit, now, cost, hold.at.min(clock), since);
            let charged = charge.and_then(|charge| {
                let charge = match position.overflow_bucket() {
                    Some(_) => super::without_debt(inner, limit, now, charge),
                    None => charge,
                };
                super::apply(inner, limit, now, charge).change
            });
            let remembered = position.is_keyed_hold().then_some(HoldStatus::Committed(cost));
            result(true, charged, HoldEdit::End { owner, remembered })
        }
        Op::Hold(HoldOp::Release { position }) => {
            let owner = position.index();
            match status_in(holds, clock, owner) {
                HoldStatus::Open(_) => {
                    let remembered = position.is_keyed_hold().then_some(HoldStatus::Released);
                    result(true, None, HoldEdit::End { owner, remembered })
                }
                status => result(status == HoldStatus::Released, None, HoldEdit::Keep),
            }
        }
        op => {
            let OpResult { admitted, change } = super::apply(inner, limit, now, op);
            match change {
                Some(inner) => result(admitted, Some(inner), HoldEdit::Keep),
                None => OpResult { admitted, change: None },
            }
        }
    }
}

impl CurrentHolds {
    /// Decides a take of the limit beside the holds. The change is that of the limit.
    fn decide(&self, inner: Option<&State>, limit: &Limit, now: Timestamp, take: Take) -> OpResult<Change> {
        let alone = super::apply(inner, limit, now, Op::Take(take));
        if !alone.admitted || self.held == 0 || take.total() == 0 {
            return alone;
        }
        let with_held = Take::one(take.total().saturating_add(self.held));
        if super::apply(inner, limit, now, Op::Take(with_held)).admitted { alone } else { OpResult::denied(None) }
    }
}

/// A reservation under a limit that keeps no holds.
fn without_holds(state: Option<&State>, limit: &Limit, now: Timestamp, op: HoldOp) -> OpResult<Change> {
    match (op, limit) {
        (HoldOp::Reserve { take, .. }, _) => super::apply(state, limit, now, Op::Take(take)),
        (HoldOp::Commit { position, .. } | HoldOp::Release { position }, Limit::Concurrency(_)) => {
            super::apply(state, limit, now, Op::Refund { cost: MAX_AMOUNT, position })
        }
        _ => OpResult::admitted(None),
    }
}

/// The largest number of units, up to those of `take`, that would be admitted beside holds.
pub(super) fn room(state: &StateWithHolds, limit: &Limit, now: Timestamp, take: Take) -> u64 {
    let (inner, held) = (state.inner(), Holds::at(Some(&state.holds), state.inner(), limit, now).held);
    let room = super::room(inner, limit, now, take);
    if take.cost == 0 || held == 0 {
        return room;
    }
    let single = Take { cost: 1, units: held.saturating_add(take.cost.saturating_mul(room)), ..take };
    (super::room(inner, limit, now, single).saturating_sub(held) / take.cost).min(room)
}

/// What is known of the hold of `owner`.
pub fn status(state: Option<&State>, limit: &Limit, now: Timestamp, owner: u64) -> HoldStatus {
    let (inner, holds) = split(state);
    match holds {
        Some(_) => status_in(holds, Holds::at(holds, inner, limit, now).clock, owner),
        None => HoldStatus::Absent,
    }
}

fn status_in(holds: Option<&Holds>, clock: u64, owner: u64) -> HoldStatus {
    holds.and_then(|holds| holds.find(owner, clock)).map_or(HoldStatus::Absent, |hold| hold.status)
}

/// The result of the commit or release `op`, from what is known of the hold before it.
pub fn ending(status: HoldStatus, op: HoldOp) -> AdjustmentOutcome {
    let is_same = match (status, op) {
        (HoldStatus::Absent, _) => return AdjustmentOutcome::NotFound,
        (HoldStatus::Open(_), _) => return AdjustmentOutcome::Applied,
        (HoldStatus::Committed(before), HoldOp::Commit { cost, .. }) => before == cost.min(MAX_AMOUNT),
        (HoldStatus::Released, HoldOp::Release { .. }) => true,
        _ => false,
    };
    if is_same { AdjustmentOutcome::Repeated } else { AdjustmentOutcome::Differs }
}

/// The units that others than `owner` hold; `None` if there are no holds.
pub fn held(state: Option<&State>, limit: &Limit, now: Timestamp, owner: u64) -> Option<u64> {
    let (inner, holds) = split(state);
    let held = Holds::at(holds, inner, limit, now);
    let own = holds?.find(owner, held.clock).filter(|hold| owner > 0 && hold.at >= held.since);
    Some(held.held - own.map_or(0, Hold::open_units))
}

/// The open holds of all owners.
pub fn summary(state: Option<&State>, now: Timestamp) -> HoldsSummary {
    let holds = split(state).1;
    holds.map_or_else(HoldsSummary::default, |holds| holds.summary(current(holds.newest(), now)))
}

/// The outcome for the caller beside holds, from the state of the limit before the decision.
pub fn outcome(view: &StateView<'_>, held: u64, limit: &Limit, now: Timestamp, decided: DecidedTake) -> Outcome {
    let total = decided.take.total();
    let alone = super::outcome(view, limit, now, DecidedTake { consumed: false, ..decided });
    let fits_alone = match limit {
        // Grace does not count as remaining.
        Limit::Quota(quota) => super::quota::apply(view.quota(), quota, now, Op::Take(decided.take)).admitted,
        _ => total <= alone.remaining,
    };
    let retry_after = match alone.retry_after {
        Some(_) if fits_alone => Some(RETRY),
        retry => retry,
    };
    let taken = if decided.consumed { held.saturating_add(total) } else { held };
    let after = DecidedTake { take: Take::one(taken.min(MAX_AMOUNT)), admitted: true, consumed: true };
    let after = super::outcome(view, limit, now, after);
    Outcome { admitted: decided.admitted, retry_after, in_grace: decided.admitted && after.in_grace, ..after }
}

/// The position of a hold, for its commit or release.
pub(crate) fn owner_of(op: HoldOp) -> u64 {
    match op {
        HoldOp::Reserve { take, .. } => take.owner,
        HoldOp::Commit { position, .. } | HoldOp::Release { position } => TakePosition::index(position),
    }
}
