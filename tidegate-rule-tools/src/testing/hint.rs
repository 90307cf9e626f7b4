//! Hints on a failed assertion: a likely reason, from the decision and the rules.

use tidegate::StoreError;
use tidegate::limits::Algorithm;
use tidegate::spi::CheckResult;
use tidegate_rules::internals::{CompiledRule, RequestView, compiled, format_duration, line};

use super::assertions::DecidedStep;
use super::suite::{CountAssertion, DecisionField, FieldAssertion};
use crate::condition_mismatch::{ConditionMismatch, mismatch};

/// The hint on unexpected outcomes.
pub(super) fn for_counts(counts: &CountAssertion, step: &DecidedStep<'_>) -> Option<String> {
    if let Some(rule) = &counts.by
        && step.decision.rule() != Some(rule)
    {
        return why_not_rule(rule, step);
    }
    if step.actual.no_rule > counts.no_rule.unwrap_or(0) {
        return Some(nothing_applies(step));
    }
    if counts.no_rule.is_some_and(|wanted| wanted > step.actual.no_rule) {
        let applied: Vec<_> = step.decision.checks().iter().map(|check| format!("`{}`", check.rule())).collect();
        return Some(format!("applied: {}", applied.join(", ")));
    }
    if step.decision.is_allowed() { room(step) } else { wait(step) }
}

/// The hint on an unexpected field of a decision.
pub(super) fn for_field(wanted: &FieldAssertion, step: &DecidedStep<'_>) -> Option<String> {
    let refused = !step.decision.is_allowed();
    match &wanted.field {
        DecisionField::Rule => why_not_rule(wanted.value.as_deref()?, step),
        DecisionField::RetryAfter if refused => wait(step),
        DecisionField::RetryAfter => room(step),
        DecisionField::Header(_) if is_quiet(step) => {
            Some("a rule with `security: true` applied: its responses show only when to retry".into())
        }
        DecisionField::Header(name) if name == "retry-after" && refused => {
            Some("`retry-after` has whole seconds, rounded up".into())
        }
        DecisionField::InGrace => Some(grace(step)),
        DecisionField::Delay if refused => Some("it was refused, so it has no delay".into()),
        _ => None,
    }
}

/// Why the decision is not about `rule`.
fn why_not_rule(rule: &str, step: &DecidedStep<'_>) -> Option<String> {
    if step.decision.rule() == Some(rule) {
        return None;
    }
    let own = || step.decision.checks().iter().filter(|check| check.rule() == rule);
    let Some(check) = own().find(|check| !check.outcome().admitted).or_else(|| own().next()) else {
        return lets_pass(rule, step).or_else(|| does_not_apply(rule, step));
    };
    let outcome = check.outcome();
    Some(match (outcome.admitted, step.decision.is_allowed()) {
        (true, _) => format!("`{rule}` admits it: {} of {} are left", outcome.remaining, outcome.limit),
        (false, false) => format!("`{rule}` refuses it too; the decision is about the rule with the longest wait"),
        (false, true) => format!("`{rule}` is in shadow mode: it would refuse, but has no effect"),
    })
}

/// Why a rule that applies has no check: the store fails, and its policy lets requests pass.
fn lets_pass(rule: &str, step: &DecidedStep<'_>) -> Option<String> {
    let error = StoreError::new(step.decision.degraded()?, "the store fails");
    let plan = step.rules.rules().resolve(step.request);
    let (_, policy) = plan.policies(&error).find(|(id, _)| *id == rule)?;
    Some(format!("the store fails, and `{rule}` is {} then", policy.as_str()))
}

/// Why a rule does not apply to the request.
fn does_not_apply(rule: &str, step: &DecidedStep<'_>) -> Option<String> {
    let view = RequestView::new(step.request, &compiled(step.rules).matcher);
    let own = compiled(step.rules).rules.iter().find(|other| other.id == rule)?;
    let Some(mismatch) = mismatch(&own.matcher.condition, &view) else {
        return Some(exemption(Some(rule), step).unwrap_or_else(|| format!("`{rule}` is disabled")));
    };
    Some(format!("`{rule}` does not apply: {}", differs(&mismatch)))
}

