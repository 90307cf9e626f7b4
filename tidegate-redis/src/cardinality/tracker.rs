//! `CardinalityTracker`: counts the keys of anonymous subjects for each limit, and routes new subjects to overflow buckets
//! when there are too many.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use smol_str::SmolStr;
use tidegate::spi::algorithm::{self, CLOCK_MARGIN, Op, State};
use tidegate::spi::{Adjustment, Check, CheckVerdict, Gate, Key, Plan};
use tidegate::{AnonymousBounds, Limit, Timestamp};

use super::anonymous_stats::AnonymousStats;
use super::expiry_ring::ExpiryRing;
use super::overflow_route::{OverflowRoute, bucket_number, empty_if_unneeded, max_ttl_micros, overflow_key};
use crate::args::micros;
use crate::reply::Reply;

/// When this many limits are tracked, those without a live key are dropped before another is added, since rules may change.
const PRUNE_THRESHOLD_LIMITS: usize = 1000;

/// Counts the keys of anonymous subjects for each limit.
#[derive(Default)]
pub(crate) struct CardinalityTracker {
    /// By the id of the stem that the keys of a limit share.
    counts: RwLock<HashMap<u128, Mutex<KeyCount>>>,
    /// The server's time by the last reply.
    now_micros: AtomicU64,
}

/// The keys of anonymous subjects under one limit.
struct KeyCount {
    rule: SmolStr,
    created: u64,
    live: ExpiryRing,
    /// This instance's share of the bound, when it was last needed.
    share: i64,
}

/// The limit that a key is counted under.
#[derive(Clone, Debug)]
struct CountedLimit {
    stem: u128,
    rule: SmolStr,
    max_ttl_micros: Option<u64>,
}

/// An adjustment that may create a key for an anonymous subject.
#[derive(Clone, Debug)]
pub(crate) struct PossibleNewKey {
    counted: CountedLimit,
    limit: Limit,
    op: Op,
}

/// Routing
impl CardinalityTracker {
    /// The routes of the checks of `plan`, for one of `instances` that share the bound.
    pub(crate) fn routes<'r>(&self, plan: &Plan<'r>, instances: Option<u32>) -> Vec<OverflowRoute<'r>> {
        if !plan.checks().iter().any(Check::is_anonymous) {
            return Vec::new();
        }
        let routes = plan.checks().iter().enumerate().map(|(index, check)| {
            // A check without a cost creates no key.
            let may_create = check.is_anonymous() && check.cost() > 0;
            let overflows = may_create && self.is_overflowing(check.gate(), check.key(), instances);
            OverflowRoute {
                overflow: overflows.then(|| overflow_key(plan, index)),
                max_ttl_micros: check.is_anonymous().then(|| max_ttl_micros(check.gate())).flatten(),
            }
        });
        empty_if_unneeded(routes.collect())
    }

    /// The routes of `adjustments`. A charge may create a key; a refund does not.
    pub(crate) fn adjustment_routes<'r>(
        &self,
        adjustments: &[Adjustment<'r>],
        instances: Option<u32>,
    ) -> Vec<OverflowRoute<'r>> {
        let routes = adjustments.iter().map(|Adjustment { key, op, anonymous, .. }| {
            let Some(gate) = anonymous else { return OverflowRoute::default() };
            let overflows = matches!(op, Op::Charge { .. }) && self.is_overflowing(gate, key, instances);
            OverflowRoute {
                overflow: overflows.then(|| key.overflow(bucket_number(key))),
                max_ttl_micros: max_ttl_micros(gate),
            }
        });
        empty_if_unneeded(routes.collect())
    }

    fn is_overflowing(&self, gate: &Gate, key: &Key<'_>, instances: Option<u32>) -> bool {
        let counts = self.counts.read().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = counts.get(&key.stem().id()) else { return false };
        let mut count = lock(count);
        count.live.advance(self.now_micros());
        count.share = share(gate.anonymous(), instances);
        count.live.count() >= count.share
    }
}

