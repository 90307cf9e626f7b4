//! `Flood`: what an instance knows of the subjects that nobody vouches for, and where new ones go once there are too many.
//! It does not decide: the script looks whether a subject is new.
//!
//! Each instance counts, for each limit, the keys that its decisions created for such strangers, from their creation to their
//! expiry, by the time of the server. A key whose life a decision prolongs counts longer with the instance that did it, so the
//! counts of all instances together are the number of keys, whoever created them. While an instance counts as many as its part of
//! the cap, the limit is *crowded*: a stranger's check is then sent with a second key, of an overflow bucket in its partition,
//! which decides if the stranger has no key. So those who are known keep what is theirs, and new ones share 1,024 buckets, or
//! 256 in each partition that does not follow from the stranger.

mod ring;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use smol_str::SmolStr;
use tidegate::spi::algorithm::{self, MARGIN_MICROS, Op, State};
use tidegate::spi::{Adjustment, Check, CheckVerdict, Gate, Key, Plan};
use tidegate::{AnonymousBounds, Limit, Timestamp};

use crate::reply::Reply;
use ring::Ring;

/// What an instance knows of the strangers under one rule: subjects that nobody vouches for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Strangers {
    /// The id of the rule. Of rules that share a budget, it is the one that had the first stranger.
    pub rule: SmolStr,
    /// How many keys were created for them by this instance, since it started.
    pub created: u64,
    /// How many keys they have now, as far as this instance has to do with it: all instances together count each key once.
    pub keys: u64,
    /// Whether there are too many under one of its limits, so that new ones share overflow buckets.
    pub crowded: bool,
}

/// The strangers of all limits, by the id of the stem of their keys.
#[derive(Default)]
pub(crate) struct Flood {
    crowds: RwLock<HashMap<u128, Mutex<Crowd>>>,
    /// What the last reply said that time it is, in microseconds.
    now: AtomicU64,
}

/// From this many limits on, those that nobody has a key under are forgotten: rules come and go.
const MANY_CROWDS: usize = 1000;

/// The strangers of one limit.
struct Crowd {
    rule: SmolStr,
    created: u64,
    ring: Ring,
    /// How many keys are too many, as it was when last asked.
    share: i64,
}

/// How a check of a stranger is decided where that differs from others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Treated<'r> {
    /// The bucket that decides if the stranger has no key.
    pub(crate) overflow: Option<Key<'r>>,
    /// How long its key lives at most, in microseconds.
    pub(crate) longest: Option<u64>,
}

/// Under which limit a stranger counts, and how long its key lives at most, in microseconds.
#[derive(Clone, Debug)]
struct Whose {
    stem: u128,
    rule: SmolStr,
    longest: Option<u64>,
}

/// A stranger who may get a key by a charge.
#[derive(Clone, Debug)]
pub(crate) struct Newcomer {
    whose: Whose,
    limit: Limit,
    op: Op,
}

/// How each check of a plan is treated; empty if all are treated as usual.
pub(crate) type Treatment<'r> = Vec<Treated<'r>>;

