//! `Load`: instances that send requests continuously, with one rule per policy, and the counts of their decisions. It knows
//! nothing of faults.

use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tidegate::{
    Clock, Decision, Limit, Limiter, OnFailure, Rate, Request, Rule, RuleSet, StoreError, StoreErrorKind, SystemClock,
};
use tidegate_redis::{RedisOptions, RedisStore};
use tokio::time::timeout;

use super::fault::POLICIES;
use super::lease_load::LeaseLoad;
use crate::suite::{Answer, AnswerCounts, CountingLoad};
use conformance::suite::{connect_store, limits_of_every_kind, wait_until};

pub(super) const INSTANCES: usize = 2;

/// The tenant of all requests. Its keys lie in one slot.
pub(super) const TENANT: &str = "acme";

/// The amount of load, and the limits.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// A decision counts as late after this time, which is too long for any busy machine.
    pub(super) late: Duration,
    /// Concurrent workers per instance and policy.
    pub(super) workers: usize,
    pub(super) pace: Duration,
    /// The limit of each rule where it must run out.
    pub(super) tight: u64,
    /// The limit of each rule where it must not run out.
    pub(super) wide: u64,
    /// The limit of the static rule.
    pub(super) static_limit: u64,
    /// Decisions per instance and policy before the fault.
    pub(super) before: u64,
    /// Decisions per instance and policy during the fault.
    pub(super) during: u64,
}

/// One of the instances that share the store.
#[derive(Debug)]
pub(super) struct Instance(RwLock<Arc<Limiter<RedisStore>>>);

#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) sent: u64,
    /// A decision is missing if it was not made within many budgets.
    pub(super) answers: AnswerCounts,
    /// Consecutive decisions by the store up to now.
    pub(super) consecutive_by_store: u64,
    pub(super) reasons: Vec<StoreErrorKind>,
    pub(super) worst: Duration,
}

pub(super) type InstanceCounts = Vec<[Counts; POLICIES.len()]>;

pub(super) struct Load(CountingLoad<InstanceCounts>);

impl Scale {
    /// Light load.
    pub const fn for_tests() -> Self {
        Self {
            late: Duration::from_secs(20),
            workers: 2,
            pace: Duration::from_millis(10),
            tight: 60,
            wide: 50_000,
            static_limit: 10,
            before: 5,
            during: 40,
        }
    }

    /// More load.
    pub const fn for_figures() -> Self {
        let late = Duration::from_secs(1);
        Self { late, workers: 4, tight: 500, static_limit: 100, before: 20, during: 500, ..Self::for_tests() }
    }

    /// The rules of each policy, all with the same limit, one rule for anonymous subjects, and one for slots. Half of the policies have one limit; the
    /// others have a limit of each kind and a second rule, so that every fault meets small and large plans.
    pub(super) fn rules(&self, limit: u64) -> RuleSet {
        let rule = |policy: OnFailure, second: &str, limits: &[Limit], static_limit: u64| {
            let limits = limits.iter().map(|limit| (limit.algorithm().as_str(), *limit));
            Rule::from_limits(format!("{}{second}", policy.as_str()), limits)
                .with_action(policy.as_str())
                .with_per(["tenant"])
                .with_on_failure(policy)
                .with_static_limit(slow(static_limit))
        };
        let of_policy = |policy: OnFailure| match policy {
            OnFailure::Open | OnFailure::Degraded => vec![rule(policy, "", &[slow(limit)], self.static_limit)],
            _ => vec![
                rule(policy, "", &limits_of_every_kind(limit)[..6], self.static_limit),
                rule(policy, "-wide", &[slow(2 * self.wide)], 10 * self.static_limit),
            ],
        };
        let anonymous = Rule::new("flood", slow(limit)).with_action("flood").with_per(["address"]);
        RuleSet::new(POLICIES.into_iter().flat_map(of_policy).chain([anonymous, LeaseLoad::rule()])).unwrap()
    }
}

pub(super) const TIMEOUT: Duration = Duration::from_millis(25);

pub(super) fn options() -> RedisOptions {
    RedisOptions::new().with_timeout(TIMEOUT)
}

pub(super) const fn checks(policy: OnFailure) -> u64 {
    if matches!(policy, OnFailure::Open | OnFailure::Degraded) { 1 } else { 7 }
}

/// A limit of `amount` with a refill too slow to matter.
pub(super) fn slow(amount: u64) -> Limit {
    Limit::token_bucket(amount, Rate::per_hour(1).unwrap()).unwrap()
}

pub(super) fn request(policy: OnFailure) -> Request<'static> {
    Request::new(policy.as_str()).with_attribute("tenant", TENANT)
}

// === impl Instance ===

impl Instance {
    /// Opens an instance with these rules on the store at `url`.
    pub(super) async fn open(url: &str, rules: RuleSet, options: RedisOptions) -> Self {
        let limiter = Limiter::new(rules, connect_store(url, &options).await);
        Self(RwLock::new(Arc::new(limiter)))
    }

