//! `RedisStore`: decides a whole plan by one script call. The router chooses the server.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::spi::algorithm::Op;
use tidegate::spi::{Adjustment, Key, KnownDenial, MAX_CHECKS, Plan, Role, Store, Verdict};
use tidegate::{StoreError, StoreErrorKind, Timestamp};

use crate::adjust::{first_error, group_by};
use crate::args;
use crate::call::{Call, CallError};
use crate::cardinality::{CardinalityTracker, OverflowRoute, has_overflow, without_overflow};
use crate::cross_slot::{RecentDenials, SplitBy};
use crate::deadline::Deadline;
use crate::denial_cache::DenialCache;
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
    pub(crate) denial_cache: Arc<DenialCache>,
    pub(crate) cardinality: Arc<CardinalityTracker>,
    pub(crate) options: RedisOptions,
    pub(crate) warnings: Arc<[String]>,
    pub(crate) heartbeat: Heartbeat,
}

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

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        if adjustments.iter().any(|adjustment| matches!(adjustment.op, Op::Take(_))) {
            return Err(StoreError::new(
                StoreErrorKind::Unexpected,
                "an adjustment must be a charge or a refund, not a take",
            ));
        }
        let _change = self.begin_adjustment(adjustments);
        self.send_adjustments(&self.prepare_adjustments(adjustments)).await
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        drop(self.spawn_adjustments(adjustments));
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        let _change = self.denial_cache.begin_change(keys);
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

    async fn ping(&self) -> Result<(), StoreError> {
        let ping = async { self.router.ping(Timeouts::for_decision(self.options.timeout)).await };
        within_timeout(self.options.timeout, pin!(ping)).await
    }

    fn instances(&self) -> Option<u32> {
        self.instances()
    }

    fn known_denial(&self, plan: &Plan<'_>) -> Option<KnownDenial> {
        self.denial_cache.known_denial(plan)
    }
}

impl RedisStore {
    /// Decides `plan`, whose keys share a slot, or peeks at it.
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

    async fn decide_routed(
        &self,
        plan: &Plan<'_>,
        routes: &[OverflowRoute<'_>],
        timeouts: Timeouts,
    ) -> Result<Verdict, CallError> {
        let has_routes = !routes.is_empty();
        let (verb, script) = if plan.is_peek() {
            ("EVALSHA_RO", SCRIPTS.peek(has_routes))
        } else {
            ("EVALSHA", SCRIPTS.decide(plan, has_routes))
        };
        let mut call = Call::script(verb, script, timeouts);
        let append = if is_single_check(plan) { args::decide_one } else { args::decide };
        append(&mut call.command, &self.options.prefix, plan, routes, self.injected_now());
        let ticket = self.denial_cache.ticket(plan);
        let reply = self.router.send(slot_of_plan(plan), &call).await?;
        let parse = if is_single_check(plan) { Reply::parse_single } else { Reply::parse_plan };
        let reply = parse(plan, has_routes, &reply)?;
        let verdict = reply.verdict(plan);
        if !plan.is_peek() {
            self.cardinality.record_decision(plan, &reply, verdict.checks());
            self.denial_cache.record(plan, &reply, &verdict, ticket);
        }
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

/// Rejects a plan with too many checks: the reply has one bit for each, and for each shadow check, in one number.
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
        f.debug_struct("RedisStore").field("prefix", &self.options.prefix).finish_non_exhaustive()
    }
}
