//! Plans whose keys are in several slots of a cluster, where no script can be atomic. They are split into parts, and each
//! part is decided by one script.
//!
//! The parts are decided one after the other: those with a queue last, before them those with slots to hold, and of the others first
//! the one that denied last. If one denies, the
//! earlier ones are refunded and slots of concurrency limits released, except a place in a queue that has others behind it, and then the rest stays taken, too.
//! So a plan that passes has passed each check at the moment that check was decided, and never more passes than the limits
//! allow. A visible effect: a request that a later part denies holds units of the earlier parts for one or two calls, and
//! another request may be denied for that. If the refund fails, these units stay taken until the limit has refilled.
//!
//! What an earlier call with the same idempotency key has reserved is found by its holds. If other parts come before a part with holds, and
//! would take slots or places in queues, that part is peeked at first.
//!
//! Once a part has denied, the plan is denied, and a failure of another part does not turn that into an error.

mod held_slots;
mod part;
mod pending_refunds;
mod recent_denials;

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::spi::{Plan, PlanMode, Verdict};
use tidegate::{StoreError, StoreErrorKind};

use crate::call::CallError;
use crate::cardinality::OverflowRoute;
use crate::deadline::Deadline;
use crate::slot_map::slot_of;
use crate::store::RedisStore;
use crate::timeouts::Timeouts;
use crate::timer;
pub(crate) use part::SplitBy;
use part::{PartRole, PlanPart, UnitRequest, granted_by_all, is_denied, merge, separate_takes, split};
use pending_refunds::PendingRefunds;
pub(crate) use recent_denials::RecentDenials;

/// How often a plan of several units is attempted while concurrent requests take some of them. After that, one unit is
/// requested, which is either there or not.
const MAX_TAKE_ROUNDS: usize = 3;

/// The result of taking units from all parts.
enum TakeResult {
    Decided(Verdict),
    /// Nothing was taken: one part has only this many.
    FewerUnits(u64),
}

/// Deciding across slots
impl RedisStore {
    /// Whether the keys of `plan` are in several slots of a cluster.
    pub(crate) fn is_cross_slot(&self, plan: &Plan<'_>) -> bool {
        let mut slots = plan.checks().iter().map(|check| slot_of(check.key().partition()));
        let first = slots.next();
        self.router.is_cluster() && slots.any(|slot| Some(slot) != first)
    }

    /// Decides `plan` part by part, or peeks at it.
    pub(crate) async fn decide_cross_slot(
        &self,
        plan: &Plan<'_>,
        split_by: SplitBy,
        deadline: Deadline,
    ) -> Result<Verdict, StoreError> {
        match self.decide_parts(plan, split_by, deadline).await {
            Err(failure) if failure.mid_migration && split_by == SplitBy::Slot => {
                Ok(self.decide_parts(plan, SplitBy::Key, deadline).await?)
            }
            verdict => Ok(verdict?),
        }
    }

    async fn decide_parts(&self, plan: &Plan<'_>, split_by: SplitBy, deadline: Deadline) -> Result<Verdict, CallError> {
        if plan.is_peek() {
            return self.peek_parts(plan, split_by, deadline).await;
        }
        // Peek first how many units all parts have, so that units rarely have to be refunded.
        let mut units = self.available_units(plan, split_by, deadline).await?.max(1);
        let parts = |units: u64| split(plan, split_by, UnitRequest::Exactly(units), &self.denials);
        if plan.mode() == PlanMode::CountEach {
            return self.count_each(plan, units, parts(units), deadline).await;
        }
        let earlier = match plan.reservation() {
            Some(terms) if terms.is_keyed() => self.find_earlier_call(&parts(units), deadline).await?,
            _ => None,
        };
        if let Some(refused) = earlier.as_ref().filter(|verdict| verdict.refusal().is_some()) {
            return Ok(refused.clone());
        }
        for round in 1.. {
            match self.take(plan, units, parts(units), earlier.is_some(), deadline).await? {
                TakeResult::Decided(verdict) => return Ok(verdict),
                TakeResult::FewerUnits(fewer) => units = if round < MAX_TAKE_ROUNDS { fewer } else { 1 },
            }
        }
        Err(StoreError::new(StoreErrorKind::Unexpected, "one unit was neither granted nor denied").into())
    }

