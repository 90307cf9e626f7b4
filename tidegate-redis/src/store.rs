//! `RedisStore`: decides a whole plan by one script call. The router chooses the server.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate::spi::{
    Adjustment, AdjustmentResults, Check, EntryId, Key, KnownDenial, MAX_CHECKS, OutstandingHolds, Plan, PlanMode,
    Role, Store, Verdict,
};
use tidegate::{StoreError, StoreErrorKind, Timestamp};

use crate::adjust::{first_error, group_by};
use crate::background_releases::BackgroundReleases;
use crate::batch::{Batch, BatchMode};
use crate::call::{Call, CallError};
use crate::cardinality::{CardinalityTracker, OverflowRoute, has_overflow, without_overflow};
use crate::cross_slot::{RecentDenials, SplitBy};
use crate::deadline::Deadline;
use crate::denial_cache::{DenialCache, DenialTicket};
use crate::heartbeat::Heartbeat;
use crate::options::RedisOptions;
use crate::outbox::{LedgerPartitions, ledger_partitions};
use crate::packed_plan::PackedPlan;
use crate::period_clock::{MAX_STALE_ATTEMPTS, PackTime, PeriodClock};
use crate::plan_call::PlanCall;
use crate::reply::Reply;
use crate::router::Router;
use crate::slot_map::slot_of;
use crate::timeouts::Timeouts;
use crate::{args, timer};

/// A store on Redis or Valkey servers, shared by every instance that connects to them.
///
/// Time is the server's. A decision is one `EVALSHA`; a server that lost the script, by a restart or a flush, gets it again
/// within the same call. A decision that may have been applied is never sent twice.
///
/// A plan is decided in one atomic step on a single server, behind sentinels, and in a cluster if its keys share a slot. The
/// keys of one rule and subject do, and those of one tenant for rules that count by tenant.
///
/// In a cluster, a plan across slots is decided slot by slot, each in one atomic step, the slot that denied last first, and slots with
/// a leaky bucket last of all. If one denies, the units taken from the others are refunded. Never more requests pass than the limits allow. Fewer may pass
/// for a moment: while a request that a later slot denies is being decided, it holds units of the earlier slots. If the
/// refund fails, these units stay taken until the limit has refilled.
///
/// Plans that are decided at the same time are combined: one script call decides all of them, in one atomic step. A decision
/// whose caller goes away before it was sent consumes nothing; one that was sent stays.
///
/// A server that sends nothing for its [budget](RedisOptions::with_timeout) is silent: the circuit breaker opens, and decisions
/// fail at once until the server has answered again. While the server answers, decisions wait for each other, at most
/// [as many](RedisOptions::with_max_waiting) and [as long](RedisOptions::with_queue_wait) as the options say.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) router: Router,
    pub(crate) denials: Arc<RecentDenials>,
    pub(crate) denial_cache: Arc<DenialCache>,
    pub(crate) cardinality: Arc<CardinalityTracker>,
    pub(crate) options: RedisOptions,
    pub(crate) warnings: Arc<[String]>,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) period_clock: Arc<PeriodClock>,
    pub(crate) background_releases: Arc<BackgroundReleases>,
    pub(crate) ledger: Arc<LedgerPartitions>,
    /// The number of tasks that send adjustments.
    pub(crate) adjusting: Arc<AtomicUsize>,
}

