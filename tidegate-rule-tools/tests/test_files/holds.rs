//! `holds`: requests that hold slots of concurrency limits, in virtual time.

use tidegate_rule_tools::TestRun;
use tidegate_rules::Report;

const RULES: &str = "\
version: 1
rules:
  - id: active
    match: { action: export }
    per: [tenant]
    concurrency: { max: 3, lease: 30s }
    on_failure: share
  - id: starts
    match: { action: export }
    per: [tenant]
    leaky_bucket: { rate: 1/s, queue: 5 }
";

fn try_run(head: &str, steps: &str) -> Result<TestRun, Report> {
    let request = "request: { action: export, tenant: acme }";
    let tests = format!("rules: rules.yaml\n{head}{request}\ntests:\n  - name: a test\n    steps:\n{steps}");
    super::run_in(super::folder(RULES, &tests).path())
}

/// The failures of these steps, as `step what: expected, got`.
fn failures(head: &str, steps: &str) -> Vec<String> {
    let run = try_run(head, steps).unwrap_or_else(|report| panic!("{report}"));
    let failures = run.tests.into_iter().flat_map(|test| test.failures);
    failures.map(|fail| format!("{} {}: {}, {}", fail.step, fail.what, fail.expected, fail.got)).collect()
}

#[test]
fn a_request_holds_its_slot_until_it_ends_and_renews_it_meanwhile() {
    let steps = "
      - { at: 0s, holds: 10s, expect: allowed }
      - { at: 1s, holds: 2m, cost: 2, expect: allowed }
      - { at: 9s, expect: { denied: active, retry_after: 1s } }
      - { at: 10s, holds: 0s, expect: allowed }
      - { at: 11s, holds: 0s, expect: allowed }
      - { at: 2m, cost: 2, expect: { denied: active } }
      - { at: 2m1s, cost: 3, expect: allowed }
";
    assert_eq!(failures("", steps), [""; 0]);
}

#[test]
fn a_request_that_says_nothing_holds_its_slot_until_the_lease_has_run_out() {
    let steps = "
      - { cost: 3, expect: allowed }
      - { at: 29s999ms, expect: { denied: active } }
      - { at: 30s, expect: allowed }
";
    assert_eq!(failures("", steps), [""; 0]);
}

/// The queue delays the second request by a second, so it ends at 3 s.
#[test]
fn the_time_of_a_delayed_request_begins_after_its_delay() {
    let steps = "
      - { send: 2, holds: 2s, expect: { allowed: 2, delay: 1s } }
      - { at: 2s, cost: 3, expect: { denied: active } }
      - { at: 2999ms, cost: 3, expect: { denied: active } }
      - { at: 3s, cost: 3, expect: allowed }
";
    assert_eq!(failures("", steps), [""; 0]);
}

#[test]
fn slots_taken_while_the_store_fails_are_held_in_the_instance() {
    let steps = "
      - { send: 2, store_fails: true, holds: 1m, expect: { allowed: 1, denied: active } }
      - { at: 59s, store_fails: true, expect: { denied: active } }
      - { at: 59s, holds: 0s, cost: 3, expect: allowed }
      - { at: 1m, store_fails: true, expect: allowed }
";
    assert_eq!(failures("instances: 2\n", steps), [""; 0]);
}

#[test]
fn a_step_that_should_hold_a_slot_and_takes_none_fails() {
    assert_eq!(
        failures("", "      - { holds: 1s, cost: 0 }\n      - { expect: allowed }\n"),
        ["1 holds: a slot, none"]
    );
    let denied = "      - { cost: 3, expect: allowed }\n      - { holds: 1s, expect: { denied: active } }\n";
    assert_eq!(failures("", denied), [""; 0]);
}

#[test]
fn impossible_times_are_errors_at_their_position() {
    let problems = |steps: &str| {
        let report = try_run("", steps).expect_err("the file is wrong");
        let place = |problem: &tidegate_rules::Problem| {
            (report.position(problem), problem.code(), problem.message().to_owned())
        };
        report.problems().iter().map(place).collect::<Vec<_>>()
    };
    let peek = "a peek takes no slot, so it holds none".to_owned();
    assert_eq!(problems("      - { peek: true, holds: 1s, expect: allowed }\n"), [((6, 30), "holds", peek)]);
    assert_eq!(problems("      - { holds: soon, expect: allowed }\n")[0].1, "duration");
    let (at, code, message) = problems("      - { send: 1000, holds: 17m, expect: allowed }\n").remove(0);
    assert_eq!((at, code), ((6, 30), "holds"));
    assert!(message.contains("more than 1000000 s together"), "{message}");
}
