//! The statements on many rows in SQLite: prepared ones in a loop, and inserts of many rows at once.

use std::collections::HashSet;

use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection};
use tidegate::spi::AccountKey;

use crate::LedgerError;
use crate::database::chain::{Balance, BalanceRow};
use crate::database::entry_row::{EntryRow, RowId};
use crate::database::hold::{HoldEnd, HoldRow, HoldStart};
use crate::database::limit_name::LimitName;
use crate::database::transaction::Account;

/// Rows of one statement: enough that the way to the thread of the connection costs little.
const ROWS_PER_INSERT: usize = 100;

/// Nobody else writes in the meantime, so there is nothing to lock.
pub(in crate::database) async fn find_accounts(
    connection: &mut SqliteConnection,
    keys: &[AccountKey],
    _lock: bool,
) -> Result<Vec<Option<Account>>, LedgerError> {
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let row = sqlx::query(
            "SELECT a.id, a.partition FROM limits l JOIN accounts a ON a.limit_id = l.id \
             WHERE l.stem = $1 AND a.subject = $2",
        )
        .bind(&key.stem)
        .bind(&key.subject.hash().to_be_bytes()[..])
        .fetch_optional(&mut *connection)
        .await?;
        let account = row.map(|row| Ok::<_, LedgerError>(Account { id: row.try_get(0)?, partition: row.try_get(1)? }));
        found.push(account.transpose()?);
    }
    Ok(found)
}

