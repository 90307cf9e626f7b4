//! Lints: probable mistakes in a usable file. The last stage of loading a file; it changes nothing.
//!
//! A lint reports only what the file itself shows, and says how to fix it or how to state that it is intended. A file with
//! errors gets no lints, because the parts that were removed would cause false ones.

mod anonymous;
mod concurrency;
pub(crate) mod failure_policy;
mod identity;
mod ledger;
pub(crate) mod limits;
pub(crate) mod penalty;
mod quota;
mod reachability;
mod repeated;
pub(crate) mod security;
mod spellings;

use std::path::Path;

use tidegate_rules::internals::{
    self, CompiledFile, CompiledRule, ExampleRequest, MAX_COMPARISONS, NEVER_APPLIES, NOT_COMPARED, condition_weight,
};
use tidegate_rules::{Problem, Report, RuleFile};
/// Every code that a lint can have. `docs/lints.md` explains each.
pub(crate) const CODES: [&str; 55] = [
    "account-spellings",
    "colon-segment",
    "concurrency-on-security",
    "cost-above-limit",
    "credential-spellings",
    "duplicate-rule",
    "exempt-by-header",
    "exempt-by-tenant",
    "exempt-from-protection",
    "fails-open",
    "fixed-window-on-security",
    "forgeable-cost",
    "free-until-settled",
    "huge-log",
    "large-grace",
    "ledger-fails-open",
    "ledger-in-shadow",
    "ledger-without-tenant",
    "local-changed",
    "local-for-everybody",
    "login-by-ip-alone",
    "long-lease",
    "long-queue",
    "looks-like-security",
    "many-slots",
    NEEDED_AT_DOOR,
    NEVER_APPLIES,
    "never-decides",
    "never-matches",
    "no-rules",
    NOT_COMPARED,
    "penalty-by-account",
    "plan-of-another-shape",
    "plan-without-ledger",
    "quota-without-ledger",
    "repeated-values",
    "security-fails-open",
    "shared-usage",
    "slots-for-one",
    "static-for-concurrency",
    "strangers-remembered",
    "sync-ledger-on-reads",
    "too-many-checks",
    "trust-everyone",
    "unauthenticated-header",
    "unauthenticated-ledger",
    "unauthenticated-quota",
    "unauthenticated-tenant",
    UNAVAILABLE_AT_DOOR,
    "unknown-size",
    "unreachable",
    "unused-identity",
    "unverified-claim",
    "usage-without-estimate",
    "zero-limit",
];

/// The code of the warning that a front end never has what a rule reads.
pub(crate) const UNAVAILABLE_AT_DOOR: &str = "unavailable-at-door";

/// The code of the note on what callers of a front end must send for a rule.
pub(crate) const NEEDED_AT_DOOR: &str = "needed-at-door";

/// The most rules or routes that one message names; the others are counted.
pub(crate) const MAX_LISTED_NAMES: usize = 8;

/// Loads a file as [`RuleFile::load`] does, and finds probable mistakes: they are in its [report](RuleFile::report), and in that of a file
/// whose parts are valid and which must not be used as a whole.
pub fn load_and_lint(path: impl AsRef<Path>) -> Result<RuleFile, Report> {
    internals::load_with(path.as_ref(), lint)
}

/// The same of a text; `name` is the file name in reports.
pub fn parse_and_lint(name: &str, text: &str) -> Result<RuleFile, Report> {
    internals::parse_with(name, text, lint)
}

/// Appends the lints of a file, the most severe first.
fn lint(file: &CompiledFile, problems: &mut Vec<Problem>) {
    let mut lints = Vec::new();
    if file.rules.is_empty() {
        let problem = Problem::warning("no-rules", "the file has no rules, so every request passes", 0..0);
        lints.push(problem.with_help("add one below `rules`"));
    }
    let rules: Vec<&CompiledRule> = file.enabled_rules().collect();
    identity::lint(file, problems, &mut lints);
    repeated::lint(file, &mut lints);
    spellings::lint(file, &mut lints);
    for rule in &rules {
        security::lint(rule, &mut lints);
        failure_policy::lint(rule, &mut lints);
        limits::lint(rule, &mut lints);
        lints.extend(limits::unknown_size(rule, file.matcher.unknown_size));
        lints.extend(anonymous::lint(file, rule));
        lints.extend(penalty::lint(rule));
        concurrency::lint(rule, &mut lints);
        quota::lint(file, rule, &mut lints);
        ledger::lint(file, rule, &mut lints);
    }
    reachability::lint_conditions(file, &mut lints);
    lint_overlapping(file, &rules, &mut lints);
    debug_assert!(lints.iter().all(|problem| CODES.contains(&problem.code())), "a code is missing in CODES: {lints:?}");
    if lints.iter().any(|problem| problem.code() == NOT_COMPARED) {
        problems.retain(|problem| problem.code() != NOT_COMPARED);
    }
    problems.append(&mut lints);
}

/// Compares each rule with those that apply to the same request.
fn lint_overlapping(file: &CompiledFile, rules: &[&CompiledRule], lints: &mut Vec<Problem>) {
    let exempt: usize = file.matcher.exempt.iter().map(condition_weight).sum();
    let mut left = MAX_COMPARISONS;
    for (index, rule) in rules.iter().enumerate() {
        let (beside, looked_at) = ExampleRequest::first(&rule.matcher.condition).rules(&file.matcher);
        let beside: Vec<(usize, &CompiledRule)> = beside.into_iter().map(|other| (other, rules[other])).collect();
        let others = beside.iter().map(|(_, other)| weight(other)).fold(exempt, usize::saturating_add);
        let work = weight(rule).saturating_mul(others).saturating_add(looked_at);
        let Some(less) = left.checked_sub(work) else {
            let message =
                "too many rules match the same values: this rule and later ones were not compared with each other";
            let problem = Problem::note(NOT_COMPARED, message, rule.id_span.clone());
            lints.push(problem.with_help("match by path, action, host, tenant or a header's value"));
            return;
        };
        left = less;
        if let Some(exemption) = reachability::always_exempt(file, rule) {
            lints.push(exemption);
            continue;
        }
        lints.extend(reachability::redundant_rule(index, rule, &beside));
        lints.extend(security::by_address_alone(index, rule, &beside));
        lints.extend(concurrency::one_client_holds_all(index, rule, &beside));
        lints.extend(concurrency::one_client_reserves_all(rule, &beside));
    }
}

/// How many values of a rule there are to compare.
fn weight(rule: &CompiledRule) -> usize {
    condition_weight(&rule.matcher.condition) + rule.matcher.per.len() + rule.limits.len() + rule.plans.len()
}

/// Lists the names, at most [`MAX_LISTED_NAMES`] of them; `None` if there are none.
pub(crate) fn list_names<T: AsRef<str>>(names: &[T]) -> Option<String> {
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
