//! `JournalQueue`: entries in the journal that this service posts: those of earlier runs, and what was admitted without the store.
//!
//! ```text
//! journal ──▶ post ──▶ acknowledge all but the last entry of each account ──▶ repair the account ──▶ acknowledge the last one
//! ```
//!
//! So after a crash at any point the account is repaired in the next run, and the ledger counts its entries once. Entries of a memory store
//! in this run are not in this queue: they are in its outbox.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::spi::{AccountKey, EntryId, Journal, MAX_GENERATION, Outbox, OutboxEntry};
use tidegate::sync::Mutex;
use tidegate::{Clock, StoreError, StoreErrorKind, Timestamp};
use tokio::sync::Notify;

use super::error::ServiceError;
use super::state::ServiceState;
use super::timer;
use crate::journal::JournalFile;

/// Entries in the journal that this service posts.
pub(super) struct JournalQueue {
    file: Option<Arc<JournalFile>>,
    clock: Arc<dyn Clock>,
    /// The generation of entries that are written without the store, which has generations of its own.
    generation: u64,
    sequence: AtomicU64,
    /// Entries that are not in the ledger, oldest first.
    waiting: Mutex<VecDeque<EntryId>>,
    /// Only one at a time posts.
    posting: tokio::sync::Mutex<()>,
    wake: Notify,
}

impl JournalQueue {
    pub(super) fn new(file: Option<Arc<JournalFile>>, clock: Arc<dyn Clock>) -> Self {
        let recovered = file.as_ref().map(|file| file.recovered_ids()).unwrap_or_default();
        let wake = Notify::new();
        wake.notify_one();
        Self {
            file,
            clock,
            generation: random_generation(),
            sequence: AtomicU64::default(),
            waiting: Mutex::new(recovered.into()),
            posting: tokio::sync::Mutex::default(),
            wake,
        }
    }

    /// Records entries that were admitted without the store.
    pub(super) fn append(&self, mut entries: Vec<OutboxEntry>) -> Result<(), StoreError> {
        let none =
            || StoreError::new(StoreErrorKind::Refused, "there is no journal for what is admitted without the store");
        let file = self.file.as_ref().ok_or_else(none)?;
        let millis = self.clock.now().as_micros() / 1000;
        for entry in &mut entries {
            let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
            entry.id = EntryId { generation: self.generation, partition: entry.id.partition, millis, sequence };
        }
        file.append(&entries)?;
        self.waiting.lock().extend(entries.iter().map(|entry| entry.id));
        self.wake.notify_one();
        Ok(())
    }

    /// Forgets entries that are in the ledger and in the states of the store.
    pub(super) fn acknowledge(&self, ids: &[EntryId]) {
        if let Some(file) = self.file.as_ref().filter(|_| !ids.is_empty()) {
            file.acknowledge(ids);
        }
    }

    /// Entries in the journal.
    pub(super) fn entries(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.waiting())
    }

    /// The time of the oldest entry that is not in the ledger.
    pub(super) fn oldest_at(&self) -> Option<Timestamp> {
        self.waiting.lock().front().map(|id| Timestamp::from_micros(id.millis * 1000))
    }

    pub(super) fn sync(&self) -> Result<(), ServiceError> {
        self.file.as_ref().map_or(Ok(()), |file| file.sync().map_err(ServiceError::from))
    }
}

impl<O: Outbox> ServiceState<O> {
    /// Posts everything that waits in the journal. Returns the number of entries.
    pub(super) async fn post_journaled(&self) -> Result<u64, ServiceError> {
        let queue = &self.journal;
        let Some(file) = &queue.file else { return Ok(0) };
        let _posting = queue.posting.lock().await;
        let mut posted = 0;
        loop {
            let ids: Vec<EntryId> = queue.waiting.lock().iter().take(self.options.batch).copied().collect();
            if ids.is_empty() {
                return Ok(posted);
            }
            let entries = file.read(&ids)?;
            self.post(&entries).await?;
            queue.waiting.lock().drain(..ids.len());
            posted += entries.len() as u64;
            let mut last: BTreeMap<AccountKey, EntryId> = BTreeMap::new();
            let mut others: Vec<EntryId> =
                entries.iter().filter_map(|entry| last.insert(entry.account(), entry.id)).collect();
            others.extend(self.repairs.request_repairs_of_journaled(last));
            queue.acknowledge(&others);
        }
    }

    /// The task that posts the journal until the service is stopped.
    pub(super) async fn run_journal(&self) {
        let mut has_failed = false;
        while self.goes_on_after(self.journal.wake.notified()).await {
            while let Err(error) = self.post_journaled().await {
                if let (ServiceError::Journal(error), false) = (&error, has_failed) {
                    has_failed = true;
                    tracing::error!(target: "tidegate::ledger", "entries of the journal cannot be read: {error}");
                }
                let retry_at = self.retry_at().unwrap_or_else(|| timer::now() + self.options.ledger_timeout);
                if !self.goes_on_after(timer::sleep_until(retry_at)).await {
                    return;
                }
            }
            has_failed = false;
        }
    }
}

/// A random generation.
pub(super) fn random_generation() -> u64 {
    fastrand::u64(1..MAX_GENERATION)
}

impl std::fmt::Debug for JournalQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalQueue").field("file", &self.file).finish_non_exhaustive()
    }
}
