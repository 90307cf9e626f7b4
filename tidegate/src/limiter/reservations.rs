//! Reservations: holding the estimated cost of a request, and charging the actual cost once it is known.
//!
//! The owner of the holds is random, or a keyed hash of the idempotency key and of all enforced limits of the request with their subjects. Each
//! step is idempotent by the owner. A call that finds one hold of its owner repeats the reservation: it takes no second place in a queue,
//! and makes the holds that are missing, because the first call failed at another slot of a cluster.
//!
//! A reservation without a key whose caller goes away, or whose reply is lost, is released in the background. One with a key is not: its
//! caller may repeat it, and a late release would end the repeated one.

use std::borrow::Borrow;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::holds::HoldEnding;
use crate::limit::MAX_WINDOW;
use crate::plan::{Check, LeaseOwner, Plan, ReservationTerms};
use crate::spi::Subject;
use crate::store::{Adjustment, Store, StoreError};
use crate::{Decision, Limiter, MemoryStore, OutstandingReservations, Request, Reservation, ReservationError};

/// How long a reservation lasts by default.
pub const DEFAULT_RESERVATION_TTL: Duration = Duration::from_secs(300);

/// Reservations
impl<S: Store> Limiter<S> {
    /// Sets how long a [reservation](Self::reserve) lasts unless it ends before. All instances must have the same. Rounded down to whole
    /// microseconds, and clamped to 1 ms and 100 years.
    pub fn with_reservation_ttl(mut self, ttl: Duration) -> Self {
        self.reservation_ttl = ttl.clamp(Duration::from_millis(1), MAX_WINDOW);
        self
    }

    /// Decides `request` like [`check`](Self::check), and holds its cost under every limit in place of consuming it. What is held lowers what
    /// others get, until the reservation is [committed](Self::commit) with the actual cost, [released](Self::release_reservation), or runs
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
    /// use tidegate::{Limit, Limiter, MemoryStore, Rate, Request, ReservationError, Rule, RuleSet};
    ///
    /// # async fn complete() -> Result<(), Box<dyn std::error::Error>> {
    /// let limit = Limit::token_bucket(10_000, Rate::per_second(100)?)?;
    /// let limiter = Limiter::new(RuleSet::new([Rule::new("tokens", limit)])?, MemoryStore::new());
    /// let request = Request::new("complete").with_cost(4_000);
    ///
    /// let decision = limiter.reserve(&request, Some("order-17")).await?;
    /// let again = limiter.reserve(&request, Some("order-17")).await?;
    /// assert_eq!((decision.remaining(), again.remaining()), (Some(6_000), Some(6_000)));
    /// let other_cost = limiter.reserve(&Request::new("complete").with_cost(5_000), Some("order-17")).await;
    /// assert!(matches!(other_cost, Err(ReservationError::KeyReused)));
    ///
    /// let reservation = decision.reservation().expect("an allowed request");
    /// limiter.commit(&reservation, 1_234).await?;
    /// limiter.commit(&reservation, 1_234).await?;
    /// let release = limiter.release_reservation(&reservation).await;
    /// assert!(matches!(release, Err(ReservationError::AlreadyEnded)));
    /// # Ok(())
    /// # }
    /// # use std::future::Future;
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # assert!(matches!(std::pin::pin!(complete()).poll(&mut context), std::task::Poll::Ready(Ok(()))));
    /// ```
    pub async fn reserve(
        &self,
        request: &Request<'_>,
        idempotency_key: Option<&str>,
    ) -> Result<Decision, ReservationError> {
        self.reserve_plan(self.plan(request), idempotency_key).await
    }

    /// [`reserve`](Self::reserve) for a plan.
    pub async fn reserve_plan(
        &self,
        plan: Plan<'_>,
        idempotency_key: Option<&str>,
    ) -> Result<Decision, ReservationError> {
        let plan = self.reservation_plan(plan, idempotency_key);
        into_result(self.check_plan(&plan).await.map_err(ReservationError::Store)?)
    }

    /// [`reserve_plan`](Self::reserve_plan), but only rules whose actual cost is the [token usage](crate::UsageKind) of a language model, and
    /// those that share a budget with them, hold the cost. Under the others the request is counted at once, as by
    /// [`check_plan`](Self::check_plan): their cost is part of the [receipt](Decision::into_receipt). All or nothing for both.
    pub async fn reserve_usage_plan(&self, plan: Plan<'_>) -> Result<Decision, StoreError> {
        self.check_plan(&self.usage_reservation_plan(plan)).await
    }

    /// Ends `reservation` and charges `cost`, which may be less or more than was reserved, under every rule without a
    /// [cost of its own](crate::Rule::has_own_cost). Those are charged what was reserved. If more was consumed than is left, what is left
    /// is charged; under a quota all of it is, and what exceeds the quota is debt, which the next periods pay.
    ///
    /// The cost belongs to the window in which the reservation was made. Under a fixed window that is over, nothing is charged.
    pub async fn commit(&self, reservation: &Reservation, cost: u64) -> Result<(), ReservationError> {
        self.commit_each(reservation, |rule| self.committed_cost(rule, cost)).await
    }

