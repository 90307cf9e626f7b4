//! `Database`: a PostgreSQL or a SQLite file with the settings of production, with a ledger and a bare table in it.

use conformance::postgres::PostgresServer;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, SqliteConnection};
use tempfile::TempDir;
use tidegate::spi::OutboxEntry;
use tidegate_ledger::{Ledger, LedgerUrl};

/// Settings of a server in production, in place of those for tests.
const POSTGRES_SETTINGS: [&str; 3] = ["fsync=on", "full_page_writes=on", "shared_buffers=128MB"];

/// The columns that a plain INSERT fills: those of an entry that consumes. The others are null.
const PLAIN_COLUMNS: &str = "id, account, time, kind, period, amount, hard_limit";

pub(crate) enum Database {
    Postgres(PostgresServer),
    Sqlite(TempDir),
}

/// A connection that inserts into a bare table with the columns of the ledger's entries, without a key or an index.
pub(crate) enum PlainTable {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Database {
    pub(crate) fn postgres() -> Self {
        Self::Postgres(PostgresServer::start_on_disk(&POSTGRES_SETTINGS))
    }

    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "PostgreSQL",
            Self::Sqlite(_) => "SQLite",
        }
    }

    pub(crate) async fn ledger(&self) -> Ledger {
        let url = match self {
            Self::Postgres(server) => LedgerUrl::parse(&server.url()).unwrap(),
            Self::Sqlite(directory) => LedgerUrl::Sqlite(directory.path().join("ledger.db")),
        };
        Ledger::open(&url).await.unwrap()
    }

    /// A bare table, in a file of its own on SQLite: one file has one writer.
    pub(crate) async fn plain_table(&self) -> PlainTable {
        let columns = |bytes: &str| {
            format!(
                "CREATE TABLE plain (id {bytes} NOT NULL, account BIGINT NOT NULL, time BIGINT NOT NULL, kind SMALLINT NOT NULL, \
                 period BIGINT NOT NULL, amount BIGINT NOT NULL, hard_limit BIGINT NOT NULL, held BIGINT, owner BIGINT, \
                 expires_at BIGINT, forgiven BIGINT, author TEXT, reason TEXT)"
            )
        };
        match self {
            Self::Postgres(server) => {
                let mut connection = PgConnection::connect(&server.url()).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(columns("BYTEA"))).execute(&mut connection).await.unwrap();
                PlainTable::Postgres(connection)
            }
            Self::Sqlite(directory) => {
                let options = SqliteConnectOptions::new().filename(directory.path().join("plain.db"));
                let options = options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
                let options = options.synchronous(SqliteSynchronous::Full).disable_statement_logging();
                let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(columns("BLOB"))).execute(&mut connection).await.unwrap();
                PlainTable::Sqlite(connection)
            }
        }
    }

    /// Bytes of the table of entries, of its indexes, and of everything else. SQLite tells only the size of the file.
    pub(crate) async fn sizes(&self) -> [f64; 3] {
        match self {
            Self::Postgres(server) => {
                server.execute("VACUUM");
                let sql = "SELECT pg_table_size('entries'), pg_indexes_size('entries'), \
                           sum(pg_total_relation_size(c.oid)) - pg_total_relation_size('entries') FROM pg_class c \
                           JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind = 'r'";
                let row = server.execute(sql);
                let mut sizes = row.split('|').map(|bytes| bytes.parse().unwrap());
                std::array::from_fn(|_| sizes.next().unwrap())
            }
            Self::Sqlite(directory) => {
                let options = SqliteConnectOptions::new().filename(directory.path().join("ledger.db"));
                let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
                sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await.unwrap();
                let bytes = std::fs::metadata(directory.path().join("ledger.db")).unwrap().len();
                [f64::NAN, f64::NAN, bytes as f64]
            }
        }
    }
}

impl PlainTable {
    /// Inserts entries in one transaction, by one statement.
    pub(crate) async fn insert(&mut self, entries: &[OutboxEntry]) {
        let ids: Vec<Vec<u8>> = entries.iter().map(id_bytes).collect();
        let numbers = |number: fn(&OutboxEntry) -> i64| entries.iter().map(number).collect::<Vec<i64>>();
        let columns = [
            numbers(|entry| (entry.subject.hash() >> 65) as i64),
            numbers(|entry| entry.at.as_micros().cast_signed()),
            numbers(|entry| entry.kind.number().into()),
            numbers(|entry| entry.period.cast_signed()),
            numbers(|entry| entry.amount),
            numbers(|entry| entry.hard_limit.cast_signed()),
        ];
        match self {
            Self::Postgres(connection) => {
                let sql = format!(
                    "INSERT INTO plain ({PLAIN_COLUMNS}) SELECT * FROM \
                     UNNEST($1::bytea[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[])"
                );
                let query = sqlx::query(AssertSqlSafe(sql)).bind(ids);
                let query = columns.into_iter().fold(query, sqlx::query::Query::bind);
                query.execute(connection).await.unwrap();
            }
            Self::Sqlite(connection) => {
                let rows = vec!["(?, ?, ?, ?, ?, ?, ?)"; entries.len()].join(", ");
                let sql = format!("INSERT INTO plain ({PLAIN_COLUMNS}) VALUES {rows}");
                let mut query = sqlx::query(AssertSqlSafe(sql));
                for (row, id) in ids.into_iter().enumerate() {
                    query = query.bind(id);
                    for column in &columns {
                        query = query.bind(column[row]);
                    }
                }
                query.execute(connection).await.unwrap();
            }
        }
    }
}

/// As many bytes as the ledger has for an id.
fn id_bytes(entry: &OutboxEntry) -> Vec<u8> {
    let id = entry.id;
    let numbers = [id.generation, id.partition.into(), id.millis].map(u64::to_be_bytes).concat();
    [&numbers[..], &id.sequence.to_be_bytes()[5..]].concat()
}
