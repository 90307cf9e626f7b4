//! `LockedShards`: the shards of one plan, locked until it is decided and written.

use smallvec::SmallVec;

use super::shard::Shard;
use crate::algorithm::{Op, State};
use crate::sync::{Mutex, MutexGuard};
use crate::{Limit, Timestamp};

pub(super) struct LockedShards<'s> {
    pub(super) locations: SmallVec<[StateLocation; 1]>,
    pub(super) guards: SmallVec<[(usize, MutexGuard<'s, Shard>); 1]>,
    /// Shards from this index on are those of overflow buckets.
    pub(super) first_overflow: usize,
}

/// Where the state of one check is.
pub(super) struct StateLocation {
    pub(super) id: u128,
    pub(super) shard: usize,
}

impl LockedShards<'_> {
    pub(super) fn get(&self, index: usize) -> Option<&State> {
        let location = &self.locations[index];
        self.guards.iter().find(|(index, _)| *index == location.shard).and_then(|(_, shard)| shard.get(location.id))
    }

    /// The states of all checks, in order.
    pub(super) fn states(&self) -> SmallVec<[Option<&State>; 4]> {
        (0..self.locations.len()).map(|index| self.get(index)).collect()
    }

    pub(super) fn has_room(&mut self, index: usize, now: Timestamp, anonymous: bool) -> bool {
        // Earlier checks of the plan may need room in the same shard.
        let shard = self.locations[index].shard;
        let earlier =
            (0..index).filter(|other| self.locations[*other].shard == shard && self.get(*other).is_none()).count();
        let (shard, id) = self.shard(index);
        shard.has_room(id, now, earlier, anonymous)
    }

    /// Whether a check uses the overflow bucket `id`.
    pub(super) fn uses_overflow(&self, id: u128) -> bool {
        self.locations.iter().any(|location| location.shard >= self.first_overflow && location.id == id)
    }

    /// Whether the state of this check is an overflow bucket.
    pub(super) fn is_overflow(&self, index: usize) -> bool {
        self.locations[index].shard >= self.first_overflow
    }

    /// Removes the state of this check if it has expired.
    pub(super) fn remove_expired(&mut self, index: usize, now: Timestamp) {
        let (shard, id) = self.shard(index);
        shard.remove_expired(id, now);
    }

    /// Applies `ops` to the state of this check. It expires at `max_expiry` at the latest, unless it is an overflow bucket.
    pub(super) fn update(&mut self, index: usize, limit: &Limit, now: Timestamp, ops: &[Op], max_expiry: u64) {
        let max_expiry = if self.is_overflow(index) { u64::MAX } else { max_expiry };
        let (shard, id) = self.shard(index);
        shard.update(id, limit, now, ops, max_expiry);
    }

    /// Replaces the state of this check by what `replacement` makes of it; `None` removes it. It expires at `expires_at`, in microseconds.
    pub(super) fn replace(
        &mut self,
        index: usize,
        expires_at: u64,
        replacement: impl FnOnce(Option<&State>) -> Option<State>,
    ) {
        let (shard, id) = self.shard(index);
        shard.replace(id, expires_at, replacement);
    }

    /// Lets every shard remove expired keys. Called after all changes of a plan.
    pub(super) fn sweep_if_due(&mut self, now: Timestamp) {
        for (_, shard) in &mut self.guards {
            shard.sweep_if_due(now);
        }
    }

    fn shard(&mut self, index: usize) -> (&mut Shard, u128) {
        let StateLocation { id, shard } = self.locations[index];
        let position = self.guards.iter().position(|(index, _)| *index == shard).unwrap_or(0);
        (&mut self.guards[position].1, id)
    }
}

/// Locks a shard. A poisoned one is usable, since states are replaced as a whole.
pub(super) fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock()
}
