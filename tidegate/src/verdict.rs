//! `Verdict`: what a store says to a plan. The pure part of every store: from states to an answer.

use crate::algorithm::{self, Applied, Change, Found, Op, Outcome, Place, Standing, State, View};
use crate::plan::{Check, Plan};
use crate::{Few, Limit, Timestamp};

/// What a store says to a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// When, by the clock of the store.
    pub decided_at: Timestamp,
    /// How many units were granted: 0 is a denial.
    pub granted: u64,
    /// What each check says, in the order of the plan.
    pub judged: Few<Judged>,
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
pub type Changes = Few<Option<Change>>;

impl Verdict {
    /// Judges `plan` on the states that were found for its checks; `consume` is false for a peek.
    pub fn judge(plan: &Plan<'_>, now: Timestamp, consume: bool, states: &[Option<&State>]) -> (Self, Changes) {
        let rulings: Few<Ruling> =
            plan.checks().iter().zip(states).map(|(check, state)| Ruling::new(plan, check, *state, now)).collect();
        let granted = plan.granted(|index| rulings[index].room);
        let mut verdict = Self { decided_at: now, granted, judged: Few::default() };
        let mut changes = Changes::default();
        rulings.into_each(|index, ruling| {
            let mut change = None;
            let check = &plan.checks()[index];
            verdict.judged.push(ruling.conclude(plan, check, states[index], granted, now, consume, &mut change));
            changes.push(change);
        });
        (verdict, changes)
    }

    /// [`judge`](Self::judge) for a plan of one check, which most are. What to write goes to `change`.
    #[inline]
    pub(crate) fn judge_one(
        plan: &Plan<'_>,
        only: &Check<'_>,
        now: Timestamp,
        consume: bool,
        state: Option<&State>,
        change: &mut Option<Change>,
    ) -> Self {
        let ruling = Ruling::new(plan, only, state, now);
        let granted = plan.granted(|_| ruling.room);
        let judged = Few::One(ruling.conclude(plan, only, state, granted, now, consume, change));
        Self { decided_at: now, granted, judged }
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

/// What one check says for itself.
struct Ruling {
    /// The units of the plan that it has room for.
    room: u64,
    /// For a plan of one unit: what came of taking it.
    applied: Option<Applied<Change>>,
}

impl Ruling {
    fn new(plan: &Plan<'_>, check: &Check<'_>, state: Option<&State>, now: Timestamp) -> Self {
        let (limit, take) = (check.gate().limit(), plan.take(check, plan.units()));
        if take.units > 1 {
            return Self { room: algorithm::room(state, limit, now, take), applied: None };
        }
        let applied = algorithm::apply(state, limit, now, Op::Take(take));
        Self { room: u64::from(applied.admitted), applied: Some(applied) }
    }

    /// What becomes of the check, now that it is known what the whole plan grants. What to write goes to `change`.
    #[allow(
        clippy::too_many_arguments,
        reason = "all of a plan's context, for one check; a struct would name it twice"
    )]
    #[inline]
    fn conclude(
        self,
        plan: &Plan<'_>,
        check: &Check<'_>,
        state: Option<&State>,
        granted: u64,
        now: Timestamp,
        consume: bool,
        change: &mut Option<Change>,
    ) -> Judged {
        let limit = check.gate().limit();
        let take = plan.take(check, granted.max(1));
        let admitted = self.room >= take.units;
        let consumed = consume && plan.consumes(check, admitted, granted);
        let standing = Standing { take, admitted, consumed };
        let view = |state| State::view(state, limit, now, take.total());
        if consume && (consumed || !admitted) {
            // For a denial, this is a state that had to be rebased, or nothing.
            *change = match self.applied {
                Some(applied) => applied.change,
                None => algorithm::apply(state, limit, now, Op::Take(take)).change,
            };
            if !admitted && plan.counts_denied(check) {
                let charge = algorithm::apply(state, limit, now, Op::Charge { cost: take.total() }).change;
                *change = charge.or(change.take());
                return finish(limit, &view(changed(state, change.clone()).as_ref()), standing, now);
            }
        }
        finish(limit, &view(state), standing, now)
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

fn finish(limit: &Limit, view: &View<'_>, standing: Standing, now: Timestamp) -> Judged {
    let place = if standing.consumed { algorithm::place(view, limit, now, standing.take) } else { Place::default() };
    Judged { outcome: algorithm::outcome(view, limit, now, standing), consumed: standing.consumed, place }
}
