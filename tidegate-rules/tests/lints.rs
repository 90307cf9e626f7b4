//! Lints: for each a small file that gets it, and the fixed file that does not.

use std::collections::BTreeSet;
use std::fmt::Write;

use tidegate_rules::{Problem, Report, RuleFile, Severity};

#[path = "lints/cases.rs"]
mod cases;
use cases::{Case, cases};

fn report(body: &str) -> Report {
    let text = format!("version: 1\n{body}\n");
    match RuleFile::parse("rules.yaml", &text) {
        Ok(file) => file.report().clone(),
        Err(report) => report,
    }
}

fn of<'r>(report: &'r Report, code: &str) -> Vec<&'r Problem> {
    report.problems().iter().filter(|problem| problem.code() == code).collect()
}

fn codes(report: &Report) -> Vec<&'static str> {
    report.problems().iter().map(Problem::code).collect()
}

#[test]
fn each_mistake_gets_its_lint_at_its_position() {
    for case in cases() {
        let report = report(case.file);
        let found = of(&report, case.code);
        assert_eq!(found.len(), 1, "{} once in:\n{}\n{report}", case.code, case.file);
        assert_eq!(report.position(found[0]), case.at, "{report}");
        assert_eq!(found[0].severity(), case.severity, "{report}");
        assert!(found[0].help().is_some_and(|help| !help.is_empty()), "{report}");
    }
}

#[test]
fn the_fixed_file_gets_no_lint() {
    for Case { code, file, mended: (wrong, right), .. } in cases() {
        assert!(file.contains(wrong), "{wrong:?} is not in:\n{file}");
        let mended = report(&file.replacen(wrong, right, 1));
        assert!(of(&mended, code).is_empty(), "{code} after mending:\n{mended}");
        assert!(!mended.has_errors(), "{code}:\n{mended}");
    }
}

