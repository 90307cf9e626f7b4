//! Penalties in rule files, where they are allowed, and what they become; and the bounds of slots.

use std::time::Duration;

use tidegate::limits::Penalty;
use tidegate_rule_tools::describe_limit;
use tidegate_rules::{Report, RuleFile};

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
    let expected =
        ["sliding log: 20 in any 10m", "blocked for 1m at strike 3, then 3 times the block before, up to 1h"];
    assert_eq!(limits, expected);
    assert_eq!(
        (plan.checks()[1].gate().rule().id.as_str(), plan.checks()[1].gate().limit_name().as_str()),
        ("login", "penalty")
    );
}

#[test]
fn each_block_is_twice_as_long_by_default() {
    let file = parse("{ after: 1, block: 1m, max: 1h }", BY_ADDRESS).unwrap();
    let penalty = *file.rules().rule("login").unwrap().penalty.as_ref().unwrap();
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
    let after = |after: &str| problem(&format!("{{ after: {after}, block: 1m, max: 1h }}"));
    assert_eq!(after("-1"), "value: -1 is out of range: it must be 1 to 100");
    assert_eq!(after("0"), "penalty: penalty.after: 0 is out of range: `after` is 1 to 100");
    let factor = |factor: &str| problem(&format!("{{ after: 3, block: 1m, factor: {factor}, max: 1h }}"));
    assert_eq!(factor("-1"), "value: -1 is out of range: it must be 1 to 1000");
    assert!(factor("0").ends_with("`factor` is 1 to 1,000; 1 keeps all blocks equally long"));
    let block = |block: &str, max: &str| problem(&format!("{{ after: 3, block: {block}, max: {max} }}"));
    assert_eq!(block("2h", "60m"), "penalty: penalty.max: 1h is shorter than the first block, 2h");
    assert_eq!(block("0s", "1h"), "penalty: penalty.block: it is zero; it must be at least 1 microsecond");
    assert_eq!(block("1m", "20000d"), "penalty: penalty.max: 20000d is longer than 10 years, the maximum");
    assert!(problem("{ after: 3, block: 1m }").contains("max"));
}

/// The bounds of the file and those of the library are the same.
#[test]
fn the_largest_numbers_of_a_penalty_are_accepted() {
    let file = parse("{ after: 100, block: 1m, factor: 1k, max: 1h }", BY_ADDRESS).unwrap();
    let penalty = *file.rules().rule("login").unwrap().penalty.as_ref().unwrap();
    assert_eq!((penalty.after(), penalty.factor()), (100, 1_000));
    let hour = Duration::from_secs(3600);
    assert!(Penalty::new(101, hour, 1, hour).is_err() && Penalty::new(1, hour, 1_001, hour).is_err());
}

#[test]
fn blocks_that_do_not_grow_are_described_as_such() {
    let penalty = Penalty::new(3, Duration::from_secs(60), 1, Duration::from_secs(3600)).unwrap();
    let described = describe_limit(&tidegate::Limit::Penalty(penalty));
    assert_eq!(described, "blocked for 1m at strike 3, and as long at each further one");
}

#[test]
fn a_penalty_without_its_fields_is_refused_with_an_example() {
    let help = |text: &str| {
        let report = RuleFile::parse("rules.yaml", text).unwrap_err();
        let problem = report.problems()[0].clone();
        (problem.message().to_owned(), problem.help().unwrap_or_default().to_owned())
    };
    let rule = |fields: &str| format!("version: 1\nrules:\n  - {{ id: login, {BY_ADDRESS}, {fields} }}\n");
    let log = "sliding_log: { limit: 20, window: 10m }";
    let (message, example) = help(&rule(&format!("{log}, penalty: 1m")));
    assert_eq!(message, "expected a map, found text");
    assert_eq!(example, "write `penalty: { after: 3, block: 1m, max: 1h }`");
    let (message, suggestion) = help(&rule(&format!("{log}, penalties: {PENALTY}")));
    assert_eq!(message, "unknown field `penalties`");
    assert_eq!(suggestion, "did you mean `penalty`?");
    for (limit, example) in [
        ("concurrency", "write `concurrency: { max: 3 }`"),
        ("fixed_window", "write `fixed_window: { limit: 100, window: 1m }`"),
        ("leaky_bucket", "write `leaky_bucket: { rate: 10/s, queue: 20 }`"),
        ("sliding_log", "write `sliding_log: { limit: 100, window: 1m }`"),
        ("sliding_window", "write `sliding_window: { limit: 100, window: 1m }`"),
        ("token_bucket", "write `token_bucket: { capacity: 10, refill: 1/s }`"),
    ] {
        let (message, help) = help(&rule(&format!("{limit}: 3")));
        assert_eq!((message.as_str(), help.as_str()), ("expected a map, found a number", example));
    }
}

#[test]
fn the_slots_of_a_concurrency_limit_have_bounds_of_their_own() {
    let problem = |max: &str| {
        let rule = format!("{{ id: a, per: [], on_failure: share, concurrency: {{ max: {max} }} }}");
        let file = RuleFile::parse("rules.yaml", &format!("version: 1\nrules:\n  - {rule}\n"));
        file.err().map(|report| report.problems()[0].message().to_owned())
    };
    assert_eq!(problem("-1").as_deref(), Some("-1 is out of range: it must be 0 to 65535"));
    assert!(problem("65536").is_some_and(|problem| problem.contains("above the largest value, 65535")));
    assert_eq!((problem("0"), problem("65535")), (None, None));
    assert_eq!(tidegate::spi::MAX_CONCURRENCY, 65_535);
}
