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
mod value;

use super::concurrency::RETRY;
use super::{
    AdjustmentOutcome, DecidedTake, Effect, FractionalMicros, HoldOp, Op, OpResult, Outcome, State, Take, TakePosition,
};
use crate::ledger::GateHold;
use crate::limit::MAX_AMOUNT;
use crate::{Limit, Timestamp};
pub(super) use hold_list::HoldsChange;
use hold_list::{CurrentHolds, Hold, HoldEdit, HoldList, Holds};
pub use hold_list::{HoldStatus, HoldsSummary};
pub use value::{encode, limit_value, stored_summary};

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

    /// The same holds beside another state of the limit.
    pub(crate) fn with_inner(&self, inner: Option<State>) -> Self {
        Self { inner, holds: self.holds.clone() }
    }

    /// The state of a quota and its reservations, as the ledger knows them.
    pub(crate) fn from_ledger(inner: Option<State>, holds: &[GateHold]) -> Self {
        Self { inner, holds: Holds::List(HoldList::from_ledger(holds)) }
    }

    /// The state of a limit beside the holds of which a script has replied with a summary: the units that others hold, and when the last
    /// hold runs out, in microseconds; 0 if there is none.
    pub fn from_reply(inner: Option<State>, held: u64, ends: u64) -> Self {
        Self { inner, holds: Holds::Summary { held, ends } }
    }

    /// The state after `change`. Without holds, it is that of the limit.
    fn changed(mut self, limit: &Limit, now: Timestamp, change: HoldsChange) -> State {
        if let Some(op) = change.inner {
            super::apply(&mut self.inner, limit, now, op);
        }
        if let Holds::List(holds) = &mut self.holds {
            holds.commit(&change);
        }
        match self {
            Self { inner: Some(inner), holds } if holds.is_empty() => inner,
            with_holds => State::WithHolds(Box::new(with_holds)),
        }
    }

    /// The first instant, in microseconds, at which it is equivalent to none.
    pub(super) fn expiry(&self, limit: &Limit) -> u64 {
        let inner = self.inner.as_ref().map_or(0, |inner| super::expiry(inner, limit));
        inner.max(self.holds.last_end())
    }
}

/// The state of the limit, without holds.
#[inline(always)]
pub(super) fn limit_state(state: Option<&State>) -> Option<&State> {
    split(state).0
}

/// The state of the limit, and the holds.
#[inline(always)]
fn split(state: Option<&State>) -> (Option<&State>, Option<&Holds>) {
    match state {
        Some(State::WithHolds(state)) => (state.inner.as_ref(), Some(&state.holds)),
        state => (state, None),
    }
}

/// The state after `op` without a previous one; `None` if it changes nothing.
#[cold]
pub(super) fn create(limit: &Limit, now: Timestamp, op: Op) -> Option<State> {
    let change = decide(None, limit, now, op).change?;
    Some(StateWithHolds::default().changed(limit, now, change))
}

/// Applies `op` to a state with holds, or a [`HoldOp`] to any.
#[cold]
pub(super) fn apply(state: &mut State, limit: &Limit, now: Timestamp, op: Op) -> OpResult {
    let effect = decide(Some(state), limit, now, op);
    let result = effect.result();
    if let Some(change) = effect.change {
        let before = match std::mem::replace(state, State::Bucket(FractionalMicros::default())) {
            State::WithHolds(state) => *state,
            inner => StateWithHolds { inner: Some(inner), ..StateWithHolds::default() },
        };
        *state = before.changed(limit, now, change);
    }
    result
}

