//! `ServiceState`: what the tasks and the callers of a ledger service share, and the calls to the ledger that all of them make.

use std::future::Future;
use std::sync::atomic::AtomicBool;

use tidegate::StoreError;
use tidegate::spi::{EntryId, Outbox, OutboxBatch, OutboxEntry, OutboxPosition};
use tidegate::sync::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

use super::account_names::AccountNames;
use super::breaker::LedgerBreaker;
use super::error::{ServiceError, unconfirmed};
use super::flush_queue::FlushQueue;
use super::journal_queue::JournalQueue;
use super::options::ServiceOptions;
use super::repair_queue::RepairQueue;
use super::stats::Counters;
use super::store_positions::StorePositions;
use super::timer;
use super::unverified_posts::UnverifiedPosts;
use crate::{Ledger, LedgerError, LedgerErrorKind};

/// Reads after which an outbox that is still not empty counts as busy, beside those for what was in it at first.
const MAX_DRAIN_READS: u64 = 20;

/// What the tasks and the callers of a service share.
#[derive(Debug)]
pub(super) struct ServiceState<O> {
    pub(super) ledger: Ledger,
    pub(super) store: O,
    pub(super) options: ServiceOptions,
    pub(super) queue: FlushQueue,
    pub(super) unverified: UnverifiedPosts,
    pub(super) repairs: RepairQueue,
    pub(super) journal: JournalQueue,
    pub(super) names: AccountNames,
    pub(super) counters: Counters,
    pub(super) stop: watch::Sender<bool>,
    pub(super) positions: StorePositions,
    /// Whether the store may decide: not before it was brought up to a ledger that was not open at the start.
    pub(super) is_verified: AtomicBool,
    breaker: Mutex<LedgerBreaker>,
    older_copy_logged_at: Mutex<Option<Instant>>,
}

/// What an outbox was like when nothing was left in it.
#[derive(Debug)]
pub(super) struct DrainedOutbox {
    pub(super) generation: Option<u64>,
    pub(super) position: OutboxPosition,
}

impl<O: Outbox> ServiceState<O> {
    pub(super) fn new(ledger: Ledger, store: O, options: ServiceOptions) -> Self {
        Self {
            store,
            queue: FlushQueue::default(),
            unverified: UnverifiedPosts::default(),
            repairs: RepairQueue::default(),
            journal: JournalQueue::new(options.journal.clone(), options.clock.clone()),
            names: AccountNames::default(),
            counters: Counters::default(),
            stop: watch::Sender::new(false),
            positions: StorePositions::default(),
            is_verified: AtomicBool::new(ledger.unopened_error().is_none()),
            ledger,
            breaker: Mutex::default(),
            older_copy_logged_at: Mutex::default(),
            options,
        }
    }

    /// Posts entries of outboxes in one transaction.
    pub(super) async fn post(&self, entries: &[OutboxEntry]) -> Result<(), LedgerError> {
        if entries.is_empty() {
            return Ok(());
        }
        let posted = self.call(self.ledger.post(entries)).await?;
        self.counters.record_post(&posted);
        Ok(())
    }

    /// Calls the ledger, for a limited time, and records whether it is available.
    pub(super) fn call<'a, T: Send>(
        &'a self,
        call: impl Future<Output = Result<T, LedgerError>> + Send + 'a,
    ) -> impl Future<Output = Result<T, LedgerError>> + Send + 'a {
        // Calls to a database are large futures, which every caller would contain.
        let call = Box::pin(call);
        async move {
            let result = timer::timeout(self.options.ledger_timeout, call).await;
            let result = result.unwrap_or_else(|| Err(LedgerError::timed_out()));
            match &result {
                Ok(_) => self.record_success(),
                // These are about the call, not about the ledger.
                Err(error) if matches!(error.kind(), LedgerErrorKind::Invalid | LedgerErrorKind::Busy) => {}
                Err(error) => self.record_failure(error),
            }
            result
        }
    }

    /// Reads an outbox, and learns from its generation whether posted entries must be repaired. It has none if the store has gone back.
    pub(super) async fn read_outbox(&self, partition: u16) -> Result<OutboxBatch, ServiceError> {
        let posted = self.unverified.take(partition);
        match self.read_present(partition).await {
            Ok(batch) => {
                self.repairs.request_repairs(self.unverified.resolve(partition, posted, batch.generation));
                self.counters.record_read(partition, &batch);
                Ok(batch)
            }
            Err(error) => {
                self.unverified.put_back(partition, posted);
                Err(error)
            }
        }
    }

    /// Removes entries that are in the ledger from their outbox.
    pub(super) async fn acknowledge(&self, partition: u16, ids: &[EntryId]) -> Result<(), StoreError> {
        self.store.acknowledge(partition, ids).await?;
        self.positions.record_acknowledged(partition, ids);
        Ok(())
    }

    /// Posts and acknowledges until the outbox of a partition is empty. `None` if it is written to all the time.
    pub(super) async fn drain(&self, partition: u16) -> Result<Option<DrainedOutbox>, ServiceError> {
        let (mut reads, mut max_reads) = (0, u64::MAX);
        loop {
            let OutboxBatch { generation, entries, position, waiting, .. } = self.read_outbox(partition).await?;
            if entries.is_empty() {
                return Ok(Some(DrainedOutbox { generation, position }));
            }
            // Everything that was there at the first read, and what came in the meantime.
            max_reads = max_reads.min(waiting / self.options.batch as u64 + MAX_DRAIN_READS);
            reads += 1;
            self.post(&entries).await?;
            self.unverified.add(&entries);
            self.counters.record_posted(partition, entries.len() as u64);
            let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
            self.acknowledge(partition, &ids).await?;
            if reads >= max_reads {
                return Ok(None);
            }
        }
    }

    /// Why the ledger is unavailable now.
    pub(super) fn ledger_error(&self) -> Option<LedgerError> {
        self.ledger.unopened_error().or_else(|| self.breaker.lock().error().cloned())
    }

    /// When the ledger is tried again. `None` while it is available.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.breaker.lock().retry_at()
    }

    /// Sleeps, or returns earlier when the service is stopped. Returns whether it goes on.
    pub(super) async fn goes_on_after(&self, wait: impl Future<Output = ()>) -> bool {
        let mut stop = self.stop.subscribe();
        tokio::select! {
            () = wait => !*self.stop.borrow(),
            _ = stop.wait_for(|is_stopped| *is_stopped) => false,
        }
    }

    fn record_success(&self) {
        if self.breaker.lock().record_success() {
            tracing::info!(target: "tidegate::ledger", "the ledger is available again");
        }
    }

    fn record_failure(&self, error: &LedgerError) {
        if self.breaker.lock().record_failure(error.clone(), timer::now()) {
            let kind = error.kind().as_str();
            tracing::warn!(target: "tidegate::ledger", kind, "the ledger is unavailable: {error}. Entries stay in the outboxes until it answers");
        }
        // Whoever waits for the next flush would wait for an attempt that is made later than they wait.
        self.queue.fail_waiters(&unconfirmed(error));
    }

    pub(super) fn older_copy_logged_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.older_copy_logged_at.lock()
    }
}
