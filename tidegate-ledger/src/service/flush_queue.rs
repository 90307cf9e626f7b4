//! `FlushQueue`: the partitions that the next flush reads, and who waits for it.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tidegate::StoreError;
use tidegate::spi::{EntryId, OutboxBatch, UnconfirmedEntry};
use tidegate::sync::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::error;

/// The partitions that the next flush reads, and who waits for it. A caller that comes while a flush is under way shares the next one.
#[derive(Debug, Default)]
pub(super) struct FlushQueue {
    wanted: Mutex<WantedPartitions>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct WantedPartitions {
    waiters: BTreeMap<u16, Vec<FlushWaiter>>,
    /// When the flush that is under way began.
    flush_began_at: Option<Instant>,
    is_closed: bool,
}

/// Somebody who waits until an entry, or all that the outbox of a partition contains, is in the ledger. Whether they still wait does not
/// matter.
#[derive(Debug)]
pub(super) struct FlushWaiter {
    /// The generation under which the entries were written. `None` if any will do.
    generation: Option<u64>,
    /// The entry. `None` for all that the outbox contains.
    id: Option<EntryId>,
    /// Entries that were in the outbox at the first read and were not read yet. `None` before the first read.
    remaining: Option<u64>,
    result: oneshot::Sender<Result<(), StoreError>>,
}

pub(super) type WaitResult = oneshot::Receiver<Result<(), StoreError>>;

impl FlushQueue {
    /// Lets the next flush read these partitions. It does not start one.
    pub(super) fn want(&self, partitions: impl IntoIterator<Item = u16>) {
        let mut wanted = self.wanted.lock();
        for partition in partitions {
            wanted.waiters.entry(partition).or_default();
        }
    }

    /// Waits until these entries are in the ledger, by the flush that begins next, and starts it.
    pub(super) fn join(&self, entries: impl IntoIterator<Item = UnconfirmedEntry>) -> Vec<WaitResult> {
        self.join_each(entries.into_iter().map(|entry| (entry.partition, Some(entry.generation), entry.id)))
    }

    /// Waits until everything in the outboxes of these partitions is in the ledger, in the same way.
    pub(super) fn join_partitions(&self, partitions: impl IntoIterator<Item = u16>) -> Vec<WaitResult> {
        self.join_each(partitions.into_iter().map(|partition| (partition, None, None)))
    }

    fn join_each(&self, waiters: impl Iterator<Item = (u16, Option<u64>, Option<EntryId>)>) -> Vec<WaitResult> {
        let mut wanted = self.wanted.lock();
        let mut results = Vec::new();
        for (partition, generation, id) in waiters {
            let (sender, receiver) = oneshot::channel();
            // If it is dropped, the receiver gets an error.
            if !wanted.is_closed {
                let waiter = FlushWaiter { generation, id, remaining: None, result: sender };
                wanted.waiters.entry(partition).or_default().push(waiter);
            }
            results.push(receiver);
        }
        drop(wanted);
        self.wake.notify_one();
        results
    }

    /// Puts a partition back that was not read, or not to its end, and starts the next flush.
    pub(super) fn put_back(&self, partition: u16, waiters: Vec<FlushWaiter>) {
        self.wanted.lock().waiters.entry(partition).or_default().extend(waiters);
        self.wake.notify_one();
    }

    /// Takes everything at the start of a flush.
    pub(super) fn begin(&self, now: Instant) -> BTreeMap<u16, Vec<FlushWaiter>> {
        let mut wanted = self.wanted.lock();
        wanted.flush_began_at = Some(now);
        std::mem::take(&mut wanted.waiters)
    }

    /// Records the end of a flush.
    pub(super) fn end(&self) {
        self.wanted.lock().flush_began_at = None;
    }

    /// Whether the flush that is under way takes longer than `limit`.
    pub(super) fn is_slower_than(&self, limit: Duration, now: Instant) -> bool {
        self.wanted.lock().flush_began_at.is_some_and(|began_at| now.saturating_duration_since(began_at) > limit)
    }

    /// Fails everybody who waits for the next flush. The partitions stay wanted.
    pub(super) fn fail_waiters(&self, error: &StoreError) {
        let waiters: Vec<FlushWaiter> = self.wanted.lock().waiters.values_mut().flat_map(std::mem::take).collect();
        FlushWaiter::fail_all(waiters, error);
    }

    /// Fails everybody who waits, now and later.
    pub(super) fn close(&self) {
        self.wanted.lock().is_closed = true;
        self.fail_waiters(&error::stopped());
    }

    /// Waits until a flush was asked for.
    pub(super) async fn wait(&self) {
        self.wake.notified().await;
    }
}

// === impl FlushWaiter ===

impl FlushWaiter {
    /// The entry that it waits for. `None` if it waits for all that the outbox contains.
    pub(super) const fn id(&self) -> Option<EntryId> {
        self.id
    }

    /// Whether it can find what it waits for in an outbox of this generation. An entry with an id is found, whatever became of its
    /// generation.
    pub(super) fn accepts(&self, generation: Option<u64>) -> bool {
        self.id.is_some() || self.generation.is_none() || self.generation == generation
    }

    /// Whether it waits for one of the entries that were posted.
    pub(super) fn is_among(&self, posted: &HashSet<EntryId>) -> bool {
        self.id.is_some_and(|id| posted.contains(&id))
    }

    /// Records that the next entries of the outbox were read. Returns whether that was the rest of what was there at the first read.
    ///
    /// Entries leave an outbox oldest first and only when they are in the ledger. So after `remaining` more were read, all that were there
    /// at the first read are either read or gone.
    pub(super) fn record_read(&mut self, batch: &OutboxBatch, max: usize) -> bool {
        let read = batch.entries.len();
        let remaining = match self.remaining {
            None => batch.waiting,
            Some(remaining) => remaining.saturating_sub(read as u64),
        };
        let remaining = if read < max { 0 } else { remaining };
        self.remaining = Some(remaining);
        remaining == 0
    }

    pub(super) fn succeed(self) {
        let _ = self.result.send(Ok(()));
    }

    pub(super) fn fail(self, error: &StoreError) {
        let _ = self.result.send(Err(error.clone()));
    }

    pub(super) fn fail_all(waiters: impl IntoIterator<Item = Self>, error: &StoreError) {
        waiters.into_iter().for_each(|waiter| waiter.fail(error));
    }
}
