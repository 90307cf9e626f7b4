//! Lints: for each a small file that gets it, and the fixed file that does not.

use std::collections::BTreeSet;
use std::fmt::Write;

use tidegate_rule_tools::parse_and_lint;
use tidegate_rules::{Problem, Report, Severity};

#[path = "lints/cases.rs"]
mod cases;
use cases::{Case, cases};
#[path = "lints/claims.rs"]
mod claims;
#[path = "lints/doors.rs"]
mod doors;
#[path = "lints/exemptions.rs"]
mod exemptions;
#[path = "lints/ledger_rules.rs"]
mod ledger_rules;

fn report(body: &str) -> Report {
    let text = format!("version: 1\n{body}\n");
    match parse_and_lint("rules.yaml", &text) {
        Ok(file) => file.report().clone(),
        Err(report) => report,
    }
}

fn with_code<'r>(report: &'r Report, code: &str) -> Vec<&'r Problem> {
    report.problems().iter().filter(|problem| problem.code() == code).collect()
}

fn codes(report: &Report) -> Vec<&'static str> {
    report.problems().iter().map(Problem::code).collect()
}

#[test]
fn each_mistake_gets_its_lint_at_its_position() {
    for case in cases() {
        let report = report(case.file);
        let found = with_code(&report, case.code);
        assert_eq!(found.len(), 1, "{} once in:\n{}\n{report}", case.code, case.file);
        assert_eq!(report.position(found[0]), case.at, "{report}");
        assert_eq!(found[0].severity(), case.severity, "{report}");
        assert!(found[0].help().is_some_and(|help| !help.is_empty()), "{report}");
    }
}

#[test]
fn the_fixed_file_gets_no_lint() {
    for Case { code, file, fix: (wrong, right), .. } in cases() {
        assert!(file.contains(wrong), "{wrong:?} is not in:\n{file}");
        let fixed = report(&file.replacen(wrong, right, 1));
        assert!(with_code(&fixed, code).is_empty(), "{code} after the fix:\n{fixed}");
        assert!(!fixed.has_errors(), "{code}:\n{fixed}");
    }
}

