//! `LedgerTransaction`: one transaction on either database. A transaction that is neither committed nor rolled back, because its caller
//! failed or gave up waiting, closes its connection, so no connection with an unknown state is used again.

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Postgres, Row, Sqlite};
use std::collections::HashSet;
use tidegate::spi::AccountKey;

use super::account_balances::BalanceRow;
use super::entry_row::{EntryRow, RowId};
use super::hold::HoldRow;
use super::{postgres, sqlite};
use crate::LedgerError;

/// A transaction on either database.
pub(crate) enum LedgerTransaction {
    Postgres(OpenTransaction<Postgres>),
    Sqlite(OpenTransaction<Sqlite>),
}

/// A connection on which a transaction has begun.
pub(crate) struct OpenTransaction<D: sqlx::Database>(Option<PoolConnection<D>>);

/// An account as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountRow {
    pub(crate) id: i64,
    pub(crate) partition: i64,
}

/// A value of a statement, by its place `$1`, `$2`, ….
#[derive(Clone, Debug)]
pub(crate) enum Argument {
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
    /// For [`LedgerTransaction::is_one_of`] only.
    Ints(Vec<i64>),
}

/// A row of a result.
pub(crate) enum LedgerRow {
    Postgres(PgRow),
    Sqlite(SqliteRow),
}

/// Runs the same call on the functions of both databases, which have the same names.
macro_rules! on_each {
    ($transaction:expr, $name:ident($($argument:expr),*)) => {
        match $transaction {
            Self::Postgres(transaction) => postgres::$name(transaction.connection()?, $($argument),*).await,
            Self::Sqlite(transaction) => sqlite::$name(transaction.connection()?, $($argument),*).await,
        }
    };
}

macro_rules! with_arguments {
    ($sql:expr, $arguments:expr, $ints:expr) => {{
        let mut query = sqlx::query(AssertSqlSafe($sql));
        for argument in $arguments {
            query = match argument {
                Argument::Int(value) => query.bind(value),
                Argument::Text(value) => query.bind(value),
                Argument::Bytes(value) => query.bind(value),
                Argument::Ints(values) => query.bind($ints(values)),
            };
        }
        query
    }};
}

/// The statements that are the same on both databases.
impl LedgerTransaction {
    pub(crate) async fn fetch(
        &mut self,
        sql: impl Into<String>,
        arguments: Vec<Argument>,
    ) -> Result<Vec<LedgerRow>, LedgerError> {
        let sql = sql.into();
        Ok(match self {
            Self::Postgres(transaction) => {
                let query = with_arguments!(sql, arguments, std::convert::identity);
                let rows = query.fetch_all(transaction.connection()?).await?;
                rows.into_iter().map(LedgerRow::Postgres).collect()
            }
            Self::Sqlite(transaction) => {
                let query = with_arguments!(sql, arguments, sqlite::json_list);
                let rows = query.fetch_all(transaction.connection()?).await?;
                rows.into_iter().map(LedgerRow::Sqlite).collect()
            }
        })
    }

    pub(crate) async fn execute(
        &mut self,
        sql: impl Into<String>,
        arguments: Vec<Argument>,
    ) -> Result<u64, LedgerError> {
        let sql = sql.into();
        Ok(match self {
            Self::Postgres(transaction) => {
                let query = with_arguments!(sql, arguments, std::convert::identity);
                query.execute(transaction.connection()?).await?.rows_affected()
            }
            Self::Sqlite(transaction) => {
                let query = with_arguments!(sql, arguments, sqlite::json_list);
                query.execute(transaction.connection()?).await?.rows_affected()
            }
        })
    }

    /// The condition that `column` is one of the numbers of the argument at `place`.
    pub(crate) fn is_one_of(&self, column: &str, place: usize) -> String {
        match self {
            Self::Postgres(_) => format!("{column} = ANY(${place})"),
            Self::Sqlite(_) => format!("{column} IN (SELECT value FROM json_each(${place}))"),
        }
    }

