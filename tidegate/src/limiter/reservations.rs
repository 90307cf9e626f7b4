//! Reservations: holding the estimated cost of a request, and charging the actual cost once it is known.
//!
//! The owner of the holds is random, or a keyed hash of the idempotency key and of all enforced limits of the request with their subjects. Each
//! step is idempotent by the owner. A call that finds one hold of its owner repeats the reservation: it takes no second place in a queue,
//! and makes the holds that are missing, because the first call failed at another slot of a cluster.
//!
//! A reservation without a key whose caller goes away, or whose reply is lost, is released in the background. One with a key is not: its
//! caller may repeat it, and a late release would end the repeated one.

use std::time::Duration;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::grants::GrantError;
use crate::limit::MAX_WINDOW;
use crate::plan::{Check, LeaseOwner, Plan, ReservationTerms};
use crate::spi::Subject;
use crate::store::{Store, StoreError};
use crate::{Decision, Limiter, Request};

/// How long a reservation lasts by default.
pub const DEFAULT_RESERVATION_TTL: Duration = Duration::from_secs(300);

/// The open reservations of a subject under one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutstandingReservations {
    /// The id of the rule.
    pub rule: SmolStr,
    /// The name of the limit within its rule, often empty.
    pub limit_name: SmolStr,
    /// The number of open reservations.
    pub reservations: u64,
    /// The units that they hold.
    pub units: u64,
    /// The time until the oldest of them runs out; `None` if there is none.
    pub oldest_ends_after: Option<Duration>,
}

/// Reservations
impl<S: Store> Limiter<S> {
    /// Sets how long a [reservation](Self::reserve) lasts unless it ends before. All instances must have the same. Rounded down to whole
    /// microseconds, and clamped to 1 ms and 100 years.
    pub fn with_reservation_ttl(mut self, ttl: Duration) -> Self {
        self.reservation_ttl = ttl.clamp(Duration::from_millis(1), MAX_WINDOW);
        self
    }

    /// Decides `request` like [`check`](Self::check), and holds its cost under every limit in place of consuming it. What is held lowers what
    /// others get, until the reservation is [committed](crate::Ending::Commit) with the actual cost, [released](crate::Ending::Release), or runs
    /// out. All or nothing: a request that one limit denies holds nothing.
    ///
    /// With an idempotency key, every step can be repeated, by any instance: a second reservation with the same key, under the same limits,
    /// for the same subjects and with the same costs, is admitted and holds nothing more. Under other limits or for other subjects, as for
    /// another action or after a change of the rules, the same key is another reservation. The key is remembered as long as the reservation
    /// may last, of a subject under a limit at most the newest 1,024. Without one, a reservation whose caller goes away during the call, or whose call fails, is released soon.
    ///
    /// Under a leaky bucket a reservation is a plain request, which neither a commit nor a release corrects. Under a concurrency limit it
    /// is a slot, released at the end.
    ///
    /// ```
    /// use tidegate::grants::GrantError;
    /// use tidegate::{Ending, Limit, Limiter, MemoryStore, Rate, Request, Rule, RuleSet};
    ///
    /// # async fn complete() -> Result<(), Box<dyn std::error::Error>> {
    /// let limit = Limit::token_bucket(10_000, Rate::per_second(100)?)?;
    /// let limiter = Limiter::new(RuleSet::new([Rule::new("tokens", limit)])?, MemoryStore::new());
    /// let request = Request::new("complete").with_cost(4_000);
    ///
    /// let mut decision = limiter.reserve(&request, Some("order-17")).await?;
    /// let again = limiter.reserve(&request, Some("order-17")).await?;
    /// assert_eq!((decision.remaining(), again.remaining()), (Some(6_000), Some(6_000)));
    /// let other_cost = limiter.reserve(&Request::new("complete").with_cost(5_000), Some("order-17")).await;
    /// assert!(matches!(other_cost, Err(GrantError::KeyReused)));
    ///
    /// let mut reservation = decision.take_grant();
    /// limiter.end(&mut reservation, &Ending::Commit(1_234.into())).await?;
    /// limiter.end(&mut reservation, &Ending::Commit(1_234.into())).await?; // once more, such as after a lost reply
    /// let release = limiter.end(&mut reservation, &Ending::Release).await;
    /// assert!(matches!(release, Err(GrantError::AlreadyEnded)));
    /// # Ok(())
    /// # }
    /// # use std::future::Future;
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # assert!(matches!(std::pin::pin!(complete()).poll(&mut context), std::task::Poll::Ready(Ok(()))));
    /// ```
    pub async fn reserve(&self, request: &Request<'_>, idempotency_key: Option<&str>) -> Result<Decision, GrantError> {
        self.reserve_plan(self.plan(request), idempotency_key).await
    }

