//! Plans whose keys lie in several slots of a cluster, where no script can be atomic: parts, one script each.
//!
//! The parts are decided one after the other, the one that denied last first. If one denies, those before it are given back.
//! So a plan that passes has passed every check at the moment when that check was decided, and never more pass than the
//! limits say. What can be seen in between: a request that a later part denies holds, for the time of a call or two, what
//! the parts before it took, and another request may be denied for it. If giving back fails, too, it stays taken until the
//! limit has refilled.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::algorithm::{Found, Op};
use tidegate::{Adjustment, Judged, PARTITIONS, Plan, PlanMode, Role, Store, StoreError, Timestamp, Verdict};

use crate::error::Failed;
use crate::flood;
use crate::slots::slot_of;
use crate::store::RedisStore;
use crate::together::together;

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

/// Which partitions denied, in the order of their last denial: a part that denied a moment ago is likely to do it again, and
/// if it is the first, nothing has to be given back.
pub(crate) struct Denials {
    count: AtomicU64,
    last: Vec<AtomicU64>,
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

/// What was taken and has to be given back unless the whole plan passes: also when the caller stops waiting.
struct Owed<'s, 'r> {
    store: &'s RedisStore,
    taken: Vec<Adjustment<'r>>,
}

impl Denials {
    /// None yet; without slots, none will be asked for.
    pub(crate) fn new(has_slots: bool) -> Self {
        let partitions = if has_slots { PARTITIONS } else { 0 };
        Self { count: AtomicU64::new(0), last: (0..partitions).map(|_| AtomicU64::new(0)).collect() }
    }

    fn last(&self, plan: &Plan<'_>) -> u64 {
        let last =
            |partition: u16| self.last.get(usize::from(partition)).map_or(0, |last| last.load(Ordering::Relaxed));
        plan.checks().iter().map(|check| last(check.key().partition())).max().unwrap_or(0)
    }

    fn add(&self, plan: &Plan<'_>, verdict: &Verdict) {
        let now = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        for (check, judged) in plan.checks().iter().zip(&verdict.judged) {
            if let (false, Some(last)) = (judged.outcome.admitted, self.last.get(usize::from(check.key().partition())))
            {
                last.store(now, Ordering::Relaxed);
            }
        }
    }
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
    pub(crate) async fn decide_across(&self, plan: &Plan<'_>, by: By) -> Result<Verdict, StoreError> {
        match self.decide_parts(plan, by).await {
            Err(failed) if failed.torn && by == By::Slot => Ok(self.decide_parts(plan, By::Key).await?),
            decided => Ok(decided?),
        }
    }

    /// Says what deciding would say, part by part.
    pub(crate) async fn peek_across(&self, plan: &Plan<'_>, by: By) -> Result<Verdict, StoreError> {
        match self.peek_parts(plan, by).await {
            Err(failed) if failed.torn && by == By::Slot => Ok(self.peek_parts(plan, By::Key).await?),
            peeked => Ok(peeked?),
        }
    }

    async fn decide_parts(&self, plan: &Plan<'_>, by: By) -> Result<Verdict, Failed> {
        // How many units all parts have is asked first, so that hardly ever any are taken in vain.
        let mut units = self.room(plan, by).await?.max(1);
        if plan.plan_mode() == PlanMode::CountEach {
            return self.count_each(plan, units, self.parts(plan, by, Ask::All(units))).await;
        }
        for round in 1.. {
            match self.take(plan, units, self.parts(plan, by, Ask::All(units))).await? {
                Taken::Decided(verdict) => return Ok(verdict),
                Taken::Fewer(fewer) => units = if round < MOST_ROUNDS { fewer } else { 1 },
            }
        }
        Err(StoreError::new(tidegate::StoreErrorKind::Unexpected, "one unit was neither granted nor denied").into())
    }

