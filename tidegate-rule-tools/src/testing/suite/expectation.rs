//! `Expectation`: the expected outcomes of a step, and the expected fields of its last decision.

use tidegate_rules::internals::{Span, Spanned, format_duration};
use tidegate_rules::suggest;

use super::super::schema_types::{DeniedSpec, ExpectDetailsSpec, ExpectSpec, OptionalField, OutcomeSpec};
use super::SuiteBuilder;

/// The expectation of a step.
#[derive(Debug)]
pub(in crate::testing) struct Expectation {
    pub(in crate::testing) counts: Option<CountAssertion>,
    pub(in crate::testing) wanted: Vec<FieldAssertion>,
}

/// The expected number of outcomes. A missing number matches any.
#[derive(Debug, Default)]
pub(in crate::testing) struct CountAssertion {
    pub(in crate::testing) span: Span,
    pub(in crate::testing) allowed: Option<u64>,
    pub(in crate::testing) denied: Option<u64>,
    pub(in crate::testing) no_rule: Option<u64>,
    pub(in crate::testing) unavailable: Option<u64>,
    /// The rule that must refuse all refused requests.
    pub(in crate::testing) by: Option<String>,
}

/// The expected value of a field of the last decision.
#[derive(Debug)]
pub(in crate::testing) struct FieldAssertion {
    pub(in crate::testing) field: DecisionField,
    /// As printed; `None` if there must be no value.
    pub(in crate::testing) value: Option<String>,
    pub(in crate::testing) span: Span,
}

/// A field of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::testing) enum DecisionField {
    Rule,
    Limit,
    Remaining,
    RetryAfter,
    ResetAfter,
    Delay,
    Permanent,
    InGrace,
    Cost,
    Status,
    Header(String),
    Message,
    Body,
    ShadowWouldReject,
}

