//! `Ledger::roll_up`: deletes single entries of periods that are over. Their sums stay.

use std::collections::BTreeMap;

use tidegate::Timestamp;
use tidegate::spi::EntryKind;

use super::Ledger;
use super::entry_row::signed;
use super::transaction::Argument;
use crate::LedgerError;

/// Entries of one transaction: others wait for their accounts for a few milliseconds.
const CHUNK_ENTRIES: i64 = 1_000;

/// What was rolled up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RollUp {
    /// Entries that were deleted.
    pub deleted: u64,
    /// Entries from before that stay: corrections, resets, and those of the last period of their account.
    pub kept: u64,
}

/// One step through the entries in the order of their time.
struct Chunk {
    deleted: u64,
    kept: u64,
    /// The time and the id of its last entry. `None` after the last step.
    last: Option<(i64, Vec<u8>)>,
}

impl Ledger {
    /// Deletes single entries from before a time, in small transactions, and keeps their sums. Entries of the last period of an account
    /// stay, and so do corrections and resets. It can be stopped and repeated at any time.
    pub async fn roll_up(&self, before: Timestamp) -> Result<RollUp, LedgerError> {
        let mut done = RollUp::default();
        let mut after = (-1, Vec::new());
        loop {
            let chunk = self.repeat(|| self.roll_up_chunk(signed(before.as_micros()), &after)).await?;
            done.deleted += chunk.deleted;
            done.kept += chunk.kept;
            match chunk.last {
                Some(last) => after = last,
                None => return Ok(done),
            }
        }
    }

    async fn roll_up_chunk(&self, before: i64, after: &(i64, Vec<u8>)) -> Result<Chunk, LedgerError> {
        let mut transaction = self.begin(true).await?;
        let sql = "SELECT e.id, e.account, e.period, e.time, CAST(e.kind AS BIGINT), \
                   (SELECT max(b.period) FROM balances b WHERE b.account = e.account) FROM entries e \
                   WHERE e.time < $1 AND (e.time, e.id) > ($2, $3) ORDER BY e.time, e.id LIMIT $4";
        let arguments = vec![
            Argument::Int(before),
            Argument::Int(after.0),
            Argument::Bytes(after.1.clone()),
            Argument::Int(CHUNK_ENTRIES),
        ];
        let rows = transaction.fetch(sql, arguments).await?;
        let (mut ids, mut periods) = (Vec::new(), BTreeMap::new());
        for row in &rows {
            let (account, period, time, kind) = (row.int(1)?, row.int(2)?, row.int(3)?, row.int(4)?);
            let is_own = [EntryKind::Correct, EntryKind::Reset].iter().any(|own| i64::from(own.number()) == kind);
            if is_own || row.maybe_int(5)?.is_none_or(|last| period >= last) {
                continue;
            }
            ids.push(row.bytes(0)?);
            let gone = periods.entry((account, period)).or_insert(0);
            *gone = time.saturating_add(1).max(*gone);
        }
        let mut deleted = 0;
        if !ids.is_empty() {
            // Whoever posts one of them again must see either it or the mark.
            transaction.lock_ids(periods.keys().map(|(account, _)| *account).collect()).await?;
            deleted = transaction.delete_entries(&ids).await?;
            let marks: Vec<(i64, i64, i64)> =
                periods.into_iter().map(|((account, period), gone)| (account, period, gone)).collect();
            transaction.mark_rolled_up(&marks).await?;
        }
        transaction.commit().await?;
        let last = rows.last().map(|row| Ok::<_, LedgerError>((row.int(3)?, row.bytes(0)?))).transpose()?;
        Ok(Chunk { deleted, kept: rows.len() as u64 - ids.len() as u64, last })
    }
}
