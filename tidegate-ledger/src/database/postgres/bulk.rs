//! The statements on many rows in PostgreSQL. Each is one round trip: columns pass as arrays.

use std::collections::{BTreeMap, HashMap, HashSet};

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use tidegate::spi::AccountKey;

use crate::LedgerError;
use crate::database::account_balances::{Balance, BalanceRow};
use crate::database::entry_row::{EntryRow, RowId};
use crate::database::hold::{HoldEnd, HoldRow, HoldStart};
use crate::database::limit_name::LimitName;
use crate::database::transaction::AccountRow;

/// The accounts with the stems `$1` and the subjects `$2`. As everywhere in this file, arrays are joined by `LATERAL` lookups: a plan that
/// was made for small tables, or without statistics, would otherwise compare every row of the table.
macro_rules! find_accounts_sql {
    () => {
        "SELECT a.id, a.partition, (SELECT stem FROM limits WHERE id = a.limit_id), a.subject FROM accounts a \
         WHERE a.id = ANY(ARRAY(SELECT f.id FROM UNNEST($1::text[], $2::bytea[]) AS k (stem, subject) CROSS JOIN LATERAL \
         (SELECT id FROM accounts WHERE limit_id = (SELECT id FROM limits WHERE stem = k.stem) AND subject = k.subject \
         LIMIT 1) f))"
    };
}

fn columns<A, B>(pairs: &[(A, B)]) -> (Vec<A>, Vec<B>)
where
    A: Copy,
    B: Copy,
{
    pairs.iter().copied().unzip()
}

pub(in crate::database) async fn find_accounts(
    connection: &mut PgConnection,
    keys: &[AccountKey],
    lock: bool,
) -> Result<Vec<Option<AccountRow>>, LedgerError> {
    // Locked in the order of their ids: two transactions with the same accounts do not block each other for ever.
    let (sql, locked_sql) = (
        concat!(find_accounts_sql!(), " ORDER BY a.id"),
        concat!(find_accounts_sql!(), " ORDER BY a.id FOR NO KEY UPDATE"),
    );
    let stems: Vec<&str> = keys.iter().map(|key| key.stem.as_str()).collect();
    let subjects: Vec<Vec<u8>> = keys.iter().map(|key| key.subject.hash().to_be_bytes().to_vec()).collect();
    let query = sqlx::query(if lock { locked_sql } else { sql }).bind(stems).bind(&subjects);
    let rows = query.fetch_all(connection).await?;
    let mut found: HashMap<(&str, &[u8]), AccountRow> = HashMap::with_capacity(rows.len());
    for row in &rows {
        let account = AccountRow { id: row.try_get(0)?, partition: row.try_get::<i16, _>(1)?.into() };
        found.insert((row.try_get(2)?, row.try_get(3)?), account);
    }
    let find = |(key, subject): (&AccountKey, &Vec<u8>)| found.get(&(key.stem.as_str(), subject.as_slice())).copied();
    Ok(keys.iter().zip(&subjects).map(find).collect())
}

pub(in crate::database) async fn create_accounts(
    connection: &mut PgConnection,
    keys: &[AccountKey],
) -> Result<(), LedgerError> {
    let limits: BTreeMap<&str, LimitName> =
        keys.iter().map(|key| (key.stem.as_str(), LimitName::from_key(key))).collect();
    let column = |part: fn(&LimitName) -> &str| limits.values().map(part).collect::<Vec<&str>>();
    sqlx::query(
        "INSERT INTO limits (stem, rule, limit_name, period_kind) \
         SELECT * FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[]) ON CONFLICT DO NOTHING",
    )
    .bind(limits.keys().copied().collect::<Vec<&str>>())
    .bind(column(|limit| &limit.rule))
    .bind(column(|limit| &limit.limit))
    .bind(column(LimitName::period_text))
    .execute(&mut *connection)
    .await?;
    let subjects: Vec<Vec<u8>> = keys.iter().map(|key| key.subject.hash().to_be_bytes().to_vec()).collect();
    sqlx::query(
        "INSERT INTO accounts (limit_id, partition, subject) \
         SELECT l.id, k.partition, k.subject FROM UNNEST($1::text[], $2::int2[], $3::bytea[]) AS k (stem, partition, subject) \
         JOIN limits l ON l.stem = k.stem ORDER BY l.id, k.subject ON CONFLICT DO NOTHING",
    )
    .bind(keys.iter().map(|key| key.stem.as_str()).collect::<Vec<&str>>())
    .bind(keys.iter().map(|key| key.partition.cast_signed()).collect::<Vec<i16>>())
    .bind(subjects)
    .execute(connection)
    .await?;
    Ok(())
}

