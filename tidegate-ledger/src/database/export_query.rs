//! `Ledger::export`: single entries in the order of their time.

use std::fmt;

use tidegate::Timestamp;
use tidegate::limits::Period;
use tidegate::spi::{EntryId, EntryKind, Subject};

use super::entry_row::{FINGERPRINT_AT, entry_id, from_signed, row_id, signed};
use super::names::stored_text;
use super::reading::subject_from_bytes;
use super::transaction::{Argument, LedgerRow};
use super::usage_query::QueryText;
use super::{Ledger, in_time};
use crate::{LedgerError, LedgerErrorKind};

/// Which entries to export. Everything that is `None` does not restrict them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportQuery {
    /// The id of the rule, or `$` and the name of the budget.
    pub rule: Option<String>,
    /// The name of the tenant, for rules that keep it.
    pub tenant: Option<String>,
    /// The hashed subject.
    pub subject: Option<Subject>,
    /// The time of the first entry.
    pub from: Option<Timestamp>,
    /// A time before which the last entry is.
    pub to: Option<Timestamp>,
    /// The [cursor](LedgerEntry::cursor) of the last entry of the page before.
    pub after: Option<String>,
    /// The most entries of a page. 0 is [`ExportQuery::DEFAULT_LIMIT`].
    pub limit: u32,
}

/// An entry of the ledger. An outbox entry that counts in two periods is two of them, with the same id.
#[derive(Clone, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The id.
    pub id: EntryId,
    /// Whether it is the part of an outbox entry that counts in the period before.
    pub is_late: bool,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub kind: EntryKind,
    /// The id of the rule, or `$` and the name of the budget.
    pub rule: String,
    /// The name of the limit within its rule. Empty if it has none.
    pub limit: String,
    /// The hashed subject.
    pub subject: Subject,
    /// The name of the tenant, if the rule keeps it.
    pub name: Option<String>,
    /// The length of the period. `None` if this version does not know it.
    pub period: Option<Period>,
    /// The index of the period.
    pub index: u64,
    /// When the period begins and ends, for the export. The ledger does not know the calendar of the quota, and leaves this empty.
    pub bounds: Option<(Timestamp, Timestamp)>,
    /// Units consumed; negative if given back.
    pub amount: i64,
    /// Units that a reservation holds.
    pub held: u64,
    /// The owner of the reservation. 0 if it is none.
    pub owner: u64,
    /// When the reservation runs out.
    pub expires_at: Option<Timestamp>,
    /// Debt that a reset forgave.
    pub forgiven: u64,
    /// The amount of the quota with grace.
    pub hard_limit: u64,
    /// Who corrected or reset it.
    pub author: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

impl ExportQuery {
    /// The most entries of a page, unless the query says otherwise.
    pub const DEFAULT_LIMIT: u32 = 1_000;
}

impl LedgerEntry {
    /// Where the next page begins.
    pub fn cursor(&self) -> String {
        format!("{}/{}/{}", self.at.as_micros(), self.id, u8::from(self.is_late))
    }
}

/// Without the subject.
impl fmt::Debug for LedgerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, kind, rule, index, amount, .. } = self;
        write!(f, "LedgerEntry({id} {} {amount} of {rule} in period {index})", kind.as_str())
    }
}

impl Ledger {
    /// Entries in the order of their time and id. The next page begins after the [cursor](LedgerEntry::cursor) of the last entry.
    pub async fn export(&self, query: &ExportQuery) -> Result<Vec<LedgerEntry>, LedgerError> {
        let text = query_text(query)?;
        in_time(async {
            let mut transaction = self.begin(false).await?;
            let rows = transaction.fetch(text.sql, text.arguments).await?;
            transaction.commit().await?;
            rows.iter().map(ledger_entry).collect()
        })
        .await
    }
}

fn query_text(query: &ExportQuery) -> Result<QueryText, LedgerError> {
    let mut text = QueryText::new(
        "SELECT e.id, e.time, CAST(e.kind AS BIGINT), l.rule, l.limit_name, a.subject, a.name, l.period_kind, e.period, \
         e.amount, e.held, e.owner, e.expires_at, e.forgiven, e.hard_limit, e.author, e.reason \
         FROM entries e JOIN accounts a ON a.id = e.account JOIN limits l ON l.id = a.limit_id",
    );
    if let Some(rule) = &query.rule {
        text.and("l.rule = ?", [Argument::Text(stored_text(rule))]);
    }
    if let Some(tenant) = &query.tenant {
        text.and("a.name = ?", [Argument::Text(stored_text(tenant))]);
    }
    if let Some(subject) = query.subject {
        text.and("a.subject = ?", [Argument::Bytes(subject.hash().to_be_bytes().to_vec())]);
    }
    if let Some(from) = query.from {
        text.and("e.time >= ?", [Argument::Int(signed(from.as_micros()))]);
    }
    if let Some(to) = query.to {
        text.and("e.time < ?", [Argument::Int(signed(to.as_micros()))]);
    }
    if let Some(after) = &query.after {
        let (time, id) = parse_cursor(after)
            .ok_or_else(|| LedgerError::invalid("`after` is not the cursor of an exported entry"))?;
        text.and("(e.time, e.id) > (?, ?)", [Argument::Int(time), Argument::Bytes(id)]);
    }
    let limit = if query.limit == 0 { ExportQuery::DEFAULT_LIMIT } else { query.limit };
    text.push(" ORDER BY e.time, e.id LIMIT ?", [Argument::Int(limit.into())]);
    Ok(text)
}

fn parse_cursor(text: &str) -> Option<(i64, Vec<u8>)> {
    let (time, rest) = text.split_once('/')?;
    let (id, part) = rest.split_once('/')?;
    let mut id = row_id(id.parse().ok()?, part.parse().ok()?);
    // After the entry with this id, whatever its fingerprint is.
    id[FINGERPRINT_AT..].fill(0xff);
    Some((time.parse().ok()?, id.to_vec()))
}

fn ledger_entry(row: &LedgerRow) -> Result<LedgerEntry, LedgerError> {
    let unknown = || LedgerError::new(LedgerErrorKind::Unexpected, "the ledger contains an entry of an unknown kind");
    let (id, is_late) = entry_id(&row.bytes(0)?).ok_or_else(unknown)?;
    let kind = u8::try_from(row.int(2)?).ok().and_then(EntryKind::from_number).ok_or_else(unknown)?;
    let time = |micros: i64| Timestamp::from_micros(from_signed(micros));
    let number = |column| Ok::<_, LedgerError>(from_signed(row.maybe_int(column)?.unwrap_or_default()));
    Ok(LedgerEntry {
        id,
        is_late,
        at: time(row.int(1)?),
        kind,
        rule: row.text(3)?,
        limit: row.text(4)?,
        subject: subject_from_bytes(&row.bytes(5)?),
        name: row.maybe_text(6)?,
        period: row.text(7)?.parse().ok(),
        index: from_signed(row.int(8)?),
        bounds: None,
        amount: row.int(9)?,
        held: number(10)?,
        owner: row.maybe_int(11)?.unwrap_or_default().cast_unsigned(),
        expires_at: row.maybe_int(12)?.map(time),
        forgiven: number(13)?,
        hard_limit: from_signed(row.int(14)?),
        author: row.maybe_text(15)?,
        reason: row.maybe_text(16)?,
    })
}