impl Store for RedisStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        require_max_checks(plan)?;
        let timeouts = self.timeouts(plan);
        if self.is_cross_slot(plan) {
            return Box::pin(self.decide_cross_slot(plan, SplitBy::Slot, Deadline::new(timeouts))).await;
        }
        match self.decide_in_slot(plan, timeouts).await {
            Err(failure) if failure.mid_migration && plan.checks().len() > 1 => {
                Box::pin(self.decide_cross_slot(plan, SplitBy::Key, Deadline::new(timeouts))).await
            }
            verdict => Ok(verdict?),
        }
    }

    async fn apply(&self, adjustments: &[Adjustment<'_>]) -> AdjustmentResults {
        if let Err(error) = Adjustment::require_valid(adjustments) {
            return AdjustmentResults::failed(adjustments.len(), &error);
        }
        let _change = self.begin_adjustment(adjustments);
        self.send_adjustments(&self.prepare_adjustments(adjustments)).await
    }

    fn spawn_apply(&self, adjustments: &[Adjustment<'_>]) {
        let (releases, others): (Vec<_>, Vec<_>) =
            adjustments.iter().copied().partition(|one| one.is_release() || one.is_hold_ending());
        self.spawn_releases(&releases);
        drop(self.spawn_adjustments(&others));
    }

    async fn outstanding(&self, plan: &Plan<'_>) -> Result<OutstandingHolds, StoreError> {
        self.read_holds(plan).await
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        let _change = self.denial_cache.begin_change(keys);
        // In a cluster one by one: keys of a slot that is being migrated may be on two servers.
        let groups = group_by(keys, |_, _| !self.router.is_cluster());
        let calls = groups.iter().map(async |keys| {
            let mut command = redis::cmd("DEL");
            for key in keys {
                command.arg(args::key_name(self.options.namespace.as_str(), key));
            }
            let slot = keys.first().map_or(0, |key| slot_of(key.partition()));
            self.router.send(slot, &Call::command(command, self.call_timeouts())).await
        });
        first_error(join_all(calls).await)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.router.ping(self.call_timeouts()).await
    }

    fn instances(&self) -> Option<u32> {
        self.instances()
    }

    fn ledger_generation(&self, partition: u16) -> Option<u64> {
        Some(self.ledger.generation(partition)).filter(|generation| *generation > 0)
    }

    fn known_denial(&self, plan: &Plan<'_>) -> Option<KnownDenial> {
        self.denial_cache.known_denial(plan)
    }
}

impl RedisStore {
    /// Decides `plan`, whose keys share a slot, or peeks at it.
    pub(crate) async fn decide_in_slot(&self, plan: &Plan<'_>, timeouts: Timeouts) -> Result<Verdict, CallError> {
        let routes = self.cardinality.routes(plan, self.instances());
        self.decide_with_routes(plan, &routes, timeouts).await
    }

    /// Decides `plan`, whose keys share a slot, with these routes.
    pub(crate) async fn decide_with_routes(
        &self,
        plan: &Plan<'_>,
        routes: &[OverflowRoute<'_>],
        timeouts: Timeouts,
    ) -> Result<Verdict, CallError> {
        match self.decide_routed(plan, routes, timeouts).await {
            // A new subject has no key on either server of the migration, so a second key would fail every time. Without
            // the overflow bucket, the subject gets a key instead of an error.
            Err(failure) if failure.mid_migration && has_overflow(routes) => {
                Box::pin(self.decide_routed(plan, &without_overflow(routes), timeouts)).await
            }
            verdict => verdict,
        }
    }

    async fn decide_routed(
        &self,
        plan: &Plan<'_>,
        routes: &[OverflowRoute<'_>],
        timeouts: Timeouts,
    ) -> Result<Verdict, CallError> {
        let (reply, ticket, generations) = self.send_plan(plan, routes, timeouts).await?;
        let mut verdict = reply.verdict(plan);
        locate_overflow_slots(plan, routes, &mut verdict);
        set_generations(plan, &generations, &mut verdict);
        set_entries(plan, &generations, &reply, &mut verdict);
        if !plan.is_peek() {
            self.cardinality.record_decision(plan, &reply, verdict.checks());
            self.denial_cache.record(plan, &reply, &verdict, ticket);
        }
        Ok(verdict)
    }

    /// Peeks at the takes of a reservation that was made before, whose keys share a slot. They are admitted, whatever is left by now.
    pub(crate) async fn peek_taken_before(&self, takes: &Plan<'_>, timeouts: Timeouts) -> Result<Verdict, CallError> {
        let peek = takes.clone().with_peek();
        let (reply, _, _) = self.send_plan(&peek, &[], timeouts).await?;
        Ok(reply.into_taken_before().verdict(&peek))
    }

    /// Sends `plan`, whose keys share a slot, again with other periods of quotas if those are over, and with another generation of a ledger if
    /// that has changed. Returns the reply, the ticket to keep a denial, and for each check with a ledger the generation that it was
    /// decided in.
    async fn send_plan(
        &self,
        plan: &Plan<'_>,
        routes: &[OverflowRoute<'_>],
        timeouts: Timeouts,
    ) -> Result<(Reply, DenialTicket, PlanGenerations), CallError> {
        let call = |time: PackTime<'_>| {
            let namespace = self.options.namespace.as_str();
            let packed = PackedPlan::pack(namespace, plan, routes, &time).with_ledgers(namespace, plan, &self.ledger);
            let (packed, cardinality, ledger) = (Arc::new(packed), &self.cardinality, &self.ledger);
            PlanCall { packed, plan, cardinality, ledger, timeouts }
        };
        let partitions = if plan.is_peek() { SmallVec::new() } else { ledger_partitions(plan) };
        let written = self.ledger.mark_after(partitions);
        let (mut time, mut stale_attempts, mut has_learned) = (self.pack_time(), 1, false);
        let (reply, ticket, generations) = loop {
            let generations = ledger_partitions(plan).iter().map(|one| self.ledger.generation(*one)).collect();
            let call = call(time);
            let ticket = self.denial_cache.ticket(plan);
            let reply = match self.router.send(call.packed.slot(), &call).await {
                Err(failure) if !failure.error.is_possibly_applied() => {
                    written.cancel();
                    return Err(failure);
                }
                reply => reply?,
            };
            if let Some(now) = reply.stale_at().filter(|_| stale_attempts < MAX_STALE_ATTEMPTS) {
                self.period_clock.set(now);
                (time, stale_attempts) = (PackTime::At(now), stale_attempts + 1);
            } else if !has_learned && reply.found_generations().is_some_and(|found| self.learn_from_plan(plan, &found))
            {
                has_learned = true;
            } else {
                break (reply, ticket, generations);
            }
        };
        let reply = reply.into_reply(plan);
        // The outbox contains nothing new, or the partition is marked already.
        if reply.as_ref().is_ok_and(|reply| !reply.has_granted() && plan.mode() == PlanMode::AllOrNothing)
            || reply.as_ref().is_err_and(|error| !error.is_possibly_applied())
        {
            written.cancel();
        }
        Ok((reply?, ticket, generations))
    }

    /// Learns the generation that was found for each check of `plan` with a ledger. Returns whether all of them have one.
    fn learn_from_plan(&self, plan: &Plan<'_>, found: &[u64]) -> bool {
        let partitions = ledger_partitions(plan);
        partitions.len() == found.len() && self.ledger.learn(partitions.into_iter().zip(found.iter().copied()))
    }

    /// Sends `batch`, whose keys are in `slot`.
    pub(crate) async fn send_batch(
        &self,
        slot: u16,
        batch: &Batch,
        mode: BatchMode,
        timeouts: Timeouts,
    ) -> Result<redis::Value, CallError> {
        let (command, script) = batch.command(self.injected_now(), mode);
        self.router.send(slot, &Call { command, script: Some(script), timeouts }).await
    }

    /// The timeouts of a decision on `plan`.
    fn timeouts(&self, plan: &Plan<'_>) -> Timeouts {
        let own_deadline = plan.timeout().map(|timeout| timer::after(timer::now(), timeout));
        self.call_timeouts().with_deadline(own_deadline)
    }

    /// The timeouts of a call of this store that starts now, all its attempts together.
    pub(crate) fn call_timeouts(&self) -> Timeouts {
        Timeouts::for_decision(&self.options).with_bounded_attempts()
    }

    /// The time by which the periods of quotas are packed.
    pub(crate) fn pack_time(&self) -> PackTime<'_> {
        self.injected_now().map_or(PackTime::Clock(&self.period_clock), PackTime::At)
    }

    /// The time of the injected clock. `None` means the server's.
    pub(crate) fn injected_now(&self) -> Option<Timestamp> {
        self.options.clock.as_ref().map(|clock| clock.now())
    }
}

/// The generation of each check with a ledger, in order.
type PlanGenerations = SmallVec<[u64; 2]>;

/// Records in which generation takes were made, so that they go back to no other.
fn set_generations(plan: &Plan<'_>, generations: &[u64], verdict: &mut Verdict) {
    let results = plan.checks().iter().zip(verdict.checks_mut()).filter(|(check, _)| check.gate().ledger().is_some());
    for ((check, result), generation) in results.zip(generations) {
        if result.consumed && !plan.is_hold(check) {
            result.position = result.position.in_generation(*generation);
        }
    }
}

/// Records which entries were written for the ledger.
fn set_entries(plan: &Plan<'_>, generations: &[u64], reply: &Reply, verdict: &mut Verdict) {
    for &(index, (millis, sequence)) in reply.entries() {
        let ledgers_before = plan.checks().iter().take(index).filter(|check| check.gate().ledger().is_some()).count();
        if let (Some(check), Some(&generation)) = (plan.checks().get(index), generations.get(ledgers_before)) {
            let partition = check.key().partition();
            verdict.set_entry(index, EntryId { generation, partition, millis, sequence });
        }
    }
}

/// Records in which overflow bucket slots and holds are, for their renewal and end.
fn locate_overflow_slots(plan: &Plan<'_>, routes: &[OverflowRoute<'_>], verdict: &mut Verdict) {
    let results = plan.checks().iter().zip(verdict.checks_mut()).zip(routes);
    let is_located = |check: &Check<'_>| check.gate().limit().has_slots() || plan.is_hold(check);
    for ((_, result), route) in results.filter(|((check, result), _)| result.overflowed && is_located(check)) {
        if let Some(number) = route.overflow.and_then(|bucket| bucket.overflow_number()) {
            result.position = result.position.in_overflow_bucket(number);
        }
    }
}

/// Rejects a plan with too many checks, which would take the server too long.
fn require_max_checks(plan: &Plan<'_>) -> Result<(), StoreError> {
    if !plan.is_too_large() {
        return Ok(());
    }
    let checks = plan.checks().iter().filter(|check| check.gate().role() != Role::Shadow).count();
    let message = format!("{checks} limits apply to one request; at most {MAX_CHECKS} may: let fewer rules match it");
    Err(StoreError::new(StoreErrorKind::Unexpected, message))
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("namespace", &self.options.namespace).finish_non_exhaustive()
    }
}