impl Flood {
    /// How the checks of `plan` are to be treated by one of so many `instances`.
    pub(crate) fn treatment<'r>(&self, plan: &Plan<'r>, instances: Option<u32>) -> Treatment<'r> {
        if !plan.checks().iter().any(Check::is_anonymous) {
            return Vec::new();
        }
        let treated = plan.checks().iter().enumerate().map(|(index, check)| {
            // What costs nothing creates nothing.
            let asks = check.is_anonymous() && check.cost() > 0;
            let crowded = asks && self.is_crowded(check.gate(), check.key(), instances);
            Treated {
                overflow: crowded.then(|| overflow(plan, index)),
                longest: check.is_anonymous().then(|| longest(check.gate())).flatten(),
            }
        });
        usual_or(treated.collect())
    }

    /// How `adjustments` are to be treated: a charge may create a key, too.
    pub(crate) fn treatment_of<'r>(&self, adjustments: &[Adjustment<'r>], instances: Option<u32>) -> Treatment<'r> {
        let treated = adjustments.iter().map(|Adjustment { key, op, stranger, .. }| {
            let Some(gate) = stranger else { return Treated::default() };
            let crowded = matches!(op, Op::Charge { .. }) && self.is_crowded(gate, key, instances);
            Treated { overflow: crowded.then(|| key.overflow(bucket(key))), longest: longest(gate) }
        });
        usual_or(treated.collect())
    }

    /// Counts what a decision did for strangers.
    pub(crate) fn decided(&self, plan: &Plan<'_>, reply: &Reply, judged: &[CheckVerdict]) {
        for (index, (check, judged)) in plan.checks().iter().zip(judged).enumerate() {
            if !check.is_anonymous() {
                continue;
            }
            self.now.store(reply.now.as_micros(), Ordering::Relaxed);
            if judged.consumed && !judged.overflowed {
                let before = reply.expiry_before(index, check);
                let whose = Whose::of(check.gate(), check.key());
                self.count(&whose, before, reply.now.plus(judged.outcome.reset_after).as_micros());
            }
        }
    }

    /// Counts strangers whose keys were created by a charge.
    pub(crate) fn adjusted<'n>(&self, now: Timestamp, created: impl Iterator<Item = &'n Newcomer>) {
        self.now.store(now.as_micros(), Ordering::Relaxed);
        for Newcomer { whose, limit, op } in created {
            if let Some(change) = algorithm::apply(None, limit, now, *op).change {
                self.count(whose, None, algorithm::expiry(&State::new(change), limit));
            }
        }
    }

    /// What is known of the strangers of each rule that has had any lately, by the id of the rule.
    pub(crate) fn strangers(&self) -> Vec<Strangers> {
        let mut found: Vec<Strangers> = Vec::new();
        for crowd in self.crowds.read().unwrap_or_else(PoisonError::into_inner).values() {
            let mut crowd = lock(crowd);
            crowd.ring.advance(self.now());
            let place = found.iter().position(|known| known.rule == crowd.rule).unwrap_or(found.len());
            if place == found.len() {
                found.push(Strangers { rule: crowd.rule.clone(), created: 0, keys: 0, crowded: false });
            }
            let known = &mut found[place];
            known.created += crowd.created;
            known.keys += u64::try_from(crowd.ring.alive()).unwrap_or(0);
            known.crowded |= crowd.ring.alive() >= crowd.share;
        }
        found.sort_unstable_by(|one, other| one.rule.cmp(&other.rule));
        found
    }

    fn is_crowded(&self, gate: &Gate, key: &Key<'_>, instances: Option<u32>) -> bool {
        let crowds = self.crowds.read().unwrap_or_else(PoisonError::into_inner);
        let Some(crowd) = crowds.get(&key.stem().id()) else { return false };
        let mut crowd = lock(crowd);
        crowd.ring.advance(self.now());
        crowd.share = share(gate.anonymous_bounds(), instances);
        crowd.ring.alive() >= crowd.share
    }

    /// Counts a key whose state now matters until `after`, and which would have expired at `before` if it is not new.
    fn count(&self, whose: &Whose, before: Option<u64>, after: u64) {
        loop {
            if let Some(crowd) = self.crowds.read().unwrap_or_else(PoisonError::into_inner).get(&whose.stem) {
                return lock(crowd).count(self.now(), before, after, whose.longest);
            }
            let mut crowds = self.crowds.write().unwrap_or_else(PoisonError::into_inner);
            if crowds.len() >= MANY_CROWDS {
                crowds.retain(|_, crowd| lock(crowd).ring.alive() > 0);
            }
            let new = || Crowd { rule: whose.rule.clone(), created: 0, ring: Ring::new(), share: i64::MAX };
            crowds.entry(whose.stem).or_insert_with(|| Mutex::new(new()));
        }
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
}

