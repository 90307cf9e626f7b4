//! `RedisStore`: decides a whole plan by one script call. The router chooses the server.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tidegate::spi::algorithm::Op;
use tidegate::spi::{Adjustment, Key, MAX_CHECKS, Plan, Store, Verdict};
use tidegate::{StoreError, StoreErrorKind, Timestamp};

use crate::adjust::{first_error, group_by};
use crate::args;
use crate::call::{Call, CallError};
use crate::cardinality::{CardinalityTracker, OverflowRoute, has_overflow, without_overflow};
use crate::cross_slot::{RecentDenials, SplitBy};
use crate::deadline::Deadline;
use crate::error::timed_out;
use crate::heartbeat::Heartbeat;
use crate::options::RedisOptions;
use crate::reply::Reply;
use crate::router::Router;
use crate::scripts::{SCRIPTS, is_single_check};
use crate::slot_map::slot_of;
use crate::timeouts::Timeouts;
use crate::timer;

/// A store on Redis or Valkey servers, shared by every instance that connects to them.
///
/// Time is the server's. A decision is one `EVALSHA`; a server that lost the script, by a restart or a flush, gets it again
/// within the same call. A decision that may have been applied is never sent twice.
///
/// A plan is decided in one atomic step on a single server, behind sentinels, and in a cluster if its keys share a slot. The
/// keys of one rule and subject do, and those of one tenant for rules that count by tenant.
///
/// In a cluster, a plan across slots is decided slot by slot, each in one atomic step, the slot that denied last first. If
/// one denies, the units taken from the others are refunded. Never more requests pass than the limits allow. Fewer may pass
/// for a moment: while a request that a later slot denies is being decided, it holds units of the earlier slots. If the
/// refund fails, these units stay taken until the limit has refilled.
///
/// No decision takes longer than its [timeout](RedisOptions::with_timeout). After three calls in a row without a response the
/// circuit breaker opens, and decisions fail at once until the server has answered again.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) router: Router,
    pub(crate) denials: Arc<RecentDenials>,
    pub(crate) cardinality: Arc<CardinalityTracker>,
    pub(crate) options: RedisOptions,
    pub(crate) warnings: Arc<[String]>,
    pub(crate) heartbeat: Heartbeat,
}

/// The results of several plans, as far as they are known.
struct PlanResults(Mutex<Vec<Option<Result<Verdict, StoreError>>>>);

impl Store for RedisStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        require_max_checks(plan)?;
        let timeout = self.timeout(plan);
        let deadline = Deadline::after(timeout);
        let verdict = async {
            if self.is_cross_slot(plan) {
                return Box::pin(self.decide_cross_slot(plan, SplitBy::Slot, deadline)).await;
            }
            match self.decide_in_slot(plan, Timeouts::for_decision(timeout)).await {
                Err(failure) if failure.mid_migration && plan.checks().len() > 1 => {
                    Box::pin(self.decide_cross_slot(plan, SplitBy::Key, deadline)).await
                }
                verdict => Ok(verdict?),
            }
        };
        within_timeout(timeout, pin!(verdict)).await
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        require_max_checks(plan)?;
        let timeout = self.timeout(plan);
        let deadline = Deadline::after(timeout);
        let verdict = async {
            if self.is_cross_slot(plan) {
                return Box::pin(self.peek_cross_slot(plan, SplitBy::Slot, deadline)).await;
            }
            match self.peek_in_slot(plan, Timeouts::for_decision(timeout)).await {
                Err(failure) if failure.mid_migration && plan.checks().len() > 1 => {
                    Box::pin(self.peek_cross_slot(plan, SplitBy::Key, deadline)).await
                }
                verdict => Ok(verdict?),
            }
        };
        within_timeout(timeout, pin!(verdict)).await
    }

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        if adjustments.iter().any(|adjustment| matches!(adjustment.op, Op::Take(_))) {
            return Err(StoreError::new(StoreErrorKind::Unexpected, "a take is decided, not adjusted"));
        }
        self.send_adjustments(&self.prepare_adjustments(adjustments)).await
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        drop(self.spawn_adjustments(adjustments));
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        // In a cluster one by one: keys of a slot that is being migrated may be on two servers.
        let groups = group_by(keys, |_, _| !self.router.is_cluster());
        let calls = groups.iter().map(async |keys| {
            let mut command = redis::cmd("DEL");
            for key in keys {
                command.arg(args::key_name(&self.options.prefix, key));
            }
            let slot = keys.first().map_or(0, |key| slot_of(key.partition()));
            self.router.send(slot, &Call::command(command, Timeouts::for_decision(self.options.timeout))).await
        });
        first_error(within_timeout(self.options.timeout, pin!(async { Ok(join_all(calls).await) })).await?)
    }

    fn instances(&self) -> Option<u32> {
        self.instances()
    }
}

