//! How grants end: refunds, settlements, commits and releases. The [`Grant`] says what each does to its parts.

use crate::algorithm::{self, AdjustmentOutcome, Op, Take};
use crate::grant::{Ending, Grant, GrantError, GrantKind, PartAdjustments};
use crate::plan::{Check, Plan, ReservationTerms};
use crate::store::{Adjustment, AdjustmentResults, Store, StoreError, StoreErrorKind};
use crate::{Decision, Limiter, OnFailure, Request};

/// Ending
impl<S: Store> Limiter<S> {
    /// Ends `grant`. What may have gone back is no longer part of it, also if the future is dropped, so that nothing is given back twice. What was
    /// not sent still is: repeat the call with the same grant.
    ///
    /// - [`Refund`](Ending::Refund) gives back what the request took, as far as it is still missing: its window, slice or log entry must still
    ///   exist, and tokens that have refilled since are not given back again. If the request has a place in the queue of a leaky bucket and
    ///   others wait behind it, the place cannot go back, and everything else that it consumed stays taken, too: leaving a queue must not be free
    ///   for a client that takes the place of others.
    /// - [`Settle`](Ending::Settle) corrects the cost. A surplus is given back, a shortfall [charged](Self::charge), each part by itself. A hold
    ///   is committed, or charged if it is gone; if the store fails, its commit is sent again in the background until it runs out.
    /// - [`Commit`](Ending::Commit) ends a reservation with its actual cost, which may be less or more than was reserved. If more was consumed
    ///   than is left, what is left is charged; under a quota all of it is, and what exceeds the quota is debt, which the next periods pay. The
    ///   cost belongs to the window in which the reservation was made: under a fixed window that is over, nothing is charged. With an
    ///   idempotency key, a limit that has lost its hold is charged beside one that has it; its hold is lost if the store has lost it, and if
    ///   the window or period of the limit was changed. Without one only what is found is charged, since an earlier call may have committed
    ///   the rest. If all are lost, nothing is charged, and the result is [`NotHeld`](GrantError::NotHeld).
    /// - [`Release`](Ending::Release) frees slots and holds.
    ///
    /// ```
    /// # use tidegate::{Ending, Grant, Limiter, spi::Store};
    /// # async fn example(limiter: &Limiter<impl Store>, mut grant: Grant) -> Result<(), Box<dyn std::error::Error>> {
    /// limiter.end(&mut grant, &Ending::Settle(3.into())).await?; // the request cost 3 units
    /// # Ok(())
    /// # }
    /// ```
    pub async fn end(&self, grant: &mut Grant, ending: &Ending) -> Result<(), GrantError> {
        let [stored, local] = grant.endings(&self.rules, ending);
        let local_results = self.fallback.apply(&local.adjustments, self.store.instances());
        self.waiting.slot_releases.notify(&local.adjustments);
        self.journal_endings(&local.adjustments, &local_results)?;
        let changed = grant.begin(&self.rules, ending);
        let results = self.apply(&stored.adjustments).await;
        grant.restore(ending, changed, &stored, &results);
        let each = || {
            [(&stored, &results), (&local, &local_results)].into_iter().flat_map(|(sent, results)| each(sent, results))
        };
        let charges_lost_holds = match ending {
            Ending::Settle(_) => true,
            // So a repeated commit, which ends nothing, charges nothing.
            Ending::Commit(_) => {
                each().any(|(one, outcome)| one.is_keyed_commit() && outcome == AdjustmentOutcome::Applied)
            }
            Ending::Refund | Ending::Release => false,
        };
        if charges_lost_holds {
            self.charge_lost_holds(&stored, &results).await;
        }
        if let Some(error) = results.first_error() {
            if matches!(ending, Ending::Settle(_)) {
                self.repeat_commits(&stored, &results);
            }
            return Err(GrantError::Store(error.clone()));
        }
        let outcomes: Vec<_> = each().map(|(one, outcome)| (one.is_hold_ending(), outcome)).collect();
        require_found(grant, ending, &outcomes)
    }

