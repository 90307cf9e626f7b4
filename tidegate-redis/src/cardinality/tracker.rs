//! `CardinalityTracker`: counts the keys of subjects for each limit, and routes new subjects to overflow buckets when there are too
//! many.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use smol_str::SmolStr;
use tidegate::spi::algorithm::{self, CLOCK_MARGIN, Op, State, holds};
use tidegate::spi::{Adjustment, Check, CheckVerdict, Gate, Key, Plan};
use tidegate::sync::{Mutex, MutexGuard, RwLock};
use tidegate::{Limit, Timestamp};

use super::expiry_ring::ExpiryRing;
use super::overflow_route::{OverflowRoute, empty_if_unneeded, max_ttl_micros, overflow_key, overflow_key_of_charge};
use super::subject_stats::SubjectStats;
use crate::args::micros;
use crate::reply::Reply;

/// When this many limits are tracked, those without a live key are dropped before another is added, since rules may change.
const PRUNE_THRESHOLD_LIMITS: usize = 1000;

/// Counts the keys of subjects for each limit.
#[derive(Default)]
pub(crate) struct CardinalityTracker {
    counts: RwLock<HashMap<CountId, Mutex<KeyCount>>>,
    /// How many of the counts have reached their share. While none has, no decision looks at them before it is sent.
    overflowing: AtomicUsize,
    /// The server's time by the last reply.
    now_micros: AtomicU64,
    /// How many instances share the bounds; 0 if unknown.
    instances: AtomicU32,
}

/// What is counted together: the keys of one limit, by the id of the stem that they share, of anonymous subjects or of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CountId {
    stem: u128,
    anonymous: bool,
}

/// The keys of one kind of subject under one limit.
struct KeyCount {
    rule: SmolStr,
    created: u64,
    live: ExpiryRing,
    /// Whether there are as many keys as this instance's share of the bound.
    is_overflowing: bool,
}

/// The limit that a key is counted under.
#[derive(Clone, Copy)]
struct CountedLimit<'g> {
    id: CountId,
    rule: &'g str,
    max_subjects: u64,
    max_ttl_micros: Option<u64>,
}

/// An adjustment that may create a key.
#[derive(Clone, Debug)]
pub(crate) struct PossibleNewKey {
    id: CountId,
    rule: SmolStr,
    max_subjects: u64,
    max_ttl_micros: Option<u64>,
    limit: Limit,
    op: Op,
}

