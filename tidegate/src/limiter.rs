//! `Limiter`: decides requests by rules on a store. It resolves the plan, calls the store, falls back if the store fails, and
//! notifies the observer.
//!
//! It is the only way to the store: no front end calls a store directly. Before the call, and again if the call fails, it asks the
//! store for a known denial. An `Err` means that a rule is closed while the store fails, or that the subject has other plans waiting
//! during an overload. It says whether the failure is transient, and whether the plan may have been applied.
//!
//! The queue of `acquire` and the wake-ups by releases are shared by the limiters before and after a change of rules.

mod acquire;
mod drop_guard;
mod endings;
mod fallback;
mod grant_guard;
mod held_leases;
mod leases;
mod ledger_stage;
mod plan_limiter;
mod reservations;
mod slot_releases;
mod stateless_checks;
mod wait_queue;

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::plan::{Plan, ReservationTerms};
use crate::store::{Store, StoreError, StoreErrorKind};
pub use acquire::AcquireOutcome;
use drop_guard::DropGuard;
use fallback::Fallback;
pub use grant_guard::GrantGuard;
pub use held_leases::{HeldLease, HeldLeases};
pub use plan_limiter::PlanLimiter;
pub use reservations::{DEFAULT_RESERVATION_TTL, OutstandingReservations};
use slot_releases::SlotReleases;
use stateless_checks::StatelessChecks;
use wait_queue::WaitQueue;

use crate::spi::{LedgerStage, Observer, Verdict};
use crate::{Decision, MemoryStore, Request, RuleSet, Secret, Timestamp};

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
    ledger: Option<Arc<dyn LedgerStage>>,
    reservation_ttl: Duration,
    pub(crate) waiting: Arc<WaitingCallers>,
}

/// The callers of [`Limiter::acquire`] on one store.
#[derive(Debug, Default)]
pub(crate) struct WaitingCallers {
    pub(crate) queue: WaitQueue,
    slot_releases: SlotReleases,
}

/// Constructors
impl<S: Store> Limiter<S> {
    /// A limiter with the [public](Secret::public) secret and no observer.
    pub fn new(rules: RuleSet, store: S) -> Self {
        let (secret, fallback) = (Secret::public(), Fallback::new());
        let reservation_ttl = DEFAULT_RESERVATION_TTL;
        Self { rules, secret, store, observer: None, fallback, ledger: None, reservation_ttl, waiting: Arc::default() }
    }

    /// Sets the secret for hashing subjects. All instances must have the same.
    pub fn with_secret(mut self, secret: &Secret) -> Self {
        self.rules = self.rules.with_secret(secret);
        self.secret = secret.clone();
        self
    }

    /// A limiter with other rules on the same store, with the same secret, observer, fallback and
    /// [waiting](Self::acquire) callers. Consumed units stay consumed.
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
            ledger: self.ledger.clone(),
            reservation_ttl: self.reservation_ttl,
            waiting: Arc::clone(&self.waiting),
        }
    }

    /// Sets the observer of decisions and failures.
    pub fn with_observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Sets the number of instances, in case the store does not count them. While the store fails, each instance grants its
    /// [share](crate::Limit::share) of a rule that [shares](crate::OnFailure::Share) its limit.
    pub fn with_instances(mut self, instances: u32) -> Self {
        self.fallback.instances = instances;
        self
    }

    /// Sets the memory store that decides while the store fails.
    pub fn with_fallback_store(mut self, store: MemoryStore) -> Self {
        self.fallback = self.fallback.with_store(store);
        self
    }
}

