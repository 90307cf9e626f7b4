//! Rebuilds of partitions and repairs of accounts. A repair is optimistic: it empties the outbox, remembers its position, reads the ledger, and writes only if the outbox is still empty and at that
//! position. So nothing that was consumed in between is overwritten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate::spi::{AccountKey, Outbox};

use super::error::ServiceError;
use super::journal_queue::random_generation;
use super::state::ServiceState;

/// Attempts to repair accounts of a partition that is written to all the time.
const MAX_REPAIR_ATTEMPTS: u32 = 20;

/// What became of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Accounts whose state in the store is that of the ledger now.
    pub repaired: u64,
    /// Accounts whose partition was written to during every attempt. Repeat the call.
    pub busy: Vec<AccountKey>,
}

/// Accounts whose state in the store must be set to that of the ledger. A task does what is left when this is dropped.
#[derive(Debug)]
#[must_use = "the repair is left to a task if this is dropped"]
pub struct PendingRepair<O: Outbox> {
    state: Arc<ServiceState<O>>,
    keys: Vec<AccountKey>,
}

impl<O: Outbox> PendingRepair<O> {
    pub(super) const fn new(state: Arc<ServiceState<O>>, keys: Vec<AccountKey>) -> Self {
        Self { state, keys }
    }

    /// Repairs the accounts now.
    pub async fn finish(mut self) -> Result<RepairReport, ServiceError> {
        let report = self.state.repair(&self.keys).await?;
        self.keys.clone_from(&report.busy);
        Ok(report)
    }
}

impl<O: Outbox> Drop for PendingRepair<O> {
    fn drop(&mut self) {
        self.state.repairs.request_repairs(std::mem::take(&mut self.keys));
    }
}

impl<O: Outbox> ServiceState<O> {
    /// Sets the states of these accounts to those of the ledger.
    pub(super) async fn repair(&self, keys: &[AccountKey]) -> Result<RepairReport, ServiceError> {
        let mut partitions: BTreeMap<u16, Vec<AccountKey>> = BTreeMap::new();
        for key in keys {
            partitions.entry(key.partition).or_default().push(key.clone());
        }
        let mut report = RepairReport { repaired: keys.len() as u64, busy: Vec::new() };
        for (partition, keys) in partitions {
            report.busy.extend(self.repair_partition(partition, &keys).await?);
        }
        report.repaired -= report.busy.len() as u64;
        Ok(report)
    }

    /// Repairs accounts of one partition. Returns those that stayed busy.
    pub(super) async fn repair_partition(
        &self,
        partition: u16,
        keys: &[AccountKey],
    ) -> Result<Vec<AccountKey>, ServiceError> {
        let mut busy = Vec::new();
        for keys in keys.chunks(self.options.batch) {
            if self.repair_chunk(partition, keys).await? {
                self.counters.repairs.fetch_add(keys.len() as u64, Ordering::Relaxed);
            } else {
                busy.extend_from_slice(keys);
            }
        }
        Ok(busy)
    }

    async fn repair_chunk(&self, partition: u16, keys: &[AccountKey]) -> Result<bool, ServiceError> {
        for _ in 0..MAX_REPAIR_ATTEMPTS {
            let Some(drained) = self.drain(partition).await? else { return Ok(false) };
            if drained.generation.is_none() {
                self.rebuild(partition).await?;
                continue;
            }
            let states = self.call(self.ledger.gate_states_of(keys)).await?;
            if !self.store.repair_states(partition, &drained.position, &states).await? {
                continue;
            }
            // Another repair may have read the ledger before a correction and written after this one, or the other way round. Whoever
            // writes last reads last, so the last one notices. If entries came in between, the two cannot be told apart from these.
            let is_moved = self.store.read_outbox(partition, 1).await?.position != drained.position;
            if is_moved || self.call(self.ledger.gate_states_of(keys)).await? == states {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the states of a partition that the store has lost, unless it has a generation again. Returns whether this rebuilt it.
    pub(super) async fn rebuild(&self, partition: u16) -> Result<bool, ServiceError> {
        // Everything that this instance knows must be in the ledger before it is read.
        self.post_journaled().await?;
        // Only a partition with a generation is written to.
        if self.drain(partition).await?.is_none_or(|drained| drained.generation.is_some()) {
            return Ok(false);
        }
        // A rebuild contains what these repairs are for.
        let repairs = self.repairs.take_repairs(partition);
        let rebuilt = self.rebuild_from_ledger(partition).await;
        if matches!(rebuilt, Ok(true)) {
            self.counters.rebuilds.fetch_add(1, Ordering::Relaxed);
            self.journal.acknowledge(&repairs.into_values().flatten().collect::<Vec<_>>());
        } else {
            self.repairs.put_back(repairs);
        }
        rebuilt
    }

    async fn rebuild_from_ledger(&self, partition: u16) -> Result<bool, ServiceError> {
        let states = self.call(self.ledger.gate_states(partition)).await?;
        let generation = random_generation();
        Ok(self.store.rebuild_partition(partition, generation, &states).await? == generation)
    }
}
