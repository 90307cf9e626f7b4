//! `Load`: instances that send requests continuously, with one rule per policy, and the counts of their decisions. It knows
//! nothing of faults.

use std::fmt;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tidegate::{
    Clock, Decision, Limit, Limiter, OnFailure, Period, Periods, Rate, Request, Rule, RuleSet, StoreError,
    StoreErrorKind, SystemClock,
};
use tidegate_redis::{RedisOptions, RedisStore};
use tokio::time::timeout;

use super::fault::POLICIES;
use super::lease_load::LeaseLoad;
use crate::traffic::Workers;
use conformance::suite::{connect_store, one_limit_of_each_kind, wait_until};

/// The number of instances.
pub const INSTANCES: usize = 2;

/// The tenant of all requests. Its keys lie in one slot.
pub(super) const TENANT: &str = "acme";

/// The amount of load, and the limits.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// A decision counts as late after this time, which is too long for any busy machine.
    pub late: Duration,
    /// Concurrent workers per instance and policy.
    pub workers: usize,
    /// The interval between requests of a worker.
    pub pace: Duration,
    /// The limit of each rule where it must run out.
    pub tight: u64,
    /// The limit of each rule where it must not run out.
    pub wide: u64,
    /// The cap of the static rule.
    pub cap: u64,
    /// Decisions per instance and policy before the fault.
    pub before: u64,
    /// Decisions per instance and policy during the fault.
    pub during: u64,
}

/// One of the instances that share the store.
#[derive(Debug)]
pub(super) struct Instance(RwLock<Arc<Limiter<RedisStore>>>);

/// The decisions of one instance under one policy.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Requests.
    pub sent: u64,
    /// Allowed by the store.
    pub allowed: u64,
    /// Denied by the store.
    pub denied: u64,
    /// Allowed without the store (degraded).
    pub passed: u64,
    /// Denied without the store (degraded).
    pub held: u64,
    /// Refused with an error because the store failed.
    pub refused: u64,
    /// Not answered within many budgets.
    pub late: u64,
    /// Consecutive decisions by the store up to now.
    pub consecutive_by_store: u64,
    /// The reasons of degraded decisions and errors.
    pub reasons: Vec<StoreErrorKind>,
    /// The longest decision.
    pub worst: Duration,
}

/// Running workers and their counts.
pub(super) struct Load {
    counts: Arc<Vec<Vec<Mutex<Counts>>>>,
    workers: Workers,
}

impl Scale {
    /// Light load.
    pub const fn for_tests() -> Self {
        Self {
            late: Duration::from_secs(20),
            workers: 2,
            pace: Duration::from_millis(10),
            tight: 60,
            wide: 50_000,
            cap: 10,
            before: 5,
            during: 40,
        }
    }

    /// More load.
    pub const fn for_figures() -> Self {
        Self {
            late: Duration::from_secs(1),
            workers: 4,
            pace: Duration::from_millis(10),
            tight: 500,
            wide: 50_000,
            cap: 100,
            before: 20,
            during: 500,
        }
    }

    /// The rules of each policy, all with the same limit, one rule for anonymous subjects, and one for slots. Half of the policies have one limit; the
    /// others have a limit of each kind and a second rule, so that every fault meets small and large plans.
    pub fn rules(&self, limit: u64) -> RuleSet {
        let rule = |policy: OnFailure, second: &str, limits: &[Limit], cap: u64| {
            let limits = limits.iter().map(|limit| (limit.algorithm().as_str(), *limit));
            Rule::from_limits(format!("{}{second}", policy.as_str()), limits)
                .with_action(policy.as_str())
                .with_per(["tenant"])
                .with_on_failure(policy)
                .with_static_limit(slow(cap))
        };
        let of_policy = |policy: OnFailure| match policy {
            OnFailure::Open | OnFailure::Degraded => vec![rule(policy, "", &[slow(limit)], self.cap)],
            _ => vec![
                rule(policy, "", &[&one_limit_of_each_kind(limit)[..], &[yearly(limit)]].concat(), self.cap),
                rule(policy, "-wide", &[slow(2 * self.wide)], 10 * self.cap),
            ],
        };
        let anonymous = Rule::new("flood", slow(limit)).with_action("flood").with_per(["address"]);
        RuleSet::new(POLICIES.into_iter().flat_map(of_policy).chain([anonymous, LeaseLoad::rule()])).unwrap()
    }
}

