//! `LedgerLock`: what only one process may do with a ledger at a time.

use std::fmt;
use std::fs::File;

use sqlx::PgConnection;

use super::{Database, Ledger, in_time, postgres};
use crate::{LedgerError, LedgerErrorKind};

/// What only one process does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockPurpose {
    /// Comparing the store with the ledger.
    Reconcile,
    /// Counting in the memory of the process.
    MemoryStore,
}

/// Keeps others away until it is dropped, or its process ends.
pub struct LedgerLock {
    held: HeldLock,
    purpose: LockPurpose,
}

#[allow(dead_code, reason = "holding it is its use")]
enum HeldLock {
    Session(PgConnection),
    File(File),
}

impl Ledger {
    /// Keeps other reconciliations away, of all instances. Fails with [`LedgerErrorKind::Busy`] while one runs.
    pub async fn reconcile_lock(&self) -> Result<LedgerLock, LedgerError> {
        let busy = "another reconciliation of this ledger runs; wait for it to end, then repeat";
        self.lock(LockPurpose::Reconcile, busy).await
    }

    /// Keeps other instances with a memory store away: each of them would admit a whole quota. Fails with [`LedgerErrorKind::Busy`] while
    /// one runs.
    pub async fn memory_store_lock(&self) -> Result<LedgerLock, LedgerError> {
        let busy = "another instance with a memory store uses this ledger, and each would admit the whole quota; stop it, or let both use \
                    a shared store";
        self.lock(LockPurpose::MemoryStore, busy).await
    }

    async fn lock(&self, purpose: LockPurpose, busy: &'static str) -> Result<LedgerLock, LedgerError> {
        in_time(async {
            let held = match self.database()? {
                Database::Postgres(pool) => postgres::try_lock(&pool, purpose).await?.map(HeldLock::Session),
                Database::Sqlite(file) => file.try_lock(purpose)?.map(HeldLock::File),
            };
            let held = held.ok_or_else(|| LedgerError::new(LedgerErrorKind::Busy, busy))?;
            Ok(LedgerLock { held, purpose })
        })
        .await
    }
}

impl LedgerLock {
    /// Ends it. After this, another process can have it at once; if it is only dropped, when the database has noticed.
    pub async fn release(self) {
        if let HeldLock::Session(mut connection) = self.held {
            // If it fails, the database ends the lock with the connection.
            let _ = postgres::unlock(&mut connection, self.purpose).await;
        }
    }
}

impl fmt::Debug for LedgerLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LedgerLock({:?})", self.purpose)
    }
}