    /// The verdict of a part that finds or refuses a reservation with an idempotency key that was made before, if other parts would change
    /// something before they know that: they would take places in queues again, and take over slots, which have the same owner, and release
    /// them.
    async fn find_earlier_call(
        &self,
        parts: &[PlanPart<'_>],
        deadline: Deadline,
    ) -> Result<Option<Verdict>, CallError> {
        let later = parts.iter().skip_while(|part| !part.has_slots_or_takes()).skip(1);
        let (verdicts, failure) =
            self.peek_at_parts(later.filter(|part| part.has_enforced_holds()), deadline.half()).await;
        let earlier =
            verdicts.into_iter().flatten().filter(|verdict| verdict.is_repeat() || verdict.refusal().is_some());
        let earlier = earlier.max_by_key(|verdict| verdict.refusal().is_some());
        failure.filter(|_| earlier.is_none()).map_or(Ok(earlier), Err)
    }

    /// Takes `units` from all parts, or from none. Once a part has found a reservation that was made before, or if `is_repeat`, takes without
    /// an owner are not made again: the earlier call has made them.
    async fn take<'r>(
        &self,
        plan: &Plan<'r>,
        units: u64,
        mut parts: Vec<PlanPart<'r>>,
        is_repeat: bool,
        deadline: Deadline,
    ) -> Result<TakeResult, CallError> {
        let mut refunds = PendingRefunds::new(self).with_repeat(is_repeat);
        if is_repeat {
            separate_takes(plan, &mut parts, 0);
        }
        let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(parts.len());
        let mut best_of_group = 0;
        while let Some(part) = parts.get(verdicts.len()) {
            let decided = if refunds.is_repeat() && part.has_only_takes() {
                let peeked = self.peek_taken_before(&part.plan, deadline.next_call()).await;
                peeked.map(|verdict| (verdict, Vec::new()))
            } else {
                self.decide_part(&part.plan, deadline).await
            };
            let (verdict, routes) = match decided {
                Ok(decided) => decided,
                // Shadow checks do not influence the result, not even by failing.
                Err(failure) if part.order.role == PartRole::Shadow && !failure.mid_migration => {
                    verdicts.push(None);
                    continue;
                }
                Err(failure) => return Err(refunds.refund_after(failure).await),
            };
            if let Some(refusal) = verdict.refusal().filter(|_| part.order.role != PartRole::Shadow) {
                // Other parts of the earlier reservation may be open, and are ended by the same call that has ended this one. Those that
                // this call has made are not.
                refunds.refund().await;
                return Ok(TakeResult::Decided(Verdict::refused(verdict.decided_at(), refusal)));
            }
            let was_repeat = refunds.is_repeat();
            refunds.add(&part.plan, &routes, &verdict);
            let granted = match part.order.role {
                PartRole::Shadow => units,
                PartRole::CanDeny { .. } => part.granted(&verdict),
                PartRole::AnyOf(_) => {
                    best_of_group = part.granted(&verdict).max(best_of_group);
                    let has_next_member = parts.get(verdicts.len() + 1).is_some_and(|next| next.order == part.order);
                    if has_next_member { units } else { std::mem::take(&mut best_of_group) }
                }
            };
            if granted == 0 {
                self.denials.record(&part.plan, &verdict);
                verdicts.push(Some(verdict));
                return Ok(TakeResult::Decided(self.deny(plan, parts, verdicts, refunds, deadline).await));
            }
            if granted < units {
                refunds.refund().await;
                return Ok(TakeResult::FewerUnits(granted));
            }
            verdicts.push(Some(verdict));
            if refunds.is_repeat() && !was_repeat {
                separate_takes(plan, &mut parts, verdicts.len());
            }
        }
        refunds.cancel();
        Ok(TakeResult::Decided(merge(plan, units, &parts, verdicts)))
    }

