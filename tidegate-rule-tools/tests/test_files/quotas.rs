//! Quotas in test files: ends of months, days on which the clocks change, anchors, grace, debt, and reservations.

use tidegate_rule_tools::TestRun;
use tidegate_rules::Report;

const RULES: &str = "\
version: 1
identify: { tenant: header:x-tenant-id, authenticated: [x-tenant-id] }
plans:
  pro: { month: { quota: { amount: 10, period: month, timezone: America/New_York, anchor: 31 } } }
  large: { month: { quota: { amount: 10, period: month, timezone: Europe/Berlin } } }
tenants: { globex: pro }
rules:
  - id: month
    match: { action: month }
    per: [tenant]
    quota: { amount: 3, grace: 50%, period: month, timezone: Europe/Berlin }
  - id: day
    match: { action: day }
    per: []
    on_failure: closed
    quota: { amount: 2, period: day, timezone: Europe/Berlin }
  - id: week
    match: { action: week }
    per: []
    on_failure: closed
    quota: { amount: 1, period: week, anchor: Sunday }
  - id: reads
    match: { action: read }
    per: [tenant]
    budget: units
    cost: 1
    quota: { amount: 10, period: day }
  - id: writes
    match: { action: write }
    per: [tenant]
    budget: units
    cost: { default: 4, actual: x-units }
    quota: { amount: 10, period: day }
  - id: tokens
    match: { action: complete }
    per: [tenant]
    cost: { expression: 'int(request.body.max_tokens, 50)', usage: total }
    quota: { amount: 100, period: day, grace: 10 }
  - id: burst
    match: { action: complete }
    per: [tenant]
    cost: { expression: 'int(request.body.max_tokens, 50)', usage: output }
    token_bucket: { capacity: 80, refill: 1/h }
";

fn try_run(start: &str, steps: &str) -> Result<TestRun, Report> {
    let head = format!("rules: rules.yaml\nstart: {start}\nrequest: {{ headers: {{ x-tenant-id: acme }} }}");
    let tests = format!("{head}\ntests:\n  - name: a test\n    steps:\n{steps}");
    super::run_in(super::folder(RULES, &tests).path())
}

/// The failures of these steps, as `step what: expected, got`.
fn failures(start: &str, steps: &str) -> Vec<String> {
    let run = try_run(start, steps).unwrap_or_else(|report| panic!("{report}"));
    let failures = run.tests.into_iter().flat_map(|test| test.failures);
    failures.map(|fail| format!("{} {}: {}, {}", fail.step, fail.what, fail.expected, fail.got)).collect()
}

#[test]
fn a_month_ends_at_midnight_of_its_time_zone() {
    let steps = "
      - { request: { action: month }, send: 5, expect: { allowed: 4, denied: month, retry_after: 1h } }
      - { at: 2026-03-01T00:00:00+01:00, request: { action: month }, expect: { allowed: 1, remaining: 2, in_grace: false } }
";
    assert_eq!(failures("2026-02-28T22:00:00Z", steps), [""; 0]);
}

#[test]
fn grace_is_marked_and_then_denied() {
    let steps = "
      - { request: { action: month }, send: 3, expect: { allowed: 3, limit: 3, remaining: 0, in_grace: false } }
      - { request: { action: month }, expect: { allowed: 1, remaining: 0, in_grace: true } }
      - { request: { action: month }, expect: { denied: month, in_grace: false } }
";
    assert_eq!(failures("2026-02-10", steps), [""; 0]);
    let wrong = "      - { request: { action: month }, expect: { in_grace: true } }\n";
    assert_eq!(failures("2026-02-10", wrong), ["1 in_grace: true, false"]);
}

/// In 2026 Berlin has 23 hours on 29 March and 25 hours on 25 October.
#[test]
fn a_day_on_which_the_clocks_change_has_23_or_25_hours() {
    let steps = "
      - { at: 2026-03-29T00:00:00+01:00, request: { action: day }, send: 3, expect: { allowed: 2, denied: day, retry_after: 23h } }
      - { at: 2026-03-29T23:59:59+02:00, request: { action: day }, expect: { denied: day, retry_after: 1s } }
      - { at: 2026-03-30T00:00:00+02:00, request: { action: day }, expect: allowed }
      - { at: 2026-10-25T00:00:00+02:00, request: { action: day }, send: 3, expect: { allowed: 2, denied: day, retry_after: 25h } }
      - { at: 2026-10-26T00:00:00+01:00, request: { action: day }, expect: allowed }
";
    assert_eq!(failures("2026-03-28", steps), [""; 0]);
}

