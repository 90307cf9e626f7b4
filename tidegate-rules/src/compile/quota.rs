//! Compiling `quota`: the periods of a calendar in a time zone, and a grace that may be a part of the amount.

use tidegate::{Anchor, Limit, LimitError, Period, Periods};

use super::Compiler;
use crate::quantity;
use crate::read::Spanned;
use crate::schema_types::{PeriodSpec, QuotaSpec, TextScalar};

/// The time zone of a quota without one.
const DEFAULT_ZONE: &str = "UTC";

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
        let anchor = spec.anchor.as_ref().map(|at| at.value.to_ascii_lowercase().parse::<Anchor>());
        let anchor = match anchor.transpose() {
            Ok(anchor) => anchor,
            Err(error) => {
                self.quota_error(spec, &error);
                // The zone is checked too: all errors are reported at once.
                let zone = Periods::new(period, zone, None);
                zone.map_err(|error| self.quota_error(spec, &error)).ok()?;
                return None;
            }
        };
        let periods = Periods::new(period, zone, anchor).map_err(|error| {
            self.quota_error(spec, &error);
            if error.field() == "quota.anchor" {
                _ = Periods::new(period, zone, None).map_err(|error| self.quota_error(spec, &error));
            }
        });
        periods.ok()
    }

    /// Reports an error at the field that it is about. The help of a field is the part after the semicolon.
    fn quota_error(&mut self, spec: &QuotaSpec, error: &LimitError) {
        let at_zone = || spec.timezone.as_ref().map(|at| &at.span);
        let span = match error.field() {
            "quota.timezone" => at_zone(),
            "quota.anchor" => spec.anchor.as_ref().map(|at| &at.span),
            "quota.grace" => spec.grace.as_ref().map(|at| &at.span),
            "quota.period" => Some(&spec.period.span),
            _ => None,
        };
        let text = error.to_string();
        match text.split_once("; ") {
            Some((problem, help)) => _ = self.error("quota", span.unwrap_or(&spec.amount.span), problem).set_help(help),
            None => {
                let help = match (error.field(), spec.period.value) {
                    ("quota.timezone", _) => "write the name of a zone, such as `Europe/Berlin`",
                    ("quota.anchor", PeriodSpec::Hour | PeriodSpec::Day) => "remove `anchor`",
                    ("quota.anchor", PeriodSpec::Week) => "write a weekday: `anchor: sunday`",
                    ("quota.anchor", PeriodSpec::Month) => "write a day of the month: `anchor: 15`",
                    ("quota.anchor", PeriodSpec::Year) => "write a month and a day: `anchor: 04-06`",
                    _ => "write smaller numbers",
                };
                self.error("quota", span.unwrap_or(&spec.amount.span), text).set_help(help);
            }
        }
    }

    fn grace(&mut self, at: &Spanned<TextScalar>, amount: u64) -> Option<u64> {
        let error = |why: String| {
            let (problem, help) = why.split_once("; ").unwrap_or((&why, "write a smaller grace"));
            self.error("quota", &at.span, format!("quota.grace: {problem}")).set_help(help);
        };
        quantity::parse_grace(&at.value, amount).map_err(error).ok()
    }
}
