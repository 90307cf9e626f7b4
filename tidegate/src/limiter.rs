//! `Limiter`: rules on a store. The whole way of a request in one function: resolve, decide, answer, observe.

mod acquire;
mod fallback;
mod wait_queue;

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::plan::Plan;
use crate::store::{Adjustment, Store, StoreError};
pub use acquire::AcquireOutcome;
use fallback::Fallback;
use wait_queue::WaitQueue;

use crate::spi::{Few, Observer, Verdict};
use crate::{Decision, MemoryStore, Receipt, Request, RuleSet, Secret, Timestamp};

/// Decides requests by a set of rules on a store.
///
/// ```
/// use tidegate::{Limit, Limiter, MemoryStore, Rate, Request, Rule, RuleSet};
///
/// let limit = Limit::token_bucket(2, Rate::per_second(1)?)?;
/// let rules = RuleSet::new([Rule::new("api", limit).with_per(["user"])])?;
/// let limiter = Limiter::new(rules, MemoryStore::new());
///
/// let request = Request::new("read").with_attribute("user", "ann");
/// assert!(limiter.check_now(&request).is_allowed());
/// assert!(limiter.check_now(&request).is_allowed());
/// let denied = limiter.check_now(&request);
/// assert_eq!((denied.is_allowed(), denied.rule(), denied.remaining()), (false, Some("api"), Some(0)));
/// assert!(denied.retry_after().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Limiter<S> {
    rules: RuleSet,
    secret: Secret,
    pub(crate) store: S,
    observer: Option<Arc<dyn Observer>>,
    fallback: Fallback,
    pub(crate) turns: WaitQueue,
}

/// Constructors
impl<S: Store> Limiter<S> {
    /// A limiter with the [public](Secret::public) secret and no observer.
    pub fn new(rules: RuleSet, store: S) -> Self {
        let (secret, fallback) = (Secret::public(), Fallback::alone());
        Self { rules, secret, store, observer: None, fallback, turns: WaitQueue::default() }
    }

    /// Hashes subjects with `secret`, which all instances must share.
    pub fn with_secret(mut self, secret: &Secret) -> Self {
        self.rules = self.rules.with_secret(secret);
        self.secret = secret.clone();
        self
    }

    /// The same limiter with other rules: on the same store, so that what was spent stays spent, with the same secret and
    /// the same observer.
    pub fn with_rules(&self, rules: RuleSet) -> Self
    where
        S: Clone,
    {
        Self {
            rules: rules.with_secret(&self.secret),
            secret: self.secret.clone(),
            store: self.store.clone(),
            observer: self.observer.clone(),
            fallback: self.fallback.clone(),
            turns: WaitQueue::default(),
        }
    }

    /// Shows every decision and failure to `observer`.
    pub fn with_observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Says how many instances share the store, for as long as it does not know itself: while the store fails, a rule that is
    /// [local](crate::OnFailure::Local) then has one of so many [shares](crate::Limit::share).
    pub fn with_instances(mut self, instances: u32) -> Self {
        self.fallback.instances = instances;
        self
    }

    /// Judges in `memory` while the store fails, instead of in a memory store with room for as many keys as usual.
    pub fn with_fallback_store(mut self, memory: MemoryStore) -> Self {
        self.fallback = self.fallback.within(memory);
        self
    }
}

/// Deciding
impl<S: Store> Limiter<S> {
    /// Decides `request` and consumes its cost if it passes.
    ///
    /// If the store fails, the request is judged as its rules [say](crate::OnFailure), and the decision is
    /// [degraded](Decision::degraded). An error means that a rule wants to be closed then: refuse the request, as a failure of
    /// the service.
    pub async fn check(&self, request: &Request<'_>) -> Result<Decision, StoreError> {
        self.decide(&self.plan(request)).await
    }

    /// Says what [`check`](Self::check) would say, and consumes nothing.
    pub async fn peek(&self, request: &Request<'_>) -> Result<Decision, StoreError> {
        let plan = self.plan(request);
        if plan.checks().is_empty() {
            return Ok(Self::unlimited(&plan));
        }
        // Nothing was decided, so the observer only hears of a failure.
        match self.observed(self.store.peek(&plan).await) {
            Ok(verdict) => Ok(Decision::new(&plan, &verdict)),
            Err(error) => self.fall_back_peek(&plan, error),
        }
    }

    /// Takes as many units as there are, up to `most`, in one step; each costs what the request costs.
    ///
    /// [`Decision::granted`] says how many. Of at most none, none are granted and nothing is consumed.
    pub async fn take_up_to(&self, request: &Request<'_>, most: u64) -> Result<Decision, StoreError> {
        if most == 0 {
            return self.peek(request).await.map(Decision::of_nothing);
        }
        self.decide(&self.plan(request).with_max_units(most)).await
    }

