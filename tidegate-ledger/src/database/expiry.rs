//! `Ledger::expire_reservations`: ends reservations that ran out, and forgets ends that need not be remembered any more.

use tidegate::Timestamp;
use tidegate::spi::{EntryId, EntryKind, MAX_GENERATION};

use super::Ledger;
use super::entry_row::{EntryRow, row_id, signed};
use super::hold::HoldRow;
use super::transaction::{Argument, LedgerTransaction};
use crate::LedgerError;

/// An end whose beginning never came is forgotten after so long. No reservation lasts for longer.
const LONE_END_RETENTION_MICROS: i64 = 7 * 86_400_000_000;

/// Ends that are forgotten in one transaction.
const CHUNK_ENDS: u32 = 1_000;

impl Ledger {
    /// Posts `expire` entries for at most `max` reservations that ran out before `now`, and forgets ends that need not be remembered any
    /// more. Returns how many ran out.
    pub async fn expire_reservations(&self, now: Timestamp, max: u32) -> Result<u64, LedgerError> {
        let now = signed(now.as_micros());
        while self.repeat(|| self.forget_ends(now)).await? == u64::from(CHUNK_ENDS) {}
        self.repeat(|| self.expire_once(now, max)).await
    }

    async fn expire_once(&self, now: i64, max: u32) -> Result<u64, LedgerError> {
        let mut transaction = self.begin(true).await?;
        let sql = "SELECT account, owner FROM holds WHERE expires_at <= $1 AND (ended_at IS NULL OR ended_at < reserved_at) \
                   ORDER BY expires_at, account, owner LIMIT $2";
        let due = keys(&mut transaction, sql, vec![Argument::Int(now), Argument::Int(max.into())]).await?;
        if due.is_empty() {
            transaction.commit().await?;
            return Ok(0);
        }
        transaction.lock_ids(due.iter().map(|(account, _)| *account).collect()).await?;
        // Others may have ended or renewed them before they were locked.
        let mut holds = transaction.load_holds(&due).await?;
        holds.retain(|hold| hold.open().is_some_and(|start| start.expires_at <= now));
        let rows: Vec<EntryRow> = holds.iter().filter_map(expire_row).collect();
        if !rows.is_empty() {
            transaction.insert_entries(&rows).await?;
            let gone: Vec<(i64, i64)> = holds.iter().map(|hold| (hold.account, hold.owner)).collect();
            transaction.delete_holds(&gone).await?;
        }
        transaction.commit().await?;
        Ok(rows.len() as u64)
    }

    /// Deletes what is known of reservations that have ended and would have run out by now. It waits for nobody: whoever changes one of
    /// them at this moment finds it, or makes it anew.
    async fn forget_ends(&self, now: i64) -> Result<u64, LedgerError> {
        let mut transaction = self.begin(true).await?;
        let mut sql = "SELECT account, owner FROM holds WHERE (expires_at <= $1 AND ended_at >= reserved_at) \
                       OR (expires_at IS NULL AND ended_at < $2) LIMIT $3"
            .to_owned();
        if matches!(transaction, LedgerTransaction::Postgres(_)) {
            sql.push_str(" FOR UPDATE SKIP LOCKED");
        }
        let arguments = vec![
            Argument::Int(now),
            Argument::Int(now.saturating_sub(LONE_END_RETENTION_MICROS)),
            Argument::Int(CHUNK_ENDS.into()),
        ];
        let ended = keys(&mut transaction, &sql, arguments).await?;
        if !ended.is_empty() {
            transaction.delete_holds(&ended).await?;
        }
        transaction.commit().await?;
        Ok(ended.len() as u64)
    }
}

/// The accounts and owners that a statement finds.
async fn keys(
    transaction: &mut LedgerTransaction,
    sql: &str,
    arguments: Vec<Argument>,
) -> Result<Vec<(i64, i64)>, LedgerError> {
    let rows = transaction.fetch(sql, arguments).await?;
    rows.iter().map(|row| Ok((row.int(0)?, row.int(1)?))).collect()
}

/// The entry for a reservation that ran out. Its id is the same whoever posts it.
fn expire_row(hold: &HoldRow) -> Option<EntryRow> {
    let start = hold.open()?;
    let id = EntryId {
        generation: MAX_GENERATION + hold.account.unsigned_abs(),
        partition: 0,
        millis: start.at.unsigned_abs(),
        sequence: hold.owner.cast_unsigned(),
    };
    let row = EntryRow::new(row_id(id, 0), hold.account, start.expires_at, EntryKind::Expire);
    Some(EntryRow { period: start.period, owner: Some(hold.owner), held: Some(start.units), ..row })
}
