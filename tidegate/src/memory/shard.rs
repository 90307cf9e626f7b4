//! `Shard`: a part of the memory store behind one lock: a bounded table that removes expired entries as it is used.

use hashbrown::HashTable;

use crate::algorithm::{self, CLOCK_MARGIN_MICROS, Op, OpResult, State};
use crate::{Limit, Timestamp};

/// The maximum number of keys in one shard, which bounds the work when the table grows. A table of 1,024 buckets holds this many.
pub(super) const MAX_SHARD_KEYS: usize = 896;

/// Number of table buckets that a sweep examines for expired keys.
const SWEEP_BUCKETS: usize = 4;
/// The same for a call that finds the shard full.
const FULL_SWEEP_BUCKETS: usize = 64;
/// The same for an anonymous subject, of which there may be many.
const ANONYMOUS_SWEEP_BUCKETS: usize = 16;
/// A sweep is due after this many changes, and after every new key. Each examined bucket is likely a cache miss.
const CHANGES_PER_SWEEP: u32 = 32;

#[derive(Debug)]
pub(super) struct Shard {
    table: HashTable<TableEntry>,
    cursor: u32,
    changes: u32,
    max_keys: usize,
}

#[derive(Debug)]
struct TableEntry {
    id: u128,
    /// When the entry can be removed, in microseconds.
    expires_at: u64,
    state: State,
}

impl Shard {
    pub(super) fn new(max_keys: usize) -> Self {
        Self { table: HashTable::new(), cursor: 0, changes: 0, max_keys }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline(always)]
    pub(super) fn get(&self, id: u128) -> Option<&State> {
        self.table.find(hash(id), |entry| entry.id == id).map(|entry| &entry.state)
    }

    /// Whether `id` exists or fits after `earlier` other new keys. Removes expired keys if necessary. Unauthenticated subjects may use
    /// three quarters of the shard.
    #[inline(always)]
    pub(super) fn has_room(&mut self, id: u128, now: Timestamp, earlier: usize, anonymous: bool) -> bool {
        let max_keys = if anonymous { self.max_keys - self.max_keys / 4 } else { self.max_keys };
        if self.table.len() + earlier < max_keys || self.get(id).is_some() {
            return true;
        }
        self.sweep(now.as_micros(), if anonymous { ANONYMOUS_SWEEP_BUCKETS } else { FULL_SWEEP_BUCKETS });
        self.table.len() + earlier < max_keys
    }

    /// Removes the entry of `id` if it has expired. Needed for states with a `max_expiry`, which may expire while they still count.
    pub(super) fn remove_expired(&mut self, id: u128, now: Timestamp) {
        if let Ok(entry) = self.table.find_entry(hash(id), |entry| entry.id == id)
            && entry.get().expires_at <= now.as_micros()
        {
            entry.remove();
        }
    }

    /// Applies `ops` to the state of `id`, or makes one. It expires when it no longer counts, or at `max_expiry`, in microseconds. Nothing
    /// is written if nothing changes.
    #[inline(always)]
    pub(super) fn update(&mut self, id: u128, limit: &Limit, now: Timestamp, ops: &[Op], max_expiry: u64) {
        let expires_at =
            |state: &State| algorithm::expiry(state, limit).min(max_expiry).saturating_add(CLOCK_MARGIN_MICROS);
        let Some((first, others)) = ops.split_first() else { return };
        if let Some(entry) = self.table.find_mut(hash(id), |entry| entry.id == id) {
            let OpResult { mut changes, .. } = entry.state.apply(limit, now, *first);
            for op in others {
                changes |= entry.state.apply(limit, now, *op).changes;
            }
            if changes {
                entry.expires_at = expires_at(&entry.state);
                self.changes = self.changes.wrapping_add(1);
            }
        } else if let Some(mut state) = State::new(limit, now, *first) {
            for op in others {
                state.apply(limit, now, *op);
            }
            // A sweep is due.
            self.changes = (self.changes / CHANGES_PER_SWEEP + 1) * CHANGES_PER_SWEEP;
            let entry = TableEntry { id, expires_at: expires_at(&state), state };
            self.table.insert_unique(hash(id), entry, |entry| hash(entry.id));
        }
    }

    /// Replaces the state of `id` by what `replacement` makes of it; `None` removes it. It expires at `expires_at`, in microseconds.
    pub(super) fn replace(
        &mut self,
        id: u128,
        expires_at: u64,
        replacement: impl FnOnce(Option<&State>) -> Option<State>,
    ) {
        let replacement = replacement(self.get(id));
        self.remove(id);
        if let Some(state) = replacement {
            let entry = TableEntry { id, expires_at: expires_at.saturating_add(CLOCK_MARGIN_MICROS), state };
            self.table.insert_unique(hash(id), entry, |entry| hash(entry.id));
        }
    }

    pub(super) fn remove(&mut self, id: u128) {
        if let Ok(entry) = self.table.find_entry(hash(id), |entry| entry.id == id) {
            entry.remove();
        }
    }

    /// Removes some expired keys if a sweep is due. Called after all changes of a plan, which may depend on expired states.
    #[inline(always)]
    pub(super) fn sweep_if_due(&mut self, now: Timestamp) {
        if self.changes >= CHANGES_PER_SWEEP {
            self.sweep(now.as_micros(), SWEEP_BUCKETS * (self.changes / CHANGES_PER_SWEEP) as usize);
            self.changes %= CHANGES_PER_SWEEP;
        }
    }

    /// Removes expired keys from the next `buckets` buckets.
    fn sweep(&mut self, now: u64, buckets: usize) {
        let count = self.table.num_buckets();
        let mut removed = false;
        for _ in 0..buckets.min(count) {
            let next = self.cursor as usize + 1;
            self.cursor = if next < count { next as u32 } else { 0 };
            if let Ok(entry) = self.table.get_bucket_entry(self.cursor as usize)
                && entry.get().expires_at <= now
            {
                entry.remove();
                removed = true;
            }
        }
        if removed && self.table.len() * 8 < self.table.capacity() && self.table.capacity() > 64 {
            self.table.shrink_to(self.table.len() * 2, |entry| hash(entry.id));
        }
    }
}

/// The id is a hash already. Other bits of it choose the shard.
const fn hash(id: u128) -> u64 {
    id as u64
}
