//! Hints: what an answer that was not expected says about how to mend the test, or the rules. They guess, and say no more
//! than the answer and the rules tell.

use tidegate::CheckResult;

use super::assertions::DecidedStep;
use super::suite::{CountAssertion, DecisionField, FieldAssertion};
use crate::condition::ConditionMismatch;
use crate::quantity::format_duration;
use crate::request_view::RequestView;

/// About requests that became something else.
pub(super) fn of_counts(counts: &CountAssertion, seen: &DecidedStep<'_>) -> Option<String> {
    if let Some(rule) = &counts.by
        && seen.decision.rule() != Some(rule)
    {
        return of_rule(rule, seen);
    }
    if seen.tally.no_rule > counts.no_rule.unwrap_or(0) {
        return Some(nothing_applies(seen));
    }
    if counts.no_rule.is_some_and(|wanted| wanted > seen.tally.no_rule) {
        let applied: Vec<_> = seen.decision.checks().iter().map(|check| format!("`{}`", check.rule())).collect();
        return Some(format!("applied: {}", applied.join(", ")));
    }
    if seen.decision.is_allowed() { room(seen) } else { wait(seen) }
}

/// About a field of an answer.
pub(super) fn of_field(wanted: &FieldAssertion, seen: &DecidedStep<'_>) -> Option<String> {
    let refused = !seen.decision.is_allowed();
    match &wanted.field {
        DecisionField::Rule => of_rule(wanted.value.as_deref()?, seen),
        DecisionField::RetryAfter if refused => wait(seen),
        DecisionField::RetryAfter => room(seen),
        DecisionField::Header(_) if is_quiet(seen) => {
            Some("a rule with `security: true` applied: its answers tell no more than when to try again".into())
        }
        DecisionField::Header(name) if name == "retry-after" && refused => {
            Some("`retry-after` has whole seconds, rounded up".into())
        }
        DecisionField::Delay if refused => Some("it was refused, so it is not held".into()),
        _ => None,
    }
}

/// Why `rule` is not the one that the answer is about.
fn of_rule(rule: &str, seen: &DecidedStep<'_>) -> Option<String> {
    if seen.decision.rule() == Some(rule) {
        return None;
    }
    let Some(check) = seen.decision.checks().iter().find(|check| check.rule() == rule) else {
        return lets_pass(rule, seen).or_else(|| does_not_apply(rule, seen));
    };
    let outcome = check.outcome();
    Some(match (outcome.admitted, seen.decision.is_allowed()) {
        (true, _) => format!("`{rule}` admits it: {} of {} are left", outcome.remaining, outcome.limit),
        (false, false) => format!("`{rule}` refuses it too; the answer is about the rule with the longest wait"),
        (false, true) => format!("`{rule}` is in shadow: it would refuse, and affects nothing"),
    })
}

/// Why a rule that applies was not asked: the store fails, and it lets pass then.
fn lets_pass(rule: &str, seen: &DecidedStep<'_>) -> Option<String> {
    seen.decision.degraded()?;
    let plan = seen.rules.rules().resolve(seen.request);
    let (_, policy) = plan.policies().find(|(id, _)| *id == rule)?;
    Some(format!("the store fails, and `{rule}` is {} then", policy.as_str()))
}

/// What a rule asks for that the request is not.
fn does_not_apply(rule: &str, seen: &DecidedStep<'_>) -> Option<String> {
    let view = RequestView::new(seen.request, &seen.rules.matcher);
    let compiled = seen.rules.compiled.iter().find(|compiled| compiled.matcher.id == rule)?;
    let Some(mismatch) = compiled.matcher.condition.mismatch(&view) else {
        return Some(match exemption(seen) {
            Some(exempt) => exempt,
            None => format!("`{rule}` is disabled"),
        });
    };
    Some(format!("`{rule}` does not apply: {}", differs(&mismatch)))
}

/// Why no rule applies at all: an exemption, or the rule that comes closest.
fn nothing_applies(seen: &DecidedStep<'_>) -> String {
    let view = RequestView::new(seen.request, &seen.rules.matcher);
    let enabled = seen.rules.compiled.iter().filter(|compiled| !compiled.is_disabled());
    let nearest = enabled.filter_map(|compiled| {
        let mismatch = compiled.matcher.condition.mismatch(&view)?;
        let found: String = mismatch.found.as_deref().unwrap_or_default().chars().take(64).collect();
        Some((strsim::levenshtein(&mismatch.wanted, &found), &compiled.matcher.id, mismatch))
    });
    let nearest = nearest.min_by_key(|(distance, ..)| *distance);
    let why = exemption(seen).or_else(|| {
        let (_, id, mismatch) = nearest?;
        Some(format!("no rule applies; `{id}` comes closest: {}", differs(&mismatch)))
    });
    why.unwrap_or_else(|| "no rule applies".into()) + ". If that is meant, expect `no_rule`"
}

fn exemption(seen: &DecidedStep<'_>) -> Option<String> {
    let view = RequestView::new(seen.request, &seen.rules.matcher);
    let place = seen.rules.matcher.exemption(&view)?;
    Some(format!("the exemption in line {} of the rules applies", seen.rules.exempt_lines.get(place)?))
}

fn differs(mismatch: &ConditionMismatch) -> String {
    let ConditionMismatch { field, wanted, found } = mismatch;
    match found {
        Some(found) => format!("its {field} is {wanted}, and the request has {}", found.escape_debug()),
        None => format!("its {field} is {wanted}, and the request has none"),
    }
}

/// How much more would pass.
fn room(seen: &DecidedStep<'_>) -> Option<String> {
    let check = seen.decision.shown()?;
    let outcome = check.outcome();
    Some(format!("the last one passed: {} of {} are left under `{}`", outcome.remaining, outcome.limit, check.rule()))
}

/// When it would pass.
fn wait(seen: &DecidedStep<'_>) -> Option<String> {
    let check = seen.decision.shown().filter(|_| !seen.decision.is_allowed())?;
    let (rule, outcome) = (check.rule(), check.outcome());
    Some(match seen.decision.retry_after() {
        Some(retry) => format!("under `{rule}` the last one passes {} later, at {}", format_duration(retry), {
            format_duration(seen.at.saturating_add(retry))
        }),
        None => format!("it never passes: it costs {}, and `{rule}` admits at most {}", check.cost(), outcome.limit),
    })
}

fn is_quiet(seen: &DecidedStep<'_>) -> bool {
    seen.decision.checks().iter().any(CheckResult::is_security)
}