    /// The verdict on a denied plan: the results of the parts that denied, and a peek at the others after their refund. A
    /// part that cannot be peeked at in time is reported as fresh; the plan is denied in any case.
    async fn deny(
        &self,
        plan: &Plan<'_>,
        parts: Vec<PlanPart<'_>>,
        mut verdicts: Vec<Option<Verdict>>,
        mut refunds: PendingRefunds<'_, '_>,
        deadline: Deadline,
    ) -> Verdict {
        let (started, limit) = (timer::now(), deadline.time_for_details());
        verdicts.resize_with(parts.len(), || None);
        // The refund continues after this timeout. Waiting for it only makes the peeks more accurate.
        refunds.refund_within(limit / 2).await;
        let outdated = verdicts.iter().enumerate().filter(|(_, verdict)| is_outdated(verdict.as_ref()));
        let outdated: Vec<usize> = outdated.map(|(index, _)| index).collect();
        let remaining = limit.saturating_sub(started.elapsed());
        let is_repeat = refunds.is_repeat();
        let peeks = outdated.iter().map(async |index| match &parts[*index] {
            part if is_repeat && part.has_only_takes() => {
                self.peek_taken_before(&part.plan, deadline.timeouts_for(remaining)).await.ok()
            }
            part => self.peek_part(&part.plan, remaining, deadline).await,
        });
        let peeked = join_all(peeks.collect::<Vec<_>>()).await;
        for (index, verdict) in outdated.into_iter().zip(peeked) {
            verdicts[index] = verdict;
        }
        merge(plan, 0, &parts, verdicts)
    }

