//! `Shard`: a part of the memory store, behind one lock: a bounded table that cleans itself as it is used.

use hashbrown::HashTable;

use crate::algorithm::{self, Change, MARGIN_MICROS, State};
use crate::{Limit, Timestamp};

/// The most keys in one shard, and so the most that any single call can ever be asked to move, when the table grows. It is
/// what a table of 1,024 buckets holds, so that a full one wastes little.
pub(super) const LARGEST_SHARD: usize = 896;

/// Buckets looked at for outdated keys: by each call that adds a key, by every [`REST`]th that changes one (to look at a
/// bucket is to wait for memory), and by one that finds no room. Of strangers many may come, so each looks at fewer.
const SWEEP: usize = 4;
const SWEEP_WHEN_FULL: usize = 64;
const SWEEP_FOR_STRANGER: usize = 16;
const REST: u32 = 32;

#[derive(Debug)]
pub(super) struct Shard {
    table: HashTable<Slot>,
    cursor: u32,
    changes: u32,
    most_keys: usize,
}

#[derive(Debug)]
struct Slot {
    id: u128,
    /// Microseconds; from then on the state decides like none, and has done so for a margin. Or it is to be forgotten then.
    outdated_at: u64,
    state: State,
}

impl Shard {
    pub(super) fn new(most_keys: usize) -> Self {
        Self { table: HashTable::new(), cursor: 0, changes: 0, most_keys }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline(always)]
    pub(super) fn get(&self, id: u128) -> Option<&State> {
        self.table.find(hash(id), |slot| slot.id == id).map(|slot| &slot.state)
    }

    /// Whether `id` is there or would find room now, after `earlier` other new keys. Looks for outdated keys first. A quarter
    /// of the shard has no room for strangers, however many come.
    #[inline(always)]
    pub(super) fn has_room(&mut self, id: u128, now: Timestamp, earlier: usize, stranger: bool) -> bool {
        let most_keys = if stranger { self.most_keys - self.most_keys / 4 } else { self.most_keys };
        if self.table.len() + earlier < most_keys || self.get(id).is_some() {
            return true;
        }
        self.sweep(now.as_micros(), if stranger { SWEEP_FOR_STRANGER } else { SWEEP_WHEN_FULL });
        self.table.len() + earlier < most_keys
    }

    /// Drops what is at `id` if it is outdated: for states that are forgotten before they decide like none.
    pub(super) fn forget_outdated(&mut self, id: u128, now: Timestamp) {
        if let Ok(entry) = self.table.find_entry(hash(id), |slot| slot.id == id)
            && entry.get().outdated_at <= now.as_micros()
        {
            entry.remove();
        }
    }

    /// Changes the state at `id`, and keeps it until it stops mattering, or until the `latest` instant, in microseconds.
    #[inline(always)]
    pub(super) fn update(&mut self, id: u128, limit: &Limit, change: Change, latest: u64) {
        let outdated_at = |state: &State| algorithm::expiry(state, limit).min(latest).saturating_add(MARGIN_MICROS);
        if let Some(slot) = self.table.find_mut(hash(id), |slot| slot.id == id) {
            slot.state.commit(change);
            slot.outdated_at = outdated_at(&slot.state);
            self.changes = self.changes.wrapping_add(1);
        } else {
            // As good as so many changes of what is there: the next sweep is due.
            self.changes = (self.changes / REST + 1) * REST;
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

    /// Looks for outdated keys, if it is time. Comes after all changes of a plan: none may drop what another was judged on.
    #[inline(always)]
    pub(super) fn tidy(&mut self, now: Timestamp) {
        if self.changes >= REST {
            self.sweep(now.as_micros(), SWEEP * (self.changes / REST) as usize);
            self.changes %= REST;
        }
    }

    /// Looks at the next few buckets and drops what is outdated.
    fn sweep(&mut self, now: u64, buckets: usize) {
        let count = self.table.num_buckets();
        let mut dropped = false;
        for _ in 0..buckets.min(count) {
            let next = self.cursor as usize + 1;
            self.cursor = if next < count { next as u32 } else { 0 };
            if let Ok(entry) = self.table.get_bucket_entry(self.cursor as usize)
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
