//! Databases that are full, read-only, gone or of a newer version: a typed error, and nothing is lost or changed.

use conformance::postgres::PostgresServer;
use tidegate::Secret;
use tidegate::spi::Namespace;
use tidegate_ledger::{Ledger, LedgerErrorKind, LedgerUrl, Posted};

use crate::ledger_database::{PARTITION, TestDatabase, account, consume, on_both_databases};

on_both_databases!(
    a_ledger_of_a_newer_version_is_refused_and_not_changed,
    a_ledger_of_an_older_version_is_migrated,
    a_ledger_that_was_written_with_another_secret_is_refused,
    a_ledger_belongs_to_one_namespace,
    only_one_reconciliation_runs_at_a_time,
    only_one_instance_with_a_memory_store_uses_a_ledger,
    many_instances_can_create_the_same_ledger_at_once,
    a_closed_ledger_is_unavailable,
);

async fn a_ledger_of_a_newer_version_is_refused_and_not_changed(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 3)]).await.unwrap();
    ledger.close().await;
    let read = match database {
        TestDatabase::Sqlite(directory) => {
            let path = directory.path().join("ledger.db");
            let sql = "INSERT INTO schema_version VALUES (9); ALTER TABLE balances RENAME TO sums;";
            sqlite(&path, sql);
            Box::new(move || sqlite(&path, ".dump")) as Box<dyn Fn() -> String>
        }
        TestDatabase::Postgres(server) => {
            server.execute("INSERT INTO schema_version VALUES (9); ALTER TABLE balances RENAME TO sums;");
            Box::new(|| server.execute("SELECT relname FROM pg_class ORDER BY 1"))
        }
    };
    let before = read();
    let error = Ledger::open(&database.url()).await.unwrap_err();
    assert_eq!(error.kind(), LedgerErrorKind::Newer);
    assert!(!error.is_transient() && error.to_string().contains("version 9"), "{error}");
    assert_eq!(read(), before);
}

async fn a_ledger_of_an_older_version_is_migrated(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 3)]).await.unwrap();
    ledger.close().await;
    let sql = "DROP TABLE secret_fingerprint; DELETE FROM schema_version WHERE version = 2;";
    match database {
        TestDatabase::Sqlite(directory) => drop(sqlite(&directory.path().join("ledger.db"), sql)),
        TestDatabase::Postgres(server) => drop(server.execute(sql)),
    }
    let ledger = database.ledger().await;
    ledger.verify_owner(&Secret::new("a"), &Namespace::default()).await.unwrap();
    assert_eq!(ledger.gate_states_of(&[account(1)]).await.unwrap()[0].state.used, 3);
}

async fn a_ledger_that_was_written_with_another_secret_is_refused(database: &TestDatabase) {
    let ledger = database.ledger().await;
    for secret in ["a", "b", "a"] {
        let verified = ledger.verify_owner(&Secret::new(secret), &Namespace::default()).await;
        match secret {
            "a" => verified.unwrap(),
            _ => assert_eq!(verified.unwrap_err().kind(), LedgerErrorKind::Invalid),
        }
    }
}

async fn a_ledger_belongs_to_one_namespace(database: &TestDatabase) {
    let ledger = database.ledger().await;
    for (secret, namespace, expected) in [
        ("a", "shop", ""),
        ("a", "tg", "belongs to another namespace than `tg`"),
        ("a", "shop-eu", "belongs to another namespace than `shop-eu`"),
        ("b", "shop", "written with another secret"),
        ("b", "tg", "written with another secret"),
        ("a", "shop", ""),
    ] {
        let error = ledger.verify_owner(&Secret::new(secret), &namespace.parse().unwrap()).await.err();
        assert_eq!(error.is_none(), expected.is_empty(), "{secret} {namespace}: {error:?}");
        assert!(error.is_none_or(|error| error.to_string().contains(expected)), "{secret} {namespace}");
    }
}

async fn only_one_instance_with_a_memory_store_uses_a_ledger(database: &TestDatabase) {
    let (first, second) = (database.ledger().await, database.ledger().await);
    let lock = first.memory_store_lock().await.unwrap();
    assert_eq!(second.memory_store_lock().await.unwrap_err().kind(), LedgerErrorKind::Busy);
    // It can be reconciled meanwhile.
    second.reconcile_lock().await.unwrap();
    lock.release().await;
    second.memory_store_lock().await.unwrap();
}