/// Counting
impl CardinalityTracker {
    /// Counts the keys that a decision created or extended for anonymous subjects.
    pub(crate) fn record_decision(&self, plan: &Plan<'_>, reply: &Reply, verdicts: &[CheckVerdict]) {
        for (index, (check, verdict)) in plan.checks().iter().zip(verdicts).enumerate() {
            if !check.is_anonymous() {
                continue;
            }
            self.now_micros.store(reply.now.as_micros(), Ordering::Relaxed);
            if verdict.consumed && !verdict.overflowed {
                let counted = CountedLimit::new(check.gate(), check.key());
                let extra_life = reply.state(index).map_or(0, |state| state.extra_life_micros(check.gate().limit()));
                let state_end = reply.now.plus(verdict.outcome.reset_after).as_micros() + extra_life;
                self.record_key(&counted, reply.previous_expiry(index, check), state_end);
            }
        }
    }

    /// Counts the keys that charges created for anonymous subjects.
    pub(crate) fn record_created<'n>(&self, now: Timestamp, created: impl Iterator<Item = &'n PossibleNewKey>) {
        self.now_micros.store(now.as_micros(), Ordering::Relaxed);
        for PossibleNewKey { counted, limit, op } in created {
            if let Some(change) = algorithm::apply(None, limit, now, *op).change {
                self.record_key(counted, None, algorithm::expiry(&State::new(change), limit));
            }
        }
    }

    /// The statistics of each rule, by rule id.
    pub(crate) fn stats(&self) -> Vec<AnonymousStats> {
        let mut stats: Vec<AnonymousStats> = Vec::new();
        for count in self.counts.read().unwrap_or_else(PoisonError::into_inner).values() {
            let mut count = lock(count);
            count.live.advance(self.now_micros());
            let index = stats.iter().position(|stats| *stats.rule == *count.rule).unwrap_or(stats.len());
            if index == stats.len() {
                stats.push(AnonymousStats { rule: count.rule.to_string(), created: 0, keys: 0, overflowing: false });
            }
            let stats = &mut stats[index];
            stats.created += count.created;
            stats.keys += u64::try_from(count.live.count()).unwrap_or(0);
            stats.overflowing |= count.live.count() >= count.share;
        }
        stats.sort_unstable_by(|one, other| one.rule.cmp(&other.rule));
        stats
    }

    /// Counts a key whose state matters until `state_end`. `previous_expiry` is `None` for a new key.
    fn record_key(&self, counted: &CountedLimit, previous_expiry: Option<u64>, state_end: u64) {
        loop {
            if let Some(count) = self.counts.read().unwrap_or_else(PoisonError::into_inner).get(&counted.stem) {
                return lock(count).record(self.now_micros(), previous_expiry, state_end, counted.max_ttl_micros);
            }
            let mut counts = self.counts.write().unwrap_or_else(PoisonError::into_inner);
            if counts.len() >= PRUNE_THRESHOLD_LIMITS {
                counts.retain(|_, count| lock(count).live.count() > 0);
            }
            let empty =
                || KeyCount { rule: counted.rule.clone(), created: 0, live: ExpiryRing::new(), share: i64::MAX };
            counts.entry(counted.stem).or_insert_with(|| Mutex::new(empty()));
        }
    }

    fn now_micros(&self) -> u64 {
        self.now_micros.load(Ordering::Relaxed)
    }
}

impl KeyCount {
    fn record(&mut self, now: u64, previous_expiry: Option<u64>, state_end: u64, max_ttl_micros: Option<u64>) {
        let latest_end = now.saturating_add(max_ttl_micros.unwrap_or(u64::MAX));
        let expiry = state_end.min(latest_end).saturating_add(micros(CLOCK_MARGIN));
        self.live.advance(now);
        if let Some(previous_expiry) = previous_expiry {
            self.live.extend(previous_expiry, expiry);
        } else {
            self.created += 1;
            self.live.add(expiry);
        }
    }
}

impl CountedLimit {
    fn new(gate: &Gate, key: &Key<'_>) -> Self {
        Self { stem: key.stem().id(), rule: gate.rule().into(), max_ttl_micros: max_ttl_micros(gate) }
    }
}

impl PossibleNewKey {
    /// `None` if the subject of `adjustment` is authenticated.
    pub(crate) fn from_adjustment(adjustment: &Adjustment<'_>) -> Option<Self> {
        let counted = CountedLimit::new(adjustment.anonymous?, &adjustment.key);
        Some(Self { counted, limit: *adjustment.limit, op: adjustment.op })
    }
}

