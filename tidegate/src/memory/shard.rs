//! `Shard`: a part of the memory store, behind one lock: a bounded table that cleans itself as it is used.

use hashbrown::HashTable;

use crate::algorithm::{self, Change, MARGIN_MICROS, State};
use crate::{Limit, Timestamp};

/// The most keys in one shard: the most that any single call can ever be asked to move, when the table grows.
pub(super) const LARGEST_SHARD: usize = 1024;

/// Buckets looked at for outdated keys: by each call that writes, by each that needs room, and by one that finds none.
const SWEEP: usize = 1;
const SWEEP_FOR_ROOM: usize = 4;
const SWEEP_WHEN_FULL: usize = 64;

#[derive(Debug)]
pub(super) struct Shard {
    table: HashTable<Slot>,
    cursor: usize,
    most_keys: usize,
}

#[derive(Debug)]
struct Slot {
    id: u128,
    /// Microseconds; from then on the state decides like none, and has done so for a margin.
    outdated_at: u64,
    state: State,
}

impl Shard {
    pub(super) fn new(most_keys: usize) -> Self {
        Self { table: HashTable::new(), cursor: 0, most_keys }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn get(&self, id: u128) -> Option<&State> {
        self.table.find(hash(id), |slot| slot.id == id).map(|slot| &slot.state)
    }

    /// Whether `id` is there or would find room now, after `earlier` other new keys. Looks for outdated keys first.
    pub(super) fn has_room(&mut self, id: u128, now: Timestamp, earlier: usize) -> bool {
        if self.table.len() + earlier < self.most_keys || self.get(id).is_some() {
            return true;
        }
        self.sweep(now.as_micros(), SWEEP_WHEN_FULL);
        self.table.len() + earlier < self.most_keys
    }

    /// Changes the state at `id`, and keeps it until it stops to matter.
    pub(super) fn update(&mut self, id: u128, limit: &Limit, now: Timestamp, change: Change) {
        let outdated_at = |state: &State| algorithm::expiry(state, limit) + MARGIN_MICROS;
        if let Some(slot) = self.table.find_mut(hash(id), |slot| slot.id == id) {
            slot.state.commit(change);
            slot.outdated_at = outdated_at(&slot.state);
            self.sweep(now.as_micros(), SWEEP);
        } else {
            self.sweep(now.as_micros(), SWEEP_FOR_ROOM);
            let state = State::new(change);
            let slot = Slot { id, outdated_at: outdated_at(&state), state };
            self.table.insert_unique(hash(id), slot, |slot| hash(slot.id));
        }
    }

    pub(super) fn remove(&mut self, id: u128) {
        if let Ok(entry) = self.table.find_entry(hash(id), |slot| slot.id == id) {
            entry.remove();
        }
    }

    /// Looks at the next few buckets and drops what is outdated.
    fn sweep(&mut self, now: u64, buckets: usize) {
        let count = self.table.num_buckets();
        let mut dropped = false;
        for _ in 0..buckets.min(count) {
            self.cursor = if self.cursor + 1 < count { self.cursor + 1 } else { 0 };
            if let Ok(entry) = self.table.get_bucket_entry(self.cursor)
                && entry.get().outdated_at <= now
            {
                entry.remove();
                dropped = true;
            }
        }
        if dropped && self.table.len() * 8 < self.table.capacity() && self.table.capacity() > 64 {
            self.table.shrink_to(self.table.len() * 2, |slot| hash(slot.id));
        }
    }
}

/// The id is a hash already; the shard was chosen by other bits of it.
const fn hash(id: u128) -> u64 {
    id as u64
}