    /// Ends `grant` in the background, for a future that is being dropped. If the store fails, a refund is lost and its units stay consumed;
    /// releases of slots and ends of holds are sent again until they would have run out.
    ///
    /// ```
    /// # use tidegate::{Ending, Grant, Limiter, spi::Store};
    /// # async fn example(limiter: &Limiter<impl Store>, grant: Grant) -> Result<(), Box<dyn std::error::Error>> {
    /// limiter.spawn_end(grant, &Ending::Refund);
    /// # Ok(())
    /// # }
    /// ```
    #[allow(clippy::needless_pass_by_value, reason = "a grant ends once")]
    pub fn spawn_end(&self, grant: Grant, ending: &Ending) {
        self.spawn_end_of(&grant, ending);
    }

    pub(super) fn spawn_end_of(&self, grant: &Grant, ending: &Ending) {
        let [stored, local] = grant.endings(&self.rules, ending);
        let local_results = self.fallback.apply(&local.adjustments, self.store.instances());
        self.waiting.slot_releases.notify(&local.adjustments);
        // Its failure is reported to the observer; nobody waits for the result.
        let _ = self.journal_endings(&local.adjustments, &local_results);
        self.spawn_apply(&stored.adjustments);
    }

    /// Consumes the cost of `request` without a decision. It is never denied, and consumes at most what is left. A request that
    /// [cannot be judged](crate::RequestProblem) is an error, and charges nobody.
    ///
    /// ```
    /// # use tidegate::{Limiter, Request, spi::Store};
    /// # async fn example(limiter: &Limiter<impl Store>, request: &Request<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// limiter.charge(request).await?; // a failed login, which is known after the request only
    /// # Ok(())
    /// # }
    /// ```
    pub async fn charge(&self, request: &Request<'_>) -> Result<(), StoreError> {
        let plan = self.plan(request);
        if let Some(problem) = plan.problem() {
            return Err(StoreError::new(StoreErrorKind::Unexpected, problem.to_string()));
        }
        self.observe_error(self.ledger_verified(&plan))?;
        let charges: Vec<Adjustment<'_>> = plan.checks().iter().map(Adjustment::charge).collect();
        self.adjust(&charges).await
    }

