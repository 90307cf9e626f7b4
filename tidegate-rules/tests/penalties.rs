//! Penalties in rule files: where they are allowed, and what they become.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use tidegate_rules::{Report, RuleFile, describe_limit};

/// A file with one rule that has this penalty and these further fields.
fn parse(penalty: &str, fields: &str) -> Result<RuleFile, Report> {
    let rule = format!("{{ id: login, sliding_log: {{ limit: 20, window: 10m }}, penalty: {penalty}, {fields} }}");
    RuleFile::parse("rules.yaml", &format!("version: 1\nrules:\n  - {rule}\n"))
}

/// The messages of a file with this penalty.
fn problems(penalty: &str, fields: &str) -> Vec<String> {
    let report = parse(penalty, fields).unwrap_err();
    report.problems().iter().map(|problem| format!("{}: {}", problem.code(), problem.message())).collect()
}

const PENALTY: &str = "{ after: 3, block: 1m, factor: 3, max: 1h }";
const BY_ADDRESS: &str = "per: [ip], security: true, on_failure: share";

#[test]
fn a_penalty_is_one_more_check_of_its_rule() {
    let file = parse(PENALTY, BY_ADDRESS).unwrap();
    let request = tidegate::Request::new("").with_attribute("ip", "192.0.2.7");
    let plan = file.rules().resolve(&request);
    let limits: Vec<String> = plan.checks().iter().map(|check| describe_limit(check.gate().limit())).collect();
    let expected = ["sliding log: 20 in any 10m", "blocked for 1m at refusal 3, then 3 times longer each, up to 1h"];
    assert_eq!(limits, expected);
    assert_eq!((plan.checks()[1].gate().rule(), plan.checks()[1].gate().limit_name()), ("login", "penalty"));
}

#[test]
fn each_block_is_twice_as_long_by_default() {
    let file = parse("{ after: 1, block: 1m, max: 1h }", BY_ADDRESS).unwrap();
    let penalty = *file.rules().rule("login").unwrap().penalty().unwrap();
    assert_eq!(penalty.block_after(2), Duration::from_secs(120));
}

#[test]
fn a_penalty_is_refused_where_it_would_hit_others() {
    let problem = |fields: &str| problems(PENALTY, fields).join("\n");
    assert!(problem("per: [ip], on_failure: share").contains("only for rules against guessing"));
    assert!(problem("per: [ip], security: false, on_failure: share").contains("only for rules against guessing"));
    assert!(problem("per: [], security: true, on_failure: share").contains("would block everybody"));
    assert!(problem(&format!("{BY_ADDRESS}, budget: b")).contains("could exhaust the budget"));
}

#[test]
fn a_penalty_that_cannot_grow_as_written_is_refused() {
    let problem = |penalty: &str| problems(penalty, BY_ADDRESS).join("\n");
    assert!(problem("{ after: 0, block: 1m, max: 1h }").contains("penalty.after"));
    assert!(problem("{ after: 3, block: 2h, max: 1h }").contains("shorter than the first block"));
    assert!(problem("{ after: 3, block: 1m, factor: 0, max: 1h }").contains("penalty.factor"));
    assert!(problem("{ after: 3, block: 1m, max: 20000d }").contains("longer than 10 years"));
    assert!(problem("{ after: 3, block: 1m }").contains("max"));
}