impl SuiteBuilder<'_> {
    /// Compiles the expectation of a step that sends `send` requests.
    pub(super) fn expectation(&mut self, at: &Spanned<ExpectSpec>, send: u64) -> Expectation {
        match &at.value {
            ExpectSpec::Text(outcome) => {
                let mut counts = CountAssertion { span: outcome.span.clone(), ..CountAssertion::default() };
                match outcome.value {
                    OutcomeSpec::Allowed => counts.allowed = Some(send),
                    OutcomeSpec::Denied => counts.denied = Some(send),
                    OutcomeSpec::NoRule => counts.no_rule = Some(send),
                    OutcomeSpec::Unavailable => counts.unavailable = Some(send),
                }
                Expectation { counts: Some(counts), wanted: Vec::new() }
            }
            ExpectSpec::Map(details) => {
                let counts = self.counts(details, send);
                let wanted = self.wanted(details);
                if counts.is_none() && wanted.is_empty() && !self.partial {
                    let message = "nothing is expected here, so the step cannot fail";
                    self.error("no-expectation", &at.span, message).set_help("remove `expect` if that is intended");
                }
                Expectation { counts, wanted }
            }
        }
    }

    fn counts(&mut self, details: &ExpectDetailsSpec, send: u64) -> Option<CountAssertion> {
        let number = |at: &OptionalField<Spanned<u64>>| at.as_ref().map(|at| at.value);
        let (allowed, no_rule) = (number(&details.allowed), number(&details.no_rule));
        let unavailable = number(&details.unavailable);
        let others = [allowed, no_rule, unavailable].into_iter().flatten().fold(0, u64::saturating_add);
        let (denied, by) = match &*details.denied {
            None => (None, None),
            Some(DeniedSpec::Number(number)) => (Some(number.value), None),
            Some(DeniedSpec::Text(rule)) => {
                self.known_rule(rule);
                (Some(send.saturating_sub(others)), Some(rule.value.clone()))
            }
        };
        let denied_span = details.denied.as_ref().map(|denied| match denied {
            DeniedSpec::Number(number) => number.span.clone(),
            DeniedSpec::Text(rule) => rule.span.clone(),
        });
        let allowed_span = details.allowed.as_ref().map(|at| at.span.clone());
        let rest = details.no_rule.as_ref().or(details.unavailable.as_ref());
        let span = allowed_span.or(denied_span).or_else(|| rest.map(|at| at.span.clone()))?;
        let sum = others.saturating_add(denied.unwrap_or(0));
        // With both given, the numbers must add up.
        if sum > send || (allowed.is_some() && denied.is_some() && sum != send) {
            let message = format!("{sum} outcomes are expected, but {send} requests are sent");
            self.error("count", &span, message).set_help("the numbers must add up to `send`");
        } else if by.is_some() && denied == Some(0) {
            let message = "a denying rule is expected, but all requests are expected to pass";
            self.error("count", &span, message).set_help("the numbers must add up to `send`");
        }
        Some(CountAssertion { span, allowed, denied, no_rule, unavailable, by })
    }

    fn wanted(&mut self, details: &ExpectDetailsSpec) -> Vec<FieldAssertion> {
        let mut wanted = Vec::new();
        if let Some(rule) = &*details.rule {
            self.known_rule(rule);
            wanted.push(FieldAssertion::new(DecisionField::Rule, rule.value.clone(), &rule.span));
        }
        for (field, at) in [
            (DecisionField::Cost, &details.cost),
            (DecisionField::Limit, &details.limit),
            (DecisionField::Remaining, &details.remaining),
            (DecisionField::Status, &details.status),
        ] {
            wanted.extend(at.as_ref().map(|at| FieldAssertion::new(field, at.value.to_string(), &at.span)));
        }
        for (field, at) in [
            (DecisionField::RetryAfter, &details.retry_after),
            (DecisionField::ResetAfter, &details.reset_after),
            (DecisionField::Delay, &details.delay),
        ] {
            let Some(at) = &**at else { continue };
            let shown = self.duration(at).map(format_duration);
            wanted.extend(shown.map(|shown| FieldAssertion::new(field, shown, &at.span)));
        }
        if let Some(at) = &*details.permanent {
            wanted.push(FieldAssertion::new(DecisionField::Permanent, at.value.to_string(), &at.span));
        }
        if let Some(at) = &*details.in_grace {
            wanted.push(FieldAssertion::new(DecisionField::InGrace, at.value.to_string(), &at.span));
        }
        for (name, at) in &details.headers {
            let field = DecisionField::Header(name.to_ascii_lowercase());
            wanted.push(FieldAssertion { field, value: at.value.clone(), span: at.span.clone() });
        }
        if let Some(at) = &*details.message {
            wanted.push(FieldAssertion::new(DecisionField::Message, at.trim().to_owned(), &at.span));
        }
        if let Some(at) = &*details.body {
            wanted.push(FieldAssertion::new(DecisionField::Body, at.trim().to_owned(), &at.span));
        }
        if let Some(at) = &*details.shadow_would_reject {
            at.0.iter().for_each(|rule| self.known_rule(rule));
            let rules: Vec<_> = at.0.iter().map(|rule| rule.value.as_str()).collect();
            let value = Some(rules.join(", ")).filter(|rules| !rules.is_empty());
            wanted.push(FieldAssertion { field: DecisionField::ShadowWouldReject, value, span: at.span.clone() });
        }
        wanted
    }

    /// Reports an expected rule that does not exist: a misspelt id would look like a wrong limit.
    fn known_rule(&mut self, at: &Spanned<String>) {
        let Some(rules) = &self.rules else { return };
        if !rules.contains(&at.value) {
            let help = suggest(at, rules.iter().map(String::as_str));
            self.error("unknown-rule", &at.span, format!("there is no rule `{}`", at.value)).set_help(help);
        }
    }
}

impl FieldAssertion {
    fn new(field: DecisionField, value: String, span: &Span) -> Self {
        Self { field, value: Some(value), span: span.clone() }
    }
}

impl DecisionField {
    /// Its name in a test file.
    pub(in crate::testing) fn name(&self) -> String {
        match self {
            Self::Rule => "rule".into(),
            Self::Limit => "limit".into(),
            Self::Remaining => "remaining".into(),
            Self::RetryAfter => "retry_after".into(),
            Self::ResetAfter => "reset_after".into(),
            Self::Delay => "delay".into(),
            Self::Permanent => "permanent".into(),
            Self::InGrace => "in_grace".into(),
            Self::Cost => "cost".into(),
            Self::Status => "status".into(),
            Self::Header(name) => format!("header {name}"),
            Self::Message => "message".into(),
            Self::Body => "body".into(),
            Self::ShadowWouldReject => "shadow_would_reject".into(),
        }
    }
}
