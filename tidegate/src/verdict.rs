//! `Verdict`: the result of a store's decision on a plan, and the pure functions that compute it from states.

use smallvec::SmallVec;

use crate::algorithm::{self, Change, DecidedTake, Op, Outcome, State, StateView, StoredState, TakePosition};
use crate::plan::{Check, Plan};
use crate::{Limit, Timestamp};

/// The result of a store's decision on a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    decided_at: Timestamp,
    granted: u64,
    checks: SmallVec<[CheckVerdict; 1]>,
}

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct CheckVerdict {
    /// Admitted or not, with limit, remaining, retry, reset and delay.
    pub outcome: Outcome,
    /// Whether the cost was consumed.
    pub consumed: bool,
    /// Where the cost was consumed, for a refund.
    pub position: TakePosition,
    /// Whether the check was decided on the overflow bucket that new subjects share when there are too many.
    pub overflowed: bool,
    /// Whether the store was full and had no state of the subject: the check was decided on a fresh state, and nothing was written.
    /// The limiter decides it again in its own memory.
    pub unstored: bool,
    /// Whether a shadow check could not be decided, such as on an unreadable state. Its outcome means nothing then.
    pub skipped: bool,
}

impl CheckVerdict {
    /// The result of a check that was decided on the subject's own state.
    pub const fn new(outcome: Outcome, consumed: bool, position: TakePosition) -> Self {
        Self { outcome, consumed, position, overflowed: false, unstored: false, skipped: false }
    }
}

/// Parts
impl Verdict {
    /// A verdict with one result for each check, in the order of the plan.
    pub fn new(decided_at: Timestamp, granted: u64, checks: impl IntoIterator<Item = CheckVerdict>) -> Self {
        Self { decided_at, granted, checks: checks.into_iter().collect() }
    }

    /// The time of the decision, by the clock of the store.
    pub const fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// The number of units granted; 0 is a denial.
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// Sets the number of units granted.
    pub(crate) const fn set_granted(&mut self, granted: u64) {
        self.granted = granted;
    }

    /// The result of each check, in the order of the plan.
    pub fn checks(&self) -> &[CheckVerdict] {
        &self.checks
    }

    /// The same results, to be modified.
    pub fn checks_mut(&mut self) -> &mut [CheckVerdict] {
        &mut self.checks
    }
}

/// Deciding
impl Verdict {
    /// Decides `plan` on the `states` of its checks. Also returns the change of each state, none of them for a peek. `is_own` is
    /// whether the state of a check, by index, is that of its subject alone and can be written: only then its denial is a strike.
    pub fn decide(
        plan: &Plan<'_>,
        now: Timestamp,
        states: &[Option<&State>],
        is_own: impl Fn(usize) -> bool,
    ) -> (Self, Vec<Option<Change>>) {
        let rooms: SmallVec<[u64; 4]> =
            plan.checks().iter().zip(states).map(|(check, state)| room(plan, check, *state, now)).collect();
        let granted = plan.granted(|index| rooms[index]);
        let mut checks: SmallVec<[CheckVerdict; 1]> = SmallVec::new();
        let mut changes = Vec::with_capacity(states.len());
        for (check, (state, room)) in plan.checks().iter().zip(states.iter().zip(&rooms)) {
            let admitted = *room >= granted.max(1);
            let (mut change, input) = (None, CheckInput { plan, check, granted, admitted });
            checks.push(input.decide(*state, now, &mut change));
            changes.push(change);
        }
        if !plan.is_peek() && plan.has_penalty() {
            strike(plan, now, states, is_own, &mut checks, &mut changes);
        }
        (Self { decided_at: now, granted, checks }, changes)
    }

    /// [`decide`](Self::decide) for a plan of one check, which most are. Writes the change to `change`.
    #[inline(always)]
    pub(crate) fn decide_one<'r>(
        plan: &Plan<'r>,
        check: &Check<'r>,
        now: Timestamp,
        state: Option<&State>,
        change: &mut Option<Change>,
    ) -> Self {
        let room = room(plan, check, state, now);
        let granted = plan.granted(|_| room);
        let input = CheckInput { plan, check, granted, admitted: room >= granted.max(1) };
        Self { decided_at: now, granted, checks: SmallVec::from_buf([input.decide(state, now, change)]) }
    }

    /// Computes a verdict from the reply of a script: its time, the units that it granted, and for each check whether it
    /// admits them and the state that the script found.
    pub fn replay(plan: &Plan<'_>, now: Timestamp, granted: u64, states: &[(bool, StoredState)]) -> Self {
        let replayed = plan.checks().iter().zip(states).map(|(check, (admitted, state))| {
            let take = plan.take(check, granted.max(1));
            let consumed = !plan.is_peek() && plan.consumes(check, *admitted, granted);
            finish(check.gate().limit(), &state.view(), DecidedTake { take, admitted: *admitted, consumed }, now)
        });
        Self { decided_at: now, granted, checks: replayed.collect() }
    }
}