    /// Takes `units` from all parts or from none.
    async fn take(&self, plan: &Plan<'_>, units: u64, parts: Vec<Part<'_>>) -> Result<Taken, Failed> {
        let mut owed = Owed { store: self, taken: Vec::new() };
        let mut verdicts: Vec<Option<Verdict>> = parts.iter().map(|_| None).collect();
        let mut best_of_group = 0;
        for (index, part) in parts.iter().enumerate() {
            let verdict = match self.decide_whole(&part.plan).await {
                Ok(verdict) => verdict,
                // What is in shadow has no say, not even by failing.
                Err(failed) if part.turn == Turn::Beside && !failed.torn => continue,
                Err(failed) => return Err(owed.give_back_after(failed).await),
            };
            owed.add(part, &verdict);
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
                owed.give_back().await;
                return self.denied(plan, parts, verdicts).await.map(Taken::Decided);
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
    /// back what was taken. One that cannot be asked is told as if it were fresh: the denial stands without it.
    async fn denied(
        &self,
        plan: &Plan<'_>,
        parts: Vec<Part<'_>>,
        mut verdicts: Vec<Option<Verdict>>,
    ) -> Result<Verdict, Failed> {
        let missing = verdicts.iter().enumerate().filter(|(_, verdict)| took_or_unasked(verdict.as_ref()));
        let missing: Vec<usize> = missing.map(|(index, _)| index).collect();
        let peeked = together(missing.iter().map(async |index| self.peek_whole(&parts[*index].plan).await)).await;
        for (index, peeked) in missing.into_iter().zip(peeked) {
            verdicts[index] = peeked.ok();
        }
        Ok(merged(plan, 0, &parts, verdicts))
    }

    /// Counts in every part, whatever the others say; then what is in shadow, which counts only what passes.
    async fn count_each(&self, plan: &Plan<'_>, units: u64, parts: Vec<Part<'_>>) -> Result<Verdict, Failed> {
        let (beside, counting): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.turn == Turn::Beside);
        let decided = together(counting.iter().map(async |part| self.decide_whole(&part.plan).await)).await;
        let mut owed = Owed { store: self, taken: Vec::new() };
        let (mut verdicts, mut failure) = (Vec::with_capacity(parts.len()), None);
        for (part, decided) in counting.iter().zip(decided) {
            match decided {
                Ok(verdict) => {
                    owed.add(part, &verdict);
                    verdicts.push(Some(verdict));
                }
                Err(failed) => failure = failure.or(Some(failed)),
            }
        }
        if let Some(failed) = failure {
            return Err(owed.give_back_after(failed).await);
        }
        owed.settle();
        let granted = granted(&counting, &verdicts, units);
        let beside = together(beside.iter().map(async |part| match granted {
            0 => self.peek_whole(&part.plan).await.ok(),
            units => self.decide_whole(&part.plan.clone().up_to(units)).await.ok(),
        }));
        // They are the last of the parts.
        verdicts.extend(beside.await);
        Ok(merged(plan, granted, &parts, verdicts))
    }

    /// How many units, of those that `plan` asks for, all parts have.
    async fn room(&self, plan: &Plan<'_>, by: By) -> Result<u64, Failed> {
        match plan.units() {
            1 => Ok(1),
            most => self.peek_at(&self.parts(plan, by, Ask::UpTo(most)), most).await.map(|(units, _)| units),
        }
    }

    async fn peek_parts(&self, plan: &Plan<'_>, by: By) -> Result<Verdict, Failed> {
        // Each part speaks of the units that it has itself; then of those that all have.
        let units = self.room(plan, by).await?;
        let parts = self.parts(plan, by, Ask::All(units.max(1)));
        let (granted, verdicts) = self.peek_at(&parts, units.max(1)).await?;
        Ok(merged(plan, granted.min(units), &parts, verdicts))
    }

    async fn peek_at(&self, parts: &[Part<'_>], units: u64) -> Result<(u64, Vec<Option<Verdict>>), Failed> {
        let mut verdicts = Vec::with_capacity(parts.len());
        for peeked in together(parts.iter().map(async |part| self.peek_whole(&part.plan).await)).await {
            verdicts.push(Some(peeked?));
        }
        Ok((granted(&parts.iter().collect::<Vec<_>>(), &verdicts, units), verdicts))
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

// === impl Owed ===

impl<'r> Owed<'_, 'r> {
    fn add(&mut self, part: &Part<'r>, verdict: &Verdict) {
        for (index, (check, judged)) in part.plan.checks().iter().zip(&verdict.judged).enumerate() {
            if judged.consumed {
                let cost = check.cost().saturating_mul(verdict.granted.max(1));
                let taken = Adjustment::of(check, Op::Refund { cost, place: judged.place });
                let key = if judged.overflowed { flood::overflow(&part.plan, index) } else { taken.key };
                self.taken.push(Adjustment { key, ..taken });
            }
        }
    }

    /// The plan has passed: it is not owed any more.
    fn settle(&mut self) {
        self.taken.clear();
    }

    /// Gives everything back; whether that worked. What fails is not tried again, since it may have been carried out.
    async fn give_back(&mut self) -> bool {
        let taken = std::mem::take(&mut self.taken);
        taken.is_empty() || self.store.adjust(&taken).await.is_ok()
    }

    async fn give_back_after(&mut self, failed: Failed) -> Failed {
        let Failed { error, torn } = failed;
        let clean = self.give_back().await;
        Failed { error: if clean { error } else { error.possibly_applied() }, torn: torn && clean }
    }
}

impl Drop for Owed<'_, '_> {
    fn drop(&mut self) {
        self.store.adjust_soon(&self.taken);
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
    let mut judged: Vec<Option<Judged>> = plan.checks().iter().map(|_| None).collect();
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
