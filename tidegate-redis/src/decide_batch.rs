//! `RedisStore::decide_batch`: decides plans by one script call, for tests and benchmarks of combined decisions.

use tidegate::StoreError;
use tidegate::spi::{Plan, Verdict};

use crate::batch::{Batch, BatchMode};
use crate::packed_plan::PackedPlan;
use crate::store::RedisStore;

impl RedisStore {
    /// Decides `plans` by one script call. Also returns the indexes of the plans in the order in which they were decided. In a
    /// cluster, all keys must be in one slot. For tests: [`decide`](tidegate::spi::Store::decide) combines plans by itself.
    #[doc(hidden)]
    pub async fn decide_batch(&self, plans: &[Plan<'_>]) -> (Vec<usize>, Vec<Result<Verdict, StoreError>>) {
        let pack =
            |plan| PackedPlan::pack(&self.options.prefix, plan, &self.cardinality.routes(plan, self.instances()));
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
}