/// One instance's share of the bound, at least one key.
fn share(bounds: AnonymousBounds, instances: Option<u32>) -> i64 {
    let share = (bounds.max_subjects / u64::from(instances.unwrap_or(1).max(1))).max(1);
    i64::try_from(share).unwrap_or(i64::MAX)
}

fn lock(count: &Mutex<KeyCount>) -> MutexGuard<'_, KeyCount> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::overflow_route::has_overflow;
    use super::*;
    use tidegate::spi::Subject;

    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn gate(max_keys: u64) -> Gate {
        let limit = Limit::sliding_log(20, Duration::from_secs(600)).unwrap();
        Gate::for_rule("login-ip", limit).with_anonymous(AnonymousBounds::new(max_keys))
    }

    fn check(gate: &Gate, subject: u128) -> Check<'_> {
        Check::new(gate, Subject::from_hash(subject), 1).with_anonymous(true)
    }

    /// Records new keys for this many subjects.
    fn create_keys(tracker: &CardinalityTracker, gate: &Gate, subjects: u128) {
        let charges = (0..subjects).map(|subject| Adjustment::charge(&check(gate, subject)));
        let created: Vec<_> = charges.filter_map(|charge| PossibleNewKey::from_adjustment(&charge)).collect();
        tracker.record_created(NOW, created.iter());
    }

    fn overflows(tracker: &CardinalityTracker, check: Check<'_>, instances: Option<u32>) -> bool {
        has_overflow(&tracker.routes(&Plan::new([check]).unwrap(), instances))
    }

    #[test]
    fn instances_share_the_bound_equally() {
        let (tracker, gate) = (CardinalityTracker::default(), gate(100));
        create_keys(&tracker, &gate, 49);
        assert!(!overflows(&tracker, check(&gate, 1000), Some(2)));
        create_keys(&tracker, &gate, 1);
        assert!(overflows(&tracker, check(&gate, 1000), Some(2)));
        assert!(!overflows(&tracker, check(&gate, 1000), None), "a single instance has the whole bound");
        assert!(overflows(&tracker, check(&gate, 1000), Some(1_000_000)), "a share is at least one key");
        assert_eq!((share(gate.anonymous(), Some(0)), share(gate.anonymous(), Some(1000))), (100, 1));
    }

    #[test]
    fn only_anonymous_subjects_with_a_cost_are_routed_to_overflow_buckets() {
        let (tracker, gate) = (CardinalityTracker::default(), gate(1));
        create_keys(&tracker, &gate, 1);
        let new_subject = check(&gate, 1000);
        assert!(overflows(&tracker, new_subject, None));
        for check in [new_subject.with_anonymous(false), new_subject.with_cost(0)] {
            assert!(tracker.routes(&Plan::new([check]).unwrap(), None).is_empty());
        }
        // In a plan with an anonymous subject, the other checks have no overflow bucket.
        let other = Gate::for_rule("api", Limit::fixed_window(1, Duration::from_secs(1)).unwrap());
        let plan = Plan::new([Check::new(&other, Subject::from_hash(1), 1), new_subject]).unwrap();
        let routes = tracker.routes(&plan, None);
        assert_eq!((routes[0].overflow.is_some(), routes[1].overflow.is_some()), (false, true));
    }

    /// No two checks of a plan may share a state, or one would be decided on what the other took.
    #[test]
    fn two_new_subjects_in_one_plan_have_different_overflow_buckets() {
        let (tracker, gate) = (CardinalityTracker::default(), gate(1));
        create_keys(&tracker, &gate, 1);
        let other_partition = 5 << 96;
        let plan = Plan::new([1000, 1001, other_partition].map(|subject| check(&gate, subject))).unwrap();
        let keys: Vec<Key<'_>> = tracker.routes(&plan, None).iter().filter_map(|route| route.overflow).collect();
        let [first, second, third] = keys[..] else { panic!("{keys:?}") };
        assert_eq!((first, second), (plan.checks()[0].key().overflow(0), plan.checks()[0].key().overflow(1)));
        assert_eq!(third, plan.checks()[2].key().overflow(5));
    }
}