    /// Decides a plan that was made by hand.
    pub async fn decide(&self, plan: &Plan<'_>) -> Result<Decision, StoreError> {
        if plan.checks().is_empty() {
            return Ok(self.passed_by(plan));
        }
        match self.observed(self.store.decide(plan).await) {
            Ok(verdict) => Ok(self.decided(plan, &verdict)),
            Err(error) => self.fall_back(plan, error),
        }
    }

    /// Says what [`fall_back`](Self::fall_back) would say, and takes nothing.
    pub fn fall_back_peek(&self, plan: &Plan<'_>, error: StoreError) -> Result<Decision, StoreError> {
        self.fallback.peek(plan, error, self.store.instances())
    }

    /// Decides a plan without the store, as its rules ask for, since the store failed with `error`: for doors that ask the
    /// store themselves. Returns the error if a rule wants to be closed then.
    pub fn fall_back(&self, plan: &Plan<'_>, error: StoreError) -> Result<Decision, StoreError> {
        if let Some(observer) = &self.observer {
            observer.undecided(plan, &error);
        }
        let decision = self.fallback.decide(plan, error, self.store.instances())?;
        if let Some(observer) = &self.observer {
            observer.decided(plan, &decision);
        }
        Ok(decision)
    }
}

/// Correcting
impl<S: Store> Limiter<S> {
    /// Gives back what a decision consumed, as far as its window, slice, entry or place in the queue is still there.
    pub async fn refund(&self, receipt: Receipt) -> Result<(), StoreError> {
        let refunds = receipt.refunds(&self.rules);
        if refunds.is_empty() {
            return Ok(());
        }
        self.observed(self.store.adjust(&refunds).await)
    }

    /// Corrects what a decision consumed once the cost is known: `actual` tells what the request really cost under a rule,
    /// or nothing where the rule's cost stands. Too much is given back as [`refund`](Self::refund) does it, too little is
    /// [charged](Self::charge).
    pub async fn settle(&self, receipt: Receipt, actual: impl Fn(&str) -> Option<u64>) -> Result<(), StoreError> {
        let settlements = receipt.settlements(&self.rules, actual);
        if settlements.is_empty() {
            return Ok(());
        }
        self.observed(self.store.adjust(&settlements).await)
    }

    /// Counts a cost that turned out after the decision. It empties a limit at most, and is never refused.
    pub async fn charge(&self, request: &Request<'_>) -> Result<(), StoreError> {
        let plan = self.plan(request);
        let charges: Vec<Adjustment<'_>> = plan.checks().iter().map(Adjustment::charge).collect();
        if charges.is_empty() {
            return Ok(());
        }
        self.observed(self.store.adjust(&charges).await)
    }

    /// Forgets what the subjects of `request` have spent, under every rule that matches it.
    pub async fn forget(&self, request: &Request<'_>) -> Result<(), StoreError> {
        let plan = self.plan(request);
        let keys: Vec<_> = plan.checks().iter().map(|check| *check.key()).collect();
        self.observed(self.store.forget(&keys).await)
    }

    /// [`refund`](Self::refund), started but not waited for: for a future that is being dropped. What fails is lost, which
    /// leaves the limit stricter than it could be.
    #[allow(clippy::needless_pass_by_value, reason = "a receipt is good for one refund, so it is used up")]
    pub fn refund_soon(&self, receipt: Receipt) {
        self.store.adjust_soon(&receipt.refunds(&self.rules));
    }
}

/// On the memory store nothing needs to be awaited
impl<S: Borrow<MemoryStore>> Limiter<S> {
    /// [`check`](Self::check), without a runtime: the memory store answers at once and cannot fail.
    pub fn check_now(&self, request: &Request<'_>) -> Decision {
        let plan = self.plan(request);
        if plan.checks().is_empty() {
            return self.passed_by(&plan);
        }
        self.decided(&plan, &self.store.borrow().decide_now(&plan))
    }
}

/// The stages
impl<S> Limiter<S> {
    /// The store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The rules.
    pub const fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The checks that `request` must pass.
    #[inline(always)]
    pub fn plan(&self, request: &Request<'_>) -> Plan<'_> {
        self.rules.resolve(request)
    }

    fn passed_by(&self, plan: &Plan<'_>) -> Decision {
        if let Some(observer) = &self.observer {
            observer.no_rule();
        }
        Self::unlimited(plan)
    }

    fn unlimited(plan: &Plan<'_>) -> Decision {
        let verdict = Verdict { decided_at: Timestamp::default(), granted: plan.max_units(), judged: Few::default() };
        Decision::new(plan, &verdict)
    }

    #[inline(always)]
    fn decided(&self, plan: &Plan<'_>, verdict: &Verdict) -> Decision {
        let decision = Decision::new(plan, verdict);
        if let Some(observer) = &self.observer {
            observer.decided(plan, &decision);
        }
        decision
    }

    fn observed<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let (Some(observer), Err(error)) = (&self.observer, &result) {
            observer.store_failed(error);
        }
        result
    }
}

impl<S: fmt::Debug> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("store", &self.store).finish_non_exhaustive()
    }
}
