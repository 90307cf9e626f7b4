//! Compiling limits: exactly one algorithm in each place, with amounts that can be computed exactly.

use std::time::Duration;

use smol_str::SmolStr;
use tidegate::{Limit, LimitError, Rate, Window};

use super::Compiler;
use crate::quantity;
use crate::read::Spanned;
use crate::schema_types::{self, LimitSpec};
use crate::source_file::Span;

/// The default number of slices of a sliding window.
const DEFAULT_SLICES: u64 = 6;

const KINDS: &str =
    "`token_bucket`, `leaky_bucket`, `fixed_window`, `sliding_log`, `sliding_window`, `concurrency` or `quota`";

impl Compiler<'_> {
    /// The limits of a rule, by name; the name of a single limit is empty.
    pub(super) fn limits(&mut self, rule: &schema_types::RuleSpec, span: &Span) -> Option<Vec<(SmolStr, Limit)>> {
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
            return Some(vec![(SmolStr::default(), self.limit(&own, span)?)]);
        }
        if kinds(&own) > 0 {
            let message = "the rule has a limit of its own and further ones below `limits`";
            self.error("several-limits", span, message).set_help("move all of them below `limits`, each under a name");
            return None;
        }
        let mut limits = Vec::new();
        for (name, written) in &rule.limits {
            if let Some(limit) = self.limit(&written.value, &written.span) {
                limits.push((SmolStr::new(name), limit));
            }
        }
        (limits.len() == rule.limits.len()).then_some(limits)
    }

    /// One limit.
    pub(super) fn limit(&mut self, written: &LimitSpec, span: &Span) -> Option<Limit> {
        if kinds(written) != 1 {
            let (message, help) = match kinds(written) {
                0 => ("there is no limit", format!("add one: {KINDS}")),
                _ => ("there are several limits", "move them below `limits`, each under its own name".to_owned()),
            };
            if !(self.partial && kinds(written) == 0) {
                self.error("limit", span, message).set_help(help);
            }
            return None;
        }
        if let Some(at) = &written.token_bucket {
            let refill = self.rate(&at.refill)?;
            return self.report_limit_error(Limit::token_bucket(at.capacity.value.0, refill), &at.capacity.span);
        }
        if let Some(at) = &written.leaky_bucket {
            let rate = self.rate(&at.rate)?;
            return self.report_limit_error(Limit::leaky_bucket(rate, at.queue.value.0), &at.queue.span);
        }
        if let Some(at) = &written.fixed_window {
            let window = self.window(&at.window)?;
            return self.report_limit_error(Limit::fixed_window(at.limit.value.0, window), &at.limit.span);
        }
        if let Some(at) = &written.sliding_log {
            let window = self.duration(&at.window)?;
            return self.report_limit_error(Limit::sliding_log(at.limit.value.0, window), &at.limit.span);
        }
        if let Some(at) = &written.concurrency {
            return self.concurrency(at);
        }
        if let Some(at) = &written.quota {
            return self.quota(at);
        }
        let at = written.sliding_window.as_ref()?;
        let window = self.duration(&at.window)?;
        let slices = at.slices.as_ref().map_or(DEFAULT_SLICES, |slices| slices.value.0);
        let span = at.slices.as_ref().map_or(&at.window.span, |slices| &slices.span);
        self.report_limit_error(Limit::sliding_window(at.limit.value.0, window, slices), span)
    }

    pub(super) fn report_limit_error(&mut self, limit: Result<Limit, LimitError>, span: &Span) -> Option<Limit> {
        limit.map_err(|error| _ = self.error("inexact", span, error.to_string())).ok()
    }

    fn rate(&mut self, at: &Spanned<String>) -> Option<Rate> {
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

    fn window(&mut self, at: &Spanned<String>) -> Option<Window> {
        quantity::parse_window(at).map_err(|why| _ = self.error("duration", &at.span, why)).ok()
    }
}

fn kinds(limits: &LimitSpec) -> usize {
    let present = [
        limits.token_bucket.is_some(),
        limits.leaky_bucket.is_some(),
        limits.fixed_window.is_some(),
        limits.sliding_log.is_some(),
        limits.sliding_window.is_some(),
        limits.concurrency.is_some(),
        limits.quota.is_some(),
    ];
    present.into_iter().filter(|present| *present).count()
}
