//! `Outbox`: the side of a store that the ledger reads from, and through which it rebuilds and repairs what the store has lost.
//!
//! A repair is optimistic: the state of a quota is set to that of the ledger only if the outbox is empty and its position is the one before the
//! ledger was read. So it runs beside requests, without a lock.

use std::future::Future;

use super::{AccountKey, EntryId, GateState, OutboxEntry};
use crate::StoreError;
use crate::algorithm::quota::QuotaState;

/// How far the outbox of a partition was written: up to the entry with this generation, time and sequence. It grows with every entry of the
/// same generation. A store that shows a smaller one has gone back to an older copy of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OutboxPosition {
    /// The generation of the partition; 0 if it has none.
    pub generation: u64,
    /// The [time](EntryId::millis) of the last entry; 0 if there was none.
    pub millis: u64,
    /// The [sequence](EntryId::sequence) of the last entry.
    pub sequence: u64,
}

/// Entries of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxBatch {
    /// The generation of the partition. `None` if the store has lost it: nothing is admitted until it is rebuilt.
    pub generation: Option<u64>,
    /// The entries, oldest first.
    pub entries: Vec<OutboxEntry>,
    /// Entries that are in the outbox, at most this many more than were read.
    pub waiting: u64,
    /// How far the outbox was written when it was read.
    pub position: OutboxPosition,
    /// How far its entries were acknowledged: the last one that was removed.
    pub acknowledged: OutboxPosition,
    /// A number for the server that was read. It changes when another one takes over, and when it restarts: its state may be an older copy
    /// then. Always 0 for a store that keeps its state in this process.
    pub server: u64,
}

impl From<EntryId> for OutboxPosition {
    fn from(id: EntryId) -> Self {
        Self { generation: id.generation, millis: id.millis, sequence: id.sequence }
    }
}

/// A store that records the changes of quotas with a ledger.
///
/// Every partition has a generation, an outbox, and the states of its quotas. A store that has lost them has no generation for the
/// partition; it refuses plans with ledger checks then, with [`StoreErrorKind::Rebuilding`](crate::StoreErrorKind::Rebuilding).
pub trait Outbox: Send + Sync {
    /// The oldest entries of a partition, at most `max`.
    fn read_outbox(&self, partition: u16, max: usize) -> impl Future<Output = Result<OutboxBatch, StoreError>> + Send;

    /// Removes entries that are durable in the ledger. Unknown ones are ignored.
    fn acknowledge(&self, partition: u16, ids: &[EntryId]) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The partitions that this instance has written to, or found without a generation, since the last call.
    fn take_written_partitions(&self) -> Vec<u16>;

    /// The states of these quotas, all of one partition, and how far its outbox was written at that moment. `None` for the whole if the
    /// partition has no generation, and for a single one if it has no state.
    #[allow(clippy::type_complexity, reason = "both are read in one step")]
    fn read_states(
        &self,
        partition: u16,
        keys: &[AccountKey],
    ) -> impl Future<Output = Result<Option<(OutboxPosition, Vec<Option<QuotaState>>)>, StoreError>> + Send;

    /// Replaces the states of these quotas, all of one partition, if its outbox is empty and still at `position`. Holds beside a state stay. Returns whether they
    /// were replaced.
    fn repair_states(
        &self,
        partition: u16,
        position: &OutboxPosition,
        states: &[GateState],
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Writes the states of a partition without a generation, and gives it `generation` at the end, from which on it admits again. Returns
    /// the generation that it has then: another one if somebody else was first.
    fn rebuild_partition(
        &self,
        partition: u16,
        generation: u64,
        states: &[GateState],
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Takes the generation from a partition if it is this one, so that it is rebuilt: the store has gone back to an older copy of itself, and
    /// its states lack what the ledger has. Entries in its outbox stay. A store that keeps its state in this process never goes back.
    fn discard_generation(
        &self,
        partition: u16,
        generation: u64,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _ = (partition, generation);
        async { Ok(()) }
    }
}
