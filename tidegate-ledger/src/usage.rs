//! `UsageQuery` and `UsageRow`: what accounts have consumed, period by period.

use std::fmt;

use serde::Serialize;
use serde::ser::SerializeStruct;
use tidegate::Timestamp;
use tidegate::limits::{Period, Periods};
use tidegate::spi::{AccountKey, Subject};

/// Which periods of which accounts to show. Everything that is `None` does not restrict them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// The id of the rule, or `$` and the name of the budget.
    pub rule: Option<String>,
    /// The name of the tenant, for rules that keep it.
    pub tenant: Option<String>,
    /// The hashed subject.
    pub subject: Option<Subject>,
    /// The length of the periods.
    pub period: Option<Period>,
    /// The first period.
    pub from: Option<PeriodPoint>,
    /// The last period: the one with this index, or the one before which this time is not yet reached.
    pub to: Option<PeriodPoint>,
    /// The [cursor](UsageRow::cursor) of the last row of the page before.
    pub after: Option<String>,
    /// The most rows of a page. 0 is [`UsageQuery::DEFAULT_LIMIT`].
    pub limit: u32,
}

/// A period, by its index or by a time in it, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeriodPoint {
    /// The index.
    Index(u64),
    /// A time.
    Time(Timestamp),
}

/// The consumption of one account in one period.
#[derive(Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// The account.
    pub key: AccountKey,
    /// The id of the rule, or `$` and the name of the budget.
    pub rule: String,
    /// The name of the limit within its rule. Empty if it has none.
    pub limit: String,
    /// The name of the tenant, if the rule keeps it.
    pub name: Option<String>,
    /// The length of the period. `None` if this version does not know it.
    pub period: Option<Period>,
    /// The index of the period.
    pub index: u64,
    /// When the period begins and ends in UTC. In other time zones, and with other anchors, it does so earlier or later: the ledger does not
    /// know the calendar of the quota.
    pub bounds: Option<(Timestamp, Timestamp)>,
    /// Units consumed in the period.
    pub consumed: i64,
    /// The debt that was carried into the period.
    pub carried: u64,
    /// The amount of the quota with grace: the largest one during the period.
    pub hard_limit: u64,
    /// Units that open reservations of the period hold.
    pub reserved: u64,
    /// The id of the account in the database, for the cursor.
    pub(crate) account: i64,
}

impl UsageQuery {
    /// The most rows of a page, unless the query says otherwise.
    pub const DEFAULT_LIMIT: u32 = 1_000;

    pub(crate) const fn limit_or_default(&self) -> u32 {
        if self.limit == 0 { Self::DEFAULT_LIMIT } else { self.limit }
    }
}

impl PeriodPoint {
    /// The index of the first period of this length from here on.
    pub(crate) fn first_index(self, period: Period) -> u64 {
        match self {
            Self::Index(index) => index,
            Self::Time(time) => Periods::utc(period).bounds_at(time).index,
        }
    }

    /// The index of the last period of this length that begins before here.
    pub(crate) fn last_index(self, period: Period) -> u64 {
        match self {
            Self::Index(index) => index,
            Self::Time(time) => {
                Periods::utc(period).bounds_at(Timestamp::from_micros(time.as_micros().saturating_sub(1))).index
            }
        }
    }
}

impl UsageRow {
    /// Where the next page begins.
    pub fn cursor(&self) -> String {
        format!("{}.{}", self.account, self.index)
    }

    /// What counts against the hard limit: what was consumed, and the debt that was carried into the period.
    pub fn total(&self) -> u64 {
        self.consumed.saturating_add_unsigned(self.carried).max(0).unsigned_abs()
    }

    /// The debt that the next periods pay.
    pub fn debt(&self) -> u64 {
        self.total().saturating_sub(self.hard_limit)
    }
}

/// The first instants of a period and of the next one, if it is one that a [`Timestamp`] can express.
pub fn period_bounds(periods: Periods, index: u64) -> Option<(Timestamp, Timestamp)> {
    let range = periods.bounds_at(Timestamp::default()).index..periods.bounds_at(Timestamp::MAX).index;
    let start = |index| Timestamp::from_micros(periods.start_of(index));
    range.contains(&index).then(|| (start(index), start(index + 1)))
}

/// The date of the period with this index: of an hour, a day or the first day of a week, a month, or a year. The index of a period means
/// the same date in all time zones. One that no date stands for is its index.
///
/// ```
/// use tidegate::limits::{Period, Periods};
/// use tidegate::Timestamp;
///
/// let at = Timestamp::from_micros(1_774_746_000_000_000);
/// let index = Periods::utc(Period::Day).bounds_at(at).index;
/// assert_eq!(tidegate_ledger::period_text(Period::Day, index), "2026-03-29");
/// ```
pub fn period_text(period: Period, index: u64) -> String {
    let Some((start, _)) = period_bounds(Periods::utc(period), index) else { return index.to_string() };
    let mut text = Periods::utc(period).local_time(start);
    text.truncate(match period {
        Period::Year => 4,
        Period::Month => 7,
        Period::Hour => 13,
        _ => 10,
    });
    text
}

/// An instant in UTC, in the format of ISO 8601 and to the microsecond. All have the same length, so that texts compare as the instants do.
///
/// ```
/// use tidegate::Timestamp;
///
/// assert_eq!(tidegate_ledger::time_text(Timestamp::from_micros(1_774_746_000_000_001)), "2026-03-29T01:00:00.000001Z");
/// ```
pub fn time_text(at: Timestamp) -> String {
    let mut text = Periods::utc(Period::Hour).local_time(at);
    text.truncate("2026-03-29T01:00:00".len());
    format!("{text}.{:06}Z", at.as_micros() % 1_000_000)
}

/// Without the subject.
impl fmt::Debug for UsageRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, limit, index, consumed, carried, hard_limit, reserved, .. } = self;
        write!(
            f,
            "UsageRow({rule} {limit} period {index}: {consumed} + {carried} of {hard_limit}, {reserved} reserved)"
        )
    }
}

impl Serialize for UsageRow {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_struct("UsageRow", 13)?;
        row.serialize_field("rule", &self.rule)?;
        row.serialize_field("limit", &self.limit)?;
        row.serialize_field("subject", &self.key.subject.to_string())?;
        row.serialize_field("tenant", &self.name)?;
        row.serialize_field("period", &self.period.map(Period::as_str))?;
        row.serialize_field("index", &self.index)?;
        row.serialize_field("period_begin", &self.bounds.map(|bounds| time_text(bounds.0)))?;
        row.serialize_field("period_end", &self.bounds.map(|bounds| time_text(bounds.1)))?;
        row.serialize_field("consumed", &self.consumed)?;
        row.serialize_field("carried", &self.carried)?;
        row.serialize_field("hard_limit", &self.hard_limit)?;
        row.serialize_field("debt", &self.debt())?;
        row.serialize_field("reserved", &self.reserved)?;
        row.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_shown_as_a_date_of_its_precision_and_one_without_a_date_by_its_index() {
        let at = Timestamp::from_micros(1_774_760_767_000_000);
        for (period, text) in [
            (Period::Hour, "2026-03-29T05"),
            (Period::Day, "2026-03-29"),
            (Period::Week, "2026-03-23"),
            (Period::Month, "2026-03"),
            (Period::Year, "2026"),
        ] {
            assert_eq!(period_text(period, Periods::utc(period).bounds_at(at).index), text);
            assert_eq!(period_text(period, 7), "7");
            assert_eq!(period_text(period, u64::MAX), u64::MAX.to_string());
        }
    }
}
