//! `UnverifiedPosts`: accounts whose entries were posted, until it is known that their partition was not rebuilt at the same time.
//!
//! A store may lose a partition after its entries were read, and another instance may rebuild it before they are posted: then the rebuilt state
//! lacks them. A read that begins after the post shows it, by another generation; the accounts are repaired then.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tidegate::spi::{AccountKey, OutboxEntry};
use tidegate::sync::Mutex;

/// Accounts whose entries were posted, by partition.
#[derive(Debug, Default)]
pub(super) struct UnverifiedPosts {
    partitions: Mutex<HashMap<u16, PostedAccounts>>,
}

/// Accounts by the generation of their entries.
#[derive(Debug, Default)]
pub(super) struct PostedAccounts(BTreeMap<u64, BTreeSet<AccountKey>>);

impl UnverifiedPosts {
    /// Records accounts whose entries were posted.
    pub(super) fn add(&self, entries: &[OutboxEntry]) {
        let mut partitions = self.partitions.lock();
        for entry in entries {
            let accounts = partitions.entry(entry.id.partition).or_default();
            accounts.0.entry(entry.id.generation).or_default().insert(entry.account());
        }
    }

    /// Takes the accounts of a partition out, before its generation is read. Others may be added meanwhile; these need a later read.
    pub(super) fn take(&self, partition: u16) -> PostedAccounts {
        self.partitions.lock().remove(&partition).unwrap_or_default()
    }

    /// The accounts that must be repaired, now that the generation was read after they were taken. Without one, they are put back.
    pub(super) fn resolve(&self, partition: u16, posted: PostedAccounts, generation: Option<u64>) -> Vec<AccountKey> {
        if generation.is_none() {
            self.put_back(partition, posted);
            return Vec::new();
        }
        posted.0.into_iter().filter(|(of, _)| Some(*of) != generation).flat_map(|(_, accounts)| accounts).collect()
    }

    /// Puts accounts back, whose generation could not be read.
    pub(super) fn put_back(&self, partition: u16, posted: PostedAccounts) {
        if posted.0.is_empty() {
            return;
        }
        let mut partitions = self.partitions.lock();
        let accounts = partitions.entry(partition).or_default();
        for (generation, keys) in posted.0 {
            accounts.0.entry(generation).or_default().extend(keys);
        }
    }
}
