//! `Verdict`: the result of a store's decision on a plan, and the pure functions that compute it from states.

use smallvec::SmallVec;

use crate::algorithm::holds::{self, HoldStatus};
use crate::algorithm::{self, DecidedTake, Op, Outcome, State, TakePosition};
use crate::ledger::EntryId;
use crate::plan::{Check, Plan, ReservationTerms};
use crate::{Limit, Timestamp};

/// The result of a store's decision on a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    decided_at: Timestamp,
    granted: u64,
    checks: SmallVec<[CheckVerdict; 1]>,
    /// Why a reservation was not decided.
    refusal: Option<HoldRefusal>,
    /// Whether it is a reservation that was made before.
    repeat: bool,
    /// By the index of a check, what was recorded for the ledger. `None` without one, so that verdicts stay small.
    entries: Option<Box<WrittenEntries>>,
}

/// What a decision does to the state of one check, one after the other: nothing, a take, or a take that is denied and a charge of what fits.
pub type Ops = SmallVec<[Op; 1]>;

/// The entries that were written for the ledger, by the index of their check.
type WrittenEntries = SmallVec<[(usize, EntryId); 1]>;

/// Why a reservation with the owner of an earlier one was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldRefusal {
    /// The earlier one is open, and has another cost.
    KeyReused,
    /// The earlier one was committed or released.
    AlreadyEnded,
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
    pub stateless: bool,
    /// Whether a shadow check could not be decided, such as on an unreadable state. Its outcome means nothing then.
    pub skipped: bool,
}

impl CheckVerdict {
    /// The result of a check that was decided on the subject's own state.
    pub const fn new(outcome: Outcome, consumed: bool, position: TakePosition) -> Self {
        Self { outcome, consumed, position, overflowed: false, stateless: false, skipped: false }
    }
}

/// Parts
impl Verdict {
    /// A verdict with one result for each check, in the order of the plan.
    pub fn new(decided_at: Timestamp, granted: u64, checks: impl IntoIterator<Item = CheckVerdict>) -> Self {
        Self { decided_at, granted, checks: checks.into_iter().collect(), refusal: None, repeat: false, entries: None }
    }

    /// The verdict on a reservation that was refused: nothing is granted, and no check was decided.
    pub fn refused(decided_at: Timestamp, refusal: HoldRefusal) -> Self {
        Self { decided_at, granted: 0, checks: SmallVec::new(), refusal: Some(refusal), repeat: false, entries: None }
    }

    /// Why the reservation was refused, if it was. It has no results of checks then.
    pub const fn refusal(&self) -> Option<HoldRefusal> {
        self.refusal
    }

    /// Sets whether it grants a reservation that was made before.
    pub const fn with_repeat(mut self, repeat: bool) -> Self {
        self.repeat = repeat && self.granted > 0;
        self
    }

    /// Whether it grants a reservation that was made before. Then what the plan holds is not of this call alone: nothing of it may be given
    /// back if the request is denied in the end.
    pub const fn is_repeat(&self) -> bool {
        self.repeat
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

    /// The entry that was written for the ledger by the check at `index`, if it wrote one and the store tells it.
    pub fn entry(&self, index: usize) -> Option<EntryId> {
        self.entries().find(|(of, _)| *of == index).map(|(_, id)| id)
    }

    /// The entries that were written for the ledger, each with the index of its check.
    pub fn entries(&self) -> impl Iterator<Item = (usize, EntryId)> {
        self.entries.iter().flat_map(|entries| entries.iter().copied())
    }

    /// Sets the entry that was written for the ledger by the check at `index`.
    pub fn set_entry(&mut self, index: usize, id: EntryId) {
        self.entries.get_or_insert_default().push((index, id));
    }
}

/// Deciding
impl Verdict {
    /// Decides `plan` on the `states` of its checks. Also returns what the store applies to each state, which is nothing for a peek.
    /// `is_own` is whether the state of a check, by index, is that of its subject alone and can be written: only then its denial is a
    /// strike.
    pub fn decide(
        plan: &Plan<'_>,
        now: Timestamp,
        states: &[Option<&State>],
        is_own: impl Fn(usize) -> bool,
    ) -> (Self, Vec<Ops>) {
        let is_repeat = match plan.reservation().map(|terms| find_holds(plan, terms, now, states)) {
            Some(Err(refusal)) => return (Self::refused(now, refusal), vec![Ops::new(); states.len()]),
            Some(Ok(is_repeat)) => is_repeat,
            None => false,
        };
        let room = |check: &Check<'_>, state: Option<&State>| {
            if is_repeat && !plan.keeps_owner(check) { Room::TAKEN_BEFORE } else { room(plan, check, state, now) }
        };
        let rooms: SmallVec<[Room; 4]> =
            plan.checks().iter().zip(states).map(|(check, state)| room(check, *state)).collect();
        let granted = plan.granted(|index| rooms[index].units);
        let mut checks: SmallVec<[CheckVerdict; 1]> = SmallVec::new();
        let mut ops = Vec::with_capacity(states.len());
        for (check, (state, room)) in plan.checks().iter().zip(states.iter().zip(&rooms)) {
            let is_taken_before = is_repeat && !plan.keeps_owner(check);
            let (mut own_ops, input) = (Ops::new(), CheckInput { plan, check, granted, room: *room, is_taken_before });
            checks.push(input.decide(*state, now, &mut own_ops));
            ops.push(own_ops);
        }
        if !plan.is_peek() && plan.has_penalty() {
            strike(plan, now, states, is_own, &mut checks, &mut ops);
        }
        let verdict = Self { decided_at: now, granted, checks, refusal: None, repeat: false, entries: None };
        (verdict.with_repeat(is_repeat), ops)
    }

