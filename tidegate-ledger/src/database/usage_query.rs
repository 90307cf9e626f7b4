//! `Ledger::usage`: consumption by rule, tenant, subject and period.

use std::fmt::Write;

use tidegate::limits::{Period, Periods};
use tidegate::spi::AccountKey;

use super::entry_row::{from_signed, signed};
use super::names::stored_text;
use super::reading::subject_from_bytes;
use super::transaction::{Argument, LedgerRow};
use super::{Ledger, in_time};
use crate::LedgerError;
use crate::usage::{PeriodPoint, UsageQuery, UsageRow, period_bounds};

/// A statement that grows by the conditions of a query.
pub(super) struct QueryText {
    pub(super) sql: String,
    pub(super) arguments: Vec<Argument>,
}

impl QueryText {
    pub(super) fn new(sql: &str) -> Self {
        Self { sql: format!("{sql} WHERE 1 = 1"), arguments: Vec::new() }
    }

    /// Adds a condition; each `?` in it is one of the arguments.
    pub(super) fn and(&mut self, condition: &str, arguments: impl IntoIterator<Item = Argument>) {
        self.sql.push_str(" AND ");
        self.push(condition, arguments);
    }

    /// Adds text; each `?` in it is one of the arguments.
    pub(super) fn push(&mut self, text: &str, arguments: impl IntoIterator<Item = Argument>) {
        let mut parts = text.split('?');
        self.sql.push_str(parts.next().unwrap_or_default());
        for (part, argument) in parts.zip(arguments) {
            self.arguments.push(argument);
            let _ = write!(self.sql, "${}{part}", self.arguments.len());
        }
    }
}

impl Ledger {
    /// What accounts have consumed, in the order of accounts and periods. The next page begins after the
    /// [cursor](UsageRow::cursor) of the last row.
    pub async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, LedgerError> {
        let text = query_text(query)?;
        in_time(async {
            let mut transaction = self.begin(false).await?;
            let rows = transaction.fetch(text.sql, text.arguments).await?;
            transaction.commit().await?;
            rows.iter().map(usage_row).collect()
        })
        .await
    }
}

fn query_text(query: &UsageQuery) -> Result<QueryText, LedgerError> {
    let mut text = QueryText::new(
        "SELECT a.id, CAST(a.partition AS BIGINT), l.stem, a.subject, a.name, l.rule, l.limit_name, l.period_kind, b.period, \
         b.consumed, b.carried, b.hard_limit, CAST(COALESCE((SELECT sum(h.units) FROM holds h WHERE h.account = b.account \
         AND h.period = b.period AND (h.ended_at IS NULL OR h.ended_at < h.reserved_at)), 0) AS BIGINT) \
         FROM accounts a JOIN limits l ON l.id = a.limit_id JOIN balances b ON b.account = a.id",
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
    if let Some(period) = query.period {
        text.and("l.period_kind = ?", [Argument::Text(period.as_str().to_owned())]);
    }
    if let Some(from) = query.from {
        add_bound(&mut text, ">=", from, PeriodPoint::first_index);
    }
    if let Some(to) = query.to {
        add_bound(&mut text, "<=", to, PeriodPoint::last_index);
    }
    if let Some(after) = &query.after {
        let parsed =
            after.split_once('.').and_then(|(account, index)| Some((account.parse().ok()?, index.parse().ok()?)));
        let (account, index) =
            parsed.ok_or_else(|| LedgerError::invalid("`after` is not the cursor of a row of usage"))?;
        text.and("(b.account, b.period) > (?, ?)", [Argument::Int(account), Argument::Int(index)]);
    }
    text.push(" ORDER BY b.account, b.period LIMIT ?", [Argument::Int(query.limit_or_default().into())]);
    Ok(text)
}

/// A time is in periods with another index for each length.
fn add_bound(text: &mut QueryText, comparison: &str, point: PeriodPoint, index: fn(PeriodPoint, Period) -> u64) {
    let condition = format!("(l.period_kind = ? AND b.period {comparison} ?)");
    let conditions = [condition.as_str(); Period::ALL.len()].join(" OR ");
    let arguments = Period::ALL
        .into_iter()
        .flat_map(|period| [Argument::Text(period.as_str().to_owned()), Argument::Int(signed(index(point, period)))]);
    text.and(&format!("({conditions})"), arguments);
}

fn usage_row(row: &LedgerRow) -> Result<UsageRow, LedgerError> {
    let key = AccountKey {
        partition: u16::try_from(row.int(1)?).unwrap_or_default(),
        stem: row.text(2)?,
        subject: subject_from_bytes(&row.bytes(3)?),
    };
    let period: Option<Period> = row.text(7)?.parse().ok();
    let index = from_signed(row.int(8)?);
    Ok(UsageRow {
        key,
        rule: row.text(5)?,
        limit: row.text(6)?,
        name: row.maybe_text(4)?,
        period,
        index,
        bounds: period.and_then(|period| period_bounds(Periods::utc(period), index)),
        consumed: row.int(9)?,
        carried: from_signed(row.int(10)?),
        hard_limit: from_signed(row.int(11)?),
        reserved: from_signed(row.int(12)?),
        account: row.int(0)?,
    })
}
