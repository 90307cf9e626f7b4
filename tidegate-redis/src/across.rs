//! Plans whose keys lie in several slots of a cluster, where no script can be atomic: parts, one script each.
//!
//! The parts are decided one after the other, the one that denied last first. If one denies, those before it are given back.
//! So a plan that passes has passed every check at the moment when that check was decided, and never more pass than the
//! limits say. What can be seen in between: a request that a later part denies holds, for the time of a call or two, what
//! the parts before it took, and another request may be denied for it. If giving back fails, too, it stays taken until the
//! limit has refilled.
//!
//! Once a part has denied, the plan is denied, whatever becomes of the others: a silent server makes no error of it.

mod denials;
mod owed;

use std::cmp::Reverse;
use std::time::Duration;

use tidegate::spi::algorithm::Found;
use tidegate::spi::{CheckVerdict, Plan, PlanMode, Role, Verdict};
use tidegate::{StoreError, Timestamp};

use crate::error::{Failed, silent};
use crate::patience::{self, Deadline, Patience};
use crate::slots::slot_of;
use crate::store::RedisStore;
use crate::together::together;
pub(crate) use denials::Denials;
use owed::Owed;

/// How often units are asked for anew because others came in between; then it is one unit, which is there or not.
const MOST_ROUNDS: usize = 3;

/// What belongs into one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Checks of one slot: one script can decide them.
    Slot,
    /// Each check on its own, while a slot is being moved key by key and a script would find only some of its keys.
    Key,
}

/// Some checks of a plan, as a plan of their own.
struct Part<'r> {
    plan: Plan<'r>,
    /// Where its checks stand in the whole plan.
    places: Vec<usize>,
    turn: Turn,
    /// How many units of the whole plan one of this part is.
    times: u64,
}

/// What parts are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// As many units as they have, up to these.
    UpTo(u64),
    /// These units. Of a group whose members lie apart, a member that has not all of them takes none.
    All(u64),
}

/// When a part is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// It can deny: first, and the later its last denial was, the sooner.
    Deny { denied: Reverse<u64> },
    /// One member of a group whose members lie apart, of which one must admit.
    AnyOf(u8),
    /// In shadow: last, when it is known what passes.
    Beside,
}

/// What came of asking for some units.
enum Taken {
    Decided(Verdict),
    /// Nothing was taken, since one part has no more than these.
    Fewer(u64),
}

/// Deciding across slots
impl RedisStore {
    /// Whether the keys of `plan` lie in several slots that matter.
    pub(crate) fn is_across(&self, plan: &Plan<'_>) -> bool {
        let mut slots = plan.checks().iter().map(|check| slot_of(check.key().partition()));
        let first = slots.next();
        self.link.has_slots() && slots.any(|slot| Some(slot) != first)
    }

    /// Decides `plan` part by part.
    pub(crate) async fn decide_across(
        &self,
        plan: &Plan<'_>,
        by: By,
        deadline: Deadline,
    ) -> Result<Verdict, StoreError> {
        match self.decide_parts(plan, by, deadline).await {
            Err(failed) if failed.torn && by == By::Slot => Ok(self.decide_parts(plan, By::Key, deadline).await?),
            decided => Ok(decided?),
        }
    }

    /// Says what deciding would say, part by part.
    pub(crate) async fn peek_across(&self, plan: &Plan<'_>, by: By, deadline: Deadline) -> Result<Verdict, StoreError> {
        match self.peek_parts(plan, by, deadline).await {
            Err(failed) if failed.torn && by == By::Slot => Ok(self.peek_parts(plan, By::Key, deadline).await?),
            peeked => Ok(peeked?),
        }
    }

    async fn decide_parts(&self, plan: &Plan<'_>, by: By, deadline: Deadline) -> Result<Verdict, Failed> {
        // How many units all parts have is asked first, so that hardly ever any are taken in vain.
        let mut units = self.room(plan, by, deadline).await?.max(1);
        if plan.plan_mode() == PlanMode::CountEach {
            return self.count_each(plan, units, self.parts(plan, by, Ask::All(units)), deadline).await;
        }
        for round in 1.. {
            match self.take(plan, units, self.parts(plan, by, Ask::All(units)), deadline).await? {
                Taken::Decided(verdict) => return Ok(verdict),
                Taken::Fewer(fewer) => units = if round < MOST_ROUNDS { fewer } else { 1 },
            }
        }
        Err(StoreError::new(tidegate::StoreErrorKind::Unexpected, "one unit was neither granted nor denied").into())
    }

