//! `LedgerRows`: what the database of the ledger has about an account, read by plain queries and not through the code under test.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{PgPool, SqlitePool};
use tidegate::spi::{AccountKey, EntryKind};

/// A connection of a new query is waited for this long: the database may have been started again just now.
const MAX_CONNECT_TIME: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default)]
pub(super) struct LedgerRows {
    /// The entries, oldest first.
    pub(super) entries: Vec<EntryRow>,
    /// The sum of the balances of all periods.
    pub(super) balance: i64,
    /// Reservations that have not ended and not run out: how many, and their units.
    pub(super) open_holds: (u64, u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct EntryRow {
    /// When it happened, in microseconds, by the clock of the store.
    #[expect(dead_code, reason = "the report of a broken promise shows it")]
    pub(super) time: i64,
    pub(super) kind: EntryKind,
    pub(super) amount: i64,
    /// The owner of the reservation; 0 if it is none.
    pub(super) owner: i64,
}

#[derive(Clone, Debug)]
pub(super) enum LedgerDatabase {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// Both databases number parameters alike. A key whose reservation was given back, since its caller got 503, is reserved again by a repeat.
const ENTRIES: &str = "\
SELECT CAST(entries.time AS BIGINT), CAST(entries.kind AS BIGINT), CAST(entries.amount AS BIGINT), COALESCE(entries.owner, 0) \
FROM entries JOIN accounts ON accounts.id = entries.account JOIN limits ON limits.id = accounts.limit_id \
WHERE limits.stem = $1 AND accounts.subject = $2 ORDER BY entries.time, entries.id";
const BALANCE: &str = "\
SELECT CAST(COALESCE(SUM(balances.consumed), 0) AS BIGINT) \
FROM balances JOIN accounts ON accounts.id = balances.account JOIN limits ON limits.id = accounts.limit_id \
WHERE limits.stem = $1 AND accounts.subject = $2";
const HOLDS: &str = "\
SELECT CAST(COUNT(*) AS BIGINT), CAST(COALESCE(SUM(holds.units), 0) AS BIGINT) \
FROM holds JOIN accounts ON accounts.id = holds.account JOIN limits ON limits.id = accounts.limit_id \
WHERE limits.stem = $1 AND accounts.subject = $2 AND holds.reserved_at IS NOT NULL \
AND (holds.ended_at IS NULL OR holds.ended_at < holds.reserved_at)";

/// Reads the rows of an account from a pool of either kind.
macro_rules! read_rows {
    ($pool:expr, $key:expr) => {{
        let (pool, stem, subject) = ($pool, $key.stem.as_str(), $key.subject.hash().to_be_bytes().to_vec());
        let entries: Vec<(i64, i64, i64, i64)> =
            sqlx::query_as(ENTRIES).bind(stem).bind(subject.clone()).fetch_all(pool).await?;
        let (balance,): (i64,) = sqlx::query_as(BALANCE).bind(stem).bind(subject.clone()).fetch_one(pool).await?;
        let (holds, units): (i64, i64) = sqlx::query_as(HOLDS).bind(stem).bind(subject).fetch_one(pool).await?;
        let kind = |number: i64| u8::try_from(number).ok().and_then(EntryKind::from_number).expect("a known kind");
        let entry = |(time, number, amount, owner)| EntryRow { time, kind: kind(number), amount, owner };
        let unsigned = |number: i64| u64::try_from(number).expect("a number of holds");
        Ok(LedgerRows {
            entries: entries.into_iter().map(entry).collect(),
            balance,
            open_holds: (unsigned(holds), unsigned(units)),
        })
    }};
}

impl LedgerDatabase {
    /// The PostgreSQL database at this URL. Connects when it is read.
    pub(super) fn postgres(url: &str) -> Self {
        let options = PgPoolOptions::new().max_connections(1).acquire_timeout(MAX_CONNECT_TIME);
        Self::Postgres(options.connect_lazy(url).expect("the URL of the database"))
    }

    /// The SQLite database in this file. Connects when it is read.
    pub(super) fn sqlite(file: &PathBuf) -> Self {
        let file = SqliteConnectOptions::new().filename(file).read_only(true);
        let options = SqlitePoolOptions::new().max_connections(1).acquire_timeout(MAX_CONNECT_TIME);
        Self::Sqlite(options.connect_lazy_with(file))
    }

    pub(super) async fn rows(&self, key: &AccountKey) -> Result<LedgerRows, sqlx::Error> {
        match self {
            Self::Postgres(pool) => read_rows!(pool, key),
            Self::Sqlite(pool) => read_rows!(pool, key),
        }
    }
}

impl LedgerRows {
    pub(super) fn consumed(&self) -> i64 {
        self.entries.iter().map(|entry| entry.amount).sum()
    }
}
