//! `MemoryOutbox`: the entries of a memory store that are not in the ledger yet, and the generations of its partitions.
//!
//! The states of a memory store end with its process, so a new store has no generations: the ledger rebuilds every partition first. Entries
//! are written to a [`Journal`] before they are appended, so that they outlive the process, too.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ledger::{EntryId, Journal, OutboxBatch, OutboxEntry, OutboxPosition};
use crate::plan::Plan;
use crate::spi::Verdict;
use crate::store::{Adjustment, StoreError, StoreErrorKind};

/// The largest number of entries that wait for the ledger. Beyond, changes are refused.
const MAX_OUTBOX_ENTRIES: usize = 100_000;

/// The entries of a memory store that are not in the ledger yet.
pub(super) struct MemoryOutbox {
    journal: Arc<dyn Journal>,
    partitions: Mutex<Partitions>,
}

#[derive(Default)]
pub(super) struct Partitions {
    generations: HashMap<u16, u64>,
    entries: HashMap<u16, VecDeque<OutboxEntry>>,
    /// The number of all entries.
    waiting: usize,
    /// The number of the last entry of all partitions.
    sequence: u64,
    /// The number of the last entry of each partition.
    last: HashMap<u16, u64>,
    written: BTreeSet<u16>,
}

impl MemoryOutbox {
    pub(super) fn new(journal: Arc<dyn Journal>) -> Self {
        Self { journal, partitions: Mutex::default() }
    }

    /// Locked after the shards.
    pub(super) fn lock(&self) -> MutexGuard<'_, Partitions> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if one of these partitions has no generation.
    pub(super) fn require_generations(&self, partitions: impl Iterator<Item = u16>) -> Result<(), StoreError> {
        let mut locked = self.lock();
        for partition in partitions {
            if !locked.generations.contains_key(&partition) {
                locked.written.insert(partition);
                return Err(rebuilding());
            }
        }
        Ok(())
    }

    /// Whether `adjustment` gives back what was taken in another generation.
    pub(super) fn has_lost(&self, adjustment: &Adjustment<'_>) -> bool {
        let generation = self.lock().generation(adjustment.key.partition()).unwrap_or_default();
        adjustment.is_of_lost_generation(generation)
    }

    /// Sets the generation of each take from a quota with a ledger, so that it goes back only to the same.
    pub(super) fn set_generations(&self, plan: &Plan<'_>, verdict: &mut Verdict) {
        let locked = self.lock();
        for (check, result) in plan.checks().iter().zip(verdict.checks_mut()) {
            if let Some(generation) = locked.generation(check.key().partition())
                && check.gate().ledger().is_some()
                && result.consumed
                && !plan.is_hold(check)
            {
                result.position = result.position.in_generation(generation);
            }
        }
    }

    /// Appends entries without ids, all of them or none.
    pub(super) fn append(&self, mut entries: Vec<OutboxEntry>) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut locked = self.lock();
        if locked.waiting + entries.len() > MAX_OUTBOX_ENTRIES {
            let message = "too many entries wait for the ledger; check that it is reachable";
            return Err(StoreError::new(StoreErrorKind::Refused, message));
        }
        let mut sequence = locked.sequence;
        for entry in &mut entries {
            sequence += 1;
            let partition = entry.id.partition;
            let generation = *locked.generations.get(&partition).ok_or_else(rebuilding)?;
            entry.id = EntryId { generation, partition, millis: entry.at.as_micros() / 1000, sequence };
        }
        self.journal.append(&entries)?;
        locked.sequence = sequence;
        locked.waiting += entries.len();
        for entry in entries {
            let EntryId { partition, sequence, .. } = entry.id;
            locked.written.insert(partition);
            locked.last.insert(partition, sequence);
            locked.entries.entry(partition).or_default().push_back(entry);
        }
        Ok(())
    }

    pub(super) fn acknowledge(&self, partition: u16, ids: &[EntryId]) {
        let mut locked = self.lock();
        if let Some(entries) = locked.entries.get_mut(&partition) {
            let before = entries.len();
            entries.retain(|entry| !ids.contains(&entry.id));
            let removed = before - entries.len();
            locked.waiting -= removed;
        }
        drop(locked);
        self.journal.acknowledge(ids);
    }
}

impl Partitions {
    pub(super) fn generation(&self, partition: u16) -> Option<u64> {
        self.generations.get(&partition).copied()
    }

    pub(super) fn set_generation(&mut self, partition: u16, generation: u64) {
        self.generations.insert(partition, generation);
    }

    pub(super) fn take_written(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.written).into_iter().collect()
    }

    pub(super) fn position(&self, partition: u16) -> OutboxPosition {
        OutboxPosition(self.last.get(&partition).copied().unwrap_or_default().to_string())
    }

    /// Whether no entry waits, and none was appended since `position`.
    pub(super) fn is_idle_at(&self, partition: u16, position: &OutboxPosition) -> bool {
        self.entries.get(&partition).is_none_or(VecDeque::is_empty) && self.position(partition) == *position
    }

    pub(super) fn read(&self, partition: u16, max: usize) -> OutboxBatch {
        let entries = self.entries.get(&partition);
        let read: Vec<OutboxEntry> = entries.into_iter().flatten().take(max).cloned().collect();
        OutboxBatch {
            generation: self.generation(partition),
            waiting: (entries.map_or(0, VecDeque::len) - read.len()) as u64,
            entries: read,
            position: self.position(partition),
        }
    }
}

pub(super) fn rebuilding() -> StoreError {
    StoreError::new(StoreErrorKind::Rebuilding, "the state of the quotas is being rebuilt from the ledger")
}

impl fmt::Debug for MemoryOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryOutbox").field("waiting", &self.lock().waiting).finish_non_exhaustive()
    }
}