/// The units of the plan that `check` has room for.
#[inline]
fn room(plan: &Plan<'_>, check: &Check<'_>, state: Option<&State>, now: Timestamp) -> u64 {
    let (limit, take) = (check.gate().limit(), plan.take(check, plan.max_units()));
    match take.units {
        1 => u64::from(algorithm::apply(state, limit, now, Op::Take(take)).admitted),
        _ => algorithm::room(state, limit, now, take),
    }
}

/// Strikes the penalties of the rules that deny the request. Their outcome is that after the strike, so that the retry is not before
/// the end of a block that begins.
fn strike(
    plan: &Plan<'_>,
    now: Timestamp,
    states: &[Option<&State>],
    is_own: impl Fn(usize) -> bool,
    checks: &mut [CheckVerdict],
    changes: &mut [Option<Change>],
) {
    let denying = (0..checks.len()).filter(|index| !checks[*index].outcome.admitted && is_own(*index));
    let mut struck: SmallVec<[usize; 4]> = denying.filter_map(|index| plan.penalty_of(index)).collect();
    // Several limits of a rule that deny one request are one strike.
    struck.sort_unstable();
    struck.dedup();
    for index in struck.into_iter().filter(|index| is_own(*index)) {
        let Limit::Penalty(penalty) = plan.checks()[index].gate().limit() else { continue };
        let state = states[index].and_then(State::penalty);
        let Some(state) = algorithm::penalty::strike(state, penalty, now) else { continue };
        let take = plan.take(&plan.checks()[index], 1);
        let (limit, view) = (plan.checks()[index].gate().limit(), StateView::Penalty(state));
        let admitted = algorithm::penalty::apply(Some(state), penalty, now, Op::Take(take)).admitted;
        checks[index] = finish(limit, &view, DecidedTake { take, admitted, consumed: false }, now);
        changes[index] = Some(Change::Penalty(state));
    }
}

/// A check and what its plan grants.
struct CheckInput<'p, 'r> {
    plan: &'p Plan<'r>,
    check: &'p Check<'r>,
    granted: u64,
    admitted: bool,
}

impl CheckInput<'_, '_> {
    /// The result of the check. Writes the change of its state to `change`.
    #[inline(always)]
    fn decide(self, state: Option<&State>, now: Timestamp, change: &mut Option<Change>) -> CheckVerdict {
        let Self { plan, check, granted, admitted } = self;
        let consume = !plan.is_peek();
        let limit = check.gate().limit();
        let take = plan.take(check, granted.max(1));
        let consumed = consume && plan.consumes(check, admitted, granted);
        let decided = DecidedTake { take, admitted, consumed };
        if consume && (consumed || !admitted) {
            // For a denial, this is a state that had to be rebased, or nothing.
            *change = algorithm::apply(state, limit, now, Op::Take(take)).change;
        }
        if consume && !admitted && plan.counts_denied(check) {
            let charge = algorithm::apply(state, limit, now, algorithm::charge_denied(state, limit, now, take)).change;
            *change = charge.or(change.take());
            let after = apply_change(state, change.clone());
            return finish(limit, &State::view(after.as_ref(), limit, now, take), decided, now);
        }
        finish(limit, &State::view(state, limit, now, take), decided, now)
    }
}

/// A copy of `state` after `change`.
fn apply_change(state: Option<&State>, change: Option<Change>) -> Option<State> {
    match (state.cloned(), change) {
        (Some(mut state), Some(change)) => {
            state.commit(change);
            Some(state)
        }
        (None, Some(change)) => Some(State::new(change)),
        (state, None) => state,
    }
}

#[inline(always)]
fn finish(limit: &Limit, view: &StateView<'_>, decided: DecidedTake, now: Timestamp) -> CheckVerdict {
    let position =
        if decided.consumed { algorithm::position(view, limit, now, decided.take) } else { TakePosition::default() };
    let outcome = algorithm::outcome(view, limit, now, decided);
    CheckVerdict::new(outcome, decided.consumed, position)
}