pub(in crate::database) async fn create_accounts(
    connection: &mut SqliteConnection,
    keys: &[AccountKey],
) -> Result<(), LedgerError> {
    for key in keys {
        let limit = LimitName::from_key(key);
        sqlx::query(
            "INSERT INTO limits (stem, rule, limit_name, period_kind) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        )
        .bind(&key.stem)
        .bind(&limit.rule)
        .bind(&limit.limit)
        .bind(limit.period_text())
        .execute(&mut *connection)
        .await?;
        sqlx::query(
            "INSERT INTO accounts (limit_id, partition, subject) SELECT id, $2, $3 FROM limits WHERE stem = $1 \
             ON CONFLICT DO NOTHING",
        )
        .bind(&key.stem)
        .bind(key.partition)
        .bind(&key.subject.hash().to_be_bytes()[..])
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

pub(in crate::database) async fn load_balances(
    connection: &mut SqliteConnection,
    from: &[(i64, i64)],
) -> Result<Vec<BalanceRow>, LedgerError> {
    let mut balances = Vec::new();
    for (account, period) in from {
        // Without a period before, the greatest one is null, and so nothing before is excluded.
        let rows = sqlx::query(
            "SELECT account, period, consumed, carried, forgiven, hard_limit, rolled_before FROM balances \
             WHERE account = $1 AND period >= COALESCE(\
             (SELECT max(period) FROM balances WHERE account = $1 AND period < $2), $2)",
        )
        .bind(account)
        .bind(period)
        .fetch_all(&mut *connection)
        .await?;
        for row in &rows {
            balances.push(balance_row(row)?);
        }
    }
    Ok(balances)
}

fn balance_row(row: &SqliteRow) -> Result<BalanceRow, LedgerError> {
    let balance = Balance {
        consumed: row.try_get(2)?,
        carried: row.try_get(3)?,
        forgiven: row.try_get(4)?,
        hard_limit: row.try_get(5)?,
        rolled_before: row.try_get(6)?,
    };
    Ok(BalanceRow { account: row.try_get(0)?, period: row.try_get(1)?, balance })
}

pub(in crate::database) async fn insert_entries(
    connection: &mut SqliteConnection,
    rows: &[EntryRow],
) -> Result<HashSet<RowId>, LedgerError> {
    let mut ids = HashSet::with_capacity(rows.len());
    for chunk in rows.chunks(ROWS_PER_INSERT) {
        let mut insert = QueryBuilder::<Sqlite>::new(
            "INSERT INTO entries (id, account, time, kind, period, amount, hard_limit, held, owner, expires_at, \
             forgiven, author, reason) ",
        );
        insert.push_values(chunk, |mut values, row| {
            values.push_bind(row.id.to_vec()).push_bind(row.account).push_bind(row.time);
            values.push_bind(row.kind.number()).push_bind(row.period).push_bind(row.amount).push_bind(row.hard_limit);
            values.push_bind(row.held).push_bind(row.owner).push_bind(row.expires_at).push_bind(row.forgiven);
            values.push_bind(row.author.clone()).push_bind(row.reason.clone());
        });
        insert.push(" ON CONFLICT DO NOTHING RETURNING id");
        for row in insert.build().fetch_all(&mut *connection).await? {
            ids.insert(row.try_get::<&[u8], _>(0)?.try_into().unwrap_or([0; 31]));
        }
    }
    Ok(ids)
}

pub(in crate::database) async fn write_balances(
    connection: &mut SqliteConnection,
    rows: &[BalanceRow],
) -> Result<(), LedgerError> {
    for chunk in rows.chunks(ROWS_PER_INSERT) {
        let mut insert = QueryBuilder::<Sqlite>::new(
            "INSERT INTO balances (account, period, consumed, carried, forgiven, hard_limit, rolled_before) ",
        );
        insert.push_values(chunk, |mut values, BalanceRow { account, period, balance }| {
            values.push_bind(*account).push_bind(*period).push_bind(balance.consumed).push_bind(balance.carried);
            values.push_bind(balance.forgiven).push_bind(balance.hard_limit).push_bind(balance.rolled_before);
        });
        insert.push(
            " ON CONFLICT (account, period) DO UPDATE SET consumed = excluded.consumed, carried = excluded.carried, \
             forgiven = excluded.forgiven, hard_limit = excluded.hard_limit",
        );
        insert.build().execute(&mut *connection).await?;
    }
    Ok(())
}

pub(in crate::database) async fn load_holds(
    connection: &mut SqliteConnection,
    keys: &[(i64, i64)],
) -> Result<Vec<HoldRow>, LedgerError> {
    let mut holds = Vec::new();
    for &(account, owner) in keys {
        let row = sqlx::query(
            "SELECT reserved_at, expires_at, units, period, ended_at, ended_kind, cost FROM holds \
             WHERE account = $1 AND owner = $2",
        )
        .bind(account)
        .bind(owner)
        .fetch_optional(&mut *connection)
        .await?;
        let Some(row) = row else { continue };
        let start = |at| {
            let (expires_at, units, period) = (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
            Ok::<_, LedgerError>(HoldStart { at, expires_at, units, period })
        };
        let end = |at| Ok::<_, LedgerError>(HoldEnd { at, kind: row.try_get(5)?, cost: row.try_get(6)? });
        holds.push(HoldRow {
            account,
            owner,
            start: row.try_get::<Option<i64>, _>(0)?.map(start).transpose()?,
            end: row.try_get::<Option<i64>, _>(4)?.map(end).transpose()?,
        });
    }
    Ok(holds)
}

pub(in crate::database) async fn write_holds(
    connection: &mut SqliteConnection,
    rows: &[HoldRow],
) -> Result<(), LedgerError> {
    for chunk in rows.chunks(ROWS_PER_INSERT) {
        let mut insert = QueryBuilder::<Sqlite>::new(
            "INSERT OR REPLACE INTO holds (account, owner, reserved_at, expires_at, units, period, ended_at, ended_kind, \
             cost) ",
        );
        insert.push_values(chunk, |mut values, row| {
            values.push_bind(row.account).push_bind(row.owner);
            values.push_bind(row.start.map(|start| start.at)).push_bind(row.start.map(|start| start.expires_at));
            values.push_bind(row.start.map(|start| start.units)).push_bind(row.start.map(|start| start.period));
            values.push_bind(row.end.map(|end| end.at)).push_bind(row.end.map(|end| end.kind));
            values.push_bind(row.end.map(|end| end.cost));
        });
        insert.build().execute(&mut *connection).await?;
    }
    Ok(())
}

pub(in crate::database) async fn delete_holds(
    connection: &mut SqliteConnection,
    keys: &[(i64, i64)],
) -> Result<(), LedgerError> {
    for (account, owner) in keys {
        let delete = sqlx::query("DELETE FROM holds WHERE account = $1 AND owner = $2").bind(account).bind(owner);
        delete.execute(&mut *connection).await?;
    }
    Ok(())
}

pub(in crate::database) async fn delete_entries(
    connection: &mut SqliteConnection,
    ids: &[Vec<u8>],
) -> Result<u64, LedgerError> {
    let mut deleted = 0;
    for chunk in ids.chunks(ROWS_PER_INSERT) {
        let mut delete = QueryBuilder::<Sqlite>::new("DELETE FROM entries WHERE id IN (");
        let mut list = delete.separated(", ");
        for id in chunk {
            list.push_bind(id.clone());
        }
        delete.push(")");
        deleted += delete.build().execute(&mut *connection).await?.rows_affected();
    }
    Ok(deleted)
}

pub(in crate::database) async fn mark_rolled_up(
    connection: &mut SqliteConnection,
    periods: &[(i64, i64, i64)],
) -> Result<(), LedgerError> {
    for (account, period, before) in periods {
        let sql = "UPDATE balances SET rolled_before = max(rolled_before, $3) WHERE account = $1 AND period = $2";
        sqlx::query(sql).bind(account).bind(period).bind(before).execute(&mut *connection).await?;
    }
    Ok(())
}