/// Deciding
impl<S: Store> Limiter<S> {
    /// Decides `request` and consumes its cost if it passes.
    ///
    /// If the store fails, the rules [decide](crate::OnFailure) what happens, and the decision is
    /// [degraded](Decision::degraded). An error means that a rule is closed then: refuse the request as a failure of the
    /// service.
    ///
    /// ```
    /// # use tidegate::{Limiter, Request, spi::Store};
    /// # async fn example(limiter: &Limiter<impl Store>, request: &Request<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// let decision = limiter.check(request).await?;
    /// println!("allowed: {}, try again after {:?}", decision.is_allowed(), decision.retry_after());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check(&self, request: &Request<'_>) -> Result<Decision, StoreError> {
        self.check_plan(&self.plan(request)).await
    }

    /// Decides `request` like [`check`](Self::check) but consumes nothing.
    ///
    /// ```
    /// # use tidegate::{Limiter, Request, spi::Store};
    /// # async fn example(limiter: &Limiter<impl Store>, request: &Request<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{:?} are left", limiter.peek(request).await?.remaining());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn peek(&self, request: &Request<'_>) -> Result<Decision, StoreError> {
        self.check_plan(&self.plan(request).with_peek()).await
    }

    /// Takes as many units as there are, up to `max_units`, in one step. Each unit costs what the request costs.
    ///
    /// [`Decision::granted`] is the number of units. `max_units = 0` grants nothing.
    ///
    /// ```
    /// # use tidegate::{Limiter, Request, spi::Store};
    /// # async fn example(limiter: &Limiter<impl Store>, request: &Request<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// let granted = limiter.take_up_to(request, 100).await?.granted();
    /// println!("sends {granted} of 100 messages");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn take_up_to(&self, request: &Request<'_>, max_units: u64) -> Result<Decision, StoreError> {
        if max_units == 0 {
            return self.peek(request).await.map(Decision::without_units);
        }
        self.check_plan(&self.plan(request).with_max_units(max_units)).await
    }

    pub(crate) async fn check_plan(&self, plan: &Plan<'_>) -> Result<Decision, StoreError> {
        if plan.checks().is_empty() {
            return Ok(self.pass(plan));
        }
        if let Some(denial) = self.known_denial(plan) {
            return Ok(denial);
        }
        if let Err(error) = self.observe_error(self.ledger_verified(plan)) {
            return self.fall_back(plan, error);
        }
        let generations = self.sync_generations(plan);
        // A plan that passes without the store is decided there first none the less: what the store denies must not pass.
        if !generations.is_empty()
            && let Err(error) = self.ledger_ready()
            && plan.fails_closed(&error)
        {
            return self.fall_back(plan, error);
        }
        // Nobody would release the slots of a caller that goes away during the call, or of a plan that may have been decided.
        let undecided =
            endings::must_release(plan).then(|| DropGuard::new(|| self.spawn_apply(&endings::releases(plan))));
        let result = self.store.decide(plan).await;
        if let Some(guard) = undecided.filter(|_| !result.as_ref().is_err_and(StoreError::is_possibly_applied)) {
            guard.disarm();
        }
        match self.observe_error(result) {
            Ok(verdict) if verdict.checks().iter().any(|check| check.stateless) => {
                self.finish_stateless(plan, &verdict)
            }
            Ok(verdict) if generations.is_empty() => {
                self.name_accounts(plan);
                Ok(self.finish(plan, &verdict))
            }
            // Boxed, so that the futures of other decisions stay small.
            Ok(verdict) => match Box::pin(self.confirm(plan, &verdict, generations)).await {
                Ok(()) => {
                    self.name_accounts(plan);
                    Ok(self.finish(plan, &verdict))
                }
                Err(error) => self.fall_back(plan, error),
            },
            Err(error) => self.fall_back(plan, error),
        }
    }

    /// Decides a plan without the store, as its rules require after the store failed with `error`.
    pub(crate) fn fall_back(&self, plan: &Plan<'_>, error: StoreError) -> Result<Decision, StoreError> {
        if plan.problem().is_some() {
            return Ok(self.pass(plan));
        }
        if let Some(denial) = self.known_denial(plan) {
            return Ok(denial);
        }
        // Whatever the caller gave up on: what does not fit the ledger is not recorded for it.
        let mismatch = self.ledger_verified(plan).err().filter(|error| error.kind() == StoreErrorKind::Mismatch);
        let error = mismatch.unwrap_or(error);
        self.observe_undecided(plan, &error);
        let decision = self.fallback.decide(plan, error, self.store.instances())?;
        self.journal_decision(plan, &decision).map_err(|error| ledger_stage::unrecorded(&error))?;
        Ok(self.observe(plan, decision))
    }

    /// The decision on a plan by a denial that the store knows without a call.
    #[inline(always)]
    fn known_denial(&self, plan: &Plan<'_>) -> Option<Decision> {
        // A repeated reservation finds its hold, whatever else is denied. Without an idempotency key, none is repeated.
        if plan.is_peek() || plan.reservation().is_some_and(ReservationTerms::is_keyed) {
            return None;
        }
        let known = self.store.known_denial(plan)?;
        Decision::from_known_denial(plan, &known).map(|decision| self.observe(plan, decision))
    }

    /// Decides the checks for which a full store had no state in memory, too. The request passes only if both pass.
    fn finish_stateless(&self, plan: &Plan<'_>, verdict: &Verdict) -> Result<Decision, StoreError> {
        let Some(stateless) = StatelessChecks::new(plan, verdict) else {
            // A denial stands, since a fresh state denies least; and without enforced checks there is nothing to decide.
            return Ok(self.finish(plan, verdict));
        };
        let error = StoreError::new(StoreErrorKind::Refused, "the store is full and has no state of the subject");
        self.observe_undecided(stateless.plan(), &error);
        let decided = self.fallback.decide(stateless.plan(), error, self.store.instances());
        let granted = decided.as_ref().map_or(0, Decision::granted);
        let refunds = stateless.refunds(granted);
        self.spawn_apply(&refunds);
        let decision = decided?;
        Ok(self.observe(plan, if granted == 0 { decision } else { stateless.merge(&decision) }))
    }
}

