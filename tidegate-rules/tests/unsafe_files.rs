//! Files that are valid in each part and unsafe as a whole: a program that embeds the rules must not enforce them, with or without the tools.

use std::fmt::Write as _;

use tidegate::spi::MAX_CHECKS;
use tidegate_rule_tools::parse_and_lint;
use tidegate_rules::{Problem, RuleFile};

const LIMIT: &str = "fixed_window: { limit: 9, window: 1m }";
const QUOTA: &str = "quota: { amount: 9, period: day, ledger: sync }";

/// For each error a file that has it.
fn unsafe_files() -> [(&'static str, String); 6] {
    let mut many = "rules:\n".to_owned();
    for n in 0..=MAX_CHECKS {
        let _ = writeln!(many, "- {{ id: r{n}, per: [ip], fixed_window: {{ limit: {}, window: 1m }} }}", n + 1);
    }
    [
        ("unverified-claim", format!("rules: [{{ id: a, per: ['claim:sub'], {LIMIT} }}]")),
        (
            "exempt-by-tenant",
            format!(
                "identify: {{ tenant: header:x-org }}\nexempt: [{{ tenant: acme }}]\nrules: [{{ id: a, per: [ip], {LIMIT} }}]"
            ),
        ),
        ("unauthenticated-ledger", format!("rules: [{{ id: a, per: [ip], {QUOTA} }}]")),
        (
            "ledger-without-tenant",
            format!(
                "identify: {{ tenant: header:x-org, authenticated: [x-key] }}\nrules: [{{ id: a, per: ['header:x-key'], {QUOTA} }}]"
            ),
        ),
        (
            "never-applies",
            format!("rules: [{{ id: a, match: {{ action: export }}, front_ends: [gateway], per: [ip], {LIMIT} }}]"),
        ),
        ("too-many-checks", many),
    ]
}

#[test]
fn a_file_that_is_unsafe_as_a_whole_is_refused_by_programs_without_the_tools() {
    for (code, body) in unsafe_files() {
        let Err(report) = RuleFile::parse("rules.yaml", &format!("version: 1\n{body}\n")) else { panic!("{code}") };
        assert_eq!(report.problems().iter().map(Problem::code).collect::<Vec<_>>(), [code], "{report}");
    }
}

/// Whoever fixes the error sees at once what else is likely to be wrong.
#[test]
fn the_lints_of_a_file_that_is_unsafe_as_a_whole_are_reported_beside_its_error() {
    let unused = "identify: { unused: header:x-y }\nrules: [{ id: a, per: ['claim:sub'], sliding_log: { limit: 9, window: 1m } }]";
    let report = parse_and_lint("rules.yaml", &format!("version: 1\n{unused}\n")).expect_err("an error");
    assert_eq!(
        report.problems().iter().map(Problem::code).collect::<Vec<_>>(),
        ["unused-identity", "unverified-claim"]
    );
}

#[test]
fn only_the_tools_lint() {
    let text = format!("version: 1\nrules: [{{ id: a, per: [], {LIMIT} }}]\n");
    let (read, linted) = (RuleFile::parse("rules.yaml", &text).unwrap(), parse_and_lint("rules.yaml", &text).unwrap());
    assert!(read.report().problems().is_empty() && !linted.report().problems().is_empty());
    assert_eq!(read.content_hash(), linted.content_hash());
}
