//! The ledger in a SQLite file. The tests of both databases are in the crate `conformance`.

use std::path::Path;

use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tidegate::Timestamp;
use tidegate::spi::{EntryId, EntryKind, OutboxEntry, Subject};

use super::transaction::LedgerTransaction;
use super::{Database, Ledger, Posted};
use crate::{LedgerErrorKind, LedgerUrl};

async fn open(directory: &Path) -> Ledger {
    Ledger::open(&LedgerUrl::Sqlite(directory.join("ledger.db"))).await.unwrap()
}

async fn connect(directory: &Path) -> SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(directory.join("ledger.db"));
    SqliteConnection::connect_with(&options.disable_statement_logging()).await.unwrap()
}

fn entries(range: std::ops::Range<u64>) -> Vec<OutboxEntry> {
    let entry = |number| OutboxEntry {
        id: EntryId { generation: 7, partition: 3, millis: 1, sequence: number },
        kind: EntryKind::Consume,
        at: Timestamp::from_micros(number),
        stem: "exports:u1mo".into(),
        subject: Subject::from_hash(u128::from(number % 50)),
        period: 100,
        amount: 1,
        late_amount: 0,
        held: 0,
        owner: 0,
        expires_at: Timestamp::default(),
        hard_limit: 10,
    };
    range.map(entry).collect()
}

async fn consumed(ledger: &Ledger) -> u64 {
    ledger.gate_states(3).await.unwrap().iter().map(|state| state.state.used + state.state.debt).sum()
}

#[tokio::test]
async fn a_full_disk_is_reported_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path()).await;
    ledger.post(&entries(0..100)).await.unwrap();
    set_max_pages(&ledger, "PRAGMA max_page_count = 1").await;
    let error = ledger.post(&entries(50..5_000)).await.unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (LedgerErrorKind::Full, true), "{error}");
    assert_eq!(consumed(&ledger).await, 100);
    set_max_pages(&ledger, "PRAGMA max_page_count = 4294967294").await;
    assert_eq!(ledger.post(&entries(50..5_000)).await, Ok(Posted { inserted: 4_900, repeated: 50 }));
    assert_eq!(consumed(&ledger).await, 5_000);
}

/// The setting belongs to the connection that writes.
async fn set_max_pages(ledger: &Ledger, pragma: &'static str) {
    let mut transaction = ledger.begin(true).await.unwrap();
    let LedgerTransaction::Sqlite(open) = &mut transaction else { panic!("it is SQLite") };
    sqlx::raw_sql(pragma).execute(open.connection().unwrap()).await.unwrap();
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn commits_are_on_disk_before_they_return() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path()).await;
    let mut transaction = ledger.begin(true).await.unwrap();
    let LedgerTransaction::Sqlite(open) = &mut transaction else { panic!("it is SQLite") };
    let connection = open.connection().unwrap();
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *connection).await.unwrap();
    let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *connection).await.unwrap();
    assert_eq!((mode.as_str(), synchronous), ("wal", 2));
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing/ledger.db");
    let error = Ledger::open(&LedgerUrl::Sqlite(missing)).await.unwrap_err();
    assert_eq!(error.kind(), LedgerErrorKind::Unavailable, "{error}");
    let text = directory.path().join("text.db");
    std::fs::write(&text, "this is a text and no database, which SQLite finds out by its first bytes").unwrap();
    let error = Ledger::open(&LedgerUrl::Sqlite(text)).await.unwrap_err();
    assert_eq!(error.kind(), LedgerErrorKind::Unexpected, "{error}");
}

#[tokio::test]
async fn a_ledger_that_became_read_only_is_reported_and_can_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path()).await;
    ledger.post(&entries(0..10)).await.unwrap();
    let mut transaction = ledger.begin(true).await.unwrap();
    let LedgerTransaction::Sqlite(open) = &mut transaction else { panic!("it is SQLite") };
    sqlx::raw_sql("PRAGMA query_only = ON").execute(open.connection().unwrap()).await.unwrap();
    transaction.commit().await.unwrap();
    let error = ledger.post(&entries(0..20)).await.unwrap_err();
    assert_eq!(error.kind(), LedgerErrorKind::ReadOnly, "{error}");
    assert_eq!(consumed(&ledger).await, 10);
}

#[tokio::test]
async fn a_failed_transaction_leaves_a_connection_that_works() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path()).await;
    let mut transaction = ledger.begin(true).await.unwrap();
    transaction.execute("DELETE FROM schema_version", Vec::new()).await.unwrap();
    assert!(transaction.execute("DELETE FROM nothing", Vec::new()).await.is_err());
    drop(transaction);
    assert_eq!(ledger.post(&entries(0..10)).await, Ok(Posted { inserted: 10, repeated: 0 }));
    drop(open(directory.path()).await);
}

#[cfg(unix)]
#[tokio::test]
async fn only_its_owner_can_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path()).await;
    ledger.post(&entries(0..10)).await.unwrap();
    let files = std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap());
    for file in files {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0, "{:?}", file.path());
    }
}

#[tokio::test]
async fn a_newer_file_is_refused_and_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path()).await;
    ledger.close().await;
    let mut connection = connect(directory.path()).await;
    sqlx::raw_sql("INSERT INTO schema_version VALUES (9)").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let path = directory.path().join("ledger.db");
    let before = std::fs::read(&path).unwrap();
    let error = Ledger::open(&LedgerUrl::Sqlite(path.clone())).await.unwrap_err();
    assert_eq!(error.kind(), LedgerErrorKind::Newer, "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// 100,000 accounts in one partition are read in two statements.
#[tokio::test]
async fn the_states_of_a_partition_are_found_by_an_index() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path()).await;
    let mut transaction = ledger.begin(false).await.unwrap();
    let sql = format!(
        "EXPLAIN QUERY PLAN SELECT a.id FROM accounts a{} WHERE a.partition = 1",
        transaction.join_last_balances()
    );
    let plan: Vec<String> =
        transaction.fetch(sql, Vec::new()).await.unwrap().iter().map(|row| row.text(3).unwrap()).collect();
    assert!(plan.iter().all(|step| !step.starts_with("SCAN")), "{plan:?}");
    assert!(matches!(ledger.database(), Ok(Database::Sqlite(_))));
}
