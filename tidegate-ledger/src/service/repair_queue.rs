//! `RepairQueue`: partitions that must be rebuilt and accounts that must be repaired, and the task that does it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt;
use tidegate::spi::{AccountKey, EntryId, Outbox};
use tidegate::sync::Mutex;
use tokio::sync::Notify;

use super::state::ServiceState;
use super::timer;

/// How long the task waits before it tries again what failed.
const REPAIR_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Partitions that must be rebuilt and accounts that must be repaired.
#[derive(Debug, Default)]
pub(super) struct RepairQueue {
    wanted: Mutex<WantedRepairs>,
    wake: Notify,
}

/// Accounts to repair, with entries of the journal to acknowledge afterwards.
pub(super) type Repairs = BTreeMap<AccountKey, Vec<EntryId>>;

#[derive(Debug, Default)]
struct WantedRepairs {
    rebuilds: BTreeSet<u16>,
    repairs: BTreeMap<u16, Repairs>,
}

impl RepairQueue {
    pub(super) fn request_rebuild(&self, partition: u16) {
        self.wanted.lock().rebuilds.insert(partition);
        self.wake.notify_one();
    }

    pub(super) fn request_repairs(&self, accounts: Vec<AccountKey>) {
        if !accounts.is_empty() {
            self.put_back(accounts.into_iter().map(|account| (account, Vec::new())).collect());
            self.wake.notify_one();
        }
    }

    /// Requests repairs of accounts with journaled entries, with the last entry of each. Returns those that it replaces.
    pub(super) fn request_repairs_of_journaled(&self, last: BTreeMap<AccountKey, EntryId>) -> Vec<EntryId> {
        let mut wanted = self.wanted.lock();
        let mut replaced = Vec::new();
        for (account, id) in last {
            let ids = wanted.repairs.entry(account.partition).or_default().entry(account).or_default();
            replaced.extend(std::mem::replace(ids, vec![id]));
        }
        drop(wanted);
        self.wake.notify_one();
        replaced
    }

    /// Takes the repairs of a partition out, to do them.
    pub(super) fn take_repairs(&self, partition: u16) -> Repairs {
        self.wanted.lock().repairs.remove(&partition).unwrap_or_default()
    }

    pub(super) fn put_back(&self, repairs: Repairs) {
        let mut wanted = self.wanted.lock();
        for (account, ids) in repairs {
            wanted.repairs.entry(account.partition).or_default().entry(account).or_default().extend(ids);
        }
    }

    /// Accounts that wait for a repair.
    pub(super) fn repairs_waiting(&self) -> u64 {
        self.wanted.lock().repairs.values().map(|repairs| repairs.len() as u64).sum()
    }

    fn take_rebuilds(&self) -> BTreeSet<u16> {
        std::mem::take(&mut self.wanted.lock().rebuilds)
    }

    fn partitions_to_repair(&self) -> Vec<u16> {
        self.wanted.lock().repairs.keys().copied().collect()
    }
}

impl<O: Outbox> ServiceState<O> {
    /// The task that rebuilds and repairs until the service is stopped.
    pub(super) async fn run_repairs(&self) {
        while self.goes_on_after(self.repairs.wake.notified()).await {
            while !self.repair_waiting().await {
                if !self.goes_on_after(timer::sleep(REPAIR_RETRY_DELAY)).await {
                    return;
                }
            }
        }
    }

    /// Does everything that waits, and puts back what fails. Returns whether nothing failed.
    async fn repair_waiting(&self) -> bool {
        // It would read the journal again for each partition.
        if self.ledger.unopened_error().is_some() {
            return false;
        }
        let rebuilds = futures_util::stream::iter(self.repairs.take_rebuilds());
        let rebuilds = rebuilds.map(|partition| async move { (partition, self.rebuild(partition).await.is_ok()) });
        let mut rebuilds = rebuilds.buffer_unordered(self.options.concurrency);
        let mut all_done = true;
        while let Some((partition, is_done)) = rebuilds.next().await {
            if !is_done {
                all_done = false;
                self.repairs.wanted.lock().rebuilds.insert(partition);
            }
        }
        for partition in self.repairs.partitions_to_repair() {
            let repairs = self.repairs.take_repairs(partition);
            let keys: Vec<AccountKey> = repairs.keys().cloned().collect();
            let (mut done, mut rest) = (repairs, Repairs::new());
            match self.repair_partition(partition, &keys).await {
                Ok(busy) => {
                    rest.extend(busy.into_iter().filter_map(|account| done.remove_entry(&account)));
                }
                Err(_) => rest = std::mem::take(&mut done),
            }
            all_done &= rest.is_empty();
            self.repairs.put_back(rest);
            self.journal.acknowledge(&done.into_values().flatten().collect::<Vec<_>>());
        }
        all_done
    }
}
