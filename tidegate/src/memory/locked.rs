//! `Locked`: the shards of one plan, held until it is decided and written.

use std::sync::PoisonError;

use smallvec::SmallVec;

use super::shard::Shard;
use crate::algorithm::{Change, State};
use crate::sync::{Mutex, MutexGuard};
use crate::{Limit, Timestamp};

/// The home of an overflow bucket, which lies in no shard.
const OVERFLOW: usize = usize::MAX;

pub(super) struct Locked<'s> {
    pub(super) spots: SmallVec<[Spot; 1]>,
    pub(super) guards: SmallVec<[(usize, MutexGuard<'s, Shard>); 1]>,
}

/// Where the state of one check is.
pub(super) struct Spot {
    pub(super) id: u128,
    pub(super) home: usize,
}

impl<'s> Locked<'s> {
    pub(super) fn get(&self, index: usize) -> Option<&State> {
        let spot = &self.spots[index];
        self.guards.iter().find(|(home, _)| *home == spot.home).and_then(|(_, shard)| shard.get(spot.id))
    }

    /// The states of all checks, in order.
    pub(super) fn states(&self) -> SmallVec<[Option<&State>; 4]> {
        (0..self.spots.len()).map(|index| self.get(index)).collect()
    }

    pub(super) fn has_room(&mut self, index: usize, now: Timestamp, stranger: bool) -> bool {
        // Checks of the same plan that come before may need room in the same shard.
        let home = self.spots[index].home;
        let earlier = (0..index).filter(|other| self.spots[*other].home == home && self.get(*other).is_none()).count();
        let (shard, id) = self.shard(index);
        shard.has_room(id, now, earlier, stranger)
    }

    /// From now on the state of this check is the overflow bucket `id`, or one beside it, if another check of the plan
    /// has turned to that already: no two checks of a plan may share a state.
    pub(super) fn turn_to_overflow(&mut self, index: usize, mut id: u128, overflow: &'s Mutex<Shard>) {
        while self.spots.iter().any(|spot| spot.home == OVERFLOW && spot.id == id) {
            id = id.wrapping_add(1);
        }
        if self.guards.last().is_none_or(|(home, _)| *home != OVERFLOW) {
            self.guards.push((OVERFLOW, lock(overflow)));
        }
        self.spots[index] = Spot { id, home: OVERFLOW };
    }

    /// Whether the state of this check is an overflow bucket.
    pub(super) fn is_overflow(&self, index: usize) -> bool {
        self.spots[index].home == OVERFLOW
    }

    /// Drops the state of this check if it is to be forgotten by now.
    pub(super) fn forget_outdated(&mut self, index: usize, now: Timestamp) {
        let (shard, id) = self.shard(index);
        shard.forget_outdated(id, now);
    }

    /// Changes the state of this check. If it is its own, it is kept until the `latest` instant at most.
    pub(super) fn update(&mut self, index: usize, limit: &Limit, change: Change, latest: u64) {
        let latest = if self.is_overflow(index) { u64::MAX } else { latest };
        let (shard, id) = self.shard(index);
        shard.update(id, limit, change, latest);
    }

    /// Lets every shard look for outdated keys, once nobody needs what was found any more.
    pub(super) fn tidy(&mut self, now: Timestamp) {
        for (_, shard) in self.guards.iter_mut() {
            shard.tidy(now);
        }
    }

    fn shard(&mut self, index: usize) -> (&mut Shard, u128) {
        let Spot { id, home } = self.spots[index];
        let position = self.guards.iter().position(|(held, _)| *held == home).unwrap_or(0);
        (&mut self.guards[position].1, id)
    }
}

/// A shard whose last holder panicked is as good as any: states are replaced whole, never half written.
pub(super) fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