impl Whose {
    fn of(gate: &Gate, key: &Key<'_>) -> Self {
        Self { stem: key.stem().id(), rule: gate.rule().clone(), longest: longest(gate) }
    }
}

impl Newcomer {
    /// Whom `adjustment` may create a key for, if nobody vouches for them.
    pub(crate) fn of(adjustment: &Adjustment<'_>) -> Option<Self> {
        let whose = Whose::of(adjustment.stranger?, &adjustment.key);
        Some(Self { whose, limit: *adjustment.limit, op: adjustment.op })
    }
}

impl Crowd {
    fn count(&mut self, now: u64, before: Option<u64>, after: u64, longest: Option<u64>) {
        let after = after.min(now.saturating_add(longest.unwrap_or(u64::MAX))).saturating_add(MARGIN_MICROS);
        self.ring.advance(now);
        if let Some(before) = before {
            self.ring.renew(before, after);
        } else {
            self.created += 1;
            self.ring.add(after);
        }
    }
}

/// The overflow bucket of a check of `plan`: one for each, since no two checks of a plan may share a state.
pub(crate) fn overflow<'r>(plan: &Plan<'r>, index: usize) -> Key<'r> {
    let key = plan.checks()[index].key();
    let alike = |check: &&Check<'r>| {
        let other = check.key();
        check.is_anonymous() && other.stem().id() == key.stem().id() && other.partition() == key.partition()
    };
    let mut taken: Vec<u8> = Vec::new();
    let mut next = |key: &Key<'r>| {
        let mut number = bucket(key);
        // There are far fewer checks in a plan than numbers.
        while taken.contains(&number) {
            number = number.wrapping_add(1);
        }
        taken.push(number);
        number
    };
    for check in plan.checks()[..index].iter().filter(alike) {
        next(check.key());
    }
    key.overflow(next(key))
}

/// The number of the bucket in its partition that a subject falls into. Where the partition is the subject's own, it follows
/// from these same bits, so there is one bucket in each. Where it is the rule's or a tenant's, there are 256.
fn bucket(key: &Key<'_>) -> u8 {
    (key.subject().hash() >> 96) as u8
}

/// `treatment` without overflow buckets: while a slot is being moved, a script must not name two keys, one of which is new.
pub(crate) fn without_overflow<'r>(treatment: &[Treated<'r>]) -> Treatment<'r> {
    usual_or(treatment.iter().map(|treated| Treated { overflow: None, ..*treated }).collect())
}