/// Why no rule applies: an exemption, or the most similar rule.
fn nothing_applies(step: &DecidedStep<'_>) -> String {
    let view = RequestView::new(step.request, &compiled(step.rules).matcher);
    let enabled = compiled(step.rules).enabled_rules();
    let nearest = enabled.filter_map(|rule| {
        let mismatch = mismatch(&rule.matcher.condition, &view)?;
        let found: String = mismatch.found.as_deref().unwrap_or_default().chars().take(64).collect();
        Some((strsim::levenshtein(&mismatch.wanted, &found), &rule.id, mismatch))
    });
    let nearest = nearest.min_by_key(|(distance, ..)| *distance);
    let applies = |rule: &&CompiledRule| rule.matcher.condition.matches(&view);
    let exempt = compiled(step.rules).enabled_rules().filter(applies).find_map(|rule| exemption(Some(&rule.id), step));
    let why = exempt.or_else(|| exemption(None, step)).or_else(|| {
        let (_, id, mismatch) = nearest?;
        Some(format!("no rule applies; `{id}` is the most similar: {}", differs(&mismatch)))
    });
    why.unwrap_or_else(|| "no rule applies".into()) + ". If that is intended, expect `no_rule`"
}

/// The exemption from this rule, or from all rules, that applies.
fn exemption(rule: Option<&str>, step: &DecidedStep<'_>) -> Option<String> {
    let matcher = &compiled(step.rules).matcher;
    let exemptions = matcher.exemptions(&RequestView::new(step.request, matcher));
    let index = match rule {
        Some(rule) => matcher.exemption_from(rule, &exemptions),
        None => matcher.exemption_from_all(&exemptions),
    };
    let line = line(step.rules, &compiled(step.rules).exempt[index?]);
    Some(format!("the exemption in line {line} of the rules applies"))
}

fn differs(mismatch: &ConditionMismatch) -> String {
    let ConditionMismatch { field, wanted, found } = mismatch;
    match found {
        Some(found) => format!("its {field} is {wanted}, but the request has {}", found.escape_debug()),
        None => format!("its {field} is {wanted}, but the request has none"),
    }
}

/// How much of the limit is left.
fn room(step: &DecidedStep<'_>) -> Option<String> {
    let check = step.decision.most_restrictive()?;
    let outcome = check.outcome();
    Some(format!("the last one passed: {} of {} are left under `{}`", outcome.remaining, outcome.limit, check.rule()))
}

/// When the request would be admitted.
fn wait(step: &DecidedStep<'_>) -> Option<String> {
    let check = step.decision.most_restrictive().filter(|_| !step.decision.is_allowed())?;
    let (rule, outcome) = (check.rule(), check.outcome());
    Some(match step.decision.retry_after() {
        Some(_) if check.algorithm() == Algorithm::Concurrency => {
            format!(
                "`{rule}` holds {} of {}; `holds` says when a request ends",
                outcome.limit - outcome.remaining,
                outcome.limit
            )
        }
        Some(retry) => format!("under `{rule}` the last one passes {} later, at {}", format_duration(retry), {
            format_duration(step.at.saturating_add(retry))
        }),
        None => format!("it never passes: it costs {}, and `{rule}` admits at most {}", check.cost(), outcome.limit),
    })
}

/// How much of a quota is used.
fn grace(step: &DecidedStep<'_>) -> String {
    let check = step.decision.checks().iter().find(|check| check.algorithm() == Algorithm::Quota);
    let Some(check) = check else { return "no quota applies".into() };
    let (rule, outcome) = (check.rule(), check.outcome());
    match (outcome.admitted, outcome.remaining) {
        (false, _) => format!("`{rule}` refuses it: the grace is used up, or there is none"),
        (true, 0) => format!("under `{rule}` all of {} is used", outcome.limit),
        (true, left) => format!("under `{rule}` {left} of {} are left before the grace", outcome.limit),
    }
}

fn is_quiet(step: &DecidedStep<'_>) -> bool {
    step.decision.checks().iter().any(CheckResult::is_security)
}