/// The timeout of a decision: the default.
pub(super) const TIMEOUT: Duration = Duration::from_millis(25);

/// The store options of an instance.
pub(super) fn options() -> RedisOptions {
    RedisOptions::new().with_timeout(TIMEOUT)
}

/// The number of checks in a plan of this policy.
pub(super) const fn checks(policy: OnFailure) -> u64 {
    if matches!(policy, OnFailure::Open | OnFailure::Degraded) { 1 } else { 7 }
}

/// A quota of `amount` whose period hardly ends during a fault.
fn yearly(amount: u64) -> Limit {
    Limit::quota(amount, Periods::utc(Period::Year)).unwrap()
}

/// A limit of `amount` with a refill too slow to matter.
pub(super) fn slow(amount: u64) -> Limit {
    Limit::token_bucket(amount, Rate::per_hour(1).unwrap()).unwrap()
}

/// The request to the rule with `policy`.
pub(super) fn request(policy: OnFailure) -> Request<'static> {
    Request::new(policy.as_str()).with_attribute("tenant", TENANT)
}

// === impl Instance ===

impl Instance {
    /// Opens an instance with these rules on the store at `url`.
    pub(super) async fn open(url: &str, rules: RuleSet, options: RedisOptions) -> Self {
        Self(RwLock::new(Arc::new(Self::limiter(url, rules, options).await)))
    }

    /// Drops all state of the instance and opens it again.
    pub(super) async fn restart(&self, url: &str, rules: RuleSet, options: RedisOptions) {
        let anew = Arc::new(Self::limiter(url, rules, options).await);
        *self.0.write().unwrap() = anew;
    }

    async fn limiter(url: &str, rules: RuleSet, options: RedisOptions) -> Limiter<RedisStore> {
        Limiter::new(rules, connect_store(url, &options).await)
    }

    /// Waits until every instance has counted all instances by their heartbeats.
    pub(super) async fn wait_for_heartbeats(instances: &[Arc<Self>]) {
        let counts = || instances.iter().map(|instance| instance.now().store().instances()).collect::<Vec<_>>();
        let known = || counts().iter().all(|count| *count == Some(INSTANCES as u32));
        wait_until("the instances have not counted each other", known, || format!("{:?}", counts())).await;
    }

    /// The current limiter.
    pub(super) fn now(&self) -> Arc<Limiter<RedisStore>> {
        Arc::clone(&self.0.read().unwrap())
    }
}

// === impl Counts ===

impl Counts {
    /// Decided by the store.
    pub fn by_store(&self) -> u64 {
        self.allowed + self.denied
    }

    /// Decided without the store.
    pub fn without_store(&self) -> u64 {
        self.passed + self.held + self.refused
    }

    /// The sum of two counts.
    pub fn and(mut self, other: &Self) -> Self {
        self.sent += other.sent;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.passed += other.passed;
        self.held += other.held;
        self.refused += other.refused;
        self.late += other.late;
        self.consecutive_by_store = self.consecutive_by_store.min(other.consecutive_by_store);
        other.reasons.iter().for_each(|reason| self.add_reason(*reason));
        self.worst = self.worst.max(other.worst);
        self
    }

