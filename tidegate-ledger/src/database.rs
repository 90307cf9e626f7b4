//! `Ledger`: durable entries, their sums and the reservations, in SQLite or PostgreSQL.
//!
//! ```text
//! posting         post: entries of outboxes, each counted once
//! administration  correct; expiry: reservations that ran out; roll_up: old entries
//! reading         states of gates, usage, export
//! ```
//!
//! Both databases run the same steps. Only statements on many rows differ; they are in `postgres` and `sqlite`.

mod account_balances;
mod administration;
mod contains;
mod correction;
mod entry_row;
mod expiry;
mod export_query;
mod hold;
mod limit_name;
mod lock;
mod migration;
mod names;
mod owner;
mod postgres;
mod posting;
mod reading;
mod roll_up;
mod sqlite;
#[cfg(test)]
mod tests;
mod transaction;
mod usage_query;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgPool;
use tidegate::Timestamp;
use tidegate::sync::RwLock;

pub use correction::Correction;
use entry_row::from_signed;
pub use export_query::{ExportQuery, LedgerEntry};
pub(crate) use limit_name::LimitName;
pub use lock::LedgerLock;
pub(crate) use owner::secret_fingerprint;
pub use posting::Posted;
pub use roll_up::RollUp;
use sqlite::SqliteFile;
use transaction::LedgerTransaction;

use crate::{LedgerError, LedgerUrl};

/// A connection is made, or taken from those that exist, within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A transaction takes no longer, whatever happens to the database. A database ends its statements before that.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(20);

const MAX_CONNECTIONS: u32 = 4;

/// How often a transaction is repeated that the database ended because of others.
const MAX_ATTEMPTS: u32 = 5;

/// A ledger: durable entries of quotas, their sums, and the reservations. Clones share connections.
#[derive(Clone)]
pub struct Ledger {
    is_shared: bool,
    /// Why there is none, before it is opened.
    database: Arc<RwLock<Result<Database, LedgerError>>>,
}

#[derive(Clone)]
enum Database {
    Postgres(PgPool),
    Sqlite(SqliteFile),
}

impl Ledger {
    /// Connects to a ledger, and creates or migrates its tables. Fails with [`LedgerErrorKind::Newer`](crate::LedgerErrorKind::Newer), and changes nothing, if a newer
    /// version of Tidegate has migrated it.
    pub async fn open(url: &LedgerUrl) -> Result<Self, LedgerError> {
        let database = in_time(async {
            Ok(match url {
                LedgerUrl::Sqlite(path) => Database::Sqlite(SqliteFile::open(path).await?),
                LedgerUrl::Postgres(_) => Database::Postgres(postgres::open(url).await?),
            })
        });
        Ok(Self::new(url, Ok(database.await?)))
    }

    /// A ledger that is not open yet. Every call fails with `why` until it [adopts](Self::adopt) an open one.
    pub fn unopened(url: &LedgerUrl, why: LedgerError) -> Self {
        Self::new(url, Err(why))
    }

    fn new(url: &LedgerUrl, database: Result<Database, LedgerError>) -> Self {
        Self { is_shared: url.is_shared(), database: Arc::new(RwLock::new(database)) }
    }

    /// Opens this ledger and all its clones, with the connections of `opened`.
    pub fn adopt(&self, opened: &Self) {
        *self.database.write() = opened.database();
    }

    /// Sets why the ledger is not open yet. It does nothing to an open one.
    pub fn set_unopened_error(&self, why: LedgerError) {
        let mut database = self.database.write();
        if database.is_err() {
            *database = Err(why);
        }
    }

    /// Why the ledger is not open. `None` if it is.
    pub fn unopened_error(&self) -> Option<LedgerError> {
        self.database.read().as_ref().err().cloned()
    }

    /// Whether any number of instances can use it.
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Checks that the database answers and takes writes.
    pub async fn ping(&self) -> Result<(), LedgerError> {
        in_time(async {
            let mut transaction = self.begin(true).await?;
            transaction.execute("UPDATE schema_version SET version = version WHERE version = 0", Vec::new()).await?;
            transaction.rollback().await
        })
        .await
    }

    /// The time by the clock of the database: that of the PostgreSQL server, or of this host.
    pub async fn now(&self) -> Result<Timestamp, LedgerError> {
        in_time(async {
            let mut transaction = self.begin(false).await?;
            let sql = match self.database()? {
                Database::Postgres(_) => "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8",
                Database::Sqlite(_) => "SELECT CAST(unixepoch('now', 'subsec') * 1000000 AS INTEGER)",
            };
            let rows = transaction.fetch(sql, Vec::new()).await?;
            transaction.commit().await?;
            let micros = rows.first().map_or(Ok(0), |row| row.int(0))?;
            Ok(Timestamp::from_micros(from_signed(micros)))
        })
        .await
    }

    /// Closes all connections. Calls after that fail.
    pub async fn close(&self) {
        match self.database() {
            Ok(Database::Postgres(pool)) => pool.close().await,
            Ok(Database::Sqlite(file)) => file.close().await,
            Err(_) => {}
        }
    }

    fn database(&self) -> Result<Database, LedgerError> {
        self.database.read().clone()
    }

    /// Begins a transaction that writes, or one that sees the ledger at one moment.
    async fn begin(&self, writes: bool) -> Result<LedgerTransaction, LedgerError> {
        Ok(match self.database()? {
            Database::Postgres(pool) => LedgerTransaction::Postgres(postgres::begin(&pool, writes).await?),
            Database::Sqlite(file) => LedgerTransaction::Sqlite(file.begin(writes).await?),
        })
    }

    /// Runs a transaction in time, and again if the database ended it because of others.
    async fn repeat<T, F>(&self, run: impl Fn() -> F) -> Result<T, LedgerError>
    where
        F: Future<Output = Result<T, LedgerError>>,
    {
        let mut attempt = 1;
        loop {
            match in_time(run()).await {
                Err(error) if error.is_repeatable() && attempt < MAX_ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }
}

async fn in_time<T>(run: impl Future<Output = Result<T, LedgerError>>) -> Result<T, LedgerError> {
    tokio::time::timeout(TRANSACTION_TIMEOUT, run).await.unwrap_or_else(|_| Err(LedgerError::timed_out()))
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_shared() { "Ledger(PostgreSQL)" } else { "Ledger(SQLite)" })
    }
}
