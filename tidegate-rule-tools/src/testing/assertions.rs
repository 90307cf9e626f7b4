//! Assertions: compares the result of a step with its expectation. Values are compared as they are printed, so that different
//! values also look different.

use std::time::Duration;

use smol_str::SmolStr;
use tidegate::spi::CheckResult;
use tidegate::{Decision, Request};
use tidegate_rules::RuleFile;
use tidegate_rules::internals::{Span, format_duration};

use super::hint;
use super::suite::{CountAssertion, DecisionField, Expectation, FieldAssertion};
use super::unavailable_step::UnavailableStep;

/// The outcomes of the requests of a step.
#[derive(Debug, Default)]
pub(super) struct OutcomeCounts {
    pub(super) allowed: u64,
    pub(super) no_rule: u64,
    /// The number of requests refused because the store fails.
    pub(super) unavailable: u64,
    /// The number of requests that each rule refused, in the order of first refusals.
    pub(super) denied: Vec<(SmolStr, u64)>,
}

/// The result of a step.
pub(super) enum StepResult<'s> {
    /// The last request has a decision.
    Decided(DecidedStep<'s>),
    /// The last request was refused because the store fails.
    Unavailable(UnavailableStep<'s>),
}

/// The result of a step whose last request has a decision.
pub(super) struct DecidedStep<'s> {
    pub(super) rules: &'s RuleFile,
    pub(super) request: &'s Request<'s>,
    /// The last decision.
    pub(super) decision: &'s Decision,
    pub(super) actual: &'s OutcomeCounts,
    /// The time of the last decision.
    pub(super) at: Duration,
}

/// A failed assertion.
pub(super) struct AssertionFailure {
    pub(super) what: String,
    pub(super) span: Span,
    pub(super) expected: String,
    pub(super) got: String,
    pub(super) note: Option<String>,
}

/// All failed assertions of a step.
pub(super) fn check(
    expectation: &Expectation,
    result: &StepResult<'_>,
    actual: &OutcomeCounts,
) -> Vec<AssertionFailure> {
    let counts = expectation.counts.as_ref().filter(|counts| !counts.holds(actual));
    let counts = counts.map(|counts| AssertionFailure {
        what: "outcome".into(),
        span: counts.span.clone(),
        expected: counts.format(actual.sum()),
        got: actual.format(),
        note: result.note_on_counts(counts),
    });
    let fields = expectation.wanted.iter().filter_map(|wanted| {
        let got = result.field(&wanted.field);
        let any =
            matches!(wanted.field, DecisionField::Header(_)) && wanted.value.as_deref() == Some("*") && got.is_some();
        (!any && got != wanted.value).then(|| field(wanted, got, result))
    });
    counts.into_iter().chain(fields).collect()
}

fn field(wanted: &FieldAssertion, got: Option<String>, result: &StepResult<'_>) -> AssertionFailure {
    let note = result.note_on_field(wanted);
    let shown = |value: Option<String>| value.unwrap_or_else(|| "none".into());
    let got = match wanted.field {
        DecisionField::RetryAfter if result.is_permanent() => "never".into(),
        _ => shown(got),
    };
    let expected = if wanted.value.as_deref() == Some("*") { "any value".into() } else { shown(wanted.value.clone()) };
    AssertionFailure { what: wanted.field.name(), span: wanted.span.clone(), expected, got, note }
}

// === impl OutcomeCounts ===

impl OutcomeCounts {
    /// Adds a decision; `None` if the store failed and a rule is closed then.
    pub(super) fn add(&mut self, decision: Option<&Decision>) {
        let Some(decision) = decision else {
            self.unavailable += 1;
            return;
        };
        // A degraded decision may have no checks although rules apply.
        if decision.checks().is_empty() && decision.degraded().is_none() && decision.problem().is_none() {
            self.no_rule += 1;
        } else if decision.is_allowed() {
            self.allowed += 1;
        } else {
            let rule = decision.rule().unwrap_or_default();
            match self.denied.iter_mut().find(|(id, _)| id == rule) {
                Some((_, count)) => *count += 1,
                None => self.denied.push((rule.into(), 1)),
            }
        }
    }

    fn denied(&self) -> u64 {
        self.denied.iter().map(|(_, count)| count).sum()
    }

    fn sum(&self) -> u64 {
        self.allowed + self.no_rule + self.unavailable + self.denied()
    }