    /// Takes `units` from all parts or from none.
    async fn take(
        &self,
        plan: &Plan<'_>,
        units: u64,
        parts: Vec<Part<'_>>,
        deadline: Deadline,
    ) -> Result<Taken, Failed> {
        let mut owed = Owed::nothing(self);
        let mut verdicts: Vec<Option<Verdict>> = parts.iter().map(|_| None).collect();
        let mut best_of_group = 0;
        for (index, part) in parts.iter().enumerate() {
            let verdict = match self.decide_part(&part.plan, deadline).await {
                Ok(verdict) => verdict,
                // What is in shadow has no say, not even by failing.
                Err(failed) if part.turn == Turn::Beside && !failed.torn => continue,
                Err(failed) => return Err(owed.give_back_after(failed).await),
            };
            owed.add(&part.plan, &verdict);
            let granted = match part.turn {
                Turn::Beside => units,
                Turn::Deny { .. } => part.granted(&verdict),
                Turn::AnyOf(_) => {
                    best_of_group = part.granted(&verdict).max(best_of_group);
                    let another = parts.get(index + 1).is_some_and(|next| next.turn == part.turn);
                    if another { units } else { std::mem::take(&mut best_of_group) }
                }
            };
            if granted == 0 {
                self.denials.add(&part.plan, &verdict);
                verdicts[index] = Some(verdict);
                return Ok(Taken::Decided(self.denied(plan, parts, verdicts, owed, deadline).await));
            }
            if granted < units {
                owed.give_back().await;
                return Ok(Taken::Fewer(granted));
            }
            verdicts[index] = Some(verdict);
        }
        owed.settle();
        Ok(Taken::Decided(merged(plan, units, &parts, verdicts)))
    }

    /// What is said to a denied plan: what the parts that denied found, and what all others would say now that they have
    /// back what was taken. One that cannot be asked soon is told as if it were fresh: the denial stands without it.
    async fn denied(
        &self,
        plan: &Plan<'_>,
        parts: Vec<Part<'_>>,
        mut verdicts: Vec<Option<Verdict>>,
        mut owed: Owed<'_, '_>,
        deadline: Deadline,
    ) -> Verdict {
        let (began, most) = (patience::now(), deadline.details());
        // This goes on, however long it takes; it is waited for only for the sake of what is told.
        if let Some(giving_back) = owed.give_back_beside() {
            let _ = patience::within(most / 2, giving_back).await;
        }
        let missing = verdicts.iter().enumerate().filter(|(_, verdict)| took_or_unasked(verdict.as_ref()));
        let missing: Vec<usize> = missing.map(|(index, _)| index).collect();
        let rest = most.saturating_sub(began.elapsed());
        let peeks = missing.iter().map(|index| self.peek_soon(&parts[*index].plan, rest, deadline));
        let peeked = together(peeks.collect::<Vec<_>>()).await;
        for (index, peeked) in missing.into_iter().zip(peeked) {
            verdicts[index] = peeked;
        }
        merged(plan, 0, &parts, verdicts)
    }

