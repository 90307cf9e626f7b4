//! `MemoryStore` as a [`Store`], which decides at once. It can fail only with a ledger.

use super::MemoryStore;
use super::locked_shards::lock;
use crate::algorithm::holds;
use crate::key::Key;
use crate::plan::{Check, Plan};
use crate::spi::Verdict;
use crate::store::{Adjustment, AdjustmentResults, OutstandingHolds, Store, StoreError};

impl Store for MemoryStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        self.try_decide_now(plan)
    }

    async fn apply(&self, adjustments: &[Adjustment<'_>]) -> AdjustmentResults {
        self.apply_now(adjustments)
    }

    fn spawn_apply(&self, adjustments: &[Adjustment<'_>]) {
        // A failed refund is lost; the units stay consumed. Nothing else fails without a journal.
        drop(self.apply_now(adjustments));
    }

    async fn outstanding(&self, plan: &Plan<'_>) -> Result<OutstandingHolds, StoreError> {
        let locked = self.lock(plan.checks().iter().map(Check::key));
        let now = self.now();
        let summary = |index: usize| holds::summary(locked.get(index), now);
        Ok(OutstandingHolds { now, checks: (0..plan.checks().len()).map(summary).collect() })
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        for key in keys {
            lock(&self.shards[self.shard_index(key.id())]).remove(key.id());
        }
        Ok(())
    }

    fn ledger_generation(&self, partition: u16) -> Option<u64> {
        self.outbox.as_ref().and_then(|outbox| outbox.lock().generation(partition))
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
