//! `AnonymousStore`: treats every subject of a plan as anonymous. Its verdicts must equal those of any other store.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::rules::AnonymousBounds;
use tidegate::spi::algorithm::{Op, TakePosition};
use tidegate::spi::{
    Adjustment, AdjustmentResults, Check, Gate, Key, KeyStem, Network, Newcomer, Outcome, Plan, Role, Store, Subject,
    Verdict,
};
use tidegate::{Limit, Rate, Rule, StoreError, Timestamp};
use tidegate_redis::RedisStore;

/// Which case of anonymous subjects a history runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnonymousCase {
    /// The cap is exceeded and every request comes from a new subject of one network: all of them share one overflow bucket.
    OverCap,
    /// `forget_after` is set, to a time longer than any history.
    WithForgetAfter,
}

/// A Redis store that treats every subject as anonymous.
#[derive(Debug)]
pub struct AnonymousStore {
    store: RedisStore,
    case: AnonymousCase,
    stems: Mutex<HashMap<u128, KeyStem>>,
    next_subject: AtomicU64,
    counted: AtomicU64,
    overflowed: AtomicU64,
}

impl AnonymousStore {
    /// Wraps `store`, which must not be a cluster: there the store itself issues some refunds.
    pub fn new(store: RedisStore, case: AnonymousCase) -> Self {
        let [next_subject, counted, overflowed] = [0; 3].map(AtomicU64::new);
        Self { store, case, stems: Mutex::default(), next_subject, counted, overflowed }
    }

    /// The number of checks with a cost and a limit above 0, and how many of them were decided on an overflow bucket.
    pub fn overflowed(&self) -> (u64, u64) {
        (self.counted.load(Ordering::Relaxed), self.overflowed.load(Ordering::Relaxed))
    }

    /// The same gate with bounds for anonymous subjects: a cap of 1, or a `forget_after` that is never reached. Over the cap, each
    /// subject of a history gets a gate of its own, since all subjects of a partition share one bucket.
    fn gate(&self, key: &Key<'_>, limit: &Limit, role: Role) -> Gate {
        let stem = match self.case {
            AnonymousCase::WithForgetAfter => key.stem().clone(),
            AnonymousCase::OverCap => {
                let stem = KeyStem::for_rule(&format!("{:x}", key.id()), limit, "");
                self.stems.lock().unwrap().insert(key.id(), stem.clone());
                stem
            }
        };
        let bounds = match self.case {
            AnonymousCase::OverCap => AnonymousBounds::new(1),
            AnonymousCase::WithForgetAfter => own_key_bounds(),
        };
        bounded_gate(*limit, bounds).with_role(role).with_stem(stem)
    }

    /// The same subject; over the cap, a new subject of the same partition.
    fn subject(&self, key: &Key<'_>) -> Subject {
        match self.case {
            AnonymousCase::WithForgetAfter => key.subject(),
            AnonymousCase::OverCap => {
                let subject = u128::from(self.next_subject.fetch_add(1, Ordering::Relaxed));
                Subject::from_hash(key.subject().hash() >> 96 << 96 | subject)
            }
        }
    }

    /// Exceeds the cap of each gate, by a subject of another partition.
    async fn exceed_cap(&self, gates: &[Gate], key: impl Fn(usize) -> u16) -> Result<(), StoreError> {
        if self.case == AnonymousCase::WithForgetAfter {
            return Ok(());
        }
        for (index, gate) in gates.iter().enumerate() {
            // The keys of an earlier flood may have expired; the first charge makes the store notice.
            for _ in 0..2 {
                let subject = u128::from(self.next_subject.fetch_add(1, Ordering::Relaxed));
                let in_other_partition = u128::from(key(index) ^ 1) << 96 | subject;
                let check = newcomer(gate, Subject::from_hash(in_other_partition));
                if gate.limit().has_slots() {
                    // A charge holds no slot.
                    self.store.decide(&Plan::new([check]).unwrap()).await?;
                } else {
                    self.store.apply(&[Adjustment::charge(&check)]).await.outcomes()?;
                }
            }
        }
        Ok(())
    }

    fn gates(&self, adjustments: &[Adjustment<'_>]) -> Vec<Gate> {
        adjustments.iter().map(|one| self.gate(&one.key, one.limit, Role::Enforced)).collect()
    }

    /// The same adjustments for anonymous subjects.
    async fn anonymous_adjustments<'g>(
        &self,
        adjustments: &[Adjustment<'_>],
        gates: &'g [Gate],
    ) -> Result<Vec<Adjustment<'g>>, StoreError> {
        let mut anonymous = Vec::new();
        for (Adjustment { key, op, bundled, .. }, gate) in adjustments.iter().zip(gates) {
            self.exceed_cap(std::slice::from_ref(gate), |_| key.partition()).await?;
            let check = newcomer(gate, self.subject(key));
            let mut adjustment = Adjustment::new(&check, *op);
            adjustment.bundled = *bundled;
            // A receipt never refunds an overflow bucket; the script itself can.
            let shared = matches!(op, Op::Refund { .. } | Op::Renew { .. }) && self.case == AnonymousCase::OverCap;
            let key = if shared { bucket_of(&check) } else { adjustment.key };
            anonymous.push(adjustment.with_key(key));
        }
        Ok(anonymous)
    }
}

