//! `ChangeCounts`: counts the changes of keys, so that a denial decided before a change is recognised after it.

use std::sync::atomic::{AtomicU32, Ordering};

use super::KeyId;

/// Keys that share a counter disturb each other: a denial of one is not cached if the other changes while it is on its way.
const COUNTERS: usize = 4096;

/// The numbers of changes, by a hash of the key.
pub(super) struct ChangeCounts(Box<[AtomicU32]>);

impl ChangeCounts {
    pub(super) fn new() -> Self {
        Self((0..COUNTERS).map(|_| AtomicU32::new(0)).collect())
    }

    /// Counts a change of `key`.
    pub(super) fn advance(&self, key: &KeyId) {
        self.counter(key).fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a change of every key.
    pub(super) fn advance_all(&self) {
        for counter in &self.0 {
            counter.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The number of changes of all `keys` together. It differs after a change of any of them.
    pub(super) fn sum(&self, keys: impl Iterator<Item = KeyId>) -> u64 {
        keys.map(|key| u64::from(self.counter(&key).load(Ordering::Acquire))).sum()
    }

    /// The id is a hash already.
    fn counter(&self, key: &KeyId) -> &AtomicU32 {
        &self.0[key.id as usize % COUNTERS]
    }
}
