//! The ledger in a SQLite file: its connections, its migrations, and statements on many rows.
//!
//! One connection writes, others read beside it: the file is in write-ahead mode. A commit is on disk before it returns.

mod bulk;

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

pub(super) use bulk::{
    create_accounts, delete_entries, delete_holds, find_accounts, insert_entries, load_balances, load_holds,
    mark_rolled_up, write_balances, write_holds,
};

use super::lock::LockPurpose;
use super::migration;
use super::transaction::OpenTransaction;
use super::{CONNECT_TIMEOUT, MAX_CONNECTIONS};
use crate::{LedgerError, LedgerErrorKind};

const MIGRATIONS: [&str; 2] =
    [include_str!("../../migrations/sqlite/0001_ledger.sql"), include_str!("../../migrations/sqlite/0002_secret.sql")];

/// The connections to a file.
#[derive(Clone, Debug)]
pub(super) struct SqliteFile {
    path: PathBuf,
    writer: SqlitePool,
    readers: SqlitePool,
}

impl SqliteFile {
    pub(super) async fn open(path: &Path) -> Result<Self, LedgerError> {
        create_private(path)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .busy_timeout(CONNECT_TIMEOUT)
            .foreign_keys(true)
            .disable_statement_logging();
        // A file of a newer version is not changed, not even its journal mode.
        let mut connection = SqliteConnection::connect_with(&options).await?;
        migration::is_current(version(&mut connection).await?, MIGRATIONS.len())?;
        let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
        let pool = |size| SqlitePoolOptions::new().max_connections(size).acquire_timeout(CONNECT_TIMEOUT);
        drop(connection.close().await);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        migrate(&mut connection).await?;
        drop(connection.close().await);
        Ok(Self {
            path: path.to_owned(),
            writer: pool(1).connect_lazy_with(options.clone()),
            readers: pool(MAX_CONNECTIONS - 1).connect_lazy_with(options),
        })
    }

    pub(super) async fn begin(&self, writes: bool) -> Result<OpenTransaction<sqlx::Sqlite>, LedgerError> {
        let (pool, statement) = if writes { (&self.writer, "BEGIN IMMEDIATE") } else { (&self.readers, "BEGIN") };
        let mut connection = OpenTransaction::new(pool.acquire().await?);
        sqlx::raw_sql(statement).execute(connection.connection()?).await?;
        Ok(connection)
    }

    /// A lock on a file beside the ledger, which the system releases when its process ends. `None` if another one holds it.
    pub(super) fn try_lock(&self, purpose: LockPurpose) -> Result<Option<File>, LedgerError> {
        let mut path = self.path.clone().into_os_string();
        path.push(match purpose {
            LockPurpose::Reconcile => "-reconcile",
            LockPurpose::MemoryStore => "-memory-store",
        });
        let mut options = private_file();
        let file = options.create(true).truncate(false).write(true).open(path).map_err(|error| file_error(&error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(file_error(&error)),
        }
    }

    pub(super) async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

fn file_error(error: &std::io::Error) -> LedgerError {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull => LedgerErrorKind::Full,
        std::io::ErrorKind::ReadOnlyFilesystem | std::io::ErrorKind::PermissionDenied => LedgerErrorKind::ReadOnly,
        _ => LedgerErrorKind::Unavailable,
    };
    LedgerError::new(kind, format!("the directory of the ledger's file does not take a file: {error}"))
}

/// Creates the file for its owner only, since it may contain the names of tenants. SQLite gives its other files the same rights.
fn create_private(path: &Path) -> Result<(), LedgerError> {
    match private_file().create_new(true).write(true).open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(file_error(&error)),
        _ => Ok(()),
    }
}

/// Options that create a file for its owner only.
fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

async fn migrate(connection: &mut SqliteConnection) -> Result<(), LedgerError> {
    if migration::is_current(version(connection).await?, MIGRATIONS.len())? {
        return Ok(());
    }
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let current = version(&mut transaction).await?;
    if migration::is_current(current, MIGRATIONS.len())? {
        return Ok(());
    }
    let table = "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL) STRICT";
    sqlx::raw_sql(table).execute(&mut *transaction).await?;
    for (version, script) in migration::missing(current, &MIGRATIONS) {
        sqlx::raw_sql(script).execute(&mut *transaction).await?;
        let sql = "INSERT INTO schema_version (version) VALUES ($1)";
        sqlx::query(sql).bind(version).execute(&mut *transaction).await?;
    }
    Ok(transaction.commit().await?)
}

/// The version of the schema; 0 if there is none.
async fn version(connection: &mut SqliteConnection) -> Result<i64, LedgerError> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'schema_version'";
    let tables: i64 = sqlx::query_scalar(sql).fetch_one(&mut *connection).await?;
    if tables == 0 {
        return Ok(0);
    }
    Ok(sqlx::query_scalar("SELECT COALESCE(max(version), 0) FROM schema_version").fetch_one(connection).await?)
}

/// The numbers as a JSON text, which SQLite reads as a table.
pub(super) fn json_list(numbers: Vec<i64>) -> String {
    let texts: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    format!("[{}]", texts.join(","))
}
