//! Invalid test files: all problems are reported at once, each with its position, and the work is bounded.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tidegate_rule_tools::{TestRun, run_tests};
use tidegate_rules::Report;

const RULES: &str = "\
version: 1
rules:
  - id: search
    match: { path: /search }
    per: [ip]
    token_bucket: { capacity: 5, refill: 1/s }
";

/// A directory with these rules and these tests.
fn folder(rules: &str, tests: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    fs::write(folder.path().join("rules.yaml"), rules).expect("a rule file");
    fs::write(folder.path().join("rules.test.yaml"), tests).expect("a test file");
    folder
}

fn run_in(folder: &Path) -> Result<TestRun, Report> {
    run_tests(&folder.join("rules.test.yaml"))
}

/// The problems of a test file, as `line:column code: message`.
fn problems(tests: &str) -> Vec<String> {
    let report = run_in(folder(RULES, tests).path()).expect_err("the file is wrong");
    let format = |problem: &tidegate_rules::Problem| {
        let (line, column) = report.position(problem);
        format!("{line}:{column} {}: {}", problem.code(), problem.message())
    };
    report.problems().iter().map(format).collect()
}

#[test]
fn all_problems_of_a_test_file_are_reported_at_once_with_their_positions() {
    let found = problems(
        "\
rules: rules.yaml
start: yesterday
request: { pth: /search }
tests:
  - name: one
    steps:
      - { send: 0, expect: allowed }
      - { at: 5, expect: alowed }
      - { send: 3, expect: { allowed: 2, denied: 2 } }
      - { expect: { denied: serch } }
      - { at: 3s, after: 1s, expect: { retry_after: soon } }
      - { at: 1s, expect: denied }
  - name: one
    request: { ip: home, headers: { 'x y': 1 }, attributes: { path: /x } }
    steps:
      - { send: 5 }
  - steps: [{ expect: {} }]
",
    );
    let expected = [
        "2:8 instant: not a valid time; write one such as 2026-01-01T00:00:00Z or 2026-01-01T00:00:00+02:00",
        "3:12 unknown-field: unknown field `pth`",
        "7:17 send: the step sends no requests",
        "8:15 duration: \"5\" lacks a unit; write 10s or 10m",
        "8:26 unknown-value: `alowed` is not a valid value",
        "9:39 count: 4 outcomes are expected, but 3 requests are sent",
        "10:29 unknown-rule: there is no rule `serch`",
        "11:26 time: `at` and `after` both set the time",
        "11:53 duration: \"soon\" does not start with a number; write 10s or 10m",
        "12:15 time: time cannot go backwards: the previous request is at 3s",
        "13:11 duplicate-name: an earlier test has this name",
        "14:20 request: not an IP address; write one such as 203.0.113.9",
        "14:44 request: not a header name: it has letters, digits and signs such as `-`, and no spaces",
        "14:69 request: `path` is set by the front end; write it as a field of the request",
        "17:5 missing-field: the field `name` is missing",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_test_that_cannot_fail_is_missing_value() {
    let tests = |steps: &str| format!("rules: rules.yaml\ntests:\n  - name: idle\n    steps: {steps}\n");
    let refused = "3:11 no-expectation: no step of this test expects anything, so it cannot fail";
    assert_eq!(problems(&tests("[]")), [refused]);
    assert_eq!(problems(&tests("[{ send: 3 }]")), [refused]);
    assert_eq!(
        problems(&tests("[{ expect: {} }]")),
        ["4:23 no-expectation: nothing is expected here, so the step cannot fail"]
    );
    assert_eq!(problems("rules: rules.yaml\ntests: []\n"), ["1:8 no-tests: there are no tests in this file"]);
}

/// An expectation without a value would compare nothing, so its test could not fail.
#[test]
fn an_empty_field_is_an_error_at_its_position() {
    let test = |request: &str, step: &str| {
        format!("rules: rules.yaml\nrequest: {request}\ntests:\n  - name: a\n    steps:\n      - {{ {step} }}\n")
    };
    let missing_value = |column: usize| format!("6:{column} value: there is no value: write one, or remove the field");
    for field in [
        "allowed",
        "denied",
        "no_rule",
        "rule",
        "limit",
        "remaining",
        "retry_after",
        "reset_after",
        "delay",
        "permanent",
        "cost",
        "status",
        "headers",
        "message",
        "body",
        "shadow_would_reject",
    ] {
        // With another expectation, and alone.
        let other = if field == "status" { "cost: 1" } else { "status: 200" };
        let column = 21 + other.len() + ", ".len();
        assert_eq!(
            problems(&test("{}", &format!("expect: {{ {other}, {field}: ~ }}"))),
            [missing_value(column)],
            "{field}"
        );
        assert_eq!(problems(&test("{}", &format!("expect: {{ {field}: ~ }}"))), [missing_value(21)]);
    }
    for field in ["at", "after", "send", "every", "holds", "peek", "cost", "request", "expect"] {
        assert_eq!(problems(&test("{}", &format!("{field}: ~"))), [missing_value(11)], "{field}");
    }
    assert_eq!(
        problems(&test("{}", "request: { headers: ~, attributes: }, expect: allowed")),
        [missing_value(22), missing_value(34)]
    );
    assert_eq!(problems(&test("~", "expect: allowed"))[0], missing_value(1).replace("6:", "2:"));
    let empty = "rules: rules.yaml\nstart:\ntests:\n  - name: a\n    steps:\n      - expect:\n";
    assert_eq!(problems(empty), [missing_value(1).replace("6:", "2:"), missing_value(9)]);
}

/// An editor must accept exactly what the parser accepts.
#[test]
fn the_schema_allows_empty_values_only_where_the_parser_does() {
    let schema = serde_json::from_str(&tidegate_rule_tools::test_schema()).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let is_valid = |step: &str| {
        let text = format!("rules: rules.yaml\ntests:\n  - {{ name: a, steps: [{step}] }}\n");
        validator.is_valid(&serde_saphyr::from_str(&text).expect("YAML"))
    };
    for step in [
        "{ expect: allowed }",
        "{ expect: { denied: search, retry_after: 1s, headers: { retry-after: ~ } } }",
        "{ request: { method: ~, path: ~, host: ~, ip: ~, tenant: ~, action: ~, body: ~, cost: ~, headers: { x-a: ~ } } }",
    ] {
        assert!(is_valid(step), "{step}");
    }
    for step in [
        "{ expect: ~ }",
        "{ expect: { denied: ~ } }",
        "{ expect: { allowed: 1, retry_after: ~ } }",
        "{ expect: { allowed: 1, headers: ~ } }",
        "{ at: ~ }",
        "{ request: ~ }",
        "{ request: { headers: ~ } }",
    ] {
        assert!(!is_valid(step), "{step}");
    }
}

#[test]
fn request_counts_and_times_are_bounded() {
    let tests = |steps: &str| format!("rules: rules.yaml\ntests:\n  - name: a\n    steps:\n      - {steps}\n");
    assert_eq!(
        problems(&tests("{ send: 1_000_001, expect: allowed }")),
        ["5:17 send: with this step the file sends more than the maximum of 1000000 requests"]
    );
    for late in ["at: 36500d", "send: 1_000_000, every: 1d"] {
        let found = problems(&tests(&format!("{{ {late}, expect: no_rule }}")));
        assert!(found[0].ends_with("the time is after the year 2111, where the clock of Tidegate ends"), "{found:?}");
    }
}

#[test]
fn errors_in_the_rule_file_are_reported_for_that_file() {
    let tests = "rules: rules.yaml\ntests:\n  - { name: a, steps: [{ expect: allowed }] }\n";
    let broken = folder("version: 1\nrules:\n  - id: a\n    per: [ip]\n    token_bucket: { capacity: 5 }\n", tests);
    let report = run_in(broken.path()).unwrap_err();
    assert!(report.file().ends_with("rules.yaml") && !report.file().ends_with("test.yaml"), "{}", report.file());
    assert!(report.to_string().contains("the field `refill` is missing"), "{report}");

    let missing = folder(RULES, "rules: other.yaml\ntests:\n  - { name: a, steps: [{ expect: allowed }] }\n");
    let report = run_in(missing.path()).unwrap_err();
    assert!(report.file().ends_with("rules.test.yaml"));
    assert_eq!(report.position(&report.problems()[0]), (1, 8));
    assert!(report.to_string().contains("the rule file cannot be read: "), "{report}");

    assert!(run_tests(&missing.path().join("nowhere.test.yaml")).is_err());
}

#[test]
fn a_rule_file_is_distinguished_from_its_test_file() {
    assert_eq!(problems(RULES), ["1:1 rules: this is a rule file, not a test file"]);
}
