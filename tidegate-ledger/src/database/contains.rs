//! `Ledger::contains` and `Ledger::last_entry`: which entries of a store the ledger has.
//!
//! The id of a row begins with the bytes of the id of its entry, in an order in which those of one generation and partition lie together.
//! What comes after them does not matter here: all rows of an entry are between its bytes and the next ones.

use tidegate::spi::EntryId;

use super::entry_row::{entry_id, row_id};
use super::transaction::Argument;
use super::{Ledger, in_time};
use crate::LedgerError;

/// The bytes of an [`EntryId`] at the beginning of the id of a row.
const ENTRY_BYTES: usize = 26;

/// The bytes of the generation and the partition at the beginning of it.
const PARTITION_BYTES: usize = 10;

/// Entries that are looked for by one statement. Each has two arguments, and databases limit these.
const CHUNK_ENTRIES: usize = 400;

impl Ledger {
    /// Whether the ledger has each of these entries, in their order. One that was [rolled up](Self::roll_up) is gone.
    pub async fn contains(&self, ids: &[EntryId]) -> Result<Vec<bool>, LedgerError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        in_time(async {
            let mut transaction = self.begin(false).await?;
            let mut found = vec![false; ids.len()];
            for (chunk, ids) in ids.chunks(CHUNK_ENTRIES).enumerate() {
                let (mut selects, mut arguments) = (Vec::with_capacity(ids.len()), Vec::with_capacity(2 * ids.len()));
                for (index, id) in ids.iter().enumerate() {
                    let (start, end, number) = (2 * index + 1, 2 * index + 2, chunk * CHUNK_ENTRIES + index);
                    let is_there = format!("EXISTS (SELECT 1 FROM entries WHERE id >= ${start} AND id < ${end})");
                    selects.push(format!("SELECT CAST({number} AS BIGINT) WHERE {is_there}"));
                    arguments.extend(range(&row_id(*id, 0)[..ENTRY_BYTES]));
                }
                for row in transaction.fetch(selects.join(" UNION ALL "), arguments).await? {
                    if let Some(found) = usize::try_from(row.int(0)?).ok().and_then(|number| found.get_mut(number)) {
                        *found = true;
                    }
                }
            }
            transaction.commit().await?;
            Ok(found)
        })
        .await
    }

    /// The last entry of this generation that the ledger has of a partition.
    pub async fn last_entry(&self, partition: u16, generation: u64) -> Result<Option<EntryId>, LedgerError> {
        in_time(async {
            let mut transaction = self.begin(false).await?;
            let id = EntryId { generation, partition, millis: 0, sequence: 0 };
            let sql = "SELECT id FROM entries WHERE id >= $1 AND id < $2 ORDER BY id DESC LIMIT 1";
            let rows = transaction.fetch(sql, range(&row_id(id, 0)[..PARTITION_BYTES]).into()).await?;
            transaction.commit().await?;
            let bytes = rows.first().map(|row| row.bytes(0)).transpose()?;
            Ok(bytes.and_then(|bytes| entry_id(&bytes)).map(|(id, _)| id))
        })
        .await
    }
}

/// The first id that begins with these bytes, and the first one after all of them.
fn range(prefix: &[u8]) -> [Argument; 2] {
    let mut next = prefix.to_vec();
    while let Some(last) = next.pop() {
        if last < u8::MAX {
            next.push(last + 1);
            break;
        }
    }
    [Argument::Bytes(prefix.to_vec()), Argument::Bytes(next)]
}