#[test]
fn an_anchor_beyond_the_end_of_a_month_is_its_last_day() {
    let steps = "
      - { request: { action: month, headers: { x-tenant-id: globex } }, send: 11, expect: { allowed: 10, denied: month, retry_after: 28d } }
      - { at: 2026-02-28T00:00:00-05:00, request: { action: month, headers: { x-tenant-id: globex } }, send: 11,
          expect: { allowed: 10, denied: month, retry_after: 30d23h } }
      - { at: 2026-03-31T00:00:00-04:00, request: { action: month, headers: { x-tenant-id: globex } }, expect: allowed }
";
    assert_eq!(failures("2026-01-31T05:00:00Z", steps), [""; 0]);
}

/// What was taken under the larger plan is not debt: the next period begins with the whole amount.
#[test]
fn a_tenant_that_changes_its_plan_keeps_what_it_has_used() {
    let steps = "
      - { request: { action: month, attributes: { plan: large } }, send: 9, expect: { allowed: 9, remaining: 1 } }
      - { request: { action: month }, expect: { denied: month, remaining: 0 } }
      - { at: 2026-03-01T00:00:00+01:00, request: { action: month }, send: 5, expect: { allowed: 4, denied: month } }
";
    assert_eq!(failures("2026-02-10", steps), [""; 0]);
    let larger = "
      - { request: { action: month }, send: 5, expect: { allowed: 4, denied: month } }
      - { request: { action: month, attributes: { plan: large } }, expect: { allowed: 1, limit: 10, remaining: 5 } }
";
    assert_eq!(failures("2026-02-10", larger), [""; 0]);
}

#[test]
fn a_week_begins_on_its_weekday() {
    let steps = "
      - { request: { action: week }, send: 2, expect: { allowed: 1, denied: week, retry_after: 12h } }
      - { at: 2026-11-15T00:00:00Z, request: { action: week }, expect: { allowed: 1, reset_after: 7d } }
";
    assert_eq!(failures("2026-11-14T12:00:00Z", steps), [""; 0]);
}

#[test]
fn actions_share_the_quota_of_a_budget_and_an_actual_cost_above_it_is_debt() {
    let steps = "
      - { request: { action: read }, send: 2, expect: { allowed: 2, remaining: 8 } }
      # 2 + 4 by estimate, then 15 more than the estimate: 21 of 10 are used.
      - { request: { action: write }, actual: 19, expect: { allowed: 1, remaining: 4 } }
      - { request: { action: read }, expect: { denied: reads, remaining: 0, retry_after: 2d } }
      - { at: 1d, request: { action: read }, expect: { denied: reads, retry_after: 1d } }
      - { at: 2d, request: { action: read }, expect: { allowed: 1, remaining: 8 } }
";
    assert_eq!(failures("2026-02-10", steps), [""; 0]);
}

#[test]
fn a_smaller_actual_cost_gives_units_back() {
    let steps = "
      - { request: { action: write }, send: 3, actual: 1, expect: { allowed: 3, remaining: 4 } }
      - { request: { action: read }, expect: { allowed: 1, remaining: 6 } }
";
    assert_eq!(failures("2026-02-10", steps), [""; 0]);
}