    /// Counts in every part, whatever the others decide; then in shadow parts, which count only the units that pass.
    async fn count_each(
        &self,
        plan: &Plan<'_>,
        units: u64,
        parts: Vec<PlanPart<'_>>,
        deadline: Deadline,
    ) -> Result<Verdict, CallError> {
        let (shadow, counting): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.order.role == PartRole::Shadow);
        let results = join_all(counting.iter().map(async |part| self.decide_part(&part.plan, deadline).await)).await;
        let mut refunds = PendingRefunds::new(self);
        for (part, result) in counting.iter().zip(&results) {
            if let Ok((verdict, routes)) = result {
                refunds.add(&part.plan, routes, verdict);
            }
        }
        let results = results.into_iter().map(|result| result.map(|(verdict, _)| verdict));
        let (mut verdicts, failure) = split_results(results.collect());
        let denied = is_denied(&counting, &verdicts);
        // After `mid_migration` the plan is counted again, key by key.
        if let Some(failure) = failure.filter(|failure| failure.mid_migration || !denied) {
            return Err(refunds.refund_after(failure).await);
        }
        if denied {
            self.release_slots(&counting, &mut verdicts, &mut refunds, deadline).await;
        }
        refunds.cancel();
        let granted = if denied { 0 } else { granted_by_all(&counting, &verdicts, units) };
        let limit = deadline.time_for_details();
        let shadow_verdicts = join_all(shadow.iter().map(async |part| match granted {
            0 => self.peek_part(&part.plan, limit, deadline).await,
            units => {
                let decided = self.decide_part(&part.plan.clone().with_max_units(units), deadline).await;
                decided.ok().map(|(verdict, _)| verdict)
            }
        }));
        // Shadow parts are the last ones.
        verdicts.extend(shadow_verdicts.await);
        Ok(merge(plan, granted, &parts, verdicts))
    }

    /// Decides a part within the time of the next call. Returns the routes that it was sent with, too.
    async fn decide_part<'r>(
        &self,
        part: &Plan<'r>,
        deadline: Deadline,
    ) -> Result<(Verdict, Vec<OverflowRoute<'r>>), CallError> {
        let routes = self.cardinality.routes(part, self.instances());
        let verdict = self.decide_with_routes(part, &routes, deadline.next_call()).await?;
        Ok((verdict, routes))
    }

    /// Peeks at a part. `None` if that fails or takes longer than `limit`, or if its reservation is refused, which has no results.
    async fn peek_part(&self, part: &Plan<'_>, limit: Duration, deadline: Deadline) -> Option<Verdict> {
        let verdict = self.decide_in_slot(&part.clone().with_peek(), deadline.timeouts_for(limit)).await.ok();
        verdict.filter(|verdict| verdict.refusal().is_none())
    }

    /// How many of the requested units all parts have. If a part denies, failures of other parts are ignored.
    async fn available_units(&self, plan: &Plan<'_>, split_by: SplitBy, deadline: Deadline) -> Result<u64, CallError> {
        let requested = plan.max_units();
        if requested == 1 {
            return Ok(1);
        }
        // Half of the time is left for taking the units.
        let parts = split(plan, split_by, UnitRequest::UpTo(requested), &self.denials);
        let (verdicts, failure) = self.peek_at_parts(&parts, deadline.half()).await;
        let all: Vec<&PlanPart<'_>> = parts.iter().collect();
        match failure {
            None => Ok(granted_by_all(&all, &verdicts, requested)),
            Some(failure) if failure.mid_migration || !is_denied(&all, &verdicts) => Err(failure),
            Some(_) => {
                for (part, verdict) in parts.iter().zip(&verdicts) {
                    if let Some(verdict) = verdict.as_ref().filter(|verdict| verdict.granted() == 0) {
                        self.denials.record(&part.plan, verdict);
                    }
                }
                Ok(0)
            }
        }
    }

    async fn peek_parts(&self, plan: &Plan<'_>, split_by: SplitBy, deadline: Deadline) -> Result<Verdict, CallError> {
        // First the units that all parts have, then each part's result for that many.
        let units = self.available_units(plan, split_by, deadline).await?;
        let parts = split(plan, split_by, UnitRequest::Exactly(units.max(1)), &self.denials);
        let (verdicts, failure) = self.peek_at_parts(&parts, deadline.next_call()).await;
        // Unlike a decision, a peek reports a failure even if another part denies.
        if let Some(failure) = failure {
            return Err(failure);
        }
        let granted = granted_by_all(&parts.iter().collect::<Vec<_>>(), &verdicts, units.max(1));
        Ok(merge(plan, granted.min(units), &parts, verdicts))
    }

    /// Peeks at all parts at once. Returns the verdicts and the first failure.
    async fn peek_at_parts<'p, 'r: 'p>(
        &self,
        parts: impl IntoIterator<Item = &'p PlanPart<'r>>,
        timeouts: Timeouts,
    ) -> (Vec<Option<Verdict>>, Option<CallError>) {
        let peek = async |part: &PlanPart<'_>| self.decide_in_slot(&part.plan.clone().with_peek(), timeouts).await;
        split_results(join_all(parts.into_iter().map(peek)).await)
    }
}

/// Whether a part was not decided, or took units that were refunded since.
fn is_outdated(verdict: Option<&Verdict>) -> bool {
    verdict.is_none_or(|verdict| verdict.checks().iter().any(|check| check.consumed))
}

/// The verdicts, and the first failure.
fn split_results(results: Vec<Result<Verdict, CallError>>) -> (Vec<Option<Verdict>>, Option<CallError>) {
    let mut first_failure = None;
    let verdicts = results
        .into_iter()
        .map(|result| result.map_err(|failure| first_failure = first_failure.take().or(Some(failure))).ok());
    (verdicts.collect(), first_failure)
}
