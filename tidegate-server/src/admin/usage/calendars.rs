//! `Calendars`: when the periods of quotas begin and end. The ledger has their numbers only; the rules in force have the time zones and anchors.

use std::collections::HashMap;

use tidegate::Timestamp;
use tidegate::limits::{Period, Periods};
use tidegate_ledger::{LedgerEntry, UsageRow, period_bounds};
use tidegate_rules::RuleFile;

/// The calendars of the quotas of a file, by the owner of the accounts and the name of the limit.
pub(super) struct Calendars(HashMap<(String, String), Vec<Periods>>);

impl Calendars {
    pub(super) fn new(file: &RuleFile) -> Self {
        let mut calendars: HashMap<_, Vec<Periods>> = HashMap::new();
        for (owner, name, periods) in file.quota_periods() {
            let known = calendars.entry((owner, name.to_owned())).or_default();
            if !known.contains(&periods) {
                known.push(periods);
            }
        }
        Self(calendars)
    }

    /// The calendars with periods of this length.
    pub(super) fn of(&self, rule: &str, limit: &str, period: Period) -> impl Iterator<Item = Periods> {
        let known = self.0.get(&(rule.to_owned(), limit.to_owned()));
        known.into_iter().flatten().copied().filter(move |periods| periods.period() == period)
    }

    /// Sets when the period of a row begins and ends.
    pub(super) fn set_bounds_of_row(&self, row: &mut UsageRow) {
        row.bounds = self.bounds(&row.rule, &row.limit, row.period, row.index);
    }

    /// The same of an entry.
    pub(super) fn set_bounds_of_entry(&self, entry: &mut LedgerEntry) {
        entry.bounds = self.bounds(&entry.rule, &entry.limit, entry.period, entry.index);
    }

    /// When a period begins and ends. `None` if that is not known: the rule is gone, or has another length of periods now, or its plans have
    /// several calendars.
    fn bounds(&self, rule: &str, limit: &str, period: Option<Period>, index: u64) -> Option<(Timestamp, Timestamp)> {
        let mut calendars = self.of(rule, limit, period?);
        let (Some(periods), None) = (calendars.next(), calendars.next()) else { return None };
        period_bounds(periods, index)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_ledger::time_text;

    use super::super::period_text::period_index;
    use super::*;

    #[test]
    fn a_period_begins_and_ends_by_the_calendar_of_its_quota_or_it_is_not_known() {
        let text = "version: 1\nidentify: { tenant: header:t, authenticated: [t] }\nplans: { pro: { two: { quota: { amount: 9, period: month } } } }\ndefault_plan: pro\nrules:\n\
                    - { id: one, match: { path: /1 }, per: [tenant], quota: { amount: 5, period: month, timezone: Europe/Berlin, anchor: 15 }, on_failure: closed }\n\
                    - { id: two, match: { path: /2 }, per: [tenant], quota: { amount: 5, period: month, timezone: Asia/Tokyo }, on_failure: closed }\n\
                    - { id: many, match: { path: /3 }, per: [tenant], on_failure: closed, limits: { day: { quota: { amount: 5, period: day } }, rate: { token_bucket: { capacity: 1, refill: 1/s } } } }\n\
                    - { id: shared, match: { path: /4 }, per: [tenant], budget: b, quota: { amount: 5, period: year, anchor: 04-06 }, on_failure: closed }\n";
        let file = RuleFile::parse("rules.yaml", text).unwrap_or_else(|report| panic!("{report}"));
        let calendars = Calendars::new(&file);
        let bounds = |rule: &str, limit: &str, period: Period, text: &str| {
            let bounds = calendars.bounds(rule, limit, Some(period), period_index(period, text).unwrap());
            bounds.map(|(begin, end)| format!("{} {}", time_text(begin), time_text(end)))
        };
        for (rule, limit, period, text, expected) in [
            ("one", "", Period::Month, "2026-03", Some("2026-03-14T23:00:00.000000Z 2026-04-14T22:00:00.000000Z")),
            ("many", "day", Period::Day, "2026-03-29", Some("2026-03-29T00:00:00.000000Z 2026-03-30T00:00:00.000000Z")),
            ("$b", "", Period::Year, "2026", Some("2026-04-06T00:00:00.000000Z 2027-04-06T00:00:00.000000Z")),
            ("two", "", Period::Month, "2026-03", None),
            ("one", "", Period::Day, "2026-03-29", None),
            ("many", "rate", Period::Day, "2026-03-29", None),
            ("many", "", Period::Day, "2026-03-29", None),
            ("shared", "", Period::Year, "2026", None),
            ("gone", "", Period::Day, "2026-03-29", None),
        ] {
            assert_eq!(bounds(rule, limit, period, text).as_deref(), expected, "{rule} {limit}");
        }
        assert_eq!(calendars.bounds("one", "", Some(Period::Month), u64::MAX), None);
        assert_eq!(calendars.bounds("one", "", None, 1), None);
    }
}