#[test]
fn a_request_reserves_its_estimate_until_it_ends() {
    let steps = "
      - { request: { action: complete, body: { max_tokens: 40 } }, send: 2, holds: 1m, actual: 5, expect: allowed }
      - { at: 59s, request: { action: complete, body: { max_tokens: 40 } }, actual: 5, expect: denied }
      # 5 were committed under each, of which the bucket has refilled none.
      - { at: 1m, request: { action: complete, body: { max_tokens: 70 } }, peek: true, expect: allowed }
      - { at: 1m, request: { action: complete, body: { max_tokens: 71 } }, peek: true, expect: { denied: burst } }
      # Far more than the estimate: under the quota a debt of 70.
      - { at: 1m, request: { action: complete, body: { max_tokens: 10 } }, actual: 170, expect: allowed }
      - { at: 1d, request: { action: complete, body: { max_tokens: 10 } }, peek: true, expect: { allowed: 1 } }
      - { at: 1d, request: { action: complete, body: { max_tokens: 41 } }, peek: true, expect: { denied: tokens } }
";
    assert_eq!(failures("2026-02-10", steps), [""; 0]);
}

/// Tests need no ledger: counts, debt and reservations are those of the same rules without one.
#[test]
fn a_rule_with_a_ledger_decides_as_without_one() {
    let steps = "
      - { request: { action: read }, send: 2, expect: { allowed: 2, remaining: 8 } }
      - { request: { action: write }, actual: 19, expect: { allowed: 1, remaining: 4 } }
      - { request: { action: read }, expect: { denied: reads, remaining: 0, retry_after: 2d } }
      - { at: 2d, request: { action: read }, expect: { allowed: 1, remaining: 8 } }
      - { at: 2d, request: { action: month }, send: 5, expect: { allowed: 4, denied: month } }
      - { at: 2d, request: { action: complete, body: { max_tokens: 40 } }, send: 2, holds: 1m, actual: 5, expect: allowed }
      - { at: 2d1m, request: { action: complete, body: { max_tokens: 71 } }, peek: true, expect: { denied: burst } }
";
    for mode in ["sync", "async"] {
        let rules = RULES.replace("quota: {", &format!("quota: {{ ledger: {mode},"));
        let head = "rules: rules.yaml\nstart: 2026-02-10\nrequest: { headers: { x-tenant-id: acme } }";
        let tests = format!("{head}\ntests:\n  - name: a test\n    steps:\n{steps}");
        let run = super::run_in(super::folder(&rules, &tests).path()).unwrap_or_else(|report| panic!("{report}"));
        assert!(run.passed(), "{mode}\n{}", run.render(false));
    }
}

#[test]
fn while_the_store_fails_a_rule_with_a_ledger_refuses() {
    let rules = RULES.replace("period: day }", "period: day, ledger: async }");
    let steps = "      - { store_fails: true, request: { action: read }, expect: { unavailable: 1 } }\n";
    let head = "rules: rules.yaml\nstart: 2026-02-10\nrequest: { headers: { x-tenant-id: acme } }";
    let tests = format!("{head}\ntests:\n  - name: a test\n    steps:\n{steps}");
    let run = super::run_in(super::folder(&rules, &tests).path()).unwrap_or_else(|report| panic!("{report}"));
    assert!(run.passed(), "{}", run.render(false));
}

#[test]
fn an_actual_cost_that_no_rule_settles_fails_the_test() {
    let steps = "      - { request: { action: day }, actual: 5, expect: allowed }\n";
    assert_eq!(failures("2026-02-10", steps), ["1 actual: a rule with `cost.actual` or `cost.usage`, none"]);
}

#[test]
fn impossible_steps_are_errors_at_their_position() {
    let problem = |steps: &str| {
        let report = try_run("2026-02-10", steps).expect_err("the file is wrong");
        let problem = &report.problems()[0];
        (report.position(problem), problem.code(), problem.message().to_owned())
    };
    let early = "the time is before the start of the test".to_owned();
    assert_eq!(problem("      - { at: 2026-02-09T23:00:00Z, expect: allowed }\n"), ((7, 15), "time", early));
    assert_eq!(problem("      - { at: 2026-02-30, expect: allowed }\n").1, "instant");
    let peek = "nothing is counted that an actual cost could correct".to_owned();
    assert_eq!(problem("      - { peek: true, actual: 5, expect: allowed }\n"), ((7, 31), "actual", peek));
    let long = "a reservation runs out after 300 s".to_owned();
    assert_eq!(problem("      - { holds: 5m, actual: 5, expect: allowed }\n"), ((7, 18), "holds", long));
}
