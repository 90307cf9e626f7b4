//! `SwitchableStore`: a store in memory that fails, knows a denial or is full, as a test says.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tidegate::spi::{Adjustment, AdjustmentResults, Key, KnownDenial, OutstandingHolds, Plan, Store, Verdict};
use tidegate::{
    Decision, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet, StoreError, StoreErrorKind,
};

#[derive(Clone)]
pub(crate) struct SwitchableStore {
    pub(crate) memory: Arc<MemoryStore>,
    pub(crate) fails: Arc<AtomicBool>,
    /// The error, in place of the usual one.
    pub(crate) error: Arc<Mutex<Option<StoreError>>>,
    /// The number of instances; 0 if it counts none.
    pub(crate) instances: Arc<AtomicU32>,
    /// The denial that it knows, whatever the plan.
    pub(crate) known: Arc<Mutex<Option<KnownDenial>>>,
    /// The rules for whose subjects it has no room.
    pub(crate) full_for: Arc<Mutex<Vec<&'static str>>>,
    /// The number of decisions.
    pub(crate) decisions: Arc<AtomicU32>,
}

impl SwitchableStore {
    pub(crate) fn new(clock: &ManualClock) -> Self {
        Self {
            memory: Arc::new(MemoryStore::new().with_clock(clock.clone())),
            fails: Arc::default(),
            error: Arc::default(),
            instances: Arc::default(),
            known: Arc::default(),
            full_for: Arc::default(),
            decisions: Arc::default(),
        }
    }

    pub(crate) fn failing(clock: &ManualClock) -> Self {
        let store = Self::new(clock);
        store.fails.store(true, Ordering::Relaxed);
        store
    }

    pub(crate) fn failing_with(clock: &ManualClock, error: StoreError) -> Self {
        let store = Self::failing(clock);
        *store.error.lock().unwrap() = Some(error);
        store
    }

    fn state(&self) -> Result<(), StoreError> {
        if self.fails.load(Ordering::Relaxed) {
            let usual = || StoreError::new(StoreErrorKind::Unavailable, "the store is down");
            return Err(self.error.lock().unwrap().clone().unwrap_or_else(usual));
        }
        Ok(())
    }

    /// Decides like a full server: a check without a state is decided on a fresh one, and its state is not written.
    fn decide_full(&self, plan: &Plan<'_>, full_for: &[&str]) -> Verdict {
        let is_unstored = |rule: &str| full_for.contains(&rule);
        let stored = plan.checks().iter().filter(|check| !is_unstored(&check.gate().rule().id)).copied();
        let stateless = plan.checks().iter().filter(|check| is_unstored(&check.gate().rule().id)).copied();
        let fresh = MemoryStore::new().with_clock(ManualClock::starting_at(self.memory.now()));
        let part = |checks: Vec<_>| {
            let part = Plan::new(checks).unwrap().with_max_units(plan.max_units());
            let part = plan.lease_owner().map_or(part.clone(), |owner| part.with_lease_owner(owner));
            plan.reservation().map_or(part.clone(), |terms| part.with_reservation(*terms))
        };
        let (stored, stateless) = (part(stored.collect()), part(stateless.collect()));
        let peek = |plan: &Plan<'_>, memory: &MemoryStore| memory.decide_now(&plan.clone().with_peek()).granted();
        let granted = peek(&stored, &self.memory).min(peek(&stateless, &fresh));
        let decide = |part: &Plan<'_>, memory: &MemoryStore| {
            let part = part.clone().with_max_units(granted.max(1));
            memory.decide_now(&if granted == 0 || plan.is_peek() { part.with_peek() } else { part })
        };
        let (stored, stateless) = (decide(&stored, &self.memory), decide(&stateless, &fresh));
        let is_repeat = stored.is_repeat();
        let (mut stored, mut stateless) = (stored.checks().iter(), stateless.checks().iter());
        let results = plan.checks().iter().map(|check| {
            let is_unstored = is_unstored(&check.gate().rule().id);
            let mut result = *if is_unstored { stateless.next() } else { stored.next() }.unwrap();
            (result.stateless, result.consumed) = (is_unstored, result.consumed && !is_unstored);
            result
        });
        Verdict::new(self.memory.now(), granted, results).with_repeat(is_repeat)
    }
}

impl Store for SwitchableStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.state()?;
        let full_for = self.full_for.lock().unwrap().clone();
        if full_for.is_empty() { self.memory.decide(plan).await } else { Ok(self.decide_full(plan, &full_for)) }
    }

    async fn apply(&self, adjustments: &[Adjustment<'_>]) -> AdjustmentResults {
        match self.state() {
            Ok(()) => self.memory.apply(adjustments).await,
            Err(error) => AdjustmentResults::failed(adjustments.len(), &error),
        }
    }

    fn spawn_apply(&self, adjustments: &[Adjustment<'_>]) {
        self.memory.spawn_apply(adjustments);
    }

    async fn outstanding(&self, plan: &Plan<'_>) -> Result<OutstandingHolds, StoreError> {
        self.state()?;
        self.memory.outstanding(plan).await
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        self.state()?;
        self.memory.forget(keys).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.state()
    }

    fn instances(&self) -> Option<u32> {
        Some(self.instances.load(Ordering::Relaxed)).filter(|instances| *instances > 0)
    }

    fn known_denial(&self, _: &Plan<'_>) -> Option<KnownDenial> {
        *self.known.lock().unwrap()
    }
}

/// Polls a future once: nothing here waits.
pub(crate) fn poll_once<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future is pending"),
    }
}

pub(crate) fn limiter(
    store: &SwitchableStore,
    clock: &ManualClock,
    rules: impl IntoIterator<Item = Rule>,
) -> Limiter<SwitchableStore> {
    let memory = MemoryStore::new().with_clock(clock.clone());
    Limiter::new(RuleSet::new(rules).unwrap(), store.clone()).with_fallback_store(memory)
}

/// A bucket that does not refill during the test.
pub(crate) fn bucket(capacity: u64) -> Limit {
    Limit::token_bucket(capacity, Rate::per_hour(1).unwrap()).unwrap()
}

/// How many of `times` requests pass; `None` if one returns an error.
pub(crate) fn passed(limiter: &Limiter<SwitchableStore>, request: &Request<'_>, times: usize) -> Option<usize> {
    let decisions: Option<Vec<Decision>> = (0..times).map(|_| poll_once(limiter.check(request)).ok()).collect();
    decisions.map(|decisions| decisions.iter().filter(|decision| decision.is_allowed()).count())
}