/// Whether an overflow bucket is among them.
pub(crate) fn has_overflow(treatment: &[Treated<'_>]) -> bool {
    treatment.iter().any(|treated| treated.overflow.is_some())
}

fn usual_or(treatment: Treatment<'_>) -> Treatment<'_> {
    let usual = treatment.iter().all(|treated| treated.overflow.is_none() && treated.longest.is_none());
    if usual { Vec::new() } else { treatment }
}

/// The keys that one of so many instances may count before there are too many.
fn share(bounds: AnonymousBounds, instances: Option<u32>) -> i64 {
    let share = (bounds.max_subjects / u64::from(instances.unwrap_or(1).max(1))).max(1);
    i64::try_from(share).unwrap_or(i64::MAX)
}

fn longest(gate: &Gate) -> Option<u64> {
    gate.anonymous_bounds().forget_after.map(|after| u64::try_from(after.as_micros()).unwrap_or(u64::MAX))
}

fn lock(crowd: &Mutex<Crowd>) -> MutexGuard<'_, Crowd> {
    crowd.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use std::collections::HashSet;
    use tidegate::spi::{PARTITIONS, Subject};

    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn gate(most: u64) -> Gate {
        let limit = Limit::sliding_log(20, Duration::from_secs(600)).unwrap();
        Gate::of_rule("login-ip", limit).anonymous(AnonymousBounds { max_subjects: most, forget_after: None })
    }

    fn check(gate: &Gate, subject: u128) -> Check<'_> {
        Check::of(gate, Subject::from_hash(subject), 1).with_anonymous(true)
    }

    /// So many strangers get a key.
    fn fill(flood: &Flood, gate: &Gate, strangers: u128) {
        let newcomers: Vec<_> =
            (0..strangers).filter_map(|subject| Newcomer::of(&Adjustment::charge(&check(gate, subject)))).collect();
        flood.adjusted(NOW, newcomers.iter());
    }

    fn overflows(flood: &Flood, check: Check<'_>, instances: Option<u32>) -> bool {
        has_overflow(&flood.treatment(&Plan::new([check]).unwrap(), instances))
    }

    #[test]
    fn each_of_several_instances_has_its_part_of_the_cap() {
        let (flood, gate) = (Flood::default(), gate(100));
        fill(&flood, &gate, 49);
        assert!(!overflows(&flood, check(&gate, 1000), Some(2)));
        fill(&flood, &gate, 1);
        assert!(overflows(&flood, check(&gate, 1000), Some(2)));
        assert!(!overflows(&flood, check(&gate, 1000), None), "alone, it has all of it");
        assert!(overflows(&flood, check(&gate, 1000), Some(1_000_000)), "at least one");
        assert_eq!((share(gate.anonymous_bounds(), Some(0)), share(gate.anonymous_bounds(), Some(1000))), (100, 1));
    }

    #[test]
    fn only_strangers_who_cost_something_are_treated_in_another_way() {
        let (flood, gate) = (Flood::default(), gate(1));
        fill(&flood, &gate, 1);
        let newcomer = check(&gate, 1000);
        assert!(overflows(&flood, newcomer, None));
        for usual in [newcomer.with_anonymous(false), newcomer.with_cost(0)] {
            assert!(flood.treatment(&Plan::new([usual]).unwrap(), None).is_empty());
        }
        // In one plan with a stranger, everybody else has no bucket to fall back to.
        let other = Gate::of_rule("api", Limit::fixed_window(1, Duration::from_secs(1)).unwrap());
        let plan = Plan::new([Check::of(&other, Subject::from_hash(1), 1), newcomer]).unwrap();
        let treatment = flood.treatment(&plan, None);
        assert_eq!((treatment[0].overflow.is_some(), treatment[1].overflow.is_some()), (false, true));
    }

    /// No two checks of a plan may share a state, or one would be judged on what the other took.
    #[test]
    fn two_newcomers_in_one_plan_have_buckets_beside_each_other() {
        let (flood, gate) = (Flood::default(), gate(1));
        fill(&flood, &gate, 1);
        let far = 5 << 96;
        let plan = Plan::new([1000, 1001, far].map(|subject| check(&gate, subject))).unwrap();
        let keys: Vec<Key<'_>> = flood.treatment(&plan, None).iter().filter_map(|treated| treated.overflow).collect();
        let [one, other, elsewhere] = keys[..] else { panic!("{keys:?}") };
        assert_eq!((one, other), (plan.checks()[0].key().overflow(0), plan.checks()[0].key().overflow(1)));
        assert_eq!(elsewhere, plan.checks()[2].key().overflow(5));
    }

    /// One bucket for a partition is enough where strangers spread over all; where they lie in one, it would be one for all.
    #[test]
    fn strangers_of_one_partition_share_many_buckets_unless_it_is_their_own() {
        let gate = gate(1);
        let subjects = || (0..10_000_u128).map(|number| Subject::from_hash(number << 96 | number));
        let stem = check(&gate, 0).key().stem().clone();
        let distinct = |tag: &dyn Fn(Subject) -> Subject| {
            let names = subjects().map(|subject| {
                let (key, mut name) = (Key::new(&stem, tag(subject), subject), Vec::new());
                key.overflow(bucket(&key)).write_name("", &mut name);
                name
            });
            names.collect::<HashSet<_>>().len()
        };
        assert_eq!(distinct(&|subject| subject), usize::from(PARTITIONS));
        assert_eq!(distinct(&|_| Subject::from_hash(7)), 256);
    }
}