    /// `15 allowed, 5 denied by api`.
    fn format(&self) -> String {
        let one = self.sum() == 1;
        let mut parts = Vec::new();
        let mut part = |count: u64, what: String| {
            if count > 0 {
                parts.push(if one { what } else { format!("{count} {what}") });
            }
        };
        part(self.allowed, "allowed".into());
        for (rule, count) in &self.denied {
            // A request that cannot be judged is denied by no rule.
            part(*count, if rule.is_empty() { "denied".into() } else { format!("denied by {rule}") });
        }
        part(self.no_rule, "no_rule".into());
        part(self.unavailable, "unavailable".into());
        parts.join(", ")
    }
}

// === impl CountAssertion ===

impl CountAssertion {
    fn holds(&self, actual: &OutcomeCounts) -> bool {
        let equals = |wanted: Option<u64>, got: u64| wanted.is_none_or(|wanted| wanted == got);
        let only_denied_by = |rule: &String| actual.denied.iter().all(|(id, _)| id == rule);
        equals(self.allowed, actual.allowed)
            && equals(self.denied, actual.denied())
            && equals(self.no_rule, actual.no_rule)
            && equals(self.unavailable, actual.unavailable)
            && self.by.as_ref().is_none_or(only_denied_by)
    }

    /// Formatted like [`OutcomeCounts::format`].
    fn format(&self, sum: u64) -> String {
        let by = self.by.as_ref().map(|rule| format!(" by {rule}")).unwrap_or_default();
        let parts = [
            (self.allowed, "allowed".to_owned()),
            (self.denied, format!("denied{by}")),
            (self.no_rule, "no_rule".to_owned()),
            (self.unavailable, "unavailable".to_owned()),
        ];
        let shown = parts.into_iter().filter_map(|(count, what)| match count? {
            1 if sum == 1 => Some(what),
            count => Some(format!("{count} {what}")),
        });
        shown.collect::<Vec<_>>().join(", ")
    }
}

// === impl StepResult ===

impl StepResult<'_> {
    /// A field of the last decision, as printed.
    fn field(&self, field: &DecisionField) -> Option<String> {
        match self {
            Self::Decided(result) => result.field(field),
            Self::Unavailable(result) => result.field(field),
        }
    }

    fn note_on_counts(&self, counts: &CountAssertion) -> Option<String> {
        match self {
            Self::Decided(result) => hint::for_counts(counts, result),
            Self::Unavailable(result) => result.note(),
        }
    }

    fn note_on_field(&self, wanted: &FieldAssertion) -> Option<String> {
        match self {
            Self::Decided(result) => hint::for_field(wanted, result),
            Self::Unavailable(result) => result.note(),
        }
    }

    fn is_permanent(&self) -> bool {
        matches!(self, Self::Decided(result) if result.decision.is_permanent())
    }
}

// === impl DecidedStep ===

impl DecidedStep<'_> {
    /// A field of the decision, as printed.
    fn field(&self, field: &DecisionField) -> Option<String> {
        let decision = self.decision;
        match field {
            DecisionField::Rule => decision.rule().map(str::to_owned),
            DecisionField::Limit => decision.limit().map(|limit| limit.to_string()),
            DecisionField::Remaining => decision.remaining().map(|remaining| remaining.to_string()),
            DecisionField::RetryAfter => decision.retry_after().map(format_duration),
            DecisionField::ResetAfter => decision.reset_after().map(format_duration),
            DecisionField::Delay => Some(format_duration(decision.delay())),
            DecisionField::Permanent => Some(decision.is_permanent().to_string()),
            DecisionField::InGrace => Some(decision.is_in_grace().to_string()),
            DecisionField::Cost => {
                let check = decision.most_restrictive().or_else(|| decision.checks().first());
                check.map(|check: &CheckResult| check.cost().to_string())
            }
            DecisionField::Status => Some(self.answer().map_or(200, |answer| answer.status).to_string()),
            DecisionField::Header(name) => self.header(name),
            DecisionField::Message => self.answer().map(|answer| answer.message),
            DecisionField::Body => self.answer().map(|answer| answer.body),
            DecisionField::ShadowWouldReject => {
                let rules: Vec<_> = decision.shadow_would_reject().collect();
                Some(rules.join(", ")).filter(|rules| !rules.is_empty())
            }
        }
    }

    fn header(&self, name: &str) -> Option<String> {
        let headers = match self.answer() {
            Some(answer) => answer.headers,
            None => self.rules.rules().header_policy().headers(self.decision),
        };
        headers.into_iter().find(|(header, _)| *header == name).map(|(_, value)| value)
    }

    /// The response that a front end would send.
    fn answer(&self) -> Option<tidegate::http::Rejection> {
        if self.decision.is_allowed() {
            return None;
        }
        let rule = self.decision.rule().and_then(|rule| self.rules.rules().rule(rule));
        Some(self.rules.rules().header_policy().reject(
            self.decision,
            rule.and_then(|rule| rule.message.as_deref()),
            None,
        ))
    }
}
