//! `MemoryOutbox`: the entries of a memory store that are not in the ledger yet, and the generations of its partitions.
//!
//! The states of a memory store end with its process, so a new store has no generations: the ledger rebuilds every partition first. Entries
//! are written to a [`Journal`] before they are appended, so that they outlive the process, too.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use crate::ledger::{EntryId, Journal, OutboxBatch, OutboxEntry, OutboxPosition};
use crate::plan::Plan;
use crate::spi::Verdict;
use crate::store::{Adjustment, StoreError, StoreErrorKind};
use crate::sync::{Mutex, MutexGuard};

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
    /// The time and the number of the last entry of all partitions. Both only grow, even if the clock steps back.
    last: (u64, u64),
    /// The last entry of each partition.
    written_to: HashMap<u16, EntryId>,
    /// The last entry of each partition that was removed.
    acknowledged_to: HashMap<u16, EntryId>,
    written: BTreeSet<u16>,
}

impl MemoryOutbox {
    pub(super) fn new(journal: Arc<dyn Journal>) -> Self {
        Self { journal, partitions: Mutex::default() }
    }

    /// Locked after the shards.
    pub(super) fn lock(&self) -> MutexGuard<'_, Partitions> {
        self.partitions.lock()
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

    /// Appends entries without ids, all of them or none. Returns their ids.
    pub(super) fn append(&self, mut entries: Vec<OutboxEntry>) -> Result<Vec<EntryId>, StoreError> {
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let mut locked = self.lock();
        if locked.waiting + entries.len() > MAX_OUTBOX_ENTRIES {
            let message = "too many entries wait for the ledger; check that it is reachable";
            return Err(StoreError::new(StoreErrorKind::Refused, message));
        }
        let (mut millis, mut sequence) = locked.last;
        for entry in &mut entries {
            (millis, sequence) = (millis.max(entry.at.as_micros() / 1000), sequence + 1);
            let partition = entry.id.partition;
            let generation = *locked.generations.get(&partition).ok_or_else(rebuilding)?;
            entry.id = EntryId { generation, partition, millis, sequence };
        }
        self.journal.append(&entries)?;
        locked.last = (millis, sequence);
        locked.waiting += entries.len();
        let ids = entries.iter().map(|entry| entry.id).collect();
        for entry in entries {
            let partition = entry.id.partition;
            locked.written.insert(partition);
            locked.written_to.insert(partition, entry.id);
            locked.entries.entry(partition).or_default().push_back(entry);
        }
        Ok(ids)
    }

    pub(super) fn acknowledge(&self, partition: u16, ids: &[EntryId]) {
        // Found by hash, since every decision under a ledger waits for the lock.
        let removed_ids: HashSet<&EntryId> = ids.iter().collect();
        let mut locked = self.lock();
        if let Some(entries) = locked.entries.get_mut(&partition) {
            let (before, mut last) = (entries.len(), None);
            entries.retain(|entry| {
                let is_removed = removed_ids.contains(&entry.id);
                last = if is_removed { Some(entry.id) } else { last };
                !is_removed
            });
            let removed = before - entries.len();
            locked.waiting -= removed;
            if let Some(last) = last {
                let acknowledged = locked.acknowledged_to.entry(partition).or_insert(last);
                *acknowledged = last.max(*acknowledged);
            }
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
        self.position_of(partition, &self.written_to)
    }

    fn position_of(&self, partition: u16, last: &HashMap<u16, EntryId>) -> OutboxPosition {
        let generation = self.generation(partition).unwrap_or_default();
        let (millis, sequence) = last.get(&partition).map_or((0, 0), |id| (id.millis, id.sequence));
        OutboxPosition { generation, millis, sequence }
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
            acknowledged: self.position_of(partition, &self.acknowledged_to),
            server: 0,
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