    /// [Commits](Self::commit) with a cost for each rule. `actual` returns the actual cost under a rule, or `None` for what was reserved.
    ///
    /// A limit that has lost its hold is charged beside one that has it, now. Its hold is lost if the store has lost it, and if the window or
    /// period of the limit was changed: the count is another then. If all are lost, or all rules were removed, nothing is charged, and the
    /// result is [`NotFound`](ReservationError::NotFound). Without an idempotency key only what is found is charged, since an
    /// earlier call may have committed the rest: see [`commit_or_charge`](Self::commit_or_charge).
    pub async fn commit_each(
        &self,
        reservation: &Reservation,
        actual: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), ReservationError> {
        let commits = reservation.commits(&self.rules, actual);
        let endings = self.end_holds(&commits).await.map_err(ReservationError::Store)?;
        // So a repeated commit, which ends nothing, charges nothing.
        let is_ended =
            |(commit, ending): (&Adjustment<'_>, &HoldEnding)| commit.is_keyed_commit() && *ending == HoldEnding::Ended;
        if commits.iter().flatten().zip(endings.iter().flatten()).any(is_ended) {
            self.charge_lost_holds(&commits[0], &endings[0]).await;
        }
        combine(&commits, &endings)
    }

    /// [Commits each](Self::commit_each), once and without an idempotency key. A hold that is gone, since the store has lost it or it has run
    /// out, is charged all the same, now; one in an overflow bucket, which others share, is not. After a failure of the store, repeat it by
    /// [`commit_each_soon`](Self::commit_each_soon): a hold may be gone because it was committed.
    pub async fn commit_or_charge(
        &self,
        reservation: &Reservation,
        actual: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), StoreError> {
        let commits = reservation.commits(&self.rules, actual);
        let [endings, _] = self.end_holds(&commits).await?;
        self.charge_lost_holds(&commits[0], &endings).await;
        Ok(())
    }

    /// Charges what was consumed after `reservation` was committed, under the same limits: for work that takes longer than the reservation
    /// may last. `committed` returns the cost that was committed under a rule, and `actual` what it is now; `None` is what was reserved. What
    /// is more is charged, under a quota in the period in which the reservation was made. What is less is not given back: part of it may be back already. Never refused: it consumes at most what is
    /// left, and of a quota it becomes debt. What was reserved in the memory of this instance while the store failed is not charged further.
    pub async fn charge_late(
        &self,
        reservation: &Reservation,
        committed: impl Fn(&str) -> Option<u64>,
        actual: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), StoreError> {
        self.adjust(&reservation.late_charges(&self.rules, committed, actual)).await
    }

    /// Starts to [charge](Self::charge_late) without waiting for it, for a future that is being dropped.
    pub fn charge_late_soon(
        &self,
        reservation: &Reservation,
        committed: impl Fn(&str) -> Option<u64>,
        actual: impl Fn(&str) -> Option<u64>,
    ) {
        let charges = reservation.late_charges(&self.rules, committed, actual);
        if !charges.is_empty() {
            self.adjust_soon(&charges);
        }
    }

    /// Ends `reservation` and charges nothing.
    pub async fn release_reservation(&self, reservation: &Reservation) -> Result<(), ReservationError> {
        self.end_reservation(reservation.releases(&self.rules)).await
    }

    /// Starts to [commit](Self::commit) without waiting for it, for a future that is being dropped.
    pub fn commit_soon(&self, reservation: &Reservation, cost: u64) {
        self.commit_each_soon(reservation, |rule| self.committed_cost(rule, cost));
    }

    /// Starts to [commit each](Self::commit_each) without waiting for it, for a future that is being dropped.
    pub fn commit_each_soon(&self, reservation: &Reservation, actual: impl Fn(&str) -> Option<u64>) {
        self.end_reservation_soon(&reservation.commits(&self.rules, actual));
    }

    /// Starts to [release](Self::release_reservation) without waiting for it, for a future that is being dropped.
    pub fn release_reservation_soon(&self, reservation: &Reservation) {
        self.end_reservation_soon(&reservation.releases(&self.rules));
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

    /// [`outstanding`](Self::outstanding) for a plan.
    pub async fn outstanding_plan(&self, plan: &Plan<'_>) -> Result<Vec<OutstandingReservations>, StoreError> {
        if plan.checks().is_empty() {
            return Ok(Vec::new());
        }
        let holds = self.observe_error(self.store.outstanding(plan).await)?;
        let keeping = plan.checks().iter().zip(holds.checks).filter(|(check, _)| check.gate().limit().keeps_holds());
        let outstanding = keeping.map(|(check, summary)| OutstandingReservations {
            rule: check.gate().rule_smol_str().clone(),
            limit_name: check.gate().limit_name_smol_str().clone(),
            reservations: summary.reservations,
            units: summary.units,
            oldest_ends_after: (summary.reservations > 0)
                .then(|| Duration::from_micros(summary.oldest_ends.saturating_sub(holds.now.as_micros()))),
        });
        Ok(outstanding.collect())
    }

    async fn end_reservation(&self, ended: [Vec<Adjustment<'_>>; 2]) -> Result<(), ReservationError> {
        let endings = self.end_holds(&ended).await.map_err(ReservationError::Store)?;
        combine(&ended, &endings)
    }

    /// Charges the commits in the store whose holds were not found, and reports these to the observer.
    async fn charge_lost_holds(&self, commits: &[Adjustment<'_>], endings: &[HoldEnding]) {
        let not_found = commits.iter().zip(endings).filter(|(_, ending)| **ending == HoldEnding::NotFound);
        let lost: Vec<_> = not_found.map(|(commit, _)| commit).filter(|commit| commit.is_hold_ending()).collect();
        if let Some(observer) = &self.observer {
            for commit in &lost {
                observer.hold_lost(commit.gate.rule());
            }
        }
        let charges: Vec<_> = lost.into_iter().filter_map(Adjustment::charge_without_hold).collect();
        // A charge that may have been made must not be repeated; its failure is reported to the observer.
        let _ = self.adjust(&charges).await;
    }

    /// What became of each hold and slot, in the store and in the memory of this instance.
    async fn end_holds(&self, [stored, local]: &[Vec<Adjustment<'_>>; 2]) -> Result<[Vec<HoldEnding>; 2], StoreError> {
        let local_endings = self.fallback.end_holds(local, self.store.instances());
        self.journal_endings(local, &local_endings)?;
        let generations = self.sync_adjustments(stored);
        let result =
            if stored.is_empty() { Ok(Default::default()) } else { self.store.end_holds_recorded(stored).await };
        for ended in [stored, local] {
            self.waiting.slot_releases.notify(ended);
        }
        let (stored_endings, written) = self.observe_error(result)?;
        self.confirm_adjustments(generations, written).await?;
        Ok([stored_endings, local_endings])
    }

    fn end_reservation_soon(&self, [stored, local]: &[Vec<Adjustment<'_>>; 2]) {
        let local_endings = self.fallback.end_holds(local, self.store.instances());
        // Its failure is reported to the observer; nobody waits for the result.
        let _ = self.journal_endings(local, &local_endings);
        self.waiting.slot_releases.notify(local);
        if !stored.is_empty() {
            self.adjust_soon(stored);
        }
    }
}

/// The result of the end of a reservation. Of holds and slots, only holds remember how they ended. Without endings, no limit of the
/// reservation exists any more.
fn combine(ended: &[Vec<Adjustment<'_>>; 2], endings: &[Vec<HoldEnding>; 2]) -> Result<(), ReservationError> {
    let has_holds = ended.iter().flatten().any(Adjustment::is_hold_ending);
    let any = |wanted: HoldEnding, of_hold: bool| {
        let mut each = ended.iter().flatten().zip(endings.iter().flatten());
        each.any(|(ended, ending)| *ending == wanted && (ended.is_hold_ending() || !of_hold))
    };
    if any(HoldEnding::Differs, true) {
        return Err(ReservationError::AlreadyEnded);
    }
    let is_found = any(HoldEnding::Ended, has_holds) || any(HoldEnding::Repeated, has_holds);
    if is_found { Ok(()) } else { Err(ReservationError::NotFound) }
}

/// The decision on a reservation, unless it was refused.
fn into_result(decision: Decision) -> Result<Decision, ReservationError> {
    decision.refusal.map_or(Ok(decision), |refusal| Err(refusal.into()))
}

/// Without a runtime
impl<S: Borrow<MemoryStore>> Limiter<S> {
    /// [`reserve`](Self::reserve) on a memory store, which decides at once and cannot fail.
    pub fn reserve_now(
        &self,
        request: &Request<'_>,
        idempotency_key: Option<&str>,
    ) -> Result<Decision, ReservationError> {
        let plan = self.reservation_plan(self.plan(request), idempotency_key);
        into_result(self.check_plan_now(&plan))
    }

    /// [`reserve_usage_plan`](Self::reserve_usage_plan) for a request, on a memory store.
    pub fn reserve_usage_now(&self, request: &Request<'_>) -> Decision {
        self.check_plan_now(&self.usage_reservation_plan(self.plan(request)))
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
    fn usage_reservation_plan<'r>(&self, plan: Plan<'r>) -> Plan<'r> {
        let terms = ReservationTerms::new(LeaseOwner::random(), self.reservation_ttl, false);
        plan.with_reservation(terms.with_usage_only())
    }

    /// The cost of a commit under a rule: none of its own.
    fn committed_cost(&self, rule: &str, cost: u64) -> Option<u64> {
        self.rules.rule(rule).is_none_or(|rule| !rule.has_own_cost()).then_some(cost)
    }
}
