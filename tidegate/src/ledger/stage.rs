//! `LedgerStage`: the second stage of a decision under rules with a ledger, after the store.

use std::future::Future;
use std::pin::Pin;

use super::{AccountKey, EntryId, OutboxEntry};
use crate::StoreError;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What must be durable in the ledger before a request is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnconfirmedEntry {
    /// The partition.
    pub partition: u16,
    /// The generation under which it was written.
    pub generation: u64,
    /// The entry that was written. `None` if the store does not tell it, or if none was: then everything that the outbox contains must be
    /// durable. That is weaker: a store that goes back to an older copy of itself loses the entry, and its outbox is as empty as if the
    /// entry were in the ledger.
    pub id: Option<EntryId>,
}

/// The second stage of a decision under rules with a ledger. A [`Limiter`](crate::Limiter) calls it after the store.
pub trait LedgerStage: Send + Sync {
    /// Whether the ledger fits this instance, and the store was brought up to it. Until then nobody knows whether they agree: plans with a
    /// ledger are not sent to the store, and their rules do what they do while it fails. After a
    /// [mismatch](crate::StoreErrorKind::Mismatch) they are closed.
    fn verified(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether entries can be confirmed now. After an error, a plan that must be durable is not even sent to the store, in which it would be
    /// taken and given back: a ledger that is down would fill the outbox.
    fn ready(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Waits until these entries are durable in the ledger. One without an id stands for everything that the outbox of its partition contains at
    /// the time of the call; entries of another generation are lost. An error means that they may not be durable: the units are refunded, and
    /// the request is handled as after a failure of the store.
    fn confirm(&self, entries: Vec<UnconfirmedEntry>) -> BoxFuture<'_, Result<(), StoreError>>;

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