impl RedisStore {
    /// Decides `plan`, whose keys share a slot.
    pub(crate) async fn decide_in_slot(&self, plan: &Plan<'_>, timeouts: Timeouts) -> Result<Verdict, CallError> {
        let routes = self.cardinality.routes(plan, self.instances());
        match self.decide_routed(plan, &routes, timeouts).await {
            // A new subject has no key on either server of the migration, so a second key would fail every time. Without
            // the overflow bucket, the subject gets a key instead of an error.
            Err(failure) if failure.mid_migration && has_overflow(&routes) => {
                self.decide_routed(plan, &without_overflow(&routes), timeouts).await
            }
            verdict => verdict,
        }
    }

    /// Peeks at `plan`, whose keys share a slot.
    pub(crate) async fn peek_in_slot(&self, plan: &Plan<'_>, timeouts: Timeouts) -> Result<Verdict, CallError> {
        let routes = self.cardinality.routes(plan, self.instances());
        match self.peek_routed(plan, &routes, timeouts).await {
            Err(failure) if failure.mid_migration && has_overflow(&routes) => {
                self.peek_routed(plan, &without_overflow(&routes), timeouts).await
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
        let call = self.decide_call(plan, routes, timeouts);
        let reply = self.router.send(slot_of_plan(plan), &call).await?;
        Ok(self.read_decision(plan, routes, &reply)?)
    }

    async fn peek_routed(
        &self,
        plan: &Plan<'_>,
        routes: &[OverflowRoute<'_>],
        timeouts: Timeouts,
    ) -> Result<Verdict, CallError> {
        let has_routes = !routes.is_empty();
        let mut call = Call::script("EVALSHA_RO", SCRIPTS.peek(has_routes), timeouts);
        args::decide(&mut call.command, &self.options.prefix, plan, routes, self.injected_now());
        let reply = self.router.send(slot_of_plan(plan), &call).await?;
        Ok(Reply::parse_plan(plan, has_routes, &reply)?.verdict(plan, false))
    }

    fn decide_call(&self, plan: &Plan<'_>, routes: &[OverflowRoute<'_>], timeouts: Timeouts) -> Call {
        let mut call = Call::script("EVALSHA", SCRIPTS.decide(plan, !routes.is_empty()), timeouts);
        let append = if is_single_check(plan) { args::decide_one } else { args::decide };
        append(&mut call.command, &self.options.prefix, plan, routes, self.injected_now());
        call
    }

    /// Reads the reply to [`decide_call`](Self::decide_call), and counts keys of anonymous subjects.
    fn read_decision(
        &self,
        plan: &Plan<'_>,
        routes: &[OverflowRoute<'_>],
        reply: &Value,
    ) -> Result<Verdict, StoreError> {
        let parse = if is_single_check(plan) { Reply::parse_single } else { Reply::parse_plan };
        let reply = parse(plan, !routes.is_empty(), reply)?;
        let verdict = reply.verdict(plan, true);
        self.cardinality.record_decision(plan, &reply, &verdict.judged);
        Ok(verdict)
    }

    /// The timeout of `plan`: its own, but at most that of the store.
    fn timeout(&self, plan: &Plan<'_>) -> Duration {
        plan.timeout().map_or(self.options.timeout, |timeout| timeout.min(self.options.timeout))
    }

    /// The time of the injected clock. `None` means the server's.
    pub(crate) fn injected_now(&self) -> Option<Timestamp> {
        self.options.clock.as_ref().map(|clock| clock.now())
    }
}

/// Deciding many plans at once
impl RedisStore {
    /// Decides each plan on its own, all in one round trip to each server (a plan across slots takes more). A plan that
    /// fails does not affect the others. All share one timeout, the shortest.
    pub async fn decide_each(&self, plans: &[Plan<'_>]) -> Vec<Result<Verdict, StoreError>> {
        let timeout = plans.iter().map(|plan| self.timeout(plan)).min().unwrap_or_default();
        let results = PlanResults(Mutex::new(plans.iter().map(|_| None).collect()));
        // When the timeout expires, the results that have arrived are kept.
        let _ = timer::timeout(timeout, pin!(self.decide_each_within(plans, timeout, &results))).await;
        results.into_vec()
    }

    async fn decide_each_within(&self, plans: &[Plan<'_>], timeout: Duration, results: &PlanResults) {
        let routes: Vec<_> = plans.iter().map(|plan| self.cardinality.routes(plan, self.instances())).collect();
        let in_one_slot = |plan: &Plan<'_>| !self.is_cross_slot(plan) && require_max_checks(plan).is_ok();
        let indexes: Vec<usize> = (0..plans.len()).filter(|index| in_one_slot(&plans[*index])).collect();
        let call = |index: &usize| {
            let plan = &plans[*index];
            (slot_of_plan(plan), self.decide_call(plan, &routes[*index], Timeouts::for_decision(timeout)))
        };
        let calls: Vec<(u16, Call)> = indexes.iter().map(call).collect();
        let on_result = |call_index: usize, reply: Result<Value, CallError>| {
            let index = indexes[call_index];
            match reply {
                Ok(reply) => results.set(index, self.read_decision(&plans[index], &routes[index], &reply)),
                Err(failure) if !failure.mid_migration => results.set(index, Err(failure.error)),
                Err(_) => {}
            }
        };
        self.router.send_each(&calls, &on_result).await;
        // Plans across slots, and plans in a slot that is being migrated.
        let missing = results.missing().into_iter();
        join_all(missing.map(async |index| results.set(index, self.decide(&plans[index]).await))).await;
    }
}

// === impl PlanResults ===

impl PlanResults {
    fn set(&self, index: usize, result: Result<Verdict, StoreError>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
    }

    fn missing(&self) -> Vec<usize> {
        let results = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (0..results.len()).filter(|index| results[*index].is_none()).collect()
    }

    /// All results. Those still missing have timed out.
    fn into_vec(self) -> Vec<Result<Verdict, StoreError>> {
        let results = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(timed_out()))).collect()
    }
}

/// The output of `future`, or an error that says "possibly applied" if it takes longer than `timeout`. Takes a pinned
/// reference, since these futures are large and each outer future would copy them.
pub(crate) async fn within_timeout<T>(
    timeout: Duration,
    future: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
) -> Result<T, StoreError> {
    timer::timeout(timeout, future).await.unwrap_or_else(|| Err(timed_out()))
}

/// The slot of the first key. A plan without keys may go to any server.
fn slot_of_plan(plan: &Plan<'_>) -> u16 {
    plan.checks().first().map_or(0, |check| slot_of(check.key().partition()))
}

/// Rejects a plan with too many checks: the reply has one bit for each in one number.
fn require_max_checks(plan: &Plan<'_>) -> Result<(), StoreError> {
    let checks = plan.checks().len();
    if checks <= MAX_CHECKS {
        return Ok(());
    }
    let message = format!("{checks} limits apply to one request; at most {MAX_CHECKS} may: let fewer rules match it");
    Err(StoreError::new(StoreErrorKind::Unexpected, message))
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.options.prefix).finish_non_exhaustive()
    }
}
