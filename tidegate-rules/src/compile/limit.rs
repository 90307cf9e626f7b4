//! Compiling limits: exactly one algorithm in each place, with amounts that can be computed exactly.

use std::time::Duration;

use smallvec::SmallVec;
use smol_str::SmolStr;
use tidegate::limits::LimitError;
use tidegate::{Limit, Rate};

use super::Compiler;
use crate::quantity;
use crate::read::{Required, Spanned};
use crate::schema_types::{
    Amount, FixedWindowSpec, LeakyBucketSpec, LimitSpec, RuleSpec, SlidingLogSpec, SlidingWindowSpec, TokenBucketSpec,
};
use crate::source_file::Span;

/// The default number of slices of a sliding window.
const DEFAULT_SLICES: u64 = 6;

const KINDS: &str =
    "`token_bucket`, `leaky_bucket`, `fixed_window`, `sliding_log`, `sliding_window`, `concurrency` or `quota`";

/// The fields of a limit in a rule.
const FIELDS: [&str; 8] =
    ["token_bucket", "leaky_bucket", "fixed_window", "sliding_log", "sliding_window", "concurrency", "quota", "limits"];

/// The code of errors about numbers.
const CODE: &str = "inexact";

/// A window that fits every amount.
const SECOND: Duration = Duration::from_secs(1);

/// Units per second at which the largest bucket refills in time.
const FAST: u64 = 1_000_000_000;

/// Whether a limit of a rule was removed, since it was reported. Then it is not missing.
pub(super) fn has_lost_limit(rule: &Spanned<RuleSpec>) -> bool {
    rule.has_lost(&FIELDS) || rule.limits.values().any(|limit| !limit.removed.is_empty())
}

