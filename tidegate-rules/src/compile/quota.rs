//! Compiling `quota`: the periods of a calendar in a time zone, and a grace that may be a part of the amount.

use tidegate::Limit;
use tidegate::limits::{Anchor, LimitError, Period, Periods};

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
        let amount = spec.amount.as_ref().and_then(|at| {
            let limit = Limit::quota(at.value.0, Periods::utc(Period::Month));
            limit.map_err(|error| self.quota_error(spec, &error)).ok().map(|_| at.value.0)
        });
        let grace = spec.grace.as_ref().map_or(Some(0), |at| self.grace(at, amount.unwrap_or_default()));
        let periods = self.periods(spec);
        let limit = Limit::quota_with_grace(amount.unwrap_or_default(), grace?, periods?);
        limit.map_err(|error| self.quota_error(spec, &error)).ok().filter(|_| amount.is_some())
    }

    fn periods(&mut self, spec: &QuotaSpec) -> Option<Periods> {
        let period = spec.period.as_ref().map(|at| match at.value {
            PeriodSpec::Hour => Period::Hour,
            PeriodSpec::Day => Period::Day,
            PeriodSpec::Week => Period::Week,
            PeriodSpec::Month => Period::Month,
            PeriodSpec::Year => Period::Year,
        });
        let zone = spec.timezone.as_ref().map_or(DEFAULT_ZONE, |at| at.value.as_str());
        let is_zone = Periods::new(Period::Month, zone, None).map_err(|error| self.quota_error(spec, &error)).is_ok();
        let anchor = spec.anchor.as_ref().map(|at| at.value.to_ascii_lowercase().parse::<Anchor>()).transpose();
        let anchor = anchor.and_then(|anchor| {
            // Beside a period that is lost, it may be right for the periods that have such anchors.
            let period = period.or_else(|| anchor.map(usual_period));
            period.map_or(Ok(anchor), |period| Periods::new(period, DEFAULT_ZONE, anchor).map(|_| anchor))
        });
        let anchor = anchor.map_err(|error| self.quota_error(spec, &error)).ok();
        is_zone.then(|| Periods::new(period?, zone, anchor?).ok()).flatten()
    }

    /// Reports an error at the field that it is about. Its text may end with help, after a semicolon.
    fn quota_error(&mut self, spec: &QuotaSpec, error: &LimitError) {
        let span = match error.field() {
            ZONE => spec.timezone.as_ref().map(|at| &at.span),
            ANCHOR => spec.anchor.as_ref().map(|at| &at.span),
            GRACE => spec.grace.as_ref().map(|at| &at.span),
            _ => spec.amount.as_ref().map(|at| &at.span),
        };
        let Some(span) = span else { return };
        let help = match (error.field(), spec.period.as_ref().map(|at| at.value)) {
            (ZONE, _) => "write the name of a zone, such as `Europe/Berlin`",
            (ANCHOR, None) => "remove `anchor`, or write one that fits the period",
            (ANCHOR, Some(PeriodSpec::Hour | PeriodSpec::Day)) => "remove `anchor`",
            (ANCHOR, Some(PeriodSpec::Week)) => "write a weekday: `anchor: sunday`",
            (ANCHOR, Some(PeriodSpec::Month)) => "write a day of the month: `anchor: 15`",
            (ANCHOR, Some(PeriodSpec::Year)) => "write a month and a day: `anchor: 04-06`",
            _ => "write smaller numbers",
        };
        let text = error.to_string();
        let (problem, help) = text.split_once("; ").unwrap_or((&text, help));
        self.error("quota", span, problem).set_help(help);
    }

    fn grace(&mut self, at: &Spanned<TextScalar>, amount: u64) -> Option<u64> {
        let error = |why: String| {
            let (problem, help) = why.split_once("; ").unwrap_or((&why, "write a smaller grace"));
            self.error("quota", &at.span, format!("{GRACE}: {problem}")).set_help(help);
        };
        quantity::parse_grace(&at.value, amount).map_err(error).ok()
    }
}

/// The length of the periods that begin on such a day.
const fn usual_period(anchor: Anchor) -> Period {
    match anchor {
        Anchor::Weekday(_) => Period::Week,
        Anchor::Day(_) => Period::Month,
        _ => Period::Year,
    }
}