#[test]
fn the_table_in_the_documentation_has_the_lints_of_these_tests_and_no_others() {
    let page = include_str!("../../docs/lints.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let documented: BTreeSet<&str> = rows.map(|(code, _)| code).collect();
    let tested: BTreeSet<&str> = cases().map(|case| case.code).chain(["too-many-checks", "not-compared"]).collect();
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
    // The file of the design, as far as this version has its limits.
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
    on_failure: open
  - id: matching-capacity
    match: { path: /api/rides/request }
    per: []
    token_bucket: { capacity: 140, refill: 140/s }
  - id: driver-location
    match: { path: /api/drivers/location }
    per: []
    leaky_bucket: { rate: 3000/s, queue: 5000 }
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
    on_failure: local
    security: true
    message: Too many attempts. Please retry later.
  - id: login-ip
    match: { action: login }
    per: [ip]
    sliding_log: { limit: 20, window: 10m }
    on_failure: local
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
fn a_disabled_rule_draws_nothing_and_makes_no_other_superfluous() {
    let file = "rules:\n- { id: a, mode: disabled, per: [header:x, claim:y], security: true, fixed_window: { limit: 0, window: 1m } }\n\
                - { id: b, per: ip, fixed_window: { limit: 9, window: 1m } }";
    assert_eq!(codes(&report(file)), [""; 0]);
}

#[test]
fn a_setting_with_a_slip_of_the_pen_is_told_once() {
    let file =
        "identify: { trusted_hop: attr:hops }\nrules:\n- { id: a, per: ip, fixed_window: { limit: 9, window: 1m } }";
    assert_eq!(codes(&report(file)), ["identity"]);
}

/// Rule `a` is never stricter than `b` while the store works; it may be while it does not.
#[test]
fn a_rule_that_is_stricter_while_the_store_fails_is_of_use() {
    let told = |a: &str, b: &str| {
        codes(&report(&format!(
            "rules:\n- {{ id: a, per: ip, on_failure: {a}, fixed_window: {{ limit: 9, window: 1m }} }}\n\
             - {{ id: b, per: ip, on_failure: {b}, fixed_window: {{ limit: 8, window: 1m }} }}"
        )))
    };
    for (a, b) in [
        ("open", "degraded"),
        ("open", "{ static: 1/s }"),
        ("{ static: 1/s }", "closed"),
        ("local", "local"),
        ("{ POST: closed }", "{ POST: closed }"),
    ] {
        assert_eq!(told(a, b), ["never-decides"], "{a} beside {b}");
    }
    for (a, b) in [
        ("closed", "local"),
        ("local", "{ static: 1/s }"),
        ("{ static: 1/s }", "{ static: 2/s }"),
        ("{ POST: closed }", "open"),
        ("closed", "{ GET: open, default: closed }"),
    ] {
        assert_eq!(told(a, b), [""; 0], "{a} beside {b}");
    }
}

#[test]
fn unlimited_guesses_are_listed_by_route() {
    let told = |asked: &str, on_failure: &str| {
        let found = report(&format!(
            "rules:\n- {{ id: a, match: {{ {asked} }}, per: attr:account, security: true, on_failure: {on_failure}, \
             sliding_log: {{ limit: 5, window: 10m }} }}"
        ));
        found.problems().iter().map(|problem| problem.message().to_owned()).collect::<String>()
    };
    let all = "guesses are not limited while the store fails";
    assert_eq!(told("path: /pin", "{ GET: open, POST: degraded }"), all);
    assert_eq!(told("path: /pin", "{ POST: closed }"), format!("{all}: those of requests that match no route"));
    let some = format!("{all}: those of `GET`, `/a/*`, and of requests that match no route");
    assert_eq!(told("path: /pin", "{ GET: open, POST: closed, /a/*: degraded }"), some);
    // What no route fits does not come to this rule.
    for (asked, on_failure) in [
        ("method: [POST, HEAD], path: /pin", "{ POST: closed, GET: local }"),
        ("method: POST, path: [/pin, /a/b]", "{ /pin: closed, POST /a/*: { static: 1/s } }"),
        ("method: POST, path: /pin", "{ GET: open, default: closed }"),
    ] {
        assert_eq!(told(asked, on_failure), "", "{asked}: {on_failure}");
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
fn more_limits_than_a_decision_takes_are_an_error_at_the_first_that_is_too_many() {
    let most = tidegate::spi::MAX_CHECKS as u64;
    assert_eq!(codes(&report(&overlapping_rules(most))), [""; 0]);
    let crowded = report(&overlapping_rules(most + 3));
    assert_eq!(codes(&crowded), ["too-many-checks"]);
    assert!(crowded.has_errors());
    assert_eq!(crowded.position(&crowded.problems()[0]), (35, 9));
    let message = crowded.problems()[0].message();
    assert!(message.starts_with("35 limits"), "{message}");
    // Exempt requests meet no limits.
    assert_eq!(
        of(&report(&format!("exempt: [ {{ path: /x }} ]\n{}", overlapping_rules(40))), "too-many-checks").len(),
        0
    );
}

/// Rules that meet only on `/x` with the action `z`, which none of them names first.
fn hidden_crowd(size: u64, more: &str) -> String {
    let rule = |n: u64| {
        format!(
            "- {{ id: r{n}, match: {{ path: [/r{n}, /x], action: [a{n}, z]{more} }}, per: ip, \
             fixed_window: {{ limit: 9, window: {n}s }} }}\n"
        )
    };
    format!("rules:\n{}", (1..=size).map(rule).collect::<String>())
}

#[test]
fn a_crowd_is_found_on_the_second_of_everything() {
    assert_eq!(codes(&report(&hidden_crowd(32, ""))), [""; 0]);
    let crowded = report(&hidden_crowd(33, ""));
    assert_eq!(codes(&crowded), ["too-many-checks"]);
    assert_eq!(crowded.position(&crowded.problems()[0]), (35, 9));
    for more in [
        ", method: [GET, POST]",
        ", host: [a.example, '*.b.example']",
        ", ip: [10.0.0.0/8, 192.0.2.1]",
        ", header: { x: [a, b] }",
    ] {
        assert_eq!(codes(&report(&hidden_crowd(33, more))), ["too-many-checks"], "{more}");
    }
    // Where they meet, they are exempt.
    let exempt = format!("exempt: [ {{ path: /x, action: z }} ]\n{}", hidden_crowd(33, ""));
    assert_eq!(codes(&report(&exempt)), [""; 0]);
}

#[test]
fn a_crowd_is_found_on_a_second_tenant_or_plan() {
    let by_tenant = report(&many(33, |rule| format!("tenant: [t{rule}, all]")));
    assert_eq!(of(&by_tenant, "too-many-checks").len(), 1, "{by_tenant}");
    let mut by_plan = many(33, |rule| format!("plan: [p{rule}, all]"));
    by_plan += "tenants:\n  all: all\n";
    for rule in 0..33 {
        let _ = writeln!(by_plan, "  t{rule}: p{rule}");
    }
    let by_plan = report(&by_plan);
    assert_eq!(of(&by_plan, "too-many-checks").len(), 1, "{by_plan}");
}

/// Trap: a rule in shadow shares no check, since it must not touch what others count.
#[test]
fn a_budget_is_one_check_and_each_rule_in_shadow_another() {
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
fn long_lists_are_tried_only_so_far() {
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
fn a_cost_that_nobody_can_forge_draws_nothing() {
    for cost in [
        "1 + request.size / 1024",
        "size(request.headers[\"Content-Length\"])",
        "request.method == \"POST\" && request.path.startsWith(\"/a\") ? int(attr.rows) : size(client + action)",
    ] {
        let file = format!(
            "identify: {{ client: ip }}\nrules:\n- id: a\n  per: ip\n  cost: {{ expression: '{cost}', actual: x-used }}\n  \
             token_bucket: {{ capacity: 9, refill: 1/s }}"
        );
        assert_eq!(codes(&report(&file)), [""; 0], "{cost}");
    }
}

#[test]
fn everything_that_a_client_could_forge_in_a_cost_is_told_at_once() {
    let file = "identify: { user: header:x-user, tenant: header:x-org }\nrules:\n- id: a\n  per: ip\n  cost: \
                size(user + request.query.q) + size(tenant)\n  token_bucket: { capacity: 9, refill: 1/s }";
    let found = report(file);
    assert_eq!(codes(&found), ["unauthenticated-tenant", "forgeable-cost"], "{found}");
    let forged = of(&found, "forgeable-cost")[0];
    assert!(forged.message().contains("`header:x-user` as its user, `query:q`"), "{found}");
    assert!(forged.help().is_some_and(|help| help.contains("`authenticated: [x-user, query:q]`")), "{found}");
}

#[test]
fn an_expression_may_come_to_nothing_and_draws_nothing() {
    let file = "rules:\n- { id: a, per: ip, cost: { expression: 'int(attr.rows) / 10', actual: x-used }, \
                token_bucket: { capacity: 9, refill: 1/s } }";
    assert_eq!(codes(&report(file)), [""; 0]);
}

#[test]
fn a_colon_is_mended_to_braces_all_along_the_path() {
    let file = "rules:\n- { id: a, match: { path: '/v1/:org/cars/:car-id/*' }, per: ip, \
                fixed_window: { limit: 9, window: 1m } }";
    let found = report(file);
    assert_eq!(codes(&found), ["colon-segment"]);
    assert!(found.problems()[0].help().is_some_and(|help| help.contains("`/v1/{org}/cars/{car-id}/*`")), "{found}");
}

#[test]
fn an_error_is_not_lost_behind_a_hundred_warnings() {
    let mut file = "rules:\n".to_owned();
    for rule in 0..300 {
        let _ = writeln!(
            file,
            "- {{ id: r{rule}, match: {{ path: /r{rule} }}, per: header:x, fixed_window: {{ limit: 9, window: 1m }} }}"
        );
    }
    assert!(!report(&file).has_errors());
    file += "- { id: last, match: { path: /last }, per: claim:sub, fixed_window: { limit: 9, window: 1m } }\n";
    assert_eq!(of(&report(&file), "unverified-claim").len(), 1);
}

/// Rules with nothing in common but what `asked` has.
fn many(size: usize, asked: impl Fn(usize) -> String) -> String {
    let mut file = "identify: { tenant: attr:org }\nrules:\n".to_owned();
    for rule in 0..size {
        let asked = asked(rule);
        let _ = writeln!(
            file,
            "- {{ id: r{rule}, match: {{ {asked} }}, per: ip, fixed_window: {{ limit: 9, window: 1m }} }}"
        );
    }
    file
}

#[test]
fn ten_thousand_rules_are_all_compared() {
    let by_tenant = report(&many(10_000, |rule| format!("path: /api/*, tenant: t{rule}")));
    assert_eq!(codes(&by_tenant), [""; 0]);
    let twice = report(&many(10_000, |rule| format!("path: /api/*, tenant: t{}", rule % 9_999)));
    assert_eq!(codes(&twice), ["duplicate-rule"]);
    assert_eq!(twice.position(&twice.problems()[0]).0, 10_003);
}

#[test]
fn rules_that_nothing_tells_apart_quickly_are_compared_only_so_far() {
    let by_network = |rule: usize| format!("path: /api/*, ip: 10.{}.{}.0/24", rule / 256, rule % 256);
    assert_eq!(codes(&report(&many(1_000, by_network))), [""; 0]);
    let found = report(&many(5_000, by_network));
    assert_eq!(codes(&found), ["not-compared"]);
    assert!(found.position(&found.problems()[0]).0 > 500);
}