#[test]
fn the_table_in_the_documentation_has_the_lints_of_these_tests_and_no_others() {
    let page = include_str!("../../docs/lints.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let documented: BTreeSet<&str> = rows.map(|(code, _)| code).collect();
    let elsewhere = ["too-many-checks", "not-compared", "unavailable-at-door", "needed-at-door"];
    let tested: BTreeSet<&str> = cases().map(|case| case.code).chain(elsewhere).collect();
    assert_eq!(documented, tested);
}

#[test]
fn a_file_with_errors_gets_no_lints() {
    let found = report("identify: { client: [header:x-key] }\nrules:\n- { id: a, per: client, token_bucket: {} }");
    assert!(found.has_errors());
    assert!(found.problems().iter().all(|problem| problem.severity() == Severity::Error), "{found}");
}

#[test]
fn an_ordinary_file_gets_no_lints() {
    // A typical file with every kind of limit.
    let ordinary = "
identify:
  client: [header:x-api-key, header:x-user-id, ip]
  user: header:x-user-id
  tenant: header:x-tenant-id
  authenticated: [x-api-key, x-user-id, x-tenant-id]
  trusted_proxies: [127.0.0.0/8]
plans:
  pro: { ride-request: { token_bucket: { capacity: 100, refill: 50/s } } }
rules:
  - id: ride-request
    match: { method: POST, path: /api/rides/request }
    per: [client]
    token_bucket: { capacity: 20, refill: 10/s }
  - id: matching-capacity
    match: { path: /api/rides/request }
    per: []
    token_bucket: { capacity: 140, refill: 140/s }
    on_failure: share
  - id: driver-location
    match: { path: /api/drivers/location }
    per: []
    leaky_bucket: { rate: 3000/s, queue: 5000 }
    on_failure: { static: 1000/s }
  - id: trip-history
    match: { path: /api/trips/history }
    per: [client]
    sliding_window: { limit: 300, window: 1m, slices: 6 }
  - id: zone-stats
    match: { path: /api/admin/zones/stats }
    per: [user]
    fixed_window: { limit: 600, window: 1m }
  - id: login-account
    match: { action: login }
    per: [attr:account]
    sliding_log: { limit: 5, window: 10m }
    on_failure: share
    security: true
    message: Too many attempts. Please retry later.
  - id: login-ip
    match: { action: login }
    per: [ip]
    sliding_log: { limit: 20, window: 10m }
    on_failure: share
    security: true
";
    assert_eq!(codes(&report(ordinary)), [""; 0]);
}

#[test]
fn a_forgeable_identity_is_reported_once_for_all_rules() {
    let mut file = "identify: { client: [header:x-key, ip] }\nrules:\n".to_owned();
    for rule in 0..20 {
        let _ = writeln!(
            file,
            "- {{ id: r{rule}, match: {{ path: /r{rule} }}, per: client, fixed_window: {{ limit: 9, window: 1m }} }}"
        );
    }
    assert_eq!(codes(&report(&file)), ["unauthenticated-header"]);
}

#[test]
fn a_disabled_rule_gets_no_lint_and_makes_no_other_rule_redundant() {
    let file = "rules:\n- { id: a, mode: disabled, per: [header:x, claim:y], security: true, fixed_window: { limit: 0, window: 1m } }\n\
                - { id: b, per: ip, fixed_window: { limit: 9, window: 1m } }";
    assert_eq!(codes(&report(file)), [""; 0]);
}

#[test]
fn a_mistyped_setting_is_reported_once() {
    let file =
        "identify: { trusted_hop: attr:hops }\nrules:\n- { id: a, per: ip, fixed_window: { limit: 9, window: 1m } }";
    assert_eq!(codes(&report(file)), ["identity"]);
}

/// Rule `a` is never stricter than `b` while the store works, but may be stricter while the store fails.
#[test]
fn a_rule_that_is_stricter_while_the_store_fails_is_not_redundant() {
    let codes_of = |a: &str, b: &str| {
        let mut codes = codes(&report(&format!(
            "rules:\n- {{ id: a, per: ip, on_failure: {a}, fixed_window: {{ limit: 9, window: 1m }} }}\n\
             - {{ id: b, per: ip, on_failure: {b}, fixed_window: {{ limit: 8, window: 1m }} }}"
        )));
        codes.retain(|code| !["fails-open", "local-changed"].contains(code));
        codes
    };
    for (a, b) in [
        ("open", "degraded"),
        ("open", "{ static: 1/s }"),
        ("{ static: 1/s }", "closed"),
        ("local", "local"),
        ("local", "share"),
        ("open", "local"),
        ("share", "closed"),
        ("{ POST: share }", "{ GET: closed, default: share }"),
        ("{ POST: closed }", "{ POST: closed }"),
    ] {
        assert_eq!(codes_of(a, b), ["never-decides"], "{a} beside {b}");
    }
    for (a, b) in [
        ("closed", "local"),
        ("closed", "share"),
        ("share", "local"),
        ("local", "{ static: 1/s }"),
        ("{ static: 1/s }", "share"),
        ("{ static: 1/s }", "{ static: 2/s }"),
        ("{ POST: closed }", "open"),
        ("closed", "{ GET: open, default: closed }"),
    ] {
        assert_eq!(codes_of(a, b), [""; 0], "{a} beside {b}");
    }
}

#[test]
fn unlimited_guesses_are_listed_by_route() {
    let messages = |condition: &str, on_failure: &str| {
        let found = report(&format!(
            "rules:\n- {{ id: a, match: {{ {condition} }}, per: attr:account, security: true, on_failure: {on_failure}, \
             sliding_log: {{ limit: 5, window: 10m }} }}"
        ));
        found.problems().iter().map(|problem| problem.message().to_owned()).collect::<String>()
    };
    let all = "guesses are not limited while the store fails";
    assert_eq!(messages("path: /pin", "{ GET: open, default: degraded }"), all);
    let rest = format!("{all}: those of requests that match no route");
    assert_eq!(messages("path: /pin", "{ POST: closed, default: open }"), rest);
    let some = format!("{all}: those of `GET`, `/a/*`, and of requests that match no route");
    assert_eq!(messages("path: /pin", "{ GET: open, POST: closed, /a/*: degraded, default: open }"), some);
    // Requests that match no route do not match this rule either.
    for (condition, on_failure) in [
        ("method: [POST, HEAD], path: /pin", "{ POST: closed, GET: share, default: open }"),
        ("method: POST, path: [/pin, /a/b]", "{ /pin: closed, POST /a/*: { static: 1/s }, default: open }"),
        ("method: POST, path: /pin", "{ GET: open, default: closed }"),
        ("path: /pin", "{ POST: closed }"),
    ] {
        assert_eq!(messages(condition, on_failure), "", "{condition}: {on_failure}");
    }
}

#[test]
fn rules_that_share_a_budget_are_no_duplicates() {
    let file = "rules:\n- { id: a, per: ip, budget: b, fixed_window: { limit: 9, window: 1m } }\n\
                - { id: b, per: ip, budget: b, fixed_window: { limit: 9, window: 1m } }";
    assert_eq!(codes(&report(file)), [""; 0]);
}

/// Rules that all apply to `/x`, each with a window of its own.
fn overlapping_rules(size: u64) -> String {
    let rule = |n: u64| {
        format!("- {{ id: r{n}, match: {{ path: /x }}, per: ip, fixed_window: {{ limit: 9, window: {n}s }} }}\n")
    };
    format!("rules:\n{}", (1..=size).map(rule).collect::<String>())
}

#[test]
fn too_many_limits_for_one_request_are_an_error_at_the_first_one_over_the_maximum() {
    let max_checks = tidegate::spi::MAX_CHECKS as u64;
    assert_eq!(codes(&report(&overlapping_rules(max_checks))), [""; 0]);
    let overlapping = report(&overlapping_rules(max_checks + 3));
    assert_eq!(codes(&overlapping), ["too-many-checks"]);
    assert!(overlapping.has_errors());
    assert_eq!(overlapping.position(&overlapping.problems()[0]), (35, 9));
    let message = overlapping.problems()[0].message();
    assert!(message.starts_with("35 limits"), "{message}");
    // Exempt requests have no checks.
    assert_eq!(
        with_code(&report(&format!("exempt: [ {{ path: /x }} ]\n{}", overlapping_rules(40))), "too-many-checks").len(),
        0
    );
}

/// Rules that overlap only on `/x` with the action `z`, the second value of each condition.
fn overlapping_on_second_values(size: u64, more: &str) -> String {
    let rule = |n: u64| {
        format!(
            "- {{ id: r{n}, match: {{ path: [/r{n}, /x], action: [a{n}, z]{more} }}, per: ip, \
             fixed_window: {{ limit: 9, window: {n}s }} }}\n"
        )
    };
    format!("rules:\n{}", (1..=size).map(rule).collect::<String>())
}

#[test]
fn too_many_checks_are_found_on_the_second_value_of_each_condition() {
    assert_eq!(codes(&report(&overlapping_on_second_values(32, ""))), [""; 0]);
    let overlapping = report(&overlapping_on_second_values(33, ""));
    assert_eq!(codes(&overlapping), ["too-many-checks"]);
    assert_eq!(overlapping.position(&overlapping.problems()[0]), (35, 9));
    for more in [
        ", method: [GET, POST]",
        ", host: [a.example, '*.b.example']",
        ", ip: [10.0.0.0/8, 192.0.2.1]",
        ", header: { x: [a, b] }",
    ] {
        assert_eq!(codes(&report(&overlapping_on_second_values(33, more))), ["too-many-checks"], "{more}");
    }
    // The request on which they overlap is exempt.
    let exempt = format!("exempt: [ {{ path: /x, action: z }} ]\n{}", overlapping_on_second_values(33, ""));
    assert_eq!(codes(&report(&exempt)), [""; 0]);
}

#[test]
fn too_many_checks_are_found_on_a_second_tenant_or_plan() {
    let by_tenant = report(&rules_with(33, |rule| format!("tenant: [t{rule}, all]")));
    assert_eq!(with_code(&by_tenant, "too-many-checks").len(), 1, "{by_tenant}");
    let mut by_plan = rules_with(33, |rule| format!("plan: [p{rule}, all]"));
    by_plan += "tenants:\n  all: all\n";
    for rule in 0..33 {
        let _ = writeln!(by_plan, "  t{rule}: p{rule}");
    }
    let by_plan = report(&by_plan);
    assert_eq!(with_code(&by_plan, "too-many-checks").len(), 1, "{by_plan}");
}

/// Trap: a shadow rule needs a check of its own, since it must not affect the counts of other rules.
#[test]
fn rules_of_a_budget_are_one_check_but_each_shadow_rule_is_its_own() {
    let file = |mode: &str| {
        let rule = |n: u64| {
            format!("- {{ id: r{n}, per: ip, budget: b, mode: {mode}, fixed_window: {{ limit: 9, window: 1m }} }}\n")
        };
        format!("rules:\n{}", (1..=40).map(rule).collect::<String>())
    };
    assert_eq!(codes(&report(&file("enabled"))), [""; 0]);
    assert_eq!(codes(&report(&file("shadow"))), ["too-many-checks"]);
}

#[test]
fn a_bounded_number_of_list_values_is_tried() {
    let paths = (0..400).map(|n| format!("/p{n}, ")).collect::<Vec<_>>().concat();
    let rule = |n: usize| {
        format!(
            "- {{ id: r{n}, match: {{ path: [{paths}/r{n}], method: [GET, PUT, POST], header: {{ k: v{n} }} }}, per: ip, \
             fixed_window: {{ limit: 9, window: 1m }} }}\n"
        )
    };
    let file = format!("rules:\n{}", (0..60).map(rule).collect::<String>());
    let found = report(&file);
    assert_eq!(codes(&found), ["not-compared"]);
    assert!(found.position(&found.problems()[0]).0 > 10, "{found}");
    assert!(found.problems()[0].message().starts_with("too many values"), "{found}");
}

#[test]
fn a_cost_that_clients_cannot_forge_gets_no_lint() {
    for cost in [
        "1 + request.size / 1024",
        "request.method == \"POST\" && request.path.startsWith(\"/a\") ? int(attr.rows) : size(client + action)",
    ] {
        let file = format!(
            "identify: {{ client: ip }}\nrules:\n- id: a\n  per: ip\n  cost: {{ expression: '{cost}', actual: x-used }}\n  \
             token_bucket: {{ capacity: 9k, refill: 9/s }}"
        );
        assert_eq!(codes(&report(&file)), [""; 0], "{cost}");
    }
}

#[test]
fn all_forgeable_parts_of_a_cost_are_reported_in_one_lint() {
    let file = "identify: { user: header:x-user, tenant: header:x-org }\nrules:\n- id: a\n  per: ip\n  cost: \
                size(user + request.query.q) + size(tenant)\n  token_bucket: { capacity: 9, refill: 1/s }";
    let found = report(file);
    assert_eq!(codes(&found), ["unauthenticated-tenant", "forgeable-cost"], "{found}");
    let forged = with_code(&found, "forgeable-cost")[0];
    assert!(forged.message().contains("`header:x-user` as its user, `query:q`"), "{found}");
    assert!(forged.help().is_some_and(|help| help.contains("`authenticated: [x-user, query:q]`")), "{found}");
}

#[test]
fn a_cost_expression_that_can_be_zero_gets_no_lint() {
    let file = "rules:\n- { id: a, per: ip, cost: { expression: 'int(attr.rows) / 10', actual: x-used }, \
                token_bucket: { capacity: 9, refill: 1/s } }";
    assert_eq!(codes(&report(file)), [""; 0]);
}

#[test]
fn the_help_replaces_every_colon_segment_of_a_path_by_braces() {
    let file = "rules:\n- { id: a, match: { path: '/v1/:org/cars/:car-id/*' }, per: ip, \
                fixed_window: { limit: 9, window: 1m } }";
    let found = report(file);
    assert_eq!(codes(&found), ["colon-segment"]);
    assert!(found.problems()[0].help().is_some_and(|help| help.contains("`/v1/{org}/cars/{car-id}/*`")), "{found}");
}

/// Rules with these conditions, otherwise equal.
fn rules_with(size: usize, condition: impl Fn(usize) -> String) -> String {
    let mut file = "identify: { tenant: attr:org }\nrules:\n".to_owned();
    for rule in 0..size {
        let condition = condition(rule);
        let _ = writeln!(
            file,
            "- {{ id: r{rule}, match: {{ {condition} }}, per: ip, fixed_window: {{ limit: 9, window: 1m }} }}"
        );
    }
    file
}

#[test]
fn ten_thousand_rules_are_all_compared() {
    let by_tenant = report(&rules_with(10_000, |rule| format!("path: /api/*, tenant: t{rule}")));
    assert_eq!(codes(&by_tenant), [""; 0]);
    let twice = report(&rules_with(10_000, |rule| format!("path: /api/*, tenant: t{}", rule % 9_999)));
    assert_eq!(codes(&twice), ["duplicate-rule"]);
    assert_eq!(twice.position(&twice.problems()[0]).0, 10_003);
}

#[test]
fn a_bounded_number_of_similar_rules_is_compared() {
    let by_network = |rule: usize| format!("path: /api/*, ip: 10.{}.{}.0/24", rule / 256, rule % 256);
    assert_eq!(codes(&report(&rules_with(1_000, by_network))), [""; 0]);
    let found = report(&rules_with(5_000, by_network));
    assert_eq!(codes(&found), ["not-compared"]);
    assert!(found.position(&found.problems()[0]).0 > 500);
}
