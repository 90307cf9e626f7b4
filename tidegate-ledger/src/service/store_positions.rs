//! `StorePositions`: what a service has seen of the outbox of each partition, by which it finds that the store has gone back.
//!
//! Positions and acknowledgements of one generation only grow. A store that shows less than what was known before a read began is an older copy
//! of what was read then. That alone is not enough: entries that are written after a failover are later than all before. So at the first read
//! of another server, the last entry in the ledger must be acknowledged there, or wait there.

use tidegate::spi::{EntryId, OutboxBatch, OutboxPosition, PARTITIONS};
use tidegate::sync::Mutex;

/// What a service has seen of the outbox of each partition.
#[derive(Debug)]
pub(super) struct StorePositions {
    partitions: Mutex<Vec<SeenOutbox>>,
}

/// What was seen of one outbox.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SeenOutbox {
    /// How far it was written.
    written: OutboxPosition,
    /// How far this service has acknowledged it.
    acknowledged: OutboxPosition,
    /// The server that was compared with the ledger. `None` if none was.
    server: Option<u64>,
}

impl StorePositions {
    /// What is known of a partition now. To be taken before a read begins: others may read, and acknowledge, at the same time.
    pub(super) fn get(&self, partition: u16) -> SeenOutbox {
        self.partitions.lock().get(usize::from(partition)).copied().unwrap_or_default()
    }

    /// Records what was read.
    pub(super) fn record_read(&self, partition: u16, batch: &OutboxBatch) {
        self.update(partition, |seen| seen.written = later(seen.written, batch.position));
    }

    /// Records that the server was compared with the ledger.
    pub(super) fn record_compared(&self, partition: u16, server: u64) {
        self.update(partition, |seen| seen.server = Some(server));
    }

    /// Lets the next read compare the server with the ledger again.
    pub(super) fn distrust(&self, partition: u16) {
        self.update(partition, |seen| seen.server = None);
    }

    /// Records what was acknowledged. Entries of an older generation may still be in an outbox.
    pub(super) fn record_acknowledged(&self, partition: u16, ids: &[EntryId]) {
        self.update(partition, |seen| {
            let last = ids.iter().map(|id| OutboxPosition::from(*id));
            let last = last.filter(|id| id.generation == seen.written.generation).max();
            seen.acknowledged = last.map_or(seen.acknowledged, |last| later(seen.acknowledged, last));
        });
    }

    fn update(&self, partition: u16, change: impl FnOnce(&mut SeenOutbox)) {
        if let Some(seen) = self.partitions.lock().get_mut(usize::from(partition)) {
            change(seen);
        }
    }
}

impl Default for StorePositions {
    fn default() -> Self {
        Self { partitions: Mutex::new(vec![SeenOutbox::default(); PARTITIONS.into()]) }
    }
}

impl SeenOutbox {
    /// Whether a read that began after this was known shows an older copy.
    pub(super) fn is_ahead_of(&self, batch: &OutboxBatch) -> bool {
        let is_behind = |read: OutboxPosition, seen: OutboxPosition| read.generation == seen.generation && read < seen;
        is_behind(batch.position, self.written) || is_behind(batch.acknowledged, self.acknowledged)
    }

    /// Whether the server that was read was compared with the ledger.
    pub(super) fn is_compared(&self, batch: &OutboxBatch) -> bool {
        self.server == Some(batch.server)
    }
}

/// The later one of two positions; that of the new generation if it is another.
fn later(seen: OutboxPosition, new: OutboxPosition) -> OutboxPosition {
    if seen.generation == new.generation { seen.max(new) } else { new }
}

/// Whether the outbox lacks an entry that was in the ledger before it was read. `None` if that can be told only after more was read.
pub(super) fn lacks(batch: &OutboxBatch, last: EntryId) -> Option<bool> {
    let position = OutboxPosition::from(last);
    let has_read = batch.entries.iter().any(|entry| entry.id == last);
    // Acknowledged entries are the oldest ones, except those that other instances posted from a batch that began earlier.
    if position <= batch.acknowledged || has_read {
        return Some(false);
    }
    let is_further_on = batch.waiting > 0 && batch.entries.last().is_none_or(|entry| entry.id < last);
    if position <= batch.position && is_further_on { None } else { Some(true) }
}
