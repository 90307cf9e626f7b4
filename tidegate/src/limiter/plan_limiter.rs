//! `PlanLimiter`: the decisions of a limiter on plans, for front ends that change the plan of a request, or make plans of their own.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::{AcquireOutcome, Limiter, OutstandingReservations};
use crate::grants::GrantError;
use crate::plan::Plan;
use crate::store::{Adjustment, Store, StoreError};
use crate::{Decision, MemoryStore, Timer};

/// Decides plans as a [`Limiter`] decides requests: each method is that of the limiter with the same name.
///
/// ```
/// use tidegate::spi::Origin;
/// use tidegate::{Limit, Limiter, MemoryStore, Rate, Request, Rule, RuleSet};
///
/// let limit = Limit::token_bucket(2, Rate::per_second(1)?)?;
/// let limiter = Limiter::new(RuleSet::new([Rule::new("api", limit)])?, MemoryStore::new());
///
/// let plan = limiter.plan(&Request::new("")).with_origin(Origin::new("socks"));
/// assert_eq!(limiter.plans().check_now(&plan.clone().with_peek()).remaining(), Some(2));
/// assert_eq!(limiter.plans().check_now(&plan).remaining(), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PlanLimiter<'l, S>(&'l Limiter<S>);

impl<'l, S> PlanLimiter<'l, S> {
    pub(super) const fn new(limiter: &'l Limiter<S>) -> Self {
        Self(limiter)
    }

    /// The number of a caller of [`acquire`](Self::acquire), in the order of arrival.
    pub fn arrive(self) -> u64 {
        self.0.waiting.queue.next_number()
    }

    /// The plan as a reservation under the rules whose actual cost is the [token usage](crate::rules::UsageKind) of a language model, and those
    /// that share a budget with them: these hold the cost. Under the others the request is counted at once, as without a reservation: their
    /// cost is taken. All or nothing for both. Its owner is random, so no earlier reservation can refuse it.
    pub fn reserving_usage(self, plan: Plan<'_>) -> Plan<'_> {
        self.0.usage_reservation_plan(plan)
    }
}

impl<S: Store> PlanLimiter<'_, S> {
    /// Decides `plan`, or peeks if it is a [peek](Plan::with_peek). Failures are handled as by [`Limiter::check`].
    pub fn check(self, plan: &Plan<'_>) -> impl Future<Output = Result<Decision, StoreError>> {
        self.0.check_plan(plan)
    }

    /// Waits until `plan` passes, as [`Limiter::acquire`] does; `None` once `changed` completes while the request waits: then the caller
    /// comes again with a plan of the new rules, by a limiter [with the same waiting callers](Limiter::with_rules). With the same `arrival`,
    /// it stays before those who came later. A request that has its place in a leaky bucket keeps it.
    ///
    /// [Observers](crate::spi::Observer) see the last decision alone, and none after a timeout: a request that waits is not a rejected one.
    pub fn acquire(
        self,
        plan: Plan<'_>,
        arrival: u64,
        max_wait: Duration,
        timer: &(impl Timer + ?Sized),
        changed: impl Future<Output = ()>,
    ) -> impl Future<Output = Result<Option<AcquireOutcome>, StoreError>> {
        self.0.acquire_plan(plan, arrival, max_wait, timer, changed)
    }

    /// Reserves the cost of `plan`, as [`Limiter::reserve`] does.
    pub fn reserve(
        self,
        plan: Plan<'_>,
        idempotency_key: Option<&str>,
    ) -> impl Future<Output = Result<Decision, GrantError>> {
        self.0.reserve_plan(plan, idempotency_key)
    }

    /// Decides a plan without the store, as its rules require after the store failed with `error`, unless a denial is
    /// [known](Store::known_denial). Returns the error if a rule is closed then. For callers that give up on the store themselves, such as
    /// after a timeout of their own.
    pub fn fall_back(self, plan: &Plan<'_>, error: StoreError) -> Result<Decision, StoreError> {
        self.0.fall_back(plan, error)
    }

    /// Gives back the costs of a plan that were taken without a grant: to the current window or slice and to buckets, never more than was
    /// counted there. If a window ends meanwhile, nothing goes back to it. Returns the limits as they are then.
    pub fn refund(self, plan: &Plan<'_>) -> impl Future<Output = Result<Decision, StoreError>> {
        self.0.refund_plan(plan)
    }

    /// Applies adjustments. Does nothing if there are none. The error is that of the first one that failed; the others are applied.
    pub fn adjust(self, adjustments: &[Adjustment<'_>]) -> impl Future<Output = Result<(), StoreError>> {
        self.0.adjust(adjustments)
    }

    /// The open reservations of the subjects of `plan`, as [`Limiter::outstanding`] returns them.
    pub fn outstanding(
        self,
        plan: &Plan<'_>,
    ) -> impl Future<Output = Result<Vec<OutstandingReservations>, StoreError>> {
        self.0.outstanding_plan(plan)
    }
}

impl<S: Borrow<MemoryStore>> PlanLimiter<'_, S> {
    /// [`check`](Self::check) on a memory store, which decides at once and cannot fail.
    #[inline(always)]
    pub fn check_now(self, plan: &Plan<'_>) -> Decision {
        self.0.check_plan_now(plan)
    }
}

impl<S> Clone for PlanLimiter<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for PlanLimiter<'_, S> {}

impl<S: fmt::Debug> fmt::Debug for PlanLimiter<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PlanLimiter").field(self.0).finish()
    }
}
