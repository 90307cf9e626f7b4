//! `ServiceStats`: what a ledger service has done and what waits for it, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::Timestamp;
use tidegate::spi::{OutboxBatch, PARTITIONS};

use crate::{LedgerErrorKind, Posted};

/// What a ledger service has done since its start, and what waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceStats {
    /// Entries that were recorded.
    pub entries_posted: u64,
    /// Entries that the ledger had already, because another instance or an earlier attempt recorded them.
    pub entries_repeated: u64,
    /// Calls that recorded entries.
    pub posts: u64,
    /// The age of the oldest entry that was in an outbox or in the journal when it was read last, and is not in the ledger.
    pub lag: Duration,
    /// Entries that were in an outbox when it was read last, and are not in the ledger.
    pub waiting: u64,
    /// Entries in the journal, of the memory store or admitted without the store.
    pub journal_waiting: u64,
    /// Partitions that were rebuilt after the store had lost them.
    pub rebuilds: u64,
    /// Partitions of which the store has gone back to an older copy, such as after a failover, and which were given up to be rebuilt.
    pub older_copies: u64,
    /// Accounts whose state in the store was set to that of the ledger.
    pub repairs: u64,
    /// Accounts that wait for that.
    pub repairs_waiting: u64,
    /// Differences that reconciliations have found.
    pub differences: u64,
    /// Partitions that the reconciliation under way, or the last one, has compared.
    pub reconciled_partitions: u64,
    /// Why the ledger is unavailable now. `None` if it is available.
    pub ledger_error: Option<LedgerErrorKind>,
}

/// The counters behind [`ServiceStats`].
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) posted: AtomicU64,
    pub(super) repeated: AtomicU64,
    pub(super) posts: AtomicU64,
    pub(super) rebuilds: AtomicU64,
    pub(super) older_copies: AtomicU64,
    pub(super) repairs: AtomicU64,
    pub(super) differences: AtomicU64,
    pub(super) reconciled_partitions: AtomicU64,
    partitions: Vec<PartitionCounters>,
}

/// What was seen at the last read of an outbox.
#[derive(Debug, Default)]
struct PartitionCounters {
    waiting: AtomicU64,
    /// In microseconds; 0 if nothing waits.
    oldest_at: AtomicU64,
}

impl Counters {
    pub(super) fn record_post(&self, posted: &Posted) {
        self.posts.fetch_add(1, Ordering::Relaxed);
        self.posted.fetch_add(posted.inserted, Ordering::Relaxed);
        self.repeated.fetch_add(posted.repeated, Ordering::Relaxed);
    }

    /// Records what an outbox contained before its entries were posted.
    pub(super) fn record_read(&self, partition: u16, batch: &OutboxBatch) {
        let Some(counters) = self.partitions.get(usize::from(partition)) else { return };
        let oldest_at = batch.entries.first().map_or(0, |oldest| oldest.at.as_micros());
        counters.oldest_at.store(oldest_at, Ordering::Relaxed);
        counters.waiting.store(batch.entries.len() as u64 + batch.waiting, Ordering::Relaxed);
    }

    /// Records that `posted` of the entries that were read last are in the ledger.
    pub(super) fn record_posted(&self, partition: u16, posted: u64) {
        let Some(counters) = self.partitions.get(usize::from(partition)) else { return };
        let rest = counters.waiting.load(Ordering::Relaxed).saturating_sub(posted);
        counters.waiting.store(rest, Ordering::Relaxed);
        if rest == 0 {
            counters.oldest_at.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn waiting(&self) -> u64 {
        self.partitions.iter().map(|counters| counters.waiting.load(Ordering::Relaxed)).sum()
    }

    /// The time of the oldest entry that waits.
    pub(super) fn oldest_at(&self) -> Option<Timestamp> {
        let times = self.partitions.iter().map(|counters| counters.oldest_at.load(Ordering::Relaxed));
        times.filter(|at| *at > 0).min().map(Timestamp::from_micros)
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            posted: AtomicU64::default(),
            repeated: AtomicU64::default(),
            posts: AtomicU64::default(),
            rebuilds: AtomicU64::default(),
            older_copies: AtomicU64::default(),
            repairs: AtomicU64::default(),
            differences: AtomicU64::default(),
            reconciled_partitions: AtomicU64::default(),
            partitions: (0..PARTITIONS).map(|_| PartitionCounters::default()).collect(),
        }
    }
}
