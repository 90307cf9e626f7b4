//! Compiling `quota`: the periods of a calendar in a time zone, and a grace that may be a part of the amount.

use tidegate::{Anchor, Limit, LimitError, Period, Periods};

use super::Compiler;
use crate::quantity;
use crate::read::Spanned;
use crate::schema_types::{PeriodSpec, QuotaSpec, TextScalar};

/// The time zone of a quota without one.
const DEFAULT_ZONE: &str = "UTC";

// The fields that errors of limits name.
const ZONE: &str = "quota.timezone";
const ANCHOR: &str = "quota.anchor";
const GRACE: &str = "quota.grace";

impl Compiler<'_> {
    /// A quota; `None` after an error. All of its errors are reported.
    pub(super) fn quota(&mut self, spec: &QuotaSpec) -> Option<Limit> {
        let periods = self.periods(spec);
        let grace = spec.grace.as_ref().map_or(Some(0), |at| self.grace(at, spec.amount.value.0));
        let limit = Limit::quota_with_grace(spec.amount.value.0, grace?, periods?);
        limit.map_err(|error| self.quota_error(spec, &error)).ok()
    }

    fn periods(&mut self, spec: &QuotaSpec) -> Option<Periods> {
        let period = match spec.period.value {
            PeriodSpec::Hour => Period::Hour,
            PeriodSpec::Day => Period::Day,
            PeriodSpec::Week => Period::Week,
            PeriodSpec::Month => Period::Month,
            PeriodSpec::Year => Period::Year,
        };
        let zone = spec.timezone.as_ref().map_or(DEFAULT_ZONE, |at| at.value.as_str());
        let anchor = spec.anchor.as_ref().map(|at| at.value.to_ascii_lowercase().parse::<Anchor>()).transpose();
        let periods = anchor.and_then(|anchor| Periods::new(period, zone, anchor));
        periods
            .map_err(|error| {
                self.quota_error(spec, &error);
                // A wrong anchor must not hide a wrong zone.
                if error.field() == ANCHOR
                    && let Err(error) = Periods::new(period, zone, None)
                {
                    self.quota_error(spec, &error);
                }
            })
            .ok()
    }

    /// Reports an error at the field that it is about. Its text may end with help, after a semicolon.
    fn quota_error(&mut self, spec: &QuotaSpec, error: &LimitError) {
        let span = match error.field() {
            ZONE => spec.timezone.as_ref().map(|at| &at.span),
            ANCHOR => spec.anchor.as_ref().map(|at| &at.span),
            GRACE => spec.grace.as_ref().map(|at| &at.span),
            _ => None,
        };
        let help = match (error.field(), spec.period.value) {
            (ZONE, _) => "write the name of a zone, such as `Europe/Berlin`",
            (ANCHOR, PeriodSpec::Hour | PeriodSpec::Day) => "remove `anchor`",
            (ANCHOR, PeriodSpec::Week) => "write a weekday: `anchor: sunday`",
            (ANCHOR, PeriodSpec::Month) => "write a day of the month: `anchor: 15`",
            (ANCHOR, PeriodSpec::Year) => "write a month and a day: `anchor: 04-06`",
            _ => "write smaller numbers",
        };
        let text = error.to_string();
        let (problem, help) = text.split_once("; ").unwrap_or((&text, help));
        self.error("quota", span.unwrap_or(&spec.amount.span), problem).set_help(help);
    }

    fn grace(&mut self, at: &Spanned<TextScalar>, amount: u64) -> Option<u64> {
        let error = |why: String| {
            let (problem, help) = why.split_once("; ").unwrap_or((&why, "write a smaller grace"));
            self.error("quota", &at.span, format!("{GRACE}: {problem}")).set_help(help);
        };
        quantity::parse_grace(&at.value, amount).map_err(error).ok()
    }
}