/// Deciding without a runtime
impl<S: Borrow<MemoryStore>> Limiter<S> {
    /// [`check`](Self::check) on a memory store, which decides at once and cannot fail.
    pub fn check_now(&self, request: &Request<'_>) -> Decision {
        self.check_plan_now(&self.plan(request))
    }

    #[inline(always)]
    pub(crate) fn check_plan_now(&self, plan: &Plan<'_>) -> Decision {
        if plan.checks().is_empty() {
            return self.pass(plan);
        }
        self.finish(plan, &self.store.borrow().decide_now(plan))
    }
}

/// Looking and resetting
impl<S: Store> Limiter<S> {
    /// Checks that the store responds. A failure is observed.
    ///
    /// ```
    /// # use tidegate::{Limiter, Request, spi::Store};
    /// # async fn example(limiter: &Limiter<impl Store>, request: &Request<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// limiter.ping().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.observe_error(self.store.ping().await)
    }

    /// Resets the limits of the subjects of `request`, under every rule that matches it. This instance admits them at once, others within a
    /// second: until then they may repeat a denial that they [know](Store::known_denial).
    ///
    /// ```
    /// # use tidegate::{Limiter, Request, spi::Store};
    /// # async fn example(limiter: &Limiter<impl Store>, request: &Request<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// limiter.forget(request).await?;
    /// println!("has its whole limit again");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn forget(&self, request: &Request<'_>) -> Result<(), StoreError> {
        let plan = self.plan(request);
        let keys: Vec<_> = plan.checks().iter().map(|check| *check.key()).collect();
        self.observe_error(self.store.forget(&keys).await)
    }
}

/// Parts
impl<S> Limiter<S> {
    /// The store.
    #[doc(hidden)]
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

    /// Decides plans in place of requests, for front ends.
    pub const fn plans(&self) -> PlanLimiter<'_, S> {
        PlanLimiter::new(self)
    }

    /// The decision on a plan without checks: everything passes, except for a request that cannot be judged.
    fn pass(&self, plan: &Plan<'_>) -> Decision {
        if let Some(problem) = plan.problem() {
            return Decision::refused(plan, problem.clone());
        }
        if let Some(observer) = self.observer.as_ref().filter(|_| plan.is_observed()) {
            observer.no_rule(plan);
        }
        Decision::new(plan, &Verdict::new(Timestamp::default(), plan.max_units(), []))
    }

    #[inline(always)]
    fn finish(&self, plan: &Plan<'_>, verdict: &Verdict) -> Decision {
        self.observe(plan, Decision::new(plan, verdict))
    }

    #[inline(always)]
    fn observe(&self, plan: &Plan<'_>, decision: Decision) -> Decision {
        if let Some(observer) = self.observer.as_ref().filter(|_| plan.is_observed() && decision.refusal.is_none()) {
            observer.decided(plan, &decision);
        }
        decision
    }

    fn observe_undecided(&self, plan: &Plan<'_>, error: &StoreError) {
        if let Some(observer) = self.observer.as_ref().filter(|_| plan.is_observed()) {
            observer.undecided(plan, error);
        }
    }

    fn observe_error<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &result {
            self.observe_failure(error);
        }
        result
    }

    fn observe_failure(&self, error: &StoreError) {
        if let Some(observer) = &self.observer {
            observer.store_failed(error);
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("store", &self.store).finish_non_exhaustive()
    }
}
