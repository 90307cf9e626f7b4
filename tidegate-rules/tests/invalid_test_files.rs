//! What becomes of a test file that is wrong: every problem at once, each with its place, and bounded work.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tidegate_rules::{Report, TestRun, run_tests};

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
        "2:8 instant: this is no instant; write one such as 2026-01-01T00:00:00Z, in UTC",
        "3:12 unknown-field: unknown field `pth`",
        "7:17 send: nothing is sent here",
        "8:15 duration: \"5\" lacks a unit; write 10s or 10m",
        "8:26 unknown-value: `alowed` is not a valid value",
        "9:39 count: 4 are expected here, and 3 are sent",
        "10:29 unknown-rule: there is no rule `serch`",
        "11:26 time: `at` and `after` both say when",
        "11:53 duration: \"soon\" does not start with a number; write 10s or 10m",
        "12:15 time: time goes forward: the request before comes at 3s",
        "13:11 duplicate-name: an earlier test has this name",
        "14:20 request: this is no address; write one such as 203.0.113.9",
        "14:44 request: this is no name of a header: one has letters, digits and signs such as `-`, and no spaces",
        "14:69 request: `path` is a door's own name for what it sees; write it as a field of the request",
        "17:5 missing-field: the field `name` is missing",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_test_that_cannot_fail_is_refused() {
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

/// An expectation that is nothing would be compared with nothing, and a test of it could not fail.
#[test]
fn an_empty_field_is_an_error_at_its_position() {
    let test = |request: &str, step: &str| {
        format!("rules: rules.yaml\nrequest: {request}\ntests:\n  - name: a\n    steps:\n      - {{ {step} }}\n")
    };
    let refused = |column: usize| format!("6:{column} value: there is no value: write one, or remove the field");
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
        "shadow_would_reject",
    ] {
        // Beside another expectation, and alone.
        let beside = if field == "status" { "cost: 1" } else { "status: 200" };
        let column = 21 + beside.len() + ", ".len();
        assert_eq!(problems(&test("{}", &format!("expect: {{ {beside}, {field}: ~ }}"))), [refused(column)], "{field}");
        assert_eq!(problems(&test("{}", &format!("expect: {{ {field}: ~ }}"))), [refused(21)]);
    }
    for field in ["at", "after", "send", "every", "peek", "cost", "request", "expect"] {
        assert_eq!(problems(&test("{}", &format!("{field}: ~"))), [refused(11)], "{field}");
    }
    assert_eq!(
        problems(&test("{}", "request: { headers: ~, attributes: }, expect: allowed")),
        [refused(22), refused(34)]
    );
    assert_eq!(problems(&test("~", "expect: allowed"))[0], refused(1).replace("6:", "2:"));
    let empty = "rules: rules.yaml\nstart:\ntests:\n  - name: a\n    steps:\n      - expect:\n";
    assert_eq!(problems(empty), [refused(1).replace("6:", "2:"), refused(9)]);
}

/// An editor must not object to what can be run, nor let pass what cannot.
#[test]
fn the_schema_knows_where_nothing_may_stand() {
    let schema = serde_json::from_str(&tidegate_rules::test_schema()).expect("JSON");
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
fn work_and_time_have_bounds() {
    let tests = |steps: &str| format!("rules: rules.yaml\ntests:\n  - name: a\n    steps:\n      - {steps}\n");
    assert_eq!(
        problems(&tests("{ send: 1_000_001, expect: allowed }")),
        ["5:17 send: with these the file sends more than 1000000 requests, which is the most"]
    );
    for late in ["at: 36500d", "send: 1_000_000, every: 1d"] {
        let found = problems(&tests(&format!("{{ {late}, expect: no_rule }}")));
        assert!(found[0].ends_with("this goes beyond the year 2112, where the clock of Tidegate ends"), "{found:?}");
    }
}

#[test]
fn rules_that_cannot_be_used_are_reported_as_their_own_file() {
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
fn a_rule_file_is_told_from_its_tests() {
    assert_eq!(problems(RULES), ["1:1 rules: this is a rule file, not a test file"]);
}
