//! The ledger in PostgreSQL: its connections, its migrations, and statements on many rows, which pass as arrays.

mod bulk;

use std::io::ErrorKind;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection};

pub(super) use bulk::{
    create_accounts, delete_entries, delete_holds, find_accounts, insert_entries, load_balances, load_holds,
    mark_rolled_up, write_balances, write_holds,
};

use super::lock::LockPurpose;
use super::migration;
use super::transaction::OpenTransaction;
use super::{CONNECT_TIMEOUT, MAX_CONNECTIONS};
use crate::{LedgerError, LedgerErrorKind, LedgerUrl};

/// The server ends a statement that takes longer, unless the options in the URL say otherwise.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The server ends a session that leaves a transaction open for longer: it would block other instances.
const IDLE_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The keys of advisory locks, which all instances have in common. The first halves spell "tide".
const MIGRATION_LOCK: i64 = 0x7469_6465_0000_0001;
const RECONCILE_LOCK: i64 = 0x7469_6465_0000_0002;
const MEMORY_STORE_LOCK: i64 = 0x7469_6465_0000_0003;

const MIGRATIONS: [&str; 2] = [
    include_str!("../../migrations/postgres/0001_ledger.sql"),
    include_str!("../../migrations/postgres/0002_secret.sql"),
];

const VERSION_TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)";

pub(super) async fn open(url: &LedgerUrl) -> Result<PgPool, LedgerError> {
    let options = with_session_settings(url.postgres_options()?).disable_statement_logging();
    // A pool repeats refused connections until its time is over; a single attempt says at once why there is none.
    let mut connection = connect(&options).await?;
    migrate(&mut connection).await?;
    drop(connection.close().await);
    let pool = PgPoolOptions::new().max_connections(MAX_CONNECTIONS).acquire_timeout(CONNECT_TIMEOUT);
    Ok(pool.connect_lazy_with(options))
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, LedgerError> {
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, PgConnection::connect_with(options)).await;
    match connected.map_err(|_| LedgerError::timed_out())? {
        Err(sqlx::Error::Io(error)) if is_about_file(&error, options) => {
            let message = format!("a certificate or key that the ledger URL names cannot be read ({error})");
            Err(LedgerError::new(LedgerErrorKind::Unexpected, message))
        }
        connected => Ok(connected?),
    }
}

/// Whether the error is about a file of this machine, so that waiting does not help. A socket is missing while its server does not run.
fn is_about_file(error: &std::io::Error, options: &PgConnectOptions) -> bool {
    match error.kind() {
        ErrorKind::NotFound => options.get_socket().is_none(),
        kind => kind == ErrorKind::PermissionDenied,
    }
}

fn with_session_settings(options: PgConnectOptions) -> PgConnectOptions {
    let given = options.get_options().unwrap_or_default().to_owned();
    let millis = |duration: Duration| duration.as_millis().to_string();
    let defaults = [
        ("statement_timeout", millis(STATEMENT_TIMEOUT)),
        ("idle_in_transaction_session_timeout", millis(IDLE_TRANSACTION_TIMEOUT)),
    ];
    let defaults = defaults.into_iter().filter(|(name, _)| !given.contains(name));
    // What is posted is durable: an entry is removed from its outbox after that.
    let always = [("synchronous_commit", "on".to_owned())];
    options.application_name("tidegate").options(defaults.chain(always))
}

/// Brings the schema to this version, in one transaction, while other instances wait.
async fn migrate(connection: &mut PgConnection) -> Result<(), LedgerError> {
    if migration::is_current(version(connection).await?, MIGRATIONS.len())? {
        return Ok(());
    }
    let mut transaction = connection.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATION_LOCK).execute(&mut *transaction).await?;
    let current = version(&mut transaction).await?;
    if migration::is_current(current, MIGRATIONS.len())? {
        return Ok(());
    }
    sqlx::raw_sql(VERSION_TABLE).execute(&mut *transaction).await?;
    for (version, script) in migration::missing(current, &MIGRATIONS) {
        sqlx::raw_sql(script).execute(&mut *transaction).await?;
        sqlx::query("INSERT INTO schema_version (version) VALUES ($1)")
            .bind(version)
            .execute(&mut *transaction)
            .await?;
    }
    Ok(transaction.commit().await?)
}

/// The version of the schema; 0 if there is none.
async fn version(connection: &mut PgConnection) -> Result<i64, LedgerError> {
    // Not `to_regclass`: in a session that has waited for a lock, it may not see a table that was created meanwhile.
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables \
               WHERE schemaname = current_schema() AND tablename = 'schema_version')";
    let exists: bool = sqlx::query_scalar(sql).fetch_one(&mut *connection).await?;
    if !exists {
        return Ok(0);
    }
    Ok(sqlx::query_scalar("SELECT COALESCE(max(version), 0) FROM schema_version").fetch_one(connection).await?)
}

pub(super) async fn begin(pool: &PgPool, writes: bool) -> Result<OpenTransaction<sqlx::Postgres>, LedgerError> {
    let mut connection = OpenTransaction::new(pool.acquire().await?);
    let statement =
        if writes { "BEGIN ISOLATION LEVEL READ COMMITTED" } else { "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" };
    sqlx::raw_sql(statement).execute(connection.connection()?).await?;
    Ok(connection)
}

/// A connection of its own that holds a lock until it is closed. `None` if another one holds it.
pub(super) async fn try_lock(pool: &PgPool, purpose: LockPurpose) -> Result<Option<PgConnection>, LedgerError> {
    let mut connection = connect(&pool.connect_options()).await?;
    let lock = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(lock_key(purpose));
    let locked: bool = lock.fetch_one(&mut connection).await?;
    Ok(locked.then_some(connection))
}

/// Ends a lock.
pub(super) async fn unlock(connection: &mut PgConnection, purpose: LockPurpose) -> Result<(), LedgerError> {
    sqlx::query("SELECT pg_advisory_unlock($1)").bind(lock_key(purpose)).execute(connection).await?;
    Ok(())
}

const fn lock_key(purpose: LockPurpose) -> i64 {
    match purpose {
        LockPurpose::Reconcile => RECONCILE_LOCK,
        LockPurpose::MemoryStore => MEMORY_STORE_LOCK,
    }
}