/// Runs the program of SQLite, which Python brings along.
fn sqlite(path: &std::path::Path, text: &str) -> String {
    let script = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1])\n\
                  print('\\n'.join(c.iterdump()) if sys.argv[2] == '.dump' else c.executescript(sys.argv[2]))";
    let output = std::process::Command::new("python3").arg("-c").arg(script).arg(path).arg(text).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn only_one_reconciliation_runs_at_a_time(database: &TestDatabase) {
    let (first, second) = (database.ledger().await, database.ledger().await);
    let lock = first.reconcile_lock().await.unwrap();
    for ledger in [&first, &second] {
        let error = ledger.reconcile_lock().await.unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (LedgerErrorKind::Busy, true));
    }
    drop(lock);
    // The server of the database notices the closed connection a moment later.
    let mut again = second.reconcile_lock().await;
    while again.as_ref().is_err_and(|error| error.kind() == LedgerErrorKind::Busy) {
        again = second.reconcile_lock().await;
    }
    again.unwrap();
}

async fn many_instances_can_create_the_same_ledger_at_once(database: &TestDatabase) {
    let url = database.url();
    let opened = futures_util::future::join_all((0..8).map(|_| Ledger::open(&url))).await;
    for (number, ledger) in (0..).zip(opened) {
        let posted = ledger.unwrap().post(&[consume(100 + number, 1)]).await;
        assert_eq!(posted, Ok(Posted { inserted: 1, repeated: 0 }));
    }
}

async fn a_closed_ledger_is_unavailable(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.ping().await.unwrap();
    assert_eq!(ledger.is_shared(), matches!(database, TestDatabase::Postgres(_)));
    ledger.close().await;
    assert_eq!(ledger.ping().await.unwrap_err().kind(), LedgerErrorKind::Unavailable);
}

#[tokio::test]
async fn a_read_only_postgresql_is_reported_and_can_be_read() {
    let server = PostgresServer::start();
    let url: LedgerUrl = server.url().parse().unwrap();
    let ledger = Ledger::open(&url).await.unwrap();
    ledger.post(&[consume(100, 3)]).await.unwrap();
    server.execute("ALTER SYSTEM SET default_transaction_read_only = on; ");
    server.execute("SELECT pg_reload_conf()");
    let ledger = loop {
        // A new ledger has new sessions; the setting arrives a moment after the reload.
        let reopened = Ledger::open(&url).await.unwrap();
        if reopened.ping().await.is_err() {
            break reopened;
        }
    };
    for error in [ledger.ping().await.unwrap_err(), ledger.post(&[consume(100, 4)]).await.unwrap_err()] {
        assert_eq!((error.kind(), error.is_transient()), (LedgerErrorKind::ReadOnly, true), "{error}");
    }
    assert_eq!(ledger.gate_states(PARTITION).await.unwrap()[0].state.used, 3);
}

#[tokio::test]
async fn a_read_only_postgresql_without_tables_is_reported() {
    let server = PostgresServer::start_with(&["default_transaction_read_only=on"]);
    let error = Ledger::open(&server.url().parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), LedgerErrorKind::ReadOnly, "{error}");
}

#[tokio::test]
async fn a_killed_postgresql_is_unavailable_and_has_everything_after_its_restart() {
    let mut server = PostgresServer::start();
    let url: LedgerUrl = server.url().parse().unwrap();
    let ledger = Ledger::open(&url).await.unwrap();
    let entries = [consume(100, 3), consume(100, 4)];
    ledger.post(&entries[..1]).await.unwrap();
    server.kill();
    let error = ledger.post(&entries).await.unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (LedgerErrorKind::Unavailable, true), "{error}");
    let error = Ledger::open(&url).await.unwrap_err();
    assert_eq!(error.kind(), LedgerErrorKind::Unavailable, "{error}");
    server.restart();
    assert_eq!(ledger.post(&entries).await, Ok(Posted { inserted: 1, repeated: 1 }));
    assert_eq!(ledger.gate_states(PARTITION).await.unwrap()[0].state.used, 7);
}

#[tokio::test]
async fn what_postgresql_refuses_is_said_without_the_password() {
    let server = PostgresServer::start();
    let url = server.url().replace("tidegate@", "tidegate:s3cret@").replace("/postgres", "/nowhere");
    let error = Ledger::open(&url.parse().unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("create the database") && !error.to_string().contains("s3cret"), "{error}");
}

#[tokio::test]
async fn every_session_of_postgresql_waits_for_commits_and_ends_slow_statements() {
    let server = PostgresServer::start_with(&["synchronous_commit=off", "statement_timeout=0", "log_statement=all"]);
    server.execute("CREATE TABLE seen (setting TEXT)");
    let ledger = Ledger::open(&server.url().parse().unwrap()).await.unwrap();
    server.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES \
         (current_setting('synchronous_commit') || ' ' || current_setting('statement_timeout')); RETURN NEW; END $$; \
         CREATE TRIGGER note AFTER INSERT ON entries FOR EACH ROW EXECUTE FUNCTION note()",
    );
    ledger.post(&[consume(100, 3)]).await.unwrap();
    assert_eq!(server.execute("SELECT setting FROM seen"), "on 10s");
}