    /// Counts in every part, whatever the others say; then what is in shadow, which counts only what passes.
    async fn count_each(
        &self,
        plan: &Plan<'_>,
        units: u64,
        parts: Vec<Part<'_>>,
        deadline: Deadline,
    ) -> Result<Verdict, Failed> {
        let (beside, counting): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.turn == Turn::Beside);
        let decided = together(counting.iter().map(async |part| self.decide_part(&part.plan, deadline).await)).await;
        let mut owed = Owed::nothing(self);
        for (part, decided) in counting.iter().zip(&decided) {
            if let Ok(verdict) = decided {
                owed.add(&part.plan, verdict);
            }
        }
        let (mut verdicts, failure) = told(decided);
        let denied = is_denied(&counting, &verdicts);
        // What was torn can be counted key by key.
        if let Some(failed) = failure.filter(|failed| failed.torn || !denied) {
            return Err(owed.give_back_after(failed).await);
        }
        owed.settle();
        let granted = if denied { 0 } else { granted(&counting, &verdicts, units) };
        let most = deadline.details();
        let beside = together(beside.iter().map(async |part| match granted {
            0 => self.peek_soon(&part.plan, most, deadline).await,
            units => self.decide_part(&part.plan.clone().up_to(units), deadline).await.ok(),
        }));
        // They are the last of the parts.
        verdicts.extend(beside.await);
        Ok(merged(plan, granted, &parts, verdicts))
    }

    /// Decides a part in what is left of the time, and not to the end of it.
    async fn decide_part(&self, part: &Plan<'_>, deadline: Deadline) -> Result<Verdict, Failed> {
        let decided = patience::within(deadline.next(), self.decide_whole(part, deadline.patience())).await;
        decided.unwrap_or_else(|| Err(silent().into()))
    }

    /// What a part would say, if it says so within `most`.
    async fn peek_soon(&self, part: &Plan<'_>, most: Duration, deadline: Deadline) -> Option<Verdict> {
        patience::within(most, self.peek_whole(part, deadline.patience())).await?.ok()
    }

    /// How many units, of those that `plan` asks for, all parts have. One that fails has no say if another has none.
    async fn room(&self, plan: &Plan<'_>, by: By, deadline: Deadline) -> Result<u64, Failed> {
        let most = plan.units();
        if most == 1 {
            return Ok(1);
        }
        // What is found is asked for afterwards, so that half of the time is for that.
        let parts = self.parts(plan, by, Ask::UpTo(most));
        let (verdicts, failure) = self.peek_at(&parts, deadline.next() / 2).await;
        let all: Vec<&Part<'_>> = parts.iter().collect();
        match failure {
            None => Ok(granted(&all, &verdicts, most)),
            Some(failed) if failed.torn || !is_denied(&all, &verdicts) => Err(failed),
            Some(_) => {
                for (part, verdict) in parts.iter().zip(&verdicts) {
                    if let Some(verdict) = verdict.as_ref().filter(|verdict| verdict.granted == 0) {
                        self.denials.add(&part.plan, verdict);
                    }
                }
                Ok(0)
            }
        }
    }

    async fn peek_parts(&self, plan: &Plan<'_>, by: By, deadline: Deadline) -> Result<Verdict, Failed> {
        // Each part speaks of the units that it has itself; then of those that all have.
        let units = self.room(plan, by, deadline).await?;
        let parts = self.parts(plan, by, Ask::All(units.max(1)));
        let (verdicts, failure) = self.peek_at(&parts, deadline.next()).await;
        // Nothing is decided here: who asks what there is gets an error rather than a guess.
        if let Some(failed) = failure {
            return Err(failed);
        }
        let granted = granted(&parts.iter().collect::<Vec<_>>(), &verdicts, units.max(1));
        Ok(merged(plan, granted.min(units), &parts, verdicts))
    }

    /// What each of `parts` says within `most`, and the first failure.
    async fn peek_at(&self, parts: &[Part<'_>], most: Duration) -> (Vec<Option<Verdict>>, Option<Failed>) {
        let peek = async |part: &Part<'_>| {
            let peeked = patience::within(most, self.peek_whole(&part.plan, Patience::within(most))).await;
            peeked.unwrap_or_else(|| Err(silent().into()))
        };
        told(together(parts.iter().map(peek)).await)
    }

    /// The parts of `plan`, in the order in which they are decided.
    fn parts<'r>(&self, plan: &Plan<'r>, by: By, ask: Ask) -> Vec<Part<'r>> {
        let home = |place: usize| match by {
            By::Slot => usize::from(slot_of(plan.checks()[place].key().partition())),
            By::Key => place,
        };
        let role = |place: usize| plan.checks()[place].gate().role();
        let all = 0..plan.checks().len();
        let apart = |place: usize| {
            matches!(role(place), Role::AnyOf(_))
                && all.clone().any(|at| role(at) == role(place) && home(at) != home(place))
        };
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for place in all.clone() {
            let alike = |one: usize, other: usize| (role(one) == Role::Shadow) == (role(other) == Role::Shadow);
            let with =
                |group: &&mut Vec<usize>| home(group[0]) == home(place) && !apart(group[0]) && alike(group[0], place);
            match groups.iter_mut().find(with) {
                Some(group) if !apart(place) => group.push(place),
                _ => groups.push(vec![place]),
            }
        }
        let part = |places: Vec<usize>| {
            let times = match ask {
                Ask::All(units) if apart(places[0]) => units,
                _ => 1,
            };
            let (Ask::UpTo(units) | Ask::All(units)) = ask;
            let part = of_checks(plan, &places, times).up_to(units / times);
            let turn = match role(places[0]) {
                Role::AnyOf(group) if apart(places[0]) => Turn::AnyOf(group),
                Role::Shadow => Turn::Beside,
                _ => Turn::Deny { denied: Reverse(self.denials.last(&part)) },
            };
            Part { plan: part, places, turn, times }
        };
        let mut parts: Vec<Part<'r>> = groups.into_iter().map(part).collect();
        parts.sort_by_key(|part| part.turn);
        parts
    }
}