    /// [`decide`](Self::decide) for a plan of one check, which most are. Adds what the store applies to `ops`.
    #[inline(always)]
    pub(crate) fn decide_one<'r>(
        plan: &Plan<'r>,
        check: &Check<'r>,
        now: Timestamp,
        state: Option<&State>,
        ops: &mut Ops,
    ) -> Self {
        let room = room(plan, check, state, now);
        let granted = plan.granted(|_| room.units);
        let input = CheckInput { plan, check, granted, room, is_taken_before: false };
        let checks = SmallVec::from_buf([input.decide(state, now, ops)]);
        Self { decided_at: now, granted, checks, refusal: None, repeat: false, entries: None }
    }

    /// Computes a verdict from the reply of a script: its time, the units that it granted, and for each check whether it
    /// admits them and the state that the script found, of which it may be a summary. `is_repeat` is whether it is a reservation that was made before.
    pub fn replay(
        plan: &Plan<'_>,
        now: Timestamp,
        granted: u64,
        states: &[(bool, Option<State>)],
        is_repeat: bool,
    ) -> Self {
        let replayed = plan.checks().iter().zip(states).map(|(check, (admitted, state))| {
            let take = plan.take(check, granted.max(1));
            let is_taken_before = is_repeat && !plan.keeps_owner(check);
            let consumed = !plan.is_peek() && !is_taken_before && plan.consumes(check, *admitted, granted);
            let decided = DecidedTake { take, admitted: *admitted, consumed };
            finish(plan, check, state.as_ref(), decided, now)
        });
        Self::new(now, granted, replayed)
    }
}

/// What a check has room for.
#[derive(Clone, Copy)]
struct Room {
    /// The units of the plan.
    units: u64,
    /// Whether a denial changes the state, which then has to be rebased; `None` if that was not found on the way.
    rebases: Option<bool>,
}

impl Room {
    /// That of a check whose units an earlier call of the same reservation took.
    const TAKEN_BEFORE: Self = Self { units: 1, rebases: Some(false) };
}

#[inline]
fn room(plan: &Plan<'_>, check: &Check<'_>, state: Option<&State>, now: Timestamp) -> Room {
    let limit = check.gate().limit();
    match plan.max_units() {
        1 => {
            let result = algorithm::decide(state, limit, now, plan.op(check, 1));
            Room { units: u64::from(result.admitted), rebases: Some(!result.admitted && result.changes) }
        }
        units => Room { units: algorithm::room(state, limit, now, plan.take(check, units)), rebases: None },
    }
}

/// Whether the reservation has been made before. An error if that was with another cost, or has ended.
fn find_holds(
    plan: &Plan<'_>,
    terms: &ReservationTerms,
    now: Timestamp,
    states: &[Option<&State>],
) -> Result<bool, HoldRefusal> {
    let mut refusal = None;
    let mut is_repeat = false;
    for (check, state) in plan.checks().iter().zip(states).filter(|(check, _)| terms.holds(check)) {
        match holds::status(*state, check.gate().limit(), now, terms.owner().number()) {
            HoldStatus::Absent => {}
            HoldStatus::Open(units) if units == check.cost() => is_repeat = true,
            // A shadow check affects no request.
            _ if check.is_shadow() => {}
            HoldStatus::Open(_) => refusal = refusal.or(Some(HoldRefusal::KeyReused)),
            HoldStatus::Committed(_) | HoldStatus::Released => refusal = Some(HoldRefusal::AlreadyEnded),
        }
    }
    refusal.map_or(Ok(is_repeat), Err)
}