    /// Drops all state of the instance and opens it again.
    pub(super) async fn restart(&self, url: &str, rules: RuleSet, options: RedisOptions) {
        let anew = Self::open(url, rules, options).await.now();
        *self.0.write().unwrap() = anew;
    }

    /// Waits until every instance has counted all instances by their heartbeats.
    pub(super) async fn wait_for_heartbeats(instances: &[Arc<Self>]) {
        let counts = || instances.iter().map(|instance| instance.now().store().instances()).collect::<Vec<_>>();
        let known = || counts().iter().all(|count| *count == Some(INSTANCES as u32));
        wait_until("the instances have not counted each other", known, || format!("{:?}", counts())).await;
    }

    pub(super) fn now(&self) -> Arc<Limiter<RedisStore>> {
        Arc::clone(&self.0.read().unwrap())
    }
}

// === impl Counts ===

impl Counts {
    pub(super) const fn by_store(&self) -> u64 {
        self.answers.of(Answer::Allowed) + self.answers.of(Answer::Denied)
    }

    pub(super) const fn without_store(&self) -> u64 {
        self.answers.of(Answer::Passed) + self.answers.of(Answer::Held) + self.answers.of(Answer::Refused)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.answers.add(&other.answers);
        self.consecutive_by_store = self.consecutive_by_store.min(other.consecutive_by_store);
        other.reasons.iter().for_each(|reason| self.add_reason(*reason));
        self.worst = self.worst.max(other.worst);
    }

    fn record(&mut self, decision: Option<Result<Decision, StoreError>>, latency: Duration) {
        self.worst = self.worst.max(latency);
        let (answer, reason) = match decision {
            None => (Answer::Missing, None),
            Some(Err(error)) => (Answer::Refused, Some(error.kind())),
            Some(Ok(decision)) => {
                self.consecutive_by_store += 1;
                let answer = match (decision.is_allowed(), decision.degraded()) {
                    (true, None) => Answer::Allowed,
                    (false, None) => Answer::Denied,
                    (true, Some(_)) => Answer::Passed,
                    (false, Some(_)) => Answer::Held,
                };
                (answer, decision.degraded())
            }
        };
        self.answers.record(answer);
        if let Some(reason) = reason {
            self.add_reason(reason);
            self.consecutive_by_store = 0;
        }
    }

    fn add_reason(&mut self, reason: StoreErrorKind) {
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }
}

// === impl Load ===

impl Load {
    /// Starts the workers; they run until [`stop`](Self::stop).
    pub(super) fn start(instances: &[Arc<Instance>], scale: Scale) -> Self {
        let mut load = CountingLoad::new(instances.iter().map(|_| Default::default()).collect());
        for (place, instance) in instances.iter().enumerate() {
            for worker in 0..POLICIES.len() * scale.workers {
                let (instance, row) = (Arc::clone(instance), worker % POLICIES.len());
                load.spawn(scale.pace, |mut pace, counts: Arc<Mutex<InstanceCounts>>| async move {
                    while pace.next().await {
                        counts.lock().unwrap()[place][row].sent += 1;
                        let (decision, latency) = decide(&instance, POLICIES[row], scale.late).await;
                        counts.lock().unwrap()[place][row].record(decision, latency);
                    }
                });
            }
        }
        Self(load)
    }

    pub(super) fn counts(&self) -> InstanceCounts {
        self.0.counts().clone()
    }

    /// Waits until `condition` holds for every instance and policy. It gets the counts, of which the answers are those since `mark`.
    pub(super) async fn until(
        &self,
        problem: &str,
        mark: &InstanceCounts,
        condition: impl Fn(OnFailure, &Counts) -> bool,
    ) {
        let holds = |counts: &InstanceCounts| {
            let mut rows = counts.iter().flatten().zip(mark.iter().flatten()).zip(POLICIES.into_iter().cycle());
            rows.all(|((now, then), policy)| {
                condition(policy, &Counts { answers: now.answers.since(&then.answers), ..now.clone() })
            })
        };
        self.0.until(problem, holds).await;
    }

    /// Waits until each instance made `decisions` more decisions under each policy.
    pub(super) async fn continue_for(&self, decisions: u64) {
        let enough = |_, counts: &Counts| counts.by_store() + counts.without_store() >= decisions;
        self.until("the load has stalled", &self.counts(), enough).await;
    }

    pub(super) async fn stop(self) -> InstanceCounts {
        self.0.stop().await
    }
}

/// The decision, unless it takes too long, and its latency.
async fn decide(
    instance: &Instance,
    policy: OnFailure,
    late: Duration,
) -> (Option<Result<Decision, StoreError>>, Duration) {
    let (limiter, clock) = (instance.now(), SystemClock::new());
    let start = clock.now();
    let decision = timeout(late, limiter.check(&request(policy))).await.ok();
    (decision, clock.now().since(start))
}