impl Part<'_> {
    /// The units of the whole plan that this part grants.
    fn granted(&self, verdict: &Verdict) -> u64 {
        verdict.granted.saturating_mul(self.times)
    }
}

/// The checks at `places` as a plan of their own, each at the cost of so many `times`.
fn of_checks<'r>(plan: &Plan<'r>, places: &[usize], times: u64) -> Plan<'r> {
    let checks = places.iter().map(|place| plan.checks()[*place]);
    let checks = checks.map(|check| check.with_cost(check.cost().saturating_mul(times)));
    let delay = places.first().map_or(u64::MAX, |place| plan.take(&plan.checks()[*place], 1).longest_delay);
    // A part of a plan is one: fewer checks, whose keys differ.
    let part = Plan::new(checks).unwrap_or_else(|_| plan.clone());
    part.mode(plan.plan_mode()).longest_delay(Duration::from_micros(delay))
}

/// Whether a part took something that was given back since, or was not asked at all.
fn took_or_unasked(verdict: Option<&Verdict>) -> bool {
    verdict.is_none_or(|verdict| verdict.judged.iter().any(|judged| judged.consumed))
}

/// What each part said, and the first failure.
fn told(said: Vec<Result<Verdict, Failed>>) -> (Vec<Option<Verdict>>, Option<Failed>) {
    let mut failure = None;
    let verdicts = said.into_iter().map(|said| said.map_err(|failed| failure = failure.take().or(Some(failed))).ok());
    (verdicts.collect(), failure)
}

/// Whether what some parts said is a denial, whatever the others would say.
fn is_denied(parts: &[&Part<'_>], verdicts: &[Option<Verdict>]) -> bool {
    let denies = |verdict: &Option<Verdict>| verdict.as_ref().is_some_and(|verdict| verdict.granted == 0);
    parts.iter().zip(verdicts).any(|(part, verdict)| match part.turn {
        Turn::Beside => false,
        Turn::Deny { .. } => denies(verdict),
        Turn::AnyOf(_) => parts
            .iter()
            .zip(verdicts)
            .filter(|(member, _)| member.turn == part.turn)
            .all(|(_, verdict)| denies(verdict)),
    })
}

/// The units, of those that were asked for, that all parts together grant.
fn granted(parts: &[&Part<'_>], verdicts: &[Option<Verdict>], units: u64) -> u64 {
    let of = |wanted: Turn| {
        let alike = parts.iter().zip(verdicts).filter(move |(part, _)| part.turn == wanted);
        alike.filter_map(|(part, verdict)| verdict.as_ref().map(|verdict| part.granted(verdict)))
    };
    let each = parts.iter().map(|part| match part.turn {
        Turn::Beside => units,
        Turn::Deny { .. } => of(part.turn).min().unwrap_or(units),
        Turn::AnyOf(_) => of(part.turn).max().unwrap_or(0),
    });
    each.fold(units, u64::min)
}

/// One verdict of those of the parts. What a part did not say is told as if its checks were fresh.
fn merged(plan: &Plan<'_>, granted: u64, parts: &[Part<'_>], verdicts: Vec<Option<Verdict>>) -> Verdict {
    let decided_at =
        verdicts.iter().flatten().map(|verdict| verdict.decided_at).max().unwrap_or(Timestamp::from_micros(0));
    let mut judged: Vec<Option<CheckVerdict>> = plan.checks().iter().map(|_| None).collect();
    for (part, verdict) in parts.iter().zip(verdicts) {
        let verdict = verdict.unwrap_or_else(|| {
            let fresh: Vec<_> = part.places.iter().map(|_| (true, Found::Fresh)).collect();
            Verdict::replay(&part.plan, decided_at, false, 1, &fresh)
        });
        for (place, found) in part.places.iter().zip(&verdict.judged) {
            judged[*place] = Some(*found);
        }
    }
    Verdict { decided_at, granted, judged: judged.into_iter().flatten().collect() }
}
