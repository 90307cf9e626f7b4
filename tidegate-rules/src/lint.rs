//! Lints: what can be used, and is probably a mistake. The last stage of loading a file; it changes nothing.
//!
//! It must not cry wolf: a lint speaks only of what it can see in the file, and says how to mend it or how to say that it
//! is meant. A file with errors gets none, since what is left of it would draw lints that it does not deserve.

mod anonymous;
mod check_count;
mod example_request;
pub(crate) mod failure_policy;
mod identity;
pub(crate) mod limits;
mod reachability;
pub(crate) mod security;

use crate::compile::{CompiledFile, CompiledRule};
use crate::problem::{MAX_PROBLEMS, Problem, Severity};
use example_request::ExampleRequest;

/// Every code that a lint can have. `docs/lints.md` explains each.
pub(crate) const CODES: [&str; 26] = [
    "colon-segment",
    "cost-above-limit",
    "duplicate-rule",
    "exempt-by-header",
    "fixed-window-on-security",
    "forgeable-cost",
    "free-until-settled",
    "huge-log",
    "login-by-ip-alone",
    "long-queue",
    "looks-like-security",
    "never-decides",
    "never-matches",
    "no-rules",
    NOT_COMPARED,
    "plan-of-another-shape",
    "security-fails-open",
    "strangers-remembered",
    "too-many-checks",
    "trust-everyone",
    "unauthenticated-header",
    "unauthenticated-tenant",
    "unreachable",
    "unused-identity",
    "unverified-claim",
    "zero-limit",
];

/// What is told where the work became too much; once, by whichever comparison ends first.
const NOT_COMPARED: &str = "not-compared";

/// How much work comparing rules may be, in comparisons of two values. Rules that share nothing are never compared, so only
/// a file that would be slow to match reaches this; it then takes about a second.
const MAX_COMPARISONS: usize = 20_000_000;

/// The most rules or routes that are named in one place; the others are counted.
pub(crate) const MAX_LISTED_NAMES: usize = 8;

/// Looks for the classic mistakes.
pub(crate) fn lint(ready: &CompiledFile, problems: &mut Vec<Problem>) {
    if problems.iter().any(|problem| problem.severity() == Severity::Error) {
        return;
    }
    let mut found = Vec::new();
    if ready.rules.is_empty() {
        let problem = Problem::warning("no-rules", "the file has no rules, so every request passes", 0..0);
        found.push(problem.with_help("add one below `rules`"));
    }
    let rules: Vec<&CompiledRule> = ready.rules.iter().filter(|rule| !rule.is_disabled()).collect();
    identity::lint(ready, problems, &mut found);
    for rule in &rules {
        security::lint(rule, &mut found);
        limits::lint(rule, &mut found);
        found.extend(anonymous::lint(ready, rule));
    }
    reachability::conditions(ready, &mut found);
    together(ready, &rules, &mut found);
    check_count::lint(ready, &rules, &mut found);
    debug_assert!(found.iter().all(|problem| CODES.contains(&problem.code())), "a code is missing in CODES: {found:?}");
    // A report is cut where it is too long. An error must not be lost behind a hundred notes.
    found.sort_by_key(Problem::severity);
    found.truncate(MAX_PROBLEMS.saturating_sub(problems.len()));
    problems.append(&mut found);
}

/// Looks at rules together with those that apply to the same request.
fn together(ready: &CompiledFile, rules: &[&CompiledRule], found: &mut Vec<Problem>) {
    let exempt: usize = ready.matcher.exempt.iter().map(example_request::weight).sum();
    let mut left = MAX_COMPARISONS;
    for (place, rule) in rules.iter().enumerate() {
        let (beside, looked_at) = ExampleRequest::of(&rule.matcher.condition).rules(&ready.matcher);
        let beside: Vec<(usize, &CompiledRule)> = beside.into_iter().map(|other| (other, rules[other])).collect();
        let others = beside.iter().map(|(_, other)| weight(other)).fold(exempt, usize::saturating_add);
        let work = weight(rule).saturating_mul(others).saturating_add(looked_at);
        let Some(less) = left.checked_sub(work) else {
            let message = "too many rules share a match: from here on they were not compared with each other";
            let problem = Problem::note(NOT_COMPARED, message, rule.id_span.clone());
            found.push(problem.with_help("match by path, action, host, tenant or a header's value"));
            return;
        };
        left = less;
        if let Some(exemption) = reachability::exempted(ready, rule) {
            found.push(exemption);
            continue;
        }
        found.extend(reachability::outdone(place, rule, &beside));
        found.extend(security::by_address_alone(place, rule, &beside));
    }
}

/// How much there is to compare about a rule.
fn weight(rule: &CompiledRule) -> usize {
    example_request::weight(&rule.matcher.condition) + rule.matcher.per.len() + rule.limits.len() + rule.plans.len()
}

/// The names in a row, if there are any; of many, some are counted.
pub(crate) fn named<T: AsRef<str>>(names: &[T]) -> Option<String> {
    let more = names.len().saturating_sub(MAX_LISTED_NAMES);
    let row = names[..names.len() - more].iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match (names.is_empty(), more) {
        (true, _) => None,
        (_, 0) => Some(row),
        (_, more) => Some(format!("{row} and {more} more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_explained() {
        let page = include_str!("../../docs/lints.md");
        for code in CODES {
            assert!(page.contains(&format!("\n| `{code}` | ")), "docs/lints.md does not explain `{code}`");
        }
    }
}