/// Every value is checked beside values that fit all others, so that one error does not hide another; then all together.
impl Compiler<'_> {
    /// The limits of a rule, by name; the name of a single limit is empty.
    pub(super) fn limits(&mut self, rule: &Spanned<RuleSpec>, span: &Span) -> Option<Vec<(SmolStr, Limit)>> {
        let own = LimitSpec {
            token_bucket: rule.token_bucket.clone(),
            leaky_bucket: rule.leaky_bucket.clone(),
            fixed_window: rule.fixed_window.clone(),
            sliding_log: rule.sliding_log.clone(),
            sliding_window: rule.sliding_window.clone(),
            concurrency: rule.concurrency.clone(),
            quota: rule.quota.clone(),
        };
        if rule.limits.is_empty() {
            return Some(vec![(SmolStr::default(), self.limit(&own, span, rule.has_lost(&FIELDS))?)]);
        }
        let of_rule = self.each_limit(&own);
        if !of_rule.is_empty() {
            let message = "the rule has a limit of its own and further ones below `limits`";
            self.error("several-limits", span, message).set_help("move all of them below `limits`, each under a name");
        }
        let mut limits = Vec::new();
        for (name, written) in &rule.limits {
            if let Some(limit) = self.limit(&written.value, &written.span, !written.removed.is_empty()) {
                limits.push((SmolStr::new(name), limit));
            }
        }
        (limits.len() == rule.limits.len() && of_rule.is_empty()).then_some(limits)
    }

    /// One limit. `is_lost` is whether one was reported and removed.
    pub(super) fn limit(&mut self, written: &LimitSpec, span: &Span, is_lost: bool) -> Option<Limit> {
        match *self.each_limit(written) {
            [limit] => return limit,
            [] if is_lost => {}
            [] => self.error("limit", span, "there is no limit").set_help(format!("add one: {KINDS}")),
            _ => self
                .error("limit", span, "there are several limits")
                .set_help("move them below `limits`, each under its own name"),
        }
        None
    }

    /// Each limit that is written; `None` after an error.
    fn each_limit(&mut self, written: &LimitSpec) -> SmallVec<[Option<Limit>; 1]> {
        let limits = [
            written.token_bucket.as_ref().map(|at| self.token_bucket(at)),
            written.leaky_bucket.as_ref().map(|at| self.leaky_bucket(at)),
            written.fixed_window.as_ref().map(|at| self.fixed_window(at)),
            written.sliding_log.as_ref().map(|at| self.sliding_log(at)),
            written.sliding_window.as_ref().map(|at| self.sliding_window(at)),
            written.concurrency.as_ref().map(|at| self.concurrency(at)),
            written.quota.as_ref().map(|at| self.quota(at)),
        ];
        limits.into_iter().flatten().collect()
    }

    fn token_bucket(&mut self, spec: &TokenBucketSpec) -> Option<Limit> {
        let capacity =
            self.amount_of(&spec.capacity, |capacity| Limit::token_bucket(capacity, Rate::per_second(FAST)?));
        let refill = self.rate(&spec.refill);
        self.report_limit_error(Limit::token_bucket(capacity?, refill?), &spec.capacity.as_ref()?.span)
    }

    fn leaky_bucket(&mut self, spec: &LeakyBucketSpec) -> Option<Limit> {
        let queue = self.amount_of(&spec.queue, |queue| Limit::leaky_bucket(Rate::per_second(FAST)?, queue));
        let rate = self.rate(&spec.rate);
        self.report_limit_error(Limit::leaky_bucket(rate?, queue?), &spec.queue.as_ref()?.span)
    }

    fn fixed_window(&mut self, spec: &FixedWindowSpec) -> Option<Limit> {
        let limit = self.amount_of(&spec.limit, |limit| Limit::fixed_window(limit, SECOND));
        let window = spec.window.as_ref().and_then(|at| {
            let window = quantity::parse_window(at).map_err(|why| _ = self.error("duration", &at.span, why)).ok()?;
            self.check_value(CODE, window, &at.span, |window| Limit::fixed_window(1, window))
        });
        Limit::fixed_window(limit?, window?).ok()
    }

    fn sliding_log(&mut self, spec: &SlidingLogSpec) -> Option<Limit> {
        let limit = self.amount_of(&spec.limit, |limit| Limit::sliding_log(limit, SECOND));
        let window = self.time_of(&spec.window, |window| Limit::sliding_log(1, window));
        Limit::sliding_log(limit?, window?).ok()
    }

    fn sliding_window(&mut self, spec: &SlidingWindowSpec) -> Option<Limit> {
        let limit = self.amount_of(&spec.limit, |limit| Limit::sliding_window(limit, SECOND, 1));
        let window = self.time_of(&spec.window, |window| Limit::sliding_window(1, window, 1));
        let slices = spec.slices.as_ref().map_or(Some(DEFAULT_SLICES), |at| {
            let window = |slices: u64| Duration::from_micros(slices.max(1));
            self.check_value(CODE, at.value.0, &at.span, |slices| Limit::sliding_window(1, window(slices), slices))
        });
        let span = spec.slices.as_ref().map(|at| &at.span).or(spec.window.as_ref().map(|at| &at.span))?;
        self.report_limit_error(Limit::sliding_window(limit?, window?, slices?), span)
    }

    /// An amount that `limit` accepts.
    fn amount_of<L>(
        &mut self,
        field: &Required<Amount>,
        limit: impl FnOnce(u64) -> Result<L, LimitError>,
    ) -> Option<u64> {
        let at = field.as_ref()?;
        self.check_value(CODE, at.value.0, &at.span, limit)
    }

    /// A time that `limit` accepts.
    fn time_of<L>(
        &mut self,
        field: &Required<String>,
        limit: impl FnOnce(Duration) -> Result<L, LimitError>,
    ) -> Option<Duration> {
        let at = field.as_ref()?;
        let time = self.duration(at)?;
        self.check_value(CODE, time, &at.span, limit)
    }

    /// A value, unless `check` refuses it.
    pub(super) fn check_value<T: Copy, L>(
        &mut self,
        code: &'static str,
        value: T,
        span: &Span,
        check: impl FnOnce(T) -> Result<L, LimitError>,
    ) -> Option<T> {
        check(value).map_err(|error| _ = self.error(code, span, error.to_string())).ok().map(|_| value)
    }

    pub(super) fn report_limit_error(&mut self, limit: Result<Limit, LimitError>, span: &Span) -> Option<Limit> {
        limit.map_err(|error| _ = self.error(CODE, span, error.to_string())).ok()
    }

    fn rate(&mut self, field: &Required<String>) -> Option<Rate> {
        let at = field.as_ref()?;
        quantity::parse_rate(at).map_err(|why| _ = self.error("rate", &at.span, why)).ok()
    }

    pub(super) fn duration(&mut self, at: &Spanned<String>) -> Option<Duration> {
        let error = |why| {
            let problem = self.error("duration", &at.span, why);
            if quantity::parse_window(at).is_ok() {
                problem.set_help("only `fixed_window` and `quota` take calendar months and years");
            }
        };
        quantity::parse_duration(at).map_err(error).ok()
    }
}