    pub(super) async fn reserve_plan(
        &self,
        plan: Plan<'_>,
        idempotency_key: Option<&str>,
    ) -> Result<Decision, GrantError> {
        let plan = self.reservation_plan(plan, idempotency_key);
        let decision = self.check_plan(&plan).await.map_err(GrantError::Store)?;
        decision.refusal.map_or(Ok(decision), |refusal| Err(refusal.into()))
    }

    /// The open reservations of the subjects of `request`, under every limit that keeps them: neither leaky buckets nor concurrency limits.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tidegate::{Limit, Limiter, MemoryStore, Request, Rule, RuleSet};
    /// # async fn complete() -> Result<(), Box<dyn std::error::Error>> {
    /// # let rules = RuleSet::new([Rule::new("tokens", Limit::fixed_window(900, Duration::from_secs(60))?)])?;
    /// # let limiter = Limiter::new(rules, MemoryStore::new());
    /// let _ = limiter.reserve(&Request::new("").with_cost(250), None).await?;
    /// let outstanding = limiter.outstanding(&Request::new("")).await?;
    /// assert_eq!((outstanding[0].rule.as_str(), outstanding[0].reservations, outstanding[0].units), ("tokens", 1, 250));
    /// # Ok(())
    /// # }
    /// # use std::future::Future;
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # assert!(matches!(std::pin::pin!(complete()).poll(&mut context), std::task::Poll::Ready(Ok(()))));
    /// ```
    pub async fn outstanding(&self, request: &Request<'_>) -> Result<Vec<OutstandingReservations>, StoreError> {
        self.outstanding_plan(&self.plan(request)).await
    }

    pub(super) async fn outstanding_plan(&self, plan: &Plan<'_>) -> Result<Vec<OutstandingReservations>, StoreError> {
        if plan.checks().is_empty() {
            return Ok(Vec::new());
        }
        let holds = self.observe_error(self.store.outstanding(plan).await)?;
        let keeping = plan.checks().iter().zip(holds.checks).filter(|(check, _)| check.gate().limit().keeps_holds());
        let outstanding = keeping.map(|(check, summary)| OutstandingReservations {
            rule: check.gate().rule().id.clone(),
            limit_name: check.gate().limit_name().clone(),
            reservations: summary.reservations,
            units: summary.units,
            oldest_ends_after: (summary.reservations > 0)
                .then(|| Duration::from_micros(summary.oldest_ends.saturating_sub(holds.now.as_micros()))),
        });
        Ok(outstanding.collect())
    }
}

impl<S> Limiter<S> {
    /// The plan as a reservation.
    ///
    /// The owner stands for the idempotency key and for all enforced limits with their subjects. So a call that finds a hold of its owner
    /// repeats the same reservation: a hold that is missing was lost, or never made in another slot of a cluster, and is made now. A
    /// request under other limits has another owner, and is never taken for a repeat.
    fn reservation_plan<'r>(&self, plan: Plan<'r>, idempotency_key: Option<&str>) -> Plan<'r> {
        let owner = idempotency_key.map(|idempotency_key| {
            // Shadow checks affect no request.
            let keys = plan.checks().iter().filter(|check| !check.is_shadow()).map(Check::key);
            let mut keys: SmallVec<[(u128, Subject); 4]> = keys.map(|key| (key.stem().id(), key.subject())).collect();
            keys.sort_unstable();
            self.secret.reservation_owner(idempotency_key, &keys)
        });
        let terms =
            ReservationTerms::new(owner.unwrap_or_else(LeaseOwner::random), self.reservation_ttl, owner.is_some());
        plan.with_reservation(terms)
    }

    /// The plan as a reservation under the rules that count tokens. It has a random owner, so no earlier one can refuse it.
    pub(super) fn usage_reservation_plan<'r>(&self, plan: Plan<'r>) -> Plan<'r> {
        let terms = ReservationTerms::new(LeaseOwner::random(), self.reservation_ttl, false);
        plan.with_reservation(terms.with_usage_only())
    }
}