pub(in crate::database) async fn load_balances(
    connection: &mut PgConnection,
    from: &[(i64, i64)],
) -> Result<Vec<BalanceRow>, LedgerError> {
    let (accounts, periods) = columns(from);
    let rows = sqlx::query(
        "SELECT b.account, b.period, b.consumed, b.carried, b.forgiven, b.hard_limit, b.rolled_before \
         FROM UNNEST($1::int8[], $2::int8[]) AS f (account, period) CROSS JOIN LATERAL (\
         (SELECT * FROM balances WHERE account = f.account AND period < f.period ORDER BY period DESC LIMIT 1) \
         UNION ALL (SELECT * FROM balances WHERE account = f.account AND period >= f.period)) b",
    )
    .bind(accounts)
    .bind(periods)
    .fetch_all(connection)
    .await?;
    rows.iter().map(balance_row).collect()
}

fn balance_row(row: &PgRow) -> Result<BalanceRow, LedgerError> {
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
    connection: &mut PgConnection,
    rows: &[EntryRow],
) -> Result<HashSet<RowId>, LedgerError> {
    let ints = |part: fn(&EntryRow) -> i64| rows.iter().map(part).collect::<Vec<i64>>();
    let maybe_ints = |part: fn(&EntryRow) -> Option<i64>| rows.iter().map(part).collect::<Vec<Option<i64>>>();
    let inserted = sqlx::query(
        "INSERT INTO entries (id, account, time, kind, period, amount, hard_limit, held, owner, expires_at, forgiven, \
         author, reason) SELECT * FROM UNNEST($1::bytea[], $2::int8[], $3::int8[], $4::int2[], $5::int8[], $6::int8[], \
         $7::int8[], $8::int8[], $9::int8[], $10::int8[], $11::int8[], $12::text[], $13::text[]) \
         ON CONFLICT DO NOTHING RETURNING id",
    )
    .bind(rows.iter().map(|row| row.id.as_slice()).collect::<Vec<&[u8]>>())
    .bind(ints(|row| row.account))
    .bind(ints(|row| row.time))
    .bind(rows.iter().map(|row| row.kind.number().into()).collect::<Vec<i16>>())
    .bind(ints(|row| row.period))
    .bind(ints(|row| row.amount))
    .bind(ints(|row| row.hard_limit))
    .bind(maybe_ints(|row| row.held))
    .bind(maybe_ints(|row| row.owner))
    .bind(maybe_ints(|row| row.expires_at))
    .bind(maybe_ints(|row| row.forgiven))
    .bind(rows.iter().map(|row| row.author.as_deref()).collect::<Vec<Option<&str>>>())
    .bind(rows.iter().map(|row| row.reason.as_deref()).collect::<Vec<Option<&str>>>())
    .fetch_all(connection)
    .await?;
    let ids = inserted.iter().map(|row| Ok(row.try_get::<&[u8], _>(0)?.try_into().unwrap_or([0; 31])));
    ids.collect()
}

pub(in crate::database) async fn write_balances(
    connection: &mut PgConnection,
    rows: &[BalanceRow],
) -> Result<(), LedgerError> {
    let ints = |part: fn(&BalanceRow) -> i64| rows.iter().map(part).collect::<Vec<i64>>();
    sqlx::query(
        "INSERT INTO balances (account, period, consumed, carried, forgiven, hard_limit, rolled_before) \
         SELECT * FROM UNNEST($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[]) \
         ON CONFLICT (account, period) DO UPDATE SET consumed = EXCLUDED.consumed, carried = EXCLUDED.carried, \
         forgiven = EXCLUDED.forgiven, hard_limit = EXCLUDED.hard_limit",
    )
    .bind(ints(|row| row.account))
    .bind(ints(|row| row.period))
    .bind(ints(|row| row.balance.consumed))
    .bind(ints(|row| row.balance.carried))
    .bind(ints(|row| row.balance.forgiven))
    .bind(ints(|row| row.balance.hard_limit))
    .bind(ints(|row| row.balance.rolled_before))
    .execute(connection)
    .await?;
    Ok(())
}

