//! The ledger in SQLite and in PostgreSQL: the same promises hold in both.

mod administration;
mod bad_input;
mod model;
mod posting;
mod reading;
mod reservations;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use conformance::postgres::PostgresServer;
use tidegate::Timestamp;
use tidegate::spi::{AccountKey, EntryId, EntryKind, OutboxEntry, Subject};
use tidegate_ledger::{Ledger, LedgerUrl};

/// A database of one test.
enum TestDatabase {
    Sqlite(tempfile::TempDir),
    Postgres(PostgresServer),
}

impl TestDatabase {
    fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    fn postgres() -> Self {
        Self::Postgres(PostgresServer::start())
    }

    fn url(&self) -> LedgerUrl {
        match self {
            Self::Sqlite(directory) => LedgerUrl::Sqlite(PathBuf::from(directory.path()).join("ledger.db")),
            Self::Postgres(server) => server.url().parse().unwrap(),
        }
    }

    async fn ledger(&self) -> Ledger {
        Ledger::open(&self.url()).await.unwrap()
    }
}

/// Runs each of these tests on both databases.
macro_rules! on_both_databases {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&crate::ledger_database::TestDatabase::sqlite()).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&crate::ledger_database::TestDatabase::postgres()).await;
            })*
        }
    };
}
pub(crate) use on_both_databases;

/// A monthly quota of a rule.
const STEM: &str = "exports:u1mo";

const PARTITION: u16 = 31;

fn account(number: u128) -> AccountKey {
    AccountKey { partition: PARTITION, stem: STEM.into(), subject: Subject::from_hash(number) }
}

/// An entry of account 1 with a new id, that consumes nothing yet.
fn entry(kind: EntryKind, at: u64) -> OutboxEntry {
    static NEXT_SEQUENCE: AtomicU64 = AtomicU64::new(1);
    let sequence = NEXT_SEQUENCE.fetch_add(1, Ordering::Relaxed);
    OutboxEntry {
        id: EntryId { generation: 77, partition: PARTITION, millis: at / 1_000, sequence },
        kind,
        at: Timestamp::from_micros(at),
        stem: STEM.into(),
        subject: Subject::from_hash(1),
        period: 100,
        amount: 0,
        late_amount: 0,
        held: 0,
        owner: 0,
        expires_at: Timestamp::default(),
        hard_limit: 10,
    }
}

fn consume(period: u64, amount: i64) -> OutboxEntry {
    OutboxEntry { period, amount, ..entry(EntryKind::Consume, period * 1_000_000) }
}