/// Strikes the penalties of the rules that deny the request. Their outcome is that after the strike, so that the retry is not before
/// the end of a block that begins.
fn strike(
    plan: &Plan<'_>,
    now: Timestamp,
    states: &[Option<&State>],
    is_own: impl Fn(usize) -> bool,
    checks: &mut [CheckVerdict],
    ops: &mut [Ops],
) {
    let denying = (0..checks.len()).filter(|index| !checks[*index].outcome.admitted && is_own(*index));
    let mut struck: SmallVec<[usize; 4]> = denying.filter_map(|index| plan.penalty_of(index)).collect();
    // Several limits of a rule that deny one request are one strike.
    struck.sort_unstable();
    struck.dedup();
    for index in struck.into_iter().filter(|index| is_own(*index)) {
        let check = &plan.checks()[index];
        let mut state = states[index].cloned();
        if !algorithm::apply(&mut state, check.gate().limit(), now, Op::Strike).changes {
            continue;
        }
        let take = plan.take(check, 1);
        let admitted = algorithm::decide(state.as_ref(), check.gate().limit(), now, Op::Take(take)).admitted;
        checks[index] = finish(plan, check, state.as_ref(), DecidedTake { take, admitted, consumed: false }, now);
        ops[index] = SmallVec::from_buf([Op::Strike]);
    }
}

/// A check and what its plan grants.
struct CheckInput<'p, 'r> {
    plan: &'p Plan<'r>,
    check: &'p Check<'r>,
    granted: u64,
    room: Room,
    /// Whether it is a take of a reservation that is repeated: it was taken when the reservation was made.
    is_taken_before: bool,
}

impl CheckInput<'_, '_> {
    /// The result of the check. Adds what the store applies to `ops`.
    #[inline(always)]
    fn decide(self, state: Option<&State>, now: Timestamp, ops: &mut Ops) -> CheckVerdict {
        let Self { plan, check, granted, room, is_taken_before } = self;
        let admitted = room.units >= granted.max(1);
        let consume = !plan.is_peek();
        let limit = check.gate().limit();
        let take = plan.take(check, granted.max(1));
        let consumed = consume && !is_taken_before && plan.consumes(check, admitted, granted);
        let decided = DecidedTake { take, admitted, consumed };
        let op = plan.op(check, take.units);
        let rebases = || room.rebases.unwrap_or_else(|| algorithm::decide(state, limit, now, op).changes);
        if consumed || consume && !admitted && rebases() {
            ops.push(op);
        }
        if consume && !admitted && plan.counts_denied(check) {
            return count_denied(plan, check, state, now, decided, ops);
        }
        finish(plan, check, state, decided, now)
    }
}

/// Counts a denied request: consumes what fits of it. Its outcome is that afterwards.
#[cold]
fn count_denied(
    plan: &Plan<'_>,
    check: &Check<'_>,
    state: Option<&State>,
    now: Timestamp,
    decided: DecidedTake,
    ops: &mut Ops,
) -> CheckVerdict {
    let (limit, mut after) = (check.gate().limit(), state.cloned());
    for op in ops.iter() {
        algorithm::apply(&mut after, limit, now, *op);
    }
    let fill = Op::Fill { cost: decided.take.total() };
    if algorithm::apply(&mut after, limit, now, fill).changes {
        ops.push(fill);
    }
    finish(plan, check, after.as_ref(), decided, now)
}

/// The units that other reservations hold; `None` if there are none and the plan makes none.
#[inline(always)]
fn held_by_others(plan: &Plan<'_>, check: &Check<'_>, state: Option<&State>, now: Timestamp) -> Option<u64> {
    if let Some(State::WithHolds(_)) = state {
        // A take counts beside all holds, even one of its own reservation.
        let terms = plan.reservation().filter(|terms| terms.holds(check));
        let owner = terms.map_or(0, |terms| terms.owner().number());
        return holds::held(state, check.gate().limit(), now, owner);
    }
    plan.is_hold(check).then_some(0)
}

#[inline(always)]
fn finish(
    plan: &Plan<'_>,
    check: &Check<'_>,
    state: Option<&State>,
    decided: DecidedTake,
    now: Timestamp,
) -> CheckVerdict {
    let limit = check.gate().limit();
    let position = match plan.reservation() {
        _ if !decided.consumed => TakePosition::default(),
        Some(terms) if terms.holds(check) => match limit {
            // For a charge after the end of the hold. A repeat in the next period is charged there.
            Limit::Quota(_) => terms.position().in_period(algorithm::position(state, limit, now, decided.take).index()),
            _ => terms.position(),
        },
        _ => algorithm::position(state, limit, now, decided.take),
    };
    let outcome = match held_by_others(plan, check, state, now) {
        Some(held) => holds::outcome(state, held, limit, now, decided),
        None => algorithm::outcome(state, limit, now, decided),
    };
    CheckVerdict::new(outcome, decided.consumed, position)
}