/// Bounds under which each subject has keys of its own, whose TTL is longer than any history, so that their states are those of any other
/// subject.
pub fn own_key_bounds() -> AnonymousBounds {
    AnonymousBounds::new(u64::MAX).with_forget_after(Duration::from_secs(10_000 * 86_400))
}

/// The overflow buckets that a Redis store has in each partition, for a limit with a small bound.
const BUCKETS_PER_PARTITION: u32 = 64;

/// The key of the overflow bucket that the subject of `check` falls into. It must have an address.
pub fn bucket_of<'r>(check: &Check<'r>) -> Key<'r> {
    assert!(check.network().is_some(), "otherwise it depends on the time");
    check.key().overflow(Newcomer::from_check(check).bucket(BUCKETS_PER_PARTITION, 0, Timestamp::default()))
}

/// A check of an anonymous subject. All are of one network.
fn newcomer(gate: &Gate, subject: Subject) -> Check<'_> {
    Check::new(gate, subject, 1).with_anonymous(true).with_network(Some(Network::from_hash(1)))
}

impl Store for AnonymousStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        let gate = |check: &Check<'_>| self.gate(check.key(), check.gate().limit(), check.gate().role());
        let gates: Vec<Gate> = plan.checks().iter().map(gate).collect();
        self.exceed_cap(&gates, |index| plan.checks()[index].key().partition()).await?;
        let checks = plan.checks().iter().zip(&gates);
        let checks = checks.map(|(check, gate)| newcomer(gate, self.subject(check.key())).with_cost(check.cost()));
        let mut anonymous_plan = Plan::new(checks).unwrap().with_mode(plan.mode()).with_max_units(plan.max_units());
        if let Some(delay) = plan.max_delay() {
            anonymous_plan = anonymous_plan.with_max_delay(delay);
        }
        if let Some(owner) = plan.lease_owner() {
            anonymous_plan = anonymous_plan.with_lease_owner(owner);
        }
        if plan.is_peek() {
            anonymous_plan = anonymous_plan.with_peek();
        }
        let mut verdict = self.store.decide(&anonymous_plan).await?;
        // A limit of 0 creates no keys, so its cap is never exceeded.
        let has_units = |check: &&Check<'_>| match check.gate().limit() {
            Limit::Quota(quota) => quota.hard_limit() > 0,
            limit => limit.amount() > 0,
        };
        let counted = plan.checks().iter().filter(|check| check.cost() > 0).filter(has_units).count();
        self.counted.fetch_add(counted as u64, Ordering::Relaxed);
        let results = plan.checks().iter().zip(verdict.checks_mut());
        for (check, result) in results.filter(|(_, result)| result.overflowed) {
            result.overflowed = false;
            if check.gate().limit().has_slots() {
                result.position = TakePosition::from_index(result.position.index());
            }
            self.overflowed.fetch_add(1, Ordering::Relaxed);
        }
        blank_free_checks(plan, &mut verdict);
        Ok(verdict)
    }

    async fn apply(&self, adjustments: &[Adjustment<'_>]) -> AdjustmentResults {
        let gates = self.gates(adjustments);
        match self.anonymous_adjustments(adjustments, &gates).await {
            Ok(anonymous) => self.store.apply(&anonymous).await,
            Err(error) => AdjustmentResults::failed(adjustments.len(), &error),
        }
    }

    fn spawn_apply(&self, _: &[Adjustment<'_>]) {
        panic!("histories apply nothing in the background");
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        for key in keys {
            let stem = self.stems.lock().unwrap().get(&key.id()).cloned();
            match stem {
                Some(stem) => {
                    // Any limit: the bucket of a network does not depend on it.
                    let limit = Limit::token_bucket(1, Rate::per_second(1).unwrap()).unwrap();
                    let gate = bounded_gate(limit, AnonymousBounds::new(1)).with_stem(stem);
                    self.store.forget(&[bucket_of(&newcomer(&gate, key.subject()))]).await?;
                }
                None => self.store.forget(&[*key]).await?,
            }
        }
        Ok(())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.store.ping().await
    }
}

/// Blanks the numbers of checks of cost 0: in an overflow bucket they describe the shared state, not the subject's.
pub(crate) fn blank_free_checks(plan: &Plan<'_>, verdict: &mut Verdict) {
    for (check, result) in plan.checks().iter().zip(verdict.checks_mut()) {
        if check.cost() == 0 {
            let Outcome { remaining, reset_after, delay, in_grace, .. } = &mut result.outcome;
            (*remaining, *reset_after, *delay, *in_grace) = (0, Duration::ZERO, Duration::ZERO, false);
        }
    }
}

fn bounded_gate(limit: Limit, bounds: AnonymousBounds) -> Gate {
    Gate::new(Rule::new("r", limit).with_per(["subject"]).with_anonymous(bounds), "", limit)
}
