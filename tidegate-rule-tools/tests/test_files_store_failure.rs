//! Tests of limits in which the store fails: each rule does what its `on_failure` says.

use tidegate_rule_tools::{TestFailure, TestRun, run_tests};
use tidegate_rules::Report;

const RULES: &str = "\
version: 1
rules:
  - id: api
    match: { path: /api/* }
    per: [ip]
    token_bucket: { capacity: 4, refill: 1/h }
    on_failure: { GET: open, POST /api/pay: closed, POST: { static: 3/m }, default: share }
    message: Slowly.
  - id: pay
    match: { path: /api/pay }
    per: []
    token_bucket: { capacity: 100, refill: 1/h }
    on_failure: degraded
";

/// Runs these steps against [`RULES`], as one test.
fn run(head: &str, steps: &str) -> Result<TestRun, Report> {
    let folder = tempfile::tempdir().expect("a directory");
    let request = "request: { method: PUT, path: /api/x, ip: 203.0.113.9 }";
    let tests = format!("rules: rules.yaml\n{head}{request}\ntests:\n  - name: a test\n    steps:\n{steps}");
    std::fs::write(folder.path().join("rules.yaml"), RULES).expect("a rule file");
    std::fs::write(folder.path().join("a.test.yaml"), tests).expect("a test file");
    run_tests(&folder.path().join("a.test.yaml"))
}

fn failures(head: &str, steps: &str) -> Vec<TestFailure> {
    let run = run(head, steps).unwrap_or_else(|report| panic!("{report}"));
    run.tests.into_iter().flat_map(|test| test.failures).collect()
}

#[test]
fn every_policy_can_be_expected() {
    let steps = "
      - { send: 9, store_fails: true, request: { method: GET }, expect: allowed }
      - { send: 2, store_fails: true, request: { method: POST, path: /api/pay }, expect: unavailable }
      - { send: 5, store_fails: true, request: { method: POST }, expect: { allowed: 3, denied: api } }
      - { after: 20s, send: 2, store_fails: true, request: { method: POST, ip: 203.0.113.10 }, expect: { allowed: 1, denied: 1 } }
      - { send: 6, store_fails: true, expect: { allowed: 4, denied: api, status: 429, message: Slowly. } }
      # None of it was counted in the store, which is back.
      - { send: 5, expect: { allowed: 4, denied: api } }
      - { store_fails: true, request: { path: /elsewhere }, expect: no_rule }
";
    assert_eq!(failures("", steps), []);
}

#[test]
fn a_share_is_the_limit_divided_by_the_instances() {
    let steps = "      - { send: 3, store_fails: true, expect: { allowed: 2, denied: api } }\n";
    assert_eq!(failures("instances: 2\n", steps), []);
    assert_eq!(failures("", steps).len(), 1);
}

#[test]
fn the_response_of_a_closed_rule_can_be_expected() {
    let steps = "
      - store_fails: true
        request: { method: POST, path: /api/pay }
        expect:
          unavailable: 1
          status: 503
          headers: { retry-after: 1, x-ratelimit-limit: ~ }
          message: The request cannot be checked against its limits at the moment. Retry later.
          body: '{\"error\":\"temporarily_unavailable\",\"message\":\"The request cannot be checked against its limits at the moment. Retry later.\",\"retry_after\":1,\"retry_after_ms\":1000}'
      # A decision without the store has no numbers in its response.
      - { store_fails: true, expect: { allowed: 1, status: 200, headers: { x-ratelimit-limit: ~, ratelimit: ~ } } }
";
    assert_eq!(failures("", steps), []);
}

#[test]
fn a_failed_expectation_names_the_failure_policy() {
    let steps = "
      - { store_fails: true, request: { method: POST, path: /api/pay }, expect: allowed }
      - { store_fails: true, request: { method: GET }, expect: { denied: api } }
      - { store_fails: true, expect: unavailable }
      - { expect: unavailable }
      - { store_fails: true, request: { method: POST, path: /api/pay }, expect: { rule: api } }
";
    let differences: Vec<_> = failures("", steps)
        .into_iter()
        .map(|failure| (failure.expected + " / " + &failure.got, failure.note.unwrap_or_default()))
        .collect();
    let differences: Vec<_> = differences.iter().map(|(differs, note)| (differs.as_str(), note.as_str())).collect();
    assert_eq!(
        differences,
        [
            ("allowed / unavailable", "the store fails, and `api` is closed then"),
            ("denied by api / allowed", "the store fails, and `api` is open then"),
            ("unavailable / allowed", "the last one passed: 3 of 4 are left under `api`"),
            ("unavailable / allowed", "the last one passed: 3 of 4 are left under `api`"),
            ("api / none", "the store fails, and `api` is closed then"),
        ]
    );
}

/// Coverage is about limits: a rule that denied only while the store failed could have any limit.
#[test]
fn a_failing_store_covers_no_limit() {
    let run = run("", "      - { send: 9, store_fails: true, expect: { allowed: 4, denied: api } }\n").unwrap();
    assert!(run.passed(), "{}", run.render(false));
    assert_eq!(run.unexercised().collect::<Vec<_>>(), ["api", "pay"]);
}

#[test]
fn contradictory_steps_are_errors() {
    for (head, step, message) in [
        ("", "{ store_fails: true, peek: true, expect: allowed }", "a failing store cannot be peeked at"),
        ("", "{ store_fails: maybe, expect: allowed }", "expected true or false"),
        ("", "{ send: 2, expect: { allowed: 1, unavailable: 2 } }", "3 outcomes are expected, but 2 requests are sent"),
        ("instances: 0\n", "{ expect: allowed }", "0 is out of range"),
        ("instances: 5000000000\n", "{ expect: allowed }", "5000000000 is out of range"),
    ] {
        let report = run(head, &format!("      - {step}\n")).unwrap_err();
        assert_eq!(report.problems().len(), 1, "{report}");
        assert!(report.problems()[0].message().contains(message), "{report}");
    }
}
