//! `MemoryStore` as a [`Store`], which decides at once. It can fail only with a ledger.

use super::MemoryStore;
use super::locked_shards::lock;
use crate::algorithm::holds::{self, HoldEnding};
use crate::key::Key;
use crate::ledger::EntryId;
use crate::plan::{Check, Plan};
use crate::spi::Verdict;
use crate::store::{Adjustment, OutstandingHolds, Store, StoreError};

impl Store for MemoryStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        self.try_decide_now(plan)
    }

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        self.adjust_now(adjustments)
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        // A failed refund is lost; the units stay consumed. Nothing else fails, except for a take, which is a defect of the caller.
        let _ = self.adjust_now(adjustments);
    }

    async fn update_slots(&self, updates: &[Adjustment<'_>]) -> Result<Vec<bool>, StoreError> {
        Adjustment::require_slot_updates(updates)?;
        self.apply_all(updates)
    }

    async fn end_holds(&self, endings: &[Adjustment<'_>]) -> Result<Vec<HoldEnding>, StoreError> {
        Ok(self.end_holds_recorded(endings).await?.0)
    }

    async fn adjust_recorded(&self, adjustments: &[Adjustment<'_>]) -> Result<Vec<EntryId>, StoreError> {
        Adjustment::require_changes(adjustments)?;
        let mut recorded = Vec::new();
        self.apply_recorded(adjustments, &mut recorded)?;
        Ok(recorded)
    }

    async fn end_holds_recorded(
        &self,
        endings: &[Adjustment<'_>],
    ) -> Result<(Vec<HoldEnding>, Vec<EntryId>), StoreError> {
        Adjustment::require_endings(endings)?;
        let mut recorded = Vec::new();
        Ok((self.apply_recorded(endings, &mut recorded)?, recorded))
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
