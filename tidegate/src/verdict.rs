//! `Verdict`: what a store says to a plan. The pure part of every store: from states to an answer.

use smallvec::SmallVec;

use crate::algorithm::{self, Change, Op, Outcome, Place, Standing, State, Take, View};
use crate::plan::{Check, Plan};
use crate::{Limit, Timestamp};

/// What a store says to a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// When, by the clock of the store.
    pub decided_at: Timestamp,
    /// How many units were granted: 0 is a denial.
    pub granted: u64,
    /// What each check says, in the order of the plan.
    pub judged: SmallVec<[Judged; 1]>,
}

/// What a store says about one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// What the caller is told.
    pub outcome: Outcome,
    /// Whether its cost was consumed.
    pub consumed: bool,
    /// Where it went.
    pub place: Place,
}

/// What to write, check by check.
pub type Changes = SmallVec<[Option<Change>; 1]>;

impl Verdict {
    /// Judges `plan` on the states that `state` finds for its checks; `consume` is false for a peek.
    pub fn judge<'s>(
        plan: &Plan<'_>,
        now: Timestamp,
        consume: bool,
        state: impl Fn(usize) -> Option<&'s State>,
    ) -> (Self, Changes) {
        let rooms: SmallVec<[u64; 1]> =
            plan.checks().iter().enumerate().map(|(index, check)| room(plan, check, state(index), now)).collect();
        let granted = plan.granted(|index| rooms[index]);
        let mut judged = SmallVec::new();
        let mut changes = Changes::new();
        for (index, check) in plan.checks().iter().enumerate() {
            let take = plan.take(check, granted.max(1));
            let (one, change) = judge_one(plan, check, take, rooms[index], granted, now, consume, state(index));
            judged.push(one);
            changes.push(change);
        }
        (Self { decided_at: now, granted, judged }, changes)
    }

    /// Fills in what the caller is told from what a script replied: its time, the units it granted, and for each check
    /// whether it admitted them and what it found.
    pub fn replay(plan: &Plan<'_>, now: Timestamp, consume: bool, granted: u64, found: &[(bool, View)]) -> Self {
        let replayed = plan.checks().iter().zip(found).map(|(check, (admitted, view))| {
            let take = plan.take(check, granted.max(1));
            let consumed = consume && plan.consumes(check, *admitted, granted);
            finish(check.gate().limit(), view, Standing { take, admitted: *admitted, consumed }, now)
        });
        Self { decided_at: now, granted, judged: replayed.collect() }
    }
}

/// How many units of the plan `check` has room for.
fn room(plan: &Plan<'_>, check: &Check<'_>, state: Option<&State>, now: Timestamp) -> u64 {
    let limit = check.gate().limit();
    let take = plan.take(check, plan.units());
    match take.units {
        1 => u64::from(algorithm::apply(state, limit, now, Op::Take(take)).admitted),
        _ => algorithm::room(state, limit, now, take),
    }
}

#[allow(clippy::too_many_arguments, reason = "private, called once; a struct would only name them twice")]
fn judge_one(
    plan: &Plan<'_>,
    check: &Check<'_>,
    take: Take,
    room: u64,
    granted: u64,
    now: Timestamp,
    consume: bool,
    state: Option<&State>,
) -> (Judged, Option<Change>) {
    let limit = check.gate().limit();
    let admitted = room >= take.units;
    let consumed = consume && plan.consumes(check, admitted, granted);
    let standing = Standing { take, admitted, consumed };
    let view = |state: Option<&State>| State::view(state, limit, now, take.total());
    if admitted {
        let change = if consumed { algorithm::apply(state, limit, now, Op::Take(take)).change } else { None };
        return (finish(limit, &view(state), standing, now), change);
    }
    // A denial writes nothing but a state that had to be rebased, unless denied requests count too.
    let rebased = algorithm::apply(state, limit, now, Op::Take(take)).change.filter(|_| consume);
    if consume && plan.counts_denied(check) {
        let change = algorithm::apply(state, limit, now, Op::Charge { cost: take.total() }).change.or(rebased);
        let mut after = state.cloned();
        if let Some(change) = change.clone() {
            State::commit(&mut after, change);
        }
        return (finish(limit, &view(after.as_ref()), standing, now), change);
    }
    (finish(limit, &view(state), standing, now), rebased)
}

fn finish(limit: &Limit, view: &View, standing: Standing, now: Timestamp) -> Judged {
    let place = if standing.consumed { algorithm::place(view, limit, now, standing.take) } else { Place::default() };
    Judged { outcome: algorithm::outcome(view, limit, now, standing), consumed: standing.consumed, place }
}
