//! `Verdict`: what a store says to a plan. The pure part of every store: from states to an answer.

use crate::algorithm::{self, Change, Found, Op, Outcome, Place, Standing, State, View};
use crate::plan::{Check, Plan};
use crate::spi::Few;
use crate::{Limit, Timestamp};

/// What a store says to a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// When, by the clock of the store.
    pub decided_at: Timestamp,
    /// How many units were granted: 0 is a denial.
    pub granted: u64,
    /// What each check says, in the order of the plan.
    pub judged: Few<CheckVerdict>,
}

/// What a store says about one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckVerdict {
    /// What the caller is told.
    pub outcome: Outcome,
    /// Whether its cost was consumed.
    pub consumed: bool,
    /// Where it went.
    pub place: Place,
    /// Whether it was judged on the bucket that new subjects share when there are too many, instead of one of its own.
    pub overflowed: bool,
}

/// What to write, check by check.
pub type Changes = Few<Option<Change>>;

impl Verdict {
    /// Judges `plan` on the states that were found for its checks; `consume` is false for a peek.
    pub fn judge(plan: &Plan<'_>, now: Timestamp, consume: bool, states: &[Option<&State>]) -> (Self, Changes) {
        let rooms: Few<u64> =
            plan.checks().iter().zip(states).map(|(check, state)| room(plan, check, *state, now)).collect();
        let granted = plan.granted(|index| rooms[index]);
        let mut verdict = Self { decided_at: now, granted, judged: Few::default() };
        let mut changes = Changes::default();
        for (check, (state, room)) in plan.checks().iter().zip(states.iter().zip(&rooms)) {
            let admitted = *room >= granted.max(1);
            let (mut change, asked) = (None, Asked { plan, check, granted, admitted, consume });
            verdict.judged.push(asked.conclude(*state, now, &mut change));
            changes.push(change);
        }
        (verdict, changes)
    }

    /// [`judge`](Self::judge) for a plan of one check, which most are. What to write goes to `change`.
    #[inline(always)]
    pub(crate) fn judge_one(
        plan: &Plan<'_>,
        check: &Check<'_>,
        now: Timestamp,
        consume: bool,
        state: Option<&State>,
        change: &mut Option<Change>,
    ) -> Self {
        let room = room(plan, check, state, now);
        let granted = plan.granted(|_| room);
        let asked = Asked { plan, check, granted, admitted: room >= granted.max(1), consume };
        Self { decided_at: now, granted, judged: Few::One(asked.conclude(state, now, change)) }
    }

    /// Fills in what the caller is told from what a script replied: its time, the units it granted, and for each check
    /// whether it admitted them and what it found.
    pub fn replay(plan: &Plan<'_>, now: Timestamp, consume: bool, granted: u64, found: &[(bool, Found)]) -> Self {
        let replayed = plan.checks().iter().zip(found).map(|(check, (admitted, found))| {
            let take = plan.take(check, granted.max(1));
            let consumed = consume && plan.consumes(check, *admitted, granted);
            finish(check.gate().limit(), &found.view(), Standing { take, admitted: *admitted, consumed }, now)
        });
        Self { decided_at: now, granted, judged: replayed.collect() }
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

/// One check, now that it is known what the whole plan grants.
struct Asked<'p> {
    plan: &'p Plan<'p>,
    check: &'p Check<'p>,
    granted: u64,
    admitted: bool,
    consume: bool,
}

impl Asked<'_> {
    /// What becomes of the check. What to write goes to `change`.
    #[inline(always)]
    fn conclude(self, state: Option<&State>, now: Timestamp, change: &mut Option<Change>) -> CheckVerdict {
        let Self { plan, check, granted, admitted, consume } = self;
        let limit = check.gate().limit();
        let take = plan.take(check, granted.max(1));
        let consumed = consume && plan.consumes(check, admitted, granted);
        let standing = Standing { take, admitted, consumed };
        if consume && (consumed || !admitted) {
            // For a denial, this is a state that had to be rebased, or nothing.
            *change = algorithm::apply(state, limit, now, Op::Take(take)).change;
        }
        if consume && !admitted && plan.counts_denied(check) {
            let charge = algorithm::apply(state, limit, now, Op::Charge { cost: take.total() }).change;
            *change = charge.or(change.take());
            let after = changed(state, change.clone());
            return finish(limit, &State::view(after.as_ref(), limit, now, take.total()), standing, now);
        }
        finish(limit, &State::view(state, limit, now, take.total()), standing, now)
    }
}

/// A copy of `state` with `change` carried out.
fn changed(state: Option<&State>, change: Option<Change>) -> Option<State> {
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
fn finish(limit: &Limit, view: &View<'_>, standing: Standing, now: Timestamp) -> CheckVerdict {
    let place = if standing.consumed { algorithm::place(view, limit, now, standing.take) } else { Place::default() };
    let outcome = algorithm::outcome(view, limit, now, standing);
    CheckVerdict { outcome, consumed: standing.consumed, place, overflowed: false }
}
