//! `Flusher`: the task that moves entries from outboxes into the ledger, in rounds.
//!
//! ```text
//! wanted partitions ──▶ acknowledge what the last round posted, then read (several at once) ──▶ one post ──▶ wake who waits
//! ```
//!
//! A round reads at most one batch of each partition, first of those for which somebody waits, and stops reading after [`MAX_ROUND_BATCHES`]
//! batches in total. Partitions that have more, or were not reached, are in the next round, with those that became wanted meanwhile. So a long
//! outbox delays others by one round only, and entries that nobody waits for delay those who wait by the rest of a round.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use tidegate::spi::{EntryId, Outbox, OutboxBatch, OutboxEntry, PARTITIONS};

use super::error::{ServiceError, lost, too_slow, unconfirmed};
use super::flush_queue::FlushWaiter;
use super::state::ServiceState;
use super::timer;
use crate::{LedgerError, LedgerErrorKind};

/// Full batches that are read in a round. Larger transactions would hardly be faster, and whoever comes meanwhile waits for their end.
const MAX_ROUND_BATCHES: usize = 2;

/// Moves entries from outboxes into the ledger.
pub(super) struct Flusher<O> {
    state: Arc<ServiceState<O>>,
    /// Entries that are in the ledger, and in their outboxes, too.
    acknowledgements: BTreeMap<u16, Vec<EntryId>>,
    /// Partitions whose last call to the store failed.
    failing: BTreeSet<u16>,
    /// Partitions with an entry that the ledger refuses.
    refused: BTreeSet<u16>,
    /// The partition that the next round begins with.
    next: u16,
    /// The partition that the sweep reads next.
    swept: u16,
    /// Whether the last round stopped reading before its end.
    was_full: bool,
}

/// What became of a partition in a round.
struct Visit {
    partition: u16,
    /// `None` if it is here for its acknowledgements only.
    waiters: Option<Vec<FlushWaiter>>,
    /// `None` if it was not read.
    batch: Result<Option<OutboxBatch>, ServiceError>,
}

/// A partition that was read.
struct ReadPartition {
    partition: u16,
    waiters: Vec<FlushWaiter>,
    batch: OutboxBatch,
}

impl Visit {
    /// Whether it was not reached.
    const fn is_unread(&self) -> bool {
        self.waiters.is_some() && matches!(self.batch, Ok(None))
    }
}