/// Decides `op` on a state with holds, or a [`HoldOp`] on any. Twin: `holds.lua`.
#[cold]
pub(super) fn decide(state: Option<&State>, limit: &Limit, now: Timestamp, op: Op) -> Effect<HoldsChange> {
    let (inner, holds) = split(state);
    let held = Holds::at(holds, inner, limit, now);
    let CurrentHolds { clock, since, is_stale, .. } = held;
    // The operation on the state of the limit, if it changes that.
    let result = |admitted: bool, inner: Option<Op>, edit: HoldEdit| {
        let is_changed = inner.is_some() || edit != HoldEdit::Keep || is_stale;
        Effect { admitted, change: is_changed.then_some(HoldsChange { inner, clock, since, edit }) }
    };
    match op {
        Op::Take(take) if holds.is_some() => {
            let OpResult { admitted, changes } = held.decide(inner, limit, now, take);
            result(admitted, changes.then_some(op), HoldEdit::Keep)
        }
        Op::Hold(op) if !limit.keeps_holds() => {
            let Some(op) = without_holds(limit, op) else { return result(true, None, HoldEdit::Keep) };
            let OpResult { admitted, changes } = super::decide(inner, limit, now, op);
            result(admitted, changes.then_some(op), HoldEdit::Keep)
        }
        Op::Hold(HoldOp::Reserve { take, ttl_micros: ttl }) => {
            match status_in(holds, clock, take.owner) {
                HoldStatus::Absent => {}
                status => return result(status == HoldStatus::Open(take.total()), None, HoldEdit::Keep),
            }
            let OpResult { admitted, changes } = held.decide(inner, limit, now, take);
            if !admitted || !holds.is_none_or(|holds| holds.has_room(clock)) {
                return result(false, (changes && !admitted).then_some(Op::Take(take)), HoldEdit::Keep);
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
            let at = hold.at.min(clock);
            let late = (at < since).then(|| super::late_position(inner, limit, now, at));
            let charge = late.unwrap_or(Some(TakePosition::default())).map(|charged_at| {
                let charge = Op::Charge { cost, position: charged_at };
                if position.overflow_bucket().is_some() { charge.without_debt() } else { charge }
            });
            let charge = charge.filter(|charge| super::decide(inner, limit, now, *charge).changes);
            let remembered = position.is_keyed_hold().then_some(HoldStatus::Committed(cost));
            result(true, charge, HoldEdit::End { owner, remembered })
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
        op => match super::decide(inner, limit, now, op) {
            OpResult { admitted, changes: true } => result(admitted, Some(op), HoldEdit::Keep),
            OpResult { admitted, changes: false } => Effect { admitted, change: None },
        },
    }
}

impl CurrentHolds {
    /// Decides a take of the limit beside the holds. The change is that of the limit.
    fn decide(&self, inner: Option<&State>, limit: &Limit, now: Timestamp, take: Take) -> OpResult {
        let alone = super::decide(inner, limit, now, Op::Take(take));
        if !alone.admitted || self.held == 0 || take.total() == 0 {
            return alone;
        }
        let with_held = Op::Take(Take::one(take.total().saturating_add(self.held)));
        let admitted = super::decide(inner, limit, now, with_held).admitted;
        OpResult { admitted, changes: admitted && alone.changes }
    }
}

/// What a reservation is under a limit that keeps no holds. `None` if nothing.
fn without_holds(limit: &Limit, op: HoldOp) -> Option<Op> {
    match op {
        HoldOp::Reserve { take, .. } => Some(Op::Take(take)),
        HoldOp::Commit { position, .. } | HoldOp::Release { position } => {
            limit.has_slots().then_some(Op::Refund { cost: MAX_AMOUNT, position })
        }
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
    // A summary is that of others.
    let own = holds?.find(owner, held.clock).filter(|hold| owner > 0 && hold.at >= held.since);
    Some(held.held - own.map_or(0, Hold::open_units))
}

/// The open holds of all owners.
pub fn summary(state: Option<&State>, now: Timestamp) -> HoldsSummary {
    match split(state).1 {
        Some(Holds::List(holds)) => holds.summary(now),
        _ => HoldsSummary::default(),
    }
}

/// When the last hold runs out, in microseconds; 0 if there is none.
pub fn last_end(state: Option<&State>) -> u64 {
    split(state).1.map_or(0, Holds::last_end)
}

/// The outcome for the caller beside holds, from the state of the limit before the decision.
pub fn outcome(state: Option<&State>, held: u64, limit: &Limit, now: Timestamp, decided: DecidedTake) -> Outcome {
    let total = decided.take.total();
    let state = limit_state(state);
    let alone = super::outcome(state, limit, now, DecidedTake { consumed: false, ..decided });
    let fits_alone = || match state {
        Some(state) if state.is_summary() => total <= alone.remaining,
        // Grace does not count as remaining.
        state => super::decide(state, limit, now, Op::Take(decided.take)).admitted,
    };
    let retry_after = match alone.retry_after {
        Some(_) if fits_alone() => Some(RETRY),
        retry => retry,
    };
    let taken = if decided.consumed { held.saturating_add(total) } else { held };
    let after = DecidedTake { take: Take::one(taken.min(MAX_AMOUNT)), admitted: true, consumed: true };
    let after = super::outcome(state, limit, now, after);
    Outcome { admitted: decided.admitted, retry_after, in_grace: decided.admitted && after.in_grace, ..after }
}

/// The position of a hold, for its commit or release.
pub(crate) fn owner_of(op: HoldOp) -> u64 {
    match op {
        HoldOp::Reserve { take, .. } => take.owner,
        HoldOp::Commit { position, .. } | HoldOp::Release { position } => TakePosition::index(position),
    }
}
