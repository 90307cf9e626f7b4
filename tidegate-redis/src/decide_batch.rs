//! `RedisStore::decide_batch`: decides plans by one script call, for tests and benchmarks of combined decisions.

use tidegate::spi::{Plan, Verdict};
use tidegate::{StoreError, Timestamp};

use crate::batch::{Batch, BatchMode};
use crate::packed_plan::PackedPlan;
use crate::period_clock::PackTime;
use crate::reply::PlanReply;
use crate::store::RedisStore;

impl RedisStore {
    /// Decides `plans` by one script call. Also returns the indexes of the plans in the order in which they were decided. In a
    /// cluster, all keys must be in one slot. For tests: [`decide`](tidegate::spi::Store::decide) combines plans by itself.
    #[doc(hidden)]
    pub async fn decide_batch(&self, plans: &[Plan<'_>]) -> (Vec<usize>, Vec<Result<Verdict, StoreError>>) {
        let (mut batch, mut results) = self.send_plans(plans, &self.pack_time()).await;
        let stale_at = results.iter().flatten().find_map(PlanReply::stale_at);
        if let Some(now) = stale_at {
            (batch, results) = self.send_plans(plans, &PackTime::At(now)).await;
        }
        let verdicts = plans.iter().zip(results).map(|(plan, result)| {
            let reply = result?.into_reply(plan)?;
            let verdict = reply.verdict(plan);
            if !plan.is_peek() {
                self.cardinality.record_decision(plan, &reply, verdict.checks());
            }
            Ok(verdict)
        });
        (batch.decided_order(), verdicts.collect())
    }

    /// Sets the clock by which the periods of quotas are packed. For tests of instances with a wrong clock.
    #[doc(hidden)]
    pub fn set_period_clock(&self, now: Timestamp) {
        self.period_clock.set(now);
    }

    async fn send_plans(&self, plans: &[Plan<'_>], time: &PackTime<'_>) -> (Batch, Vec<Result<PlanReply, StoreError>>) {
        let pack = |plan| {
            let routes = self.cardinality.routes(plan, self.instances());
            let namespace = self.options.namespace.as_str();
            PackedPlan::pack(namespace, plan, &routes, time).with_ledgers(namespace, plan, &self.ledger)
        };
        let packed: Vec<PackedPlan> = plans.iter().map(pack).collect();
        let batch = Batch::new(&packed);
        let timeouts = self.call_timeouts();
        let slot = packed.first().map_or(0, PackedPlan::slot);
        let mut reply = self.send_batch(slot, &batch, BatchMode::Decide, timeouts).await;
        if reply.as_ref().is_err_and(|failure| failure.out_of_memory) {
            reply = self.send_batch(slot, &batch, BatchMode::OutOfMemory, timeouts).await;
        }
        let results = match reply {
            Ok(reply) => batch.parse(&reply),
            Err(failure) => plans.iter().map(|_| Err(failure.error.clone())).collect(),
        };
        (batch, results)
    }
}