/// Routing
impl CardinalityTracker {
    /// The routes of the checks of `plan`, for one of `instances` that share the bound.
    pub(crate) fn routes<'r>(&self, plan: &Plan<'r>, instances: Option<u32>) -> Vec<OverflowRoute<'r>> {
        self.instances.store(instances.unwrap_or(0), Ordering::Relaxed);
        let is_any_overflowing = self.is_any_overflowing();
        if !is_any_overflowing && !plan.checks().iter().any(|check| check.forget_after().is_some()) {
            return Vec::new();
        }
        let routes = plan.checks().iter().enumerate().map(|(index, check)| {
            // An account is never shared nor forgotten early.
            if check.gate().ledger().is_some() {
                return OverflowRoute::default();
            }
            // A check without a cost creates no key, except for a hold.
            let may_create_key = check.cost() > 0 || plan.is_hold(check);
            let overflows = is_any_overflowing && may_create_key && self.is_overflowing(&CountedLimit::new(check));
            OverflowRoute {
                overflow: overflows.then(|| overflow_key(plan, index, self.now())),
                max_ttl_micros: check.forget_after().map(micros),
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
        self.instances.store(instances.unwrap_or(0), Ordering::Relaxed);
        let routes = adjustments.iter().map(|adjustment| {
            if adjustment.gate.ledger().is_some() {
                return OverflowRoute::default();
            }
            let may_overflow = match adjustment.op {
                Op::Charge { .. } => true,
                // The slot of a caller that went away during the decision. Nobody knows in which bucket it was taken.
                Op::Refund { .. } => adjustment.limit.has_slots() && adjustment.key.overflow_number().is_none(),
                // Likewise for a hold.
                Op::Hold(_) => adjustment.key.overflow_number().is_none(),
                _ => false,
            };
            let overflows = may_overflow
                && self.is_any_overflowing()
                && self.is_overflowing(&CountedLimit::from_adjustment(adjustment));
            OverflowRoute {
                overflow: overflows.then(|| overflow_key_of_charge(adjustment, self.now())),
                max_ttl_micros: adjustment.forget_after().map(micros),
            }
        });
        empty_if_unneeded(routes.collect())
    }

    fn is_any_overflowing(&self) -> bool {
        self.overflowing.load(Ordering::Relaxed) > 0
    }

    fn is_overflowing(&self, counted: &CountedLimit<'_>) -> bool {
        let counts = self.counts.read();
        let Some(count) = counts.get(&counted.id) else { return false };
        let mut count = lock(count);
        count.live.advance(self.now().as_micros());
        self.update_overflow(&mut count, counted.max_subjects);
        count.is_overflowing
    }

    /// Compares a count with this instance's share of the bound, at least one key.
    fn update_overflow(&self, count: &mut KeyCount, max_subjects: u64) {
        let share = max_subjects / u64::from(self.instances.load(Ordering::Relaxed).max(1));
        let is_overflowing = u64::try_from(count.live.count()).unwrap_or(0) >= share.max(1);
        if is_overflowing != count.is_overflowing {
            count.is_overflowing = is_overflowing;
            if is_overflowing {
                self.overflowing.fetch_add(1, Ordering::Relaxed);
            } else {
                self.overflowing.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Counting
impl CardinalityTracker {
    /// Counts the keys that a decision created or extended.
    pub(crate) fn record_decision(&self, plan: &Plan<'_>, reply: &Reply, verdicts: &[CheckVerdict]) {
        self.now_micros.store(reply.now.as_micros(), Ordering::Relaxed);
        for (index, (check, verdict)) in plan.checks().iter().zip(verdicts).enumerate() {
            if verdict.consumed && !verdict.overflowed {
                let extra_life = reply.state(index).map_or(0, |state| state.extra_life_micros(check.gate().limit()));
                let state_end = reply.now.plus(verdict.outcome.reset_after).as_micros() + extra_life;
                let holds_end = match plan.reservation() {
                    Some(terms) if plan.is_hold(check) => reply.now.as_micros().saturating_add(terms.ttl_micros()),
                    _ => holds::last_end(reply.state(index)),
                };
                let state_end = state_end.max(holds_end);
                self.record_key(&CountedLimit::new(check), reply.previous_expiry(index, check), state_end);
            }
        }
    }

    /// Counts the keys that charges created.
    pub(crate) fn record_created<'n>(&self, now: Timestamp, created: impl Iterator<Item = &'n PossibleNewKey>) {
        self.now_micros.store(now.as_micros(), Ordering::Relaxed);
        for new in created {
            if let Some(state) = State::new(&new.limit, now, new.op) {
                self.record_key(&new.counted(), None, algorithm::expiry(&state, &new.limit));
            }
        }
    }

    /// The statistics of each rule, by rule id, for anonymous subjects or for others.
    pub(crate) fn stats(&self, anonymous: bool) -> Vec<SubjectStats> {
        let mut stats: Vec<SubjectStats> = Vec::new();
        let counts = self.counts.read();
        for (_, count) in counts.iter().filter(|(id, _)| id.anonymous == anonymous) {
            let mut count = lock(count);
            count.live.advance(self.now().as_micros());
            // Without a decision, only the passage of time can end an overflow.
            if count.live.count() <= 0 {
                self.update_overflow(&mut count, 1);
            }
            let index = stats.iter().position(|stats| *stats.rule == *count.rule).unwrap_or(stats.len());
            if index == stats.len() {
                stats.push(SubjectStats { rule: count.rule.to_string(), created: 0, keys: 0, overflowing: false });
            }
            let stats = &mut stats[index];
            stats.created += count.created;
            stats.keys += u64::try_from(count.live.count()).unwrap_or(0);
            stats.overflowing |= count.is_overflowing;
        }
        stats.sort_unstable_by(|one, other| one.rule.cmp(&other.rule));
        stats
    }

    /// Counts a key whose state matters until `state_end`. `previous_expiry` is `None` for a new key.
    fn record_key(&self, counted: &CountedLimit<'_>, previous_expiry: Option<u64>, state_end: u64) {
        if !counted.id.anonymous && counted.max_subjects == u64::MAX {
            return;
        }
        loop {
            if let Some(count) = self.counts.read().get(&counted.id) {
                let mut count = lock(count);
                count.record(self.now().as_micros(), previous_expiry, state_end, counted.max_ttl_micros);
                return self.update_overflow(&mut count, counted.max_subjects);
            }
            let mut counts = self.counts.write();
            if counts.len() >= PRUNE_THRESHOLD_LIMITS {
                counts.retain(|_, count| {
                    let mut count = lock(count);
                    let has_keys = count.live.count() > 0;
                    if !has_keys {
                        self.update_overflow(&mut count, 1);
                    }
                    has_keys
                });
            }
            counts.entry(counted.id).or_insert_with(|| Mutex::new(KeyCount::new(counted.rule)));
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now_micros.load(Ordering::Relaxed))
    }
}

impl KeyCount {
    fn new(rule: &str) -> Self {
        Self { rule: rule.into(), created: 0, live: ExpiryRing::new(), is_overflowing: false }
    }

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

impl<'g> CountedLimit<'g> {
    fn new(check: &Check<'g>) -> Self {
        Self::from_parts(check.gate(), check.key(), check.is_anonymous())
    }

    fn from_adjustment(adjustment: &Adjustment<'g>) -> Self {
        Self::from_parts(adjustment.gate, &adjustment.key, adjustment.anonymous)
    }

    fn from_parts(gate: &'g Gate, key: &Key<'_>, anonymous: bool) -> Self {
        Self {
            id: CountId { stem: key.stem().id(), anonymous },
            rule: &gate.rule().id,
            max_subjects: gate.max_subjects(anonymous),
            max_ttl_micros: if anonymous { max_ttl_micros(gate) } else { None },
        }
    }
}

impl PossibleNewKey {
    pub(crate) fn from_adjustment(adjustment: &Adjustment<'_>) -> Self {
        let CountedLimit { id, rule, max_subjects, max_ttl_micros } = CountedLimit::from_adjustment(adjustment);
        Self { id, rule: rule.into(), max_subjects, max_ttl_micros, limit: *adjustment.limit, op: adjustment.op }
    }

    fn counted(&self) -> CountedLimit<'_> {
        let Self { id, rule, max_subjects, max_ttl_micros, .. } = self;
        CountedLimit { id: *id, rule, max_subjects: *max_subjects, max_ttl_micros: *max_ttl_micros }
    }
}

fn lock(count: &Mutex<KeyCount>) -> MutexGuard<'_, KeyCount> {
    count.lock()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::overflow_route::has_overflow;
    use super::*;
    use tidegate::Rule;
    use tidegate::rules::AnonymousBounds;
    use tidegate::spi::{LeaseOwner, Network, ReservationTerms, Subject};

    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    /// A limit for this many subjects of each kind.
    fn gate(max_keys: u64) -> Gate {
        gate_with(max_keys, max_keys)
    }

    fn gate_with(max_anonymous: u64, max_subjects: u64) -> Gate {
        let limit = Limit::sliding_log(20, Duration::from_secs(600)).unwrap();
        let rule = Rule::new("login-ip", limit).with_per(["ip"]).with_max_subjects(max_subjects);
        Gate::new(rule.with_anonymous(AnonymousBounds::new(max_anonymous)), "", limit)
    }

    fn check(gate: &Gate, subject: u128) -> Check<'_> {
        Check::new(gate, Subject::from_hash(subject), 1).with_anonymous(true)
    }

    /// Records new keys for this many subjects like that of `check`.
    fn create_keys(tracker: &CardinalityTracker, check: Check<'_>, subjects: usize) {
        let created = vec![PossibleNewKey::from_adjustment(&Adjustment::charge(&check)); subjects];
        tracker.record_created(NOW, created.iter());
    }

    fn overflows(tracker: &CardinalityTracker, check: Check<'_>, instances: Option<u32>) -> bool {
        // The first decision tells the tracker the number of instances; the count is compared with it when it is read or written.
        let plan = Plan::new([check]).unwrap();
        has_overflow(&tracker.routes(&plan, instances))
    }

    #[test]
    fn instances_share_the_bound_equally() {
        let (tracker, gate) = (CardinalityTracker::default(), gate(100));
        assert!(!overflows(&tracker, check(&gate, 1000), Some(2)));
        create_keys(&tracker, check(&gate, 1), 49);
        assert!(!overflows(&tracker, check(&gate, 1000), Some(2)));
        create_keys(&tracker, check(&gate, 1), 1);
        assert!(overflows(&tracker, check(&gate, 1000), Some(2)));
        assert!(overflows(&tracker, check(&gate, 1000), Some(1_000_000)), "a share is at least one key");
        assert!(!overflows(&tracker, check(&gate, 1000), None), "a single instance has the whole bound");
        assert!(!overflows(&tracker, check(&gate, 1000), Some(0)), "likewise");
        create_keys(&tracker, check(&gate, 1), 50);
        assert!(overflows(&tracker, check(&gate, 1000), None));
    }

    /// An instance that joins makes the shares of the others smaller.
    #[test]
    fn a_smaller_share_is_noticed_with_the_next_key() {
        let (tracker, gate) = (CardinalityTracker::default(), gate(100));
        create_keys(&tracker, check(&gate, 1), 60);
        assert!(!overflows(&tracker, check(&gate, 1000), Some(2)), "nothing was counted since");
        create_keys(&tracker, check(&gate, 1), 1);
        assert!(overflows(&tracker, check(&gate, 1000), Some(2)));
    }

    #[test]
    fn only_checks_that_create_a_key_are_routed_to_overflow_buckets() {
        let (tracker, gate) = (CardinalityTracker::default(), gate(1));
        create_keys(&tracker, check(&gate, 1), 1);
        assert!(overflows(&tracker, check(&gate, 1000), None));
        let free = Plan::new([check(&gate, 1000).with_cost(0)]).unwrap();
        assert!(tracker.routes(&free, None).is_empty());
        let terms = ReservationTerms::new(LeaseOwner::from_number(1).unwrap(), Duration::from_secs(60), false);
        assert!(has_overflow(&tracker.routes(&free.with_reservation(terms), None)), "its hold would create a key");
        // In a plan with a newcomer, the checks of other limits have no overflow bucket.
        let other = Gate::for_rule("api", Limit::fixed_window(1, Duration::from_secs(1)).unwrap());
        let plan = Plan::new([Check::new(&other, Subject::from_hash(1), 1), check(&gate, 1000)]).unwrap();
        let routes = tracker.routes(&plan, None);
        assert_eq!((routes[0].overflow.is_some(), routes[1].overflow.is_some()), (false, true));
    }

    /// Otherwise a flood of addresses would lock out new API keys.
    #[test]
    fn anonymous_and_authenticated_subjects_are_counted_separately() {
        let (tracker, gate) = (CardinalityTracker::default(), gate_with(2, 3));
        let (anonymous, authenticated) = (check(&gate, 1000), check(&gate, 1000).with_anonymous(false));
        create_keys(&tracker, anonymous, 2);
        assert_eq!([anonymous, authenticated].map(|check| overflows(&tracker, check, None)), [true, false]);
        create_keys(&tracker, authenticated, 3);
        assert_eq!([anonymous, authenticated].map(|check| overflows(&tracker, check, None)), [true, true]);
        let counted = |anonymous| tracker.stats(anonymous).into_iter().map(|stats| (stats.keys, stats.overflowing));
        assert_eq!(counted(true).chain(counted(false)).collect::<Vec<_>>(), [(2, true), (3, true)]);
    }

    #[test]
    fn a_flood_is_forgotten_when_its_keys_have_expired() {
        let (tracker, gate) = (CardinalityTracker::default(), gate(1));
        create_keys(&tracker, check(&gate, 1), 1);
        assert!(overflows(&tracker, check(&gate, 1000), None));
        // The reply of any other decision tells the time.
        let later = NOW.plus(Duration::from_secs(700));
        tracker.record_created(later, std::iter::empty());
        assert!(!overflows(&tracker, check(&gate, 1000), None));
        assert!(!tracker.is_any_overflowing());
    }

    /// No two checks of a plan may share a state, or one would be decided on what the other took.
    #[test]
    fn two_new_subjects_in_one_plan_have_different_overflow_buckets() {
        let (tracker, gate) = (CardinalityTracker::default(), gate(1));
        create_keys(&tracker, check(&gate, 1), 1);
        let in_other_partition = 5 << 96;
        let checks = [1000, 1001, in_other_partition].map(|subject| {
            // All of one network.
            check(&gate, subject).with_network(Some(Network::from_hash(9)))
        });
        let plan = Plan::new(checks).unwrap();
        let keys: Vec<Key<'_>> = tracker.routes(&plan, None).iter().filter_map(|route| route.overflow).collect();
        let [first, second, third] = keys[..] else { panic!("{keys:?}") };
        assert_eq!(second.subject().hash(), first.subject().hash() + 1);
        assert_eq!((third.subject(), third.partition()), (first.subject(), 5));
    }
}