    /// Gives back the costs of a plan that were taken without a grant: to the current window or slice and to buckets, never more than was
    /// counted there. If a window ends meanwhile, nothing goes back to it. Returns the limits as they are then.
    pub(super) async fn refund_plan(&self, plan: &Plan<'_>) -> Result<Decision, StoreError> {
        let peek = plan.clone().with_peek().with_on_failure(OnFailure::Closed);
        let now = self.check_plan(&peek).await?.decided_at();
        let refund = |check: &Check<'_>| {
            let (limit, cost) = (check.gate().limit(), check.cost());
            let position = algorithm::position(None, limit, now, Take::one(cost));
            Op::Refund { cost, position }
        };
        let refunds: Vec<Adjustment<'_>> =
            plan.checks().iter().map(|check| Adjustment::new(check, refund(check))).collect();
        self.adjust(&refunds).await?;
        self.check_plan(&peek).await
    }

    pub(super) async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        self.apply(adjustments).await.outcomes().map(drop)
    }

    /// Applies adjustments, and waits until those of quotas that must be durable are so.
    pub(super) async fn apply(&self, adjustments: &[Adjustment<'_>]) -> AdjustmentResults {
        if adjustments.is_empty() {
            return AdjustmentResults::default();
        }
        let generations = self.sync_adjustments(adjustments);
        let results = self.store.apply(adjustments).await;
        self.waiting.slot_releases.notify(adjustments);
        if let Some(error) = results.first_error() {
            self.observe_failure(error);
            return results;
        }
        if generations.is_empty() {
            return results;
        }
        match Box::pin(self.confirm_adjustments(generations, results.entries().collect())).await {
            Ok(()) => results,
            Err(error) => AdjustmentResults::failed(adjustments.len(), &error),
        }
    }

    /// Starts to apply adjustments without waiting for it.
    pub(super) fn spawn_apply(&self, adjustments: &[Adjustment<'_>]) {
        if !adjustments.is_empty() {
            self.store.spawn_apply(adjustments);
            self.waiting.slot_releases.notify(adjustments);
        }
    }

    /// Charges the commits whose holds were not found, and reports these to the observer.
    async fn charge_lost_holds(&self, commits: &PartAdjustments<'_>, results: &AdjustmentResults) {
        let is_lost = |(one, outcome): &(&Adjustment<'_>, AdjustmentOutcome)| {
            *outcome == AdjustmentOutcome::NotFound && one.is_hold_ending()
        };
        let lost: Vec<_> = each(commits, results).filter(is_lost).map(|(commit, _)| commit).collect();
        if let Some(observer) = &self.observer {
            for commit in &lost {
                observer.hold_lost(&commit.gate.rule().id);
            }
        }
        let charges: Vec<_> = lost.into_iter().filter_map(Adjustment::charge_without_hold).collect();
        // A charge that may have been made must not be repeated; its failure is reported to the observer.
        let _ = self.adjust(&charges).await;
    }

    /// Sends the commits that failed again, until their holds run out.
    fn repeat_commits(&self, sent: &PartAdjustments<'_>, results: &AdjustmentResults) {
        let each = sent.adjustments.iter().zip(results.iter());
        let failed = each.filter(|(one, result)| result.is_err() && one.is_hold_ending()).map(|(one, _)| *one);
        self.spawn_apply(&failed.collect::<Vec<_>>());
    }
}

/// Fails if an ending has not found what it ends. `outcomes` says of each whether it is that of a hold: unlike slots, holds remember how they
/// ended.
fn require_found(grant: &Grant, ending: &Ending, outcomes: &[(bool, AdjustmentOutcome)]) -> Result<(), GrantError> {
    let is_done = |(_, outcome): &(bool, AdjustmentOutcome)| {
        matches!(outcome, AdjustmentOutcome::Applied | AdjustmentOutcome::Repeated)
    };
    let is_lease = || grant.parts().iter().all(|part| part.kind() != GrantKind::Held);
    let mut holds = outcomes.iter().filter(|(is_hold, _)| *is_hold).peekable();
    let is_found = match ending {
        Ending::Refund | Ending::Settle(_) => true,
        Ending::Release if is_lease() => outcomes.iter().all(is_done),
        _ if outcomes.contains(&(true, AdjustmentOutcome::Differs)) => return Err(GrantError::AlreadyEnded),
        // Its slots are all that is left of the reservation.
        _ if holds.peek().is_none() => outcomes.iter().any(is_done),
        _ => holds.any(is_done),
    };
    if is_found { Ok(()) } else { Err(GrantError::NotHeld) }
}

/// Each adjustment that did not fail, with its outcome.
fn each<'p, 'r>(
    sent: &'p PartAdjustments<'r>,
    results: &'p AdjustmentResults,
) -> impl Iterator<Item = (&'p Adjustment<'r>, AdjustmentOutcome)> {
    let each = sent.adjustments.iter().zip(results.iter());
    each.filter_map(|(one, result)| Some((one, result.as_ref().ok()?.outcome)))
}

/// Whether nobody else releases what `plan` takes if its caller goes away, or its reply is lost. A reservation with an idempotency key is
/// left: its caller may repeat it, and a late release would end the repeated one.
#[inline(always)]
pub(super) fn must_release(plan: &Plan<'_>) -> bool {
    let is_repeatable = || plan.reservation().is_some_and(ReservationTerms::is_keyed);
    plan.lease_owner().is_some() && !plan.is_peek() && !is_repeatable()
}

/// The releases of the slots and holds that `plan` may have taken.
pub(super) fn releases<'r>(plan: &Plan<'r>) -> Vec<Adjustment<'r>> {
    let release = |check: &Check<'r>| match plan.reservation() {
        _ if check.gate().limit().has_slots() => Some(Adjustment::release(check, plan.lease_owner()?)),
        Some(terms) if plan.is_hold(check) => Some(Adjustment::hold_release(check, terms.position())),
        _ => None,
    };
    plan.checks().iter().filter_map(release).collect()
}
