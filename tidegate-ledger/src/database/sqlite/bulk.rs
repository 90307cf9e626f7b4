//! The statements on many rows in SQLite, a hundred rows at once where there may be many.

use std::collections::{BTreeMap, HashSet};

use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection};
use tidegate::spi::AccountKey;

use crate::LedgerError;
use crate::database::account_balances::{Balance, BalanceRow};
use crate::database::entry_row::{EntryRow, RowId};
use crate::database::hold::{HoldEnd, HoldRow, HoldStart};
use crate::database::limit_name::LimitName;
use crate::database::transaction::AccountRow;

/// Rows of one statement: enough that the way to the thread of the connection costs little.
const ROWS_PER_STATEMENT: usize = 100;

/// Nobody else writes in the meantime, so there is nothing to lock.
pub(in crate::database) async fn find_accounts(
    connection: &mut SqliteConnection,
    keys: &[AccountKey],
    _lock: bool,
) -> Result<Vec<Option<AccountRow>>, LedgerError> {
    let mut found = vec![None; keys.len()];
    for (keys, found) in keys.chunks(ROWS_PER_STATEMENT).zip(found.chunks_mut(ROWS_PER_STATEMENT)) {
        let mut select = QueryBuilder::<Sqlite>::new("WITH k (number, stem, subject) AS (");
        select.push_values(keys.iter().zip(0_u32..), |mut values, (key, number)| {
            values.push_bind(number).push_bind(&key.stem).push_bind(subject_bytes(key));
        });
        // CROSS JOIN keeps this order, in which each step is a look-up.
        select.push(
            ") SELECT k.number, a.id, a.partition FROM k CROSS JOIN limits l ON l.stem = k.stem \
             CROSS JOIN accounts a ON a.limit_id = l.id AND a.subject = k.subject",
        );
        for row in select.build().fetch_all(&mut *connection).await? {
            let account = AccountRow { id: row.try_get(1)?, partition: row.try_get(2)? };
            if let Some(found) = found.get_mut(row.try_get::<u32, _>(0)? as usize) {
                *found = Some(account);
            }
        }
    }
    Ok(found)
}

pub(in crate::database) async fn create_accounts(
    connection: &mut SqliteConnection,
    keys: &[AccountKey],
) -> Result<(), LedgerError> {
    let limits: BTreeMap<&str, LimitName> = keys.iter().map(|key| (&*key.stem, LimitName::from_key(key))).collect();
    for (stem, limit) in limits {
        sqlx::query(
            "INSERT INTO limits (stem, rule, limit_name, period_kind) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        )
        .bind(stem)
        .bind(&limit.rule)
        .bind(&limit.limit)
        .bind(limit.period_text())
        .execute(&mut *connection)
        .await?;
    }
    for keys in keys.chunks(ROWS_PER_STATEMENT) {
        let mut insert = QueryBuilder::<Sqlite>::new("WITH k (stem, partition, subject) AS (");
        insert.push_values(keys, |mut values, key| {
            values.push_bind(&key.stem).push_bind(key.partition).push_bind(subject_bytes(key));
        });
        // `WHERE true` tells the ON of the conflict from that of a join.
        insert.push(
            ") INSERT INTO accounts (limit_id, partition, subject) SELECT l.id, k.partition, k.subject \
             FROM k CROSS JOIN limits l ON l.stem = k.stem WHERE true ON CONFLICT DO NOTHING",
        );
        insert.build().execute(&mut *connection).await?;
    }
    Ok(())
}

fn subject_bytes(key: &AccountKey) -> Vec<u8> {
    key.subject.hash().to_be_bytes().to_vec()
}

pub(in crate::database) async fn load_balances(
    connection: &mut SqliteConnection,
    from: &[(i64, i64)],
) -> Result<Vec<BalanceRow>, LedgerError> {
    let mut balances = Vec::new();
    for from in from.chunks(ROWS_PER_STATEMENT) {
        let mut select = QueryBuilder::<Sqlite>::new("WITH f (account, period) AS (");
        select.push_values(from, |mut values, (account, period)| {
            values.push_bind(*account).push_bind(*period);
        });
        // Without a period before, the greatest one is null, and so nothing before is excluded.
        select.push(
            ") SELECT b.account, b.period, b.consumed, b.carried, b.forgiven, b.hard_limit, b.rolled_before \
             FROM f CROSS JOIN balances b ON b.account = f.account AND b.period >= COALESCE(\
             (SELECT max(period) FROM balances WHERE account = f.account AND period < f.period), f.period)",
        );
        for row in &select.build().fetch_all(&mut *connection).await? {
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
    for chunk in rows.chunks(ROWS_PER_STATEMENT) {
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
    for chunk in rows.chunks(ROWS_PER_STATEMENT) {
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
    for chunk in rows.chunks(ROWS_PER_STATEMENT) {
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
    for chunk in ids.chunks(ROWS_PER_STATEMENT) {
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
