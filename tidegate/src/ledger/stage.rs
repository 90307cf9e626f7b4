//! `LedgerStage`: the second stage of a decision under rules with a ledger, after the store.

use std::future::Future;
use std::pin::Pin;

use super::{AccountKey, EntryId, OutboxEntry};
use crate::StoreError;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The second stage of a decision under rules with a ledger. A [`Limiter`](crate::Limiter) calls it after the store.
pub trait LedgerStage: Send + Sync {
    /// Waits until everything that the outboxes of these partitions contain at the time of the call is durable in the ledger. Each comes with the
    /// generation under which it was written; entries of another one are lost. An error means that they may not be durable: the units are
    /// refunded, and the request is handled as after a failure of the store.
    fn confirm(&self, partitions: Vec<(u16, u64)>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Records what was consumed without the store, because it failed and a rule admits requests then. It is posted to the ledger later.
    /// The ids of the entries are set by the stage. An error means that it could not be recorded, so the request must be refused.
    fn journal(&self, entries: Vec<OutboxEntry>) -> Result<(), StoreError>;

    /// Learns the name of a tenant, whose rule says that the ledger keeps it.
    fn name_account(&self, account: AccountKey, name: &str) {
        let _ = (account, name);
    }
}

/// Keeps entries until they are in the ledger, so that they outlive the process.
pub trait Journal: Send + Sync {
    /// Writes entries. An error means that none of them was written.
    fn append(&self, entries: &[OutboxEntry]) -> Result<(), StoreError>;

    /// Forgets entries that are durable in the ledger. Unknown ones are ignored.
    fn acknowledge(&self, ids: &[EntryId]);
}