    /// The last two balances of each account `a` as `b`, joined to what comes before.
    pub(crate) const fn join_last_balances(&self) -> &'static str {
        match self {
            Self::Postgres(_) => {
                " CROSS JOIN LATERAL (SELECT * FROM balances WHERE account = a.id ORDER BY period DESC LIMIT 2) b"
            }
            Self::Sqlite(_) => {
                " JOIN balances b ON b.account = a.id AND b.period IN \
                 (SELECT period FROM balances WHERE account = a.id ORDER BY period DESC LIMIT 2)"
            }
        }
    }

    pub(crate) async fn commit(self) -> Result<(), LedgerError> {
        self.end("COMMIT").await
    }

    pub(crate) async fn rollback(self) -> Result<(), LedgerError> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, statement: &'static str) -> Result<(), LedgerError> {
        match &mut self {
            Self::Postgres(transaction) => {
                sqlx::raw_sql(statement).execute(transaction.connection()?).await?;
                drop(transaction.0.take());
            }
            Self::Sqlite(transaction) => {
                sqlx::raw_sql(statement).execute(transaction.connection()?).await?;
                drop(transaction.0.take());
            }
        }
        Ok(())
    }
}

/// The statements on many rows.
impl LedgerTransaction {
    /// The accounts with these keys, in their order. In a transaction that writes they stay locked until its end. The keys are sorted and
    /// without duplicates.
    pub(crate) async fn find_accounts(
        &mut self,
        keys: &[AccountKey],
        lock: bool,
    ) -> Result<Vec<Option<AccountRow>>, LedgerError> {
        on_each!(self, find_accounts(keys, lock))
    }

    pub(crate) async fn create_accounts(&mut self, keys: &[AccountKey]) -> Result<(), LedgerError> {
        on_each!(self, create_accounts(keys))
    }

    /// Locks accounts by their ids until the transaction ends.
    pub(crate) async fn lock_ids(&mut self, mut ids: Vec<i64>) -> Result<(), LedgerError> {
        ids.sort_unstable();
        ids.dedup();
        if matches!(self, Self::Postgres(_)) {
            let sql = "SELECT id FROM accounts WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE";
            self.fetch(sql, vec![Argument::Ints(ids)]).await?;
        }
        Ok(())
    }

    /// For each account and period: the balances from that period on, and the last one before it.
    pub(crate) async fn load_balances(&mut self, from: &[(i64, i64)]) -> Result<Vec<BalanceRow>, LedgerError> {
        on_each!(self, load_balances(from))
    }

    /// Appends entries, and returns the ids of those that were not there yet.
    pub(crate) async fn insert_entries(&mut self, rows: &[EntryRow]) -> Result<HashSet<RowId>, LedgerError> {
        on_each!(self, insert_entries(rows))
    }

    pub(crate) async fn write_balances(&mut self, rows: &[BalanceRow]) -> Result<(), LedgerError> {
        on_each!(self, write_balances(rows))
    }

    /// The holds with these accounts and owners, as far as they exist.
    pub(crate) async fn load_holds(&mut self, keys: &[(i64, i64)]) -> Result<Vec<HoldRow>, LedgerError> {
        on_each!(self, load_holds(keys))
    }

    pub(crate) async fn write_holds(&mut self, rows: &[HoldRow]) -> Result<(), LedgerError> {
        on_each!(self, write_holds(rows))
    }

    pub(crate) async fn delete_holds(&mut self, keys: &[(i64, i64)]) -> Result<(), LedgerError> {
        on_each!(self, delete_holds(keys))
    }

    pub(crate) async fn delete_entries(&mut self, ids: &[Vec<u8>]) -> Result<u64, LedgerError> {
        on_each!(self, delete_entries(ids))
    }

    /// Notes that single entries of these accounts and periods are gone up to a time.
    pub(crate) async fn mark_rolled_up(&mut self, periods: &[(i64, i64, i64)]) -> Result<(), LedgerError> {
        on_each!(self, mark_rolled_up(periods))
    }
}

// === impl OpenTransaction ===

impl<D: sqlx::Database> OpenTransaction<D> {
    pub(super) const fn new(connection: PoolConnection<D>) -> Self {
        Self(Some(connection))
    }

    pub(super) fn connection(&mut self) -> Result<&mut D::Connection, LedgerError> {
        self.0.as_deref_mut().ok_or_else(|| sqlx::Error::PoolClosed.into())
    }
}

impl<D: sqlx::Database> Drop for OpenTransaction<D> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

// === impl LedgerRow ===

macro_rules! column {
    ($name:ident, $type:ty) => {
        pub(crate) fn $name(&self, column: usize) -> Result<$type, LedgerError> {
            Ok(match self {
                Self::Postgres(row) => row.try_get(column)?,
                Self::Sqlite(row) => row.try_get(column)?,
            })
        }
    };
}

impl LedgerRow {
    column!(int, i64);
    column!(maybe_int, Option<i64>);
    column!(text, String);
    column!(maybe_text, Option<String>);
    column!(bytes, Vec<u8>);
}
