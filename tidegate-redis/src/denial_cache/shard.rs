//! `Shard`: a part of the cache behind one lock: a bounded table that removes ended entries as it is used.

use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table::OccupiedEntry;

use super::KeyId;
use super::denied_state::DeniedState;

/// Number of table buckets that are examined for ended entries when an entry is added.
const SWEEP_BUCKETS: usize = 4;
/// The same if the shard is full.
const FULL_SWEEP_BUCKETS: usize = 32;

/// A bounded table of entries.
pub(super) struct Shard {
    table: HashTable<CacheEntry>,
    max_entries: usize,
    /// The next bucket to examine.
    cursor: usize,
}

struct CacheEntry {
    hash: u64,
    key: KeyId,
    state: DeniedState,
}

impl Shard {
    pub(super) const fn new(max_entries: usize) -> Self {
        Self { table: HashTable::new(), max_entries, cursor: 0 }
    }

    pub(super) fn get(&self, hash: u64, key: &KeyId) -> Option<&DeniedState> {
        self.table.find(hash, |entry| entry.key == *key).map(|entry| &entry.state)
    }

    /// Adds or replaces an entry. Returns how the number of entries changes. A full shard loses another entry, whose subject
    /// asks the store again.
    pub(super) fn insert(&mut self, hash: u64, key: KeyId, state: DeniedState, now: Duration) -> isize {
        if let Some(entry) = self.table.find_mut(hash, |entry| entry.key == key) {
            if !entry.state.is_kept_over(&state, now) {
                entry.state = state;
            }
            return 0;
        }
        let before = self.table.len();
        self.sweep(now, if before < self.max_entries { SWEEP_BUCKETS } else { FULL_SWEEP_BUCKETS });
        while self.table.len() >= self.max_entries {
            self.evict_next();
        }
        self.table.insert_unique(hash, CacheEntry { hash, key, state }, |entry| entry.hash);
        signed(self.table.len()) - signed(before)
    }

    /// Removes the entry of `key` and returns whether there was one.
    pub(super) fn remove(&mut self, hash: u64, key: &KeyId) -> bool {
        let entry = self.table.find_entry(hash, |entry| entry.key == *key);
        entry.map(OccupiedEntry::remove).is_ok()
    }

    /// Removes all entries that have ended. Returns how many remain and how many were removed.
    pub(super) fn remove_ended(&mut self, now: Duration) -> (usize, isize) {
        let before = self.table.len();
        self.table.retain(|entry| !entry.state.has_ended(now));
        self.table.shrink_to(self.table.len() * 2, |entry| entry.hash);
        (self.table.len(), signed(before) - signed(self.table.len()))
    }

    /// Removes all entries, and returns how many.
    pub(super) fn clear(&mut self) -> isize {
        signed(std::mem::take(&mut self.table).len())
    }

    /// Removes ended entries from the next `buckets` buckets.
    fn sweep(&mut self, now: Duration, buckets: usize) {
        for _ in 0..buckets.min(self.table.num_buckets()) {
            self.remove_next(|state| state.has_ended(now));
        }
    }

    /// Removes the entry of the next bucket, if it has one.
    fn evict_next(&mut self) {
        self.remove_next(|_| true);
    }

    fn remove_next(&mut self, is_removed: impl Fn(&DeniedState) -> bool) {
        self.cursor = (self.cursor + 1) % self.table.num_buckets().max(1);
        if let Ok(entry) = self.table.get_bucket_entry(self.cursor)
            && is_removed(&entry.get().state)
        {
            entry.remove();
        }
    }
}

/// A number of entries, which is small.
const fn signed(entries: usize) -> isize {
    entries.cast_signed()
}