pub(in crate::database) async fn load_holds(
    connection: &mut PgConnection,
    keys: &[(i64, i64)],
) -> Result<Vec<HoldRow>, LedgerError> {
    let (accounts, owners) = columns(keys);
    let rows = sqlx::query(
        "SELECT h.account, h.owner, h.reserved_at, h.expires_at, h.units, h.period, h.ended_at, h.ended_kind, h.cost \
         FROM UNNEST($1::int8[], $2::int8[]) AS k (account, owner) CROSS JOIN LATERAL \
         (SELECT * FROM holds WHERE account = k.account AND owner = k.owner LIMIT 1) h",
    )
    .bind(accounts)
    .bind(owners)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let start = |at| {
                Ok::<_, LedgerError>(HoldStart {
                    at,
                    expires_at: row.try_get(3)?,
                    units: row.try_get(4)?,
                    period: row.try_get(5)?,
                })
            };
            let end = |at| Ok::<_, LedgerError>(HoldEnd { at, kind: row.try_get(7)?, cost: row.try_get(8)? });
            Ok(HoldRow {
                account: row.try_get(0)?,
                owner: row.try_get(1)?,
                start: row.try_get::<Option<i64>, _>(2)?.map(start).transpose()?,
                end: row.try_get::<Option<i64>, _>(6)?.map(end).transpose()?,
            })
        })
        .collect()
}

pub(in crate::database) async fn write_holds(
    connection: &mut PgConnection,
    rows: &[HoldRow],
) -> Result<(), LedgerError> {
    let ints = |part: fn(&HoldRow) -> Option<i64>| rows.iter().map(part).collect::<Vec<Option<i64>>>();
    sqlx::query(
        "INSERT INTO holds (account, owner, reserved_at, expires_at, units, period, ended_at, ended_kind, cost) \
         SELECT * FROM UNNEST($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], \
         $8::int8[], $9::int8[]) ON CONFLICT (account, owner) DO UPDATE SET reserved_at = EXCLUDED.reserved_at, \
         expires_at = EXCLUDED.expires_at, units = EXCLUDED.units, period = EXCLUDED.period, \
         ended_at = EXCLUDED.ended_at, ended_kind = EXCLUDED.ended_kind, cost = EXCLUDED.cost",
    )
    .bind(ints(|row| Some(row.account)))
    .bind(ints(|row| Some(row.owner)))
    .bind(ints(|row| row.start.map(|start| start.at)))
    .bind(ints(|row| row.start.map(|start| start.expires_at)))
    .bind(ints(|row| row.start.map(|start| start.units)))
    .bind(ints(|row| row.start.map(|start| start.period)))
    .bind(ints(|row| row.end.map(|end| end.at)))
    .bind(ints(|row| row.end.map(|end| end.kind)))
    .bind(ints(|row| row.end.map(|end| end.cost)))
    .execute(connection)
    .await?;
    Ok(())
}

pub(in crate::database) async fn delete_holds(
    connection: &mut PgConnection,
    keys: &[(i64, i64)],
) -> Result<(), LedgerError> {
    let (accounts, owners) = columns(keys);
    sqlx::query(
        // They are locked, so they stay where they are.
        "DELETE FROM holds WHERE ctid = ANY(ARRAY(SELECT h.ctid FROM UNNEST($1::int8[], $2::int8[]) AS k (account, owner) \
         CROSS JOIN LATERAL (SELECT ctid FROM holds WHERE account = k.account AND owner = k.owner LIMIT 1) h))",
    )
    .bind(accounts)
    .bind(owners)
    .execute(connection)
    .await?;
    Ok(())
}

pub(in crate::database) async fn delete_entries(
    connection: &mut PgConnection,
    ids: &[Vec<u8>],
) -> Result<u64, LedgerError> {
    Ok(sqlx::query("DELETE FROM entries WHERE id = ANY($1)").bind(ids).execute(connection).await?.rows_affected())
}

pub(in crate::database) async fn mark_rolled_up(
    connection: &mut PgConnection,
    periods: &[(i64, i64, i64)],
) -> Result<(), LedgerError> {
    let column = |part: fn(&(i64, i64, i64)) -> i64| periods.iter().map(part).collect::<Vec<i64>>();
    sqlx::query(
        "UPDATE balances b SET rolled_before = greatest(b.rolled_before, m.before) \
         FROM UNNEST($1::int8[], $2::int8[], $3::int8[]) AS m (account, period, before) \
         WHERE b.account = m.account AND b.period = m.period",
    )
    .bind(column(|one| one.0))
    .bind(column(|one| one.1))
    .bind(column(|one| one.2))
    .execute(connection)
    .await?;
    Ok(())
}