    fn add(&mut self, decision: Option<Result<Decision, StoreError>>, latency: Duration) {
        self.worst = self.worst.max(latency);
        let (count, reason) = match decision {
            None => (&mut self.late, None),
            Some(Err(error)) => (&mut self.refused, Some(error.kind())),
            Some(Ok(decision)) => {
                let count = match (decision.is_allowed(), decision.degraded()) {
                    (true, None) => &mut self.allowed,
                    (false, None) => &mut self.denied,
                    (true, Some(_)) => &mut self.passed,
                    (false, Some(_)) => &mut self.held,
                };
                self.consecutive_by_store += 1;
                (count, decision.degraded())
            }
        };
        *count += 1;
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
        let count = |_: &OnFailure| Mutex::new(Counts::default());
        let counts: Arc<Vec<Vec<_>>> =
            Arc::new(instances.iter().map(|_| POLICIES.iter().map(count).collect()).collect());
        let mut workers = Workers::default();
        for (place, instance) in instances.iter().enumerate() {
            for (row, policy) in POLICIES.into_iter().enumerate() {
                for _ in 0..scale.workers {
                    let (instance, counts) = (Arc::clone(instance), Arc::clone(&counts));
                    workers.spawn(scale.pace, |mut pace| async move {
                        while pace.next().await {
                            send_request(&instance, policy, &scale, &counts[place][row]).await;
                        }
                    });
                }
            }
        }
        Self { counts, workers }
    }

    /// The counts so far, by instance and policy.
    pub(super) fn counts(&self) -> Vec<Vec<Counts>> {
        snapshot(&self.counts)
    }

    /// Waits until `condition` holds for every instance and policy. It gets the counts since `mark`; only
    /// `consecutive_by_store` is absolute.
    pub(super) async fn until(&self, what: &str, mark: &[Vec<Counts>], condition: impl Fn(OnFailure, &Counts) -> bool) {
        let holds = || {
            let counts = self.counts();
            let rows = counts.iter().flatten().zip(mark.iter().flatten());
            rows.zip(POLICIES.into_iter().cycle()).all(|((now, then), policy)| condition(policy, &now.since(then)))
        };
        wait_until(what, holds, || format!("{self:?}")).await;
    }

    /// Waits until each instance made `decisions` more decisions under each policy.
    pub(super) async fn continue_for(&self, decisions: u64) {
        let mark = self.counts();
        self.until("the load has stalled", &mark, |_, counts| counts.answered() >= decisions).await;
    }

    /// Stops the workers and returns the final counts.
    pub(super) async fn stop(self) -> Vec<Vec<Counts>> {
        let Self { counts, workers } = self;
        workers.stop().await;
        snapshot(&counts)
    }
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (instance, row) in self.counts().iter().enumerate() {
            for (policy, counts) in POLICIES.iter().zip(row) {
                writeln!(f, "instance {instance}, {}: {counts:?}", policy.as_str())?;
            }
        }
        Ok(())
    }
}

impl Counts {
    fn answered(&self) -> u64 {
        self.by_store() + self.without_store()
    }

    /// The difference to an earlier count. The longest decision and `consecutive_by_store` stay absolute.
    fn since(&self, then: &Self) -> Self {
        Self {
            sent: self.sent - then.sent,
            allowed: self.allowed - then.allowed,
            denied: self.denied - then.denied,
            passed: self.passed - then.passed,
            held: self.held - then.held,
            refused: self.refused - then.refused,
            late: self.late - then.late,
            ..self.clone()
        }
    }
}

fn snapshot(counts: &[Vec<Mutex<Counts>>]) -> Vec<Vec<Counts>> {
    counts.iter().map(|row| row.iter().map(|counts| counts.lock().unwrap().clone()).collect()).collect()
}

async fn send_request(instance: &Instance, policy: OnFailure, scale: &Scale, counts: &Mutex<Counts>) {
    let (limiter, clock) = (instance.now(), SystemClock::new());
    counts.lock().unwrap().sent += 1;
    let start = clock.now();
    let decision = timeout(scale.late, limiter.check(&request(policy))).await.ok();
    let latency_micros = clock.now().as_micros().saturating_sub(start.as_micros());
    counts.lock().unwrap().add(decision, Duration::from_micros(latency_micros));
}