impl<O: Outbox + 'static> Flusher<O> {
    pub(super) fn new(state: Arc<ServiceState<O>>) -> Self {
        let (failing, refused) = (BTreeSet::new(), BTreeSet::new());
        Self { state, acknowledgements: BTreeMap::new(), failing, refused, next: 0, swept: 0, was_full: false }
    }

    /// Runs until the service is stopped and everything that was posted is acknowledged.
    pub(super) async fn run(mut self) {
        let state = self.state.clone();
        let mut ticks = timer::interval(state.options.flush_interval);
        loop {
            if self.acknowledgements.is_empty() {
                let retry_at = state.retry_at();
                let goes_on = state.goes_on_after(async {
                    if let Some(at) = retry_at {
                        timer::sleep_until(at).await;
                        return self.collect();
                    }
                    tokio::select! {
                        () = state.queue.wait() => {}
                        _ = ticks.tick() => self.collect(),
                    }
                });
                if !goes_on.await {
                    return;
                }
            }
            self.run_round().await;
        }
    }

    /// Wants what this instance has written since the last time, and the next part of the sweep.
    fn collect(&mut self) {
        let options = &self.state.options;
        self.state.queue.want(self.state.store.take_written_partitions());
        let share = options.flush_interval.as_secs_f64() / options.sweep_interval.as_secs_f64();
        let count = ((share * f64::from(PARTITIONS)).ceil() as u16).clamp(1, PARTITIONS);
        self.state.queue.want((0..count).map(|step| (self.swept + step) % PARTITIONS));
        self.swept = (self.swept + count) % PARTITIONS;
    }

    pub(super) async fn run_round(&mut self) {
        let state = self.state.clone();
        let wanted = state.queue.begin(timer::now());
        let visits = self.visit(wanted).await;
        let mut read = Vec::new();
        for visit in visits {
            read.extend(self.sort_out(visit));
        }
        self.post(read).await;
        state.queue.end();
    }

    /// Acknowledges and reads.
    async fn visit(&mut self, mut wanted: BTreeMap<u16, Vec<FlushWaiter>>) -> Vec<Visit> {
        let mut acknowledgements = std::mem::take(&mut self.acknowledgements);
        let mut partitions: BTreeSet<u16> = wanted.keys().copied().collect();
        partitions.extend(acknowledgements.keys());
        let mut order: Vec<u16> = partitions.into_iter().collect();
        let first = order.partition_point(|partition| *partition < self.next);
        order.rotate_left(first);
        // The order is kept otherwise.
        order.sort_by_key(|partition| wanted.get(partition).is_none_or(Vec::is_empty));
        let (state, left) = (&self.state, AtomicUsize::new(MAX_ROUND_BATCHES * self.state.options.batch));
        let visits = order.iter().copied().map(|partition| {
            let (waiters, ids) = (wanted.remove(&partition), acknowledgements.remove(&partition));
            let left = &left;
            async move {
                let batch = async {
                    if let Some(ids) = ids {
                        state.acknowledge(partition, &ids).await?;
                    }
                    if waiters.is_none() || left.load(Ordering::Relaxed) == 0 {
                        return Ok(None);
                    }
                    let batch = state.read_outbox(partition).await?;
                    let read = batch.entries.len();
                    // It is exact enough if several reads end at the same time.
                    left.store(left.load(Ordering::Relaxed).saturating_sub(read), Ordering::Relaxed);
                    Ok(Some(batch))
                };
                let batch = batch.await;
                Visit { partition, waiters, batch }
            }
        });
        // Reads that begin together are not bounded by what others of them find. So fewer begin together while there is a backlog.
        let concurrency = self.state.options.concurrency;
        let concurrency = if self.was_full { concurrency.min(MAX_ROUND_BATCHES) } else { concurrency };
        let visits = futures_util::stream::iter(visits).buffer_unordered(concurrency);
        let visits: Vec<Visit> = visits.collect().await;
        let unread: BTreeSet<u16> =
            visits.iter().filter(|visit| visit.is_unread()).map(|visit| visit.partition).collect();
        self.was_full = left.into_inner() == 0;
        self.next = order.into_iter().find(|partition| unread.contains(partition)).unwrap_or(self.next);
        visits
    }

    /// What is left to do with a partition: `None` if it was not read.
    fn sort_out(&mut self, visit: Visit) -> Option<ReadPartition> {
        let Visit { partition, waiters, batch } = visit;
        self.log_store(partition, batch.as_ref().err());
        // Without any, only acknowledgements were sent. If that failed, a later sweep reads the entries again.
        let waiters = waiters?;
        match batch {
            Err(error) => {
                let error = match error {
                    ServiceError::Store(error) => error.with_possibly_applied(),
                    ServiceError::Ledger(error) => unconfirmed(&error),
                    _ => too_slow(),
                };
                FlushWaiter::fail_all(waiters, &error);
                self.state.queue.want([partition]);
                None
            }
            Ok(None) => {
                self.state.queue.put_back(partition, waiters);
                None
            }
            Ok(Some(batch)) => {
                let accepts = |waiter: &FlushWaiter| waiter.accepts(batch.generation);
                let (waiters, strangers): (Vec<FlushWaiter>, Vec<FlushWaiter>) = waiters.into_iter().partition(accepts);
                FlushWaiter::fail_all(strangers, &lost());
                if batch.generation.is_none() && batch.entries.is_empty() {
                    self.state.repairs.request_rebuild(partition);
                }
                Some(ReadPartition { partition, waiters, batch })
            }
        }
    }

    /// Posts everything that was read in one transaction. If an entry is invalid, it must not keep those of other partitions back.
    async fn post(&mut self, mut read: Vec<ReadPartition>) {
        let entries: Vec<OutboxEntry> = read.iter().flat_map(|one| one.batch.entries.iter().cloned()).collect();
        let result = match (entries.is_empty(), self.state.retry_at()) {
            (false, _) => self.state.post(&entries).await,
            // Nobody would notice that the ledger is available again.
            (true, Some(_)) => self.state.call(self.state.ledger.ping()).await,
            (true, None) => Ok(()),
        };
        let mut unfound = Vec::new();
        match result {
            Ok(()) => unfound = read.into_iter().flat_map(|one| self.finish(one)).collect(),
            Err(error) if error.kind() == LedgerErrorKind::Invalid && read.len() > 1 => {
                for one in read.drain(..) {
                    match self.state.post(&one.batch.entries).await {
                        Ok(()) => unfound.extend(self.finish(one)),
                        Err(error) => self.give_up(one, &error),
                    }
                }
            }
            Err(error) => read.into_iter().for_each(|one| self.give_up(one, &error)),
        }
        self.state.look_up(unfound).await;
    }

    /// Wakes who waited for no more than what is in the ledger now. Returns those whose entries were not in the outbox.
    fn finish(&mut self, read: ReadPartition) -> Vec<FlushWaiter> {
        let ReadPartition { partition, waiters, batch } = read;
        let (max, has_ids) = (self.state.options.batch, waiters.iter().any(|waiter| waiter.id().is_some()));
        let posted: HashSet<EntryId> = batch.entries.iter().filter(|_| has_ids).map(|entry| entry.id).collect();
        let (mut rest, mut unfound) = (Vec::new(), Vec::new());
        for mut waiter in waiters {
            let is_read = waiter.record_read(&batch, max);
            if waiter.is_among(&posted) || is_read && waiter.id().is_none() {
                waiter.succeed();
            } else if is_read {
                unfound.push(waiter);
            } else {
                rest.push(waiter);
            }
        }
        self.refused.remove(&partition);
        if batch.entries.is_empty() {
            return unfound;
        }
        self.state.counters.record_posted(partition, batch.entries.len() as u64);
        self.state.unverified.add(&batch.entries);
        self.acknowledgements.insert(partition, batch.entries.iter().map(|entry| entry.id).collect());
        if batch.entries.len() >= max || batch.generation.is_none() {
            self.state.queue.put_back(partition, rest);
        }
        unfound
    }

    /// Fails who waited. The entries stay in the outbox, and are read again.
    fn give_up(&mut self, read: ReadPartition, error: &LedgerError) {
        FlushWaiter::fail_all(read.waiters, &unconfirmed(error));
        if error.kind() != LedgerErrorKind::Invalid {
            self.state.queue.want([read.partition]);
        } else if self.refused.insert(read.partition) {
            let partition = read.partition;
            tracing::error!(target: "tidegate::ledger", partition, "the ledger refuses an entry, which stays in its outbox: {error}");
        }
    }

    fn log_store(&mut self, partition: u16, error: Option<&ServiceError>) {
        let was_failing = !self.failing.is_empty();
        match error {
            // Only the ledger failed, which says so itself.
            Some(ServiceError::Ledger(_)) => {}
            Some(error) => {
                self.failing.insert(partition);
                if !was_failing {
                    tracing::warn!(target: "tidegate::ledger", "entries of the store cannot be read: {error}");
                }
            }
            None => {
                if self.failing.remove(&partition) && self.failing.is_empty() {
                    tracing::info!(target: "tidegate::ledger", "entries of the store can be read again");
                }
            }
        }
    }
}
