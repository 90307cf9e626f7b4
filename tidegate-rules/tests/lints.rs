//! Lints: for each a small file that draws it, and nearly the same file that does not.

use std::collections::BTreeSet;
use std::fmt::Write;

use tidegate_rules::{Problem, Report, RuleFile, Severity};

/// A file that draws a lint, where, and how to mend it.
struct Case {
    code: &'static str,
    severity: Severity,
    /// Line and column; the first line is `version: 1`.
    at: (usize, usize),
    file: &'static str,
    /// What to replace, and with what.
    mended: (&'static str, &'static str),
}

const fn case(
    code: &'static str,
    severity: Severity,
    at: (usize, usize),
    file: &'static str,
    mended: (&'static str, &'static str),
) -> Case {
    Case { code, severity, at, file, mended }
}

/// Who can pretend to be whom.
const IDENTITY: [Case; 15] = [
    case(
        "trust-everyone",
        Severity::Warning,
        (2, 43),
        "identify: { trusted_proxies: [10.0.0.0/8, 0.0.0.0/0] }",
        ("0.0.0.0/0", "192.0.2.0/24"),
    ),
    case(
        "trust-everyone",
        Severity::Warning,
        (2, 31),
        "identify: { trusted_proxies: [\"::/0\"] }",
        ("::/0", "fc00::/7"),
    ),
    case("trust-everyone", Severity::Warning, (2, 31), "identify: { trusted_proxies: [128.0.0.0/1] }", ("/1", "/8")),
    case("trust-everyone", Severity::Warning, (2, 31), "identify: { trusted_proxies: [\"2000::/3\"] }", ("/3", "/32")),
    case(
        "unauthenticated-header",
        Severity::Warning,
        (3, 18),
        "rules:\n- { id: a, per: [header:x-api-key], token_bucket: { capacity: 9, refill: 1/s } }",
        ("[header:x-api-key]", "[ip, header:x-api-key]"),
    ),
    case(
        "unauthenticated-header",
        Severity::Warning,
        (2, 22),
        "identify: { client: [header:x-api-key, ip] }\n\
         rules:\n- { id: a, per: client, token_bucket: { capacity: 9, refill: 1/s } }",
        ("[header:x-api-key, ip]", "[ip, header:x-api-key]"),
    ),
    case(
        "unauthenticated-header",
        Severity::Warning,
        (2, 40),
        "identify: { client: [header:x-api-key, query:key, ip], authenticated: [x-api-key] }\n\
         rules:\n- { id: a, per: client, token_bucket: { capacity: 9, refill: 1/s } }",
        ("[x-api-key]", "[X-Api-Key, query:key]"),
    ),
    case(
        "unauthenticated-header",
        Severity::Warning,
        (3, 18),
        "rules:\n- { id: a, per: [cookie:session, path], token_bucket: { capacity: 9, refill: 1/s } }",
        ("path", "tenant"),
    ),
    case(
        "unverified-claim",
        Severity::Error,
        (2, 19),
        "identify: { user: claim:sub, authenticated: x-tenant }",
        ("x-tenant", "authorization"),
    ),
    case(
        "unverified-claim",
        Severity::Error,
        (4, 18),
        "identify: { token: X-Token, authenticated: authorization }\n\
         rules:\n- { id: a, per: [claim:sub], token_bucket: { capacity: 9, refill: 1/s } }",
        ("authenticated: authorization", "authenticated: x-token"),
    ),
    case(
        "unverified-claim",
        Severity::Error,
        (3, 27),
        "rules:\n- { id: a, per: ip, cost: 'attr[\"claim:tier\"] == \"a\" ? 1 : 2', sliding_log: { limit: 9, window: 1m } }",
        ("claim:tier", "tier"),
    ),
    case(
        "unauthenticated-tenant",
        Severity::Warning,
        (2, 21),
        "identify: { tenant: header:x-tenant }",
        ("}", ", authenticated: x-tenant }"),
    ),
    case(
        "unauthenticated-tenant",
        Severity::Warning,
        (2, 19),
        "identify: { plan: query:plan }",
        ("query:plan", "attr:tier"),
    ),
    case(
        "exempt-by-header",
        Severity::Warning,
        (2, 13),
        "exempt: [ { header: { x-internal: \"1\" } } ]",
        ("\"1\" }", "\"1\" }, ip: 10.0.0.0/8"),
    ),
    case("unused-identity", Severity::Warning, (2, 13), "identify: { tennant: attr:org }", ("tennant", "tenant")),
];

/// Rules against guessing.
const SECURITY: [Case; 11] = [
    case(
        "looks-like-security",
        Severity::Note,
        (3, 21),
        "rules:\n- { id: a, match: { action: login }, per: attr:account, sliding_log: { limit: 5, window: 10m } }",
        ("login", "blogging"),
    ),
    case(
        "looks-like-security",
        Severity::Note,
        (3, 21),
        "rules:\n- { id: a, match: { path: /v1/password-reset }, per: attr:a, sliding_log: { limit: 5, window: 10m } }",
        ("per:", "security: true, per:"),
    ),
    case(
        "looks-like-security",
        Severity::Note,
        (3, 21),
        "rules:\n- { id: a, match: { path: /signIn }, per: attr:account, sliding_log: { limit: 5, window: 10m } }",
        ("per:", "security: false, per:"),
    ),
    case(
        "fixed-window-on-security",
        Severity::Warning,
        (3, 63),
        "rules:\n- { id: a, per: attr:account, security: true, fixed_window: { limit: 5, window: 10m } }",
        ("fixed_window", "sliding_log"),
    ),
    case(
        "fixed-window-on-security",
        Severity::Warning,
        (4, 9),
        "plans: { pro: { a: { fixed_window: { limit: 9, window: 10m } } } }\nrules:\n\
         - { id: a, per: attr:account, security: true, sliding_log: { limit: 5, window: 10m } }",
        ("fixed_window", "sliding_log"),
    ),
    case(
        "fixed-window-on-security",
        Severity::Warning,
        (3, 81),
        "rules:\n- { id: a, match: { action: otp }, on_failure: closed, per: a1, fixed_window: { limit: 5, window: 10m } }\n\
         identify: { a1: attr:account }",
        ("per:", "security: false, per:"),
    ),
    case(
        "security-fails-open",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: attr:account, security: true, sliding_log: { limit: 5, window: 10m } }",
        ("security: true", "security: true, on_failure: closed"),
    ),
    case(
        "security-fails-open",
        Severity::Warning,
        (3, 43),
        "rules:\n- { id: a, per: attr:account, on_failure: degraded, security: true, sliding_log: { limit: 5, window: 10m } }",
        ("degraded", "local"),
    ),
    case(
        "local-refuses",
        Severity::Note,
        (3, 43),
        "rules:\n- { id: a, per: attr:account, on_failure: local, sliding_log: { limit: 5, window: 10m } }",
        ("local", "closed"),
    ),
    case(
        "login-by-ip-alone",
        Severity::Warning,
        (3, 43),
        "rules:\n- { id: a, match: { action: login }, per: [ip, net:24/56], sliding_log: { limit: 5, window: 10m } }\n\
         - { id: b, match: { action: login }, per: client, sliding_log: { limit: 50, window: 10m } }\n\
         - { id: c, match: { action: export }, per: attr:account, sliding_log: { limit: 5, window: 10m } }",
        ("export", "login"),
    ),
    case(
        "login-by-ip-alone",
        Severity::Warning,
        (3, 56),
        "rules:\n- { id: a, match: { method: POST, path: /login }, per: [ip], sliding_log: { limit: 5, window: 10m } }\n\
         - { id: b, match: { method: GET, path: /* }, per: attr:account, sliding_log: { limit: 5, window: 10m } }",
        ("GET", "POST"),
    ),
];

/// Rules that never come to a word.
const REACH: [Case; 12] = [
    case(
        "no-rules",
        Severity::Warning,
        (1, 1),
        "rules: []",
        ("[]", "\n- { id: a, per: ip, token_bucket: { capacity: 9, refill: 1/s } }"),
    ),
    case(
        "never-matches",
        Severity::Note,
        (3, 21),
        "rules:\n- { id: a, match: { tenant: acme }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        ("rules:", "identify: { tenant: attr:org }\nrules:"),
    ),
    case(
        "never-matches",
        Severity::Note,
        (4, 21),
        "tenants: { acme: pro }\n\
         rules:\n- { id: a, match: { plan: pro }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        ("rules:", "default_plan: pro\nrules:"),
    ),
    case(
        "unreachable",
        Severity::Warning,
        (4, 21),
        "exempt: [ { path: /health/* } ]\n\
         rules:\n- { id: a, match: { path: /health/live }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        ("/health/live", "/health"),
    ),
    case(
        "duplicate-rule",
        Severity::Warning,
        (4, 9),
        "rules:\n- { id: a, match: { path: /x }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }\n\
         - { id: b, match: { path: /x }, per: ip, token_bucket: { capacity: 9, refill: 60/m } }",
        ("60/m", "61/m"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (4, 9),
        "rules:\n- { id: a, match: { path: /* }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }\n\
         - { id: b, match: { path: /x }, per: ip, token_bucket: { capacity: 9, refill: 61/m } }",
        ("61/m", "59/m"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: [ip, path], sliding_log: { limit: 20, window: 1m } }\n\
         - { id: b, per: [ip], sliding_log: { limit: 20, window: 1m } }",
        ("limit: 20", "limit: 19"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: ip, sliding_window: { limit: 20, window: 1m } }\n\
         - { id: b, per: ip, sliding_window: { limit: 10, window: 1m } }",
        ("limit: 10", "slices: 3, limit: 10"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: ip, fixed_window: { limit: 20, window: 1m } }\n\
         - { id: b, per: ip, fixed_window: { limit: 10, window: 1m } }",
        ("rules:", "plans: { pro: { b: { fixed_window: { limit: 30, window: 1m } } } }\nrules:"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: [], leaky_bucket: { rate: 9/s, queue: 10 } }\n\
         - { id: b, per: [], leaky_bucket: { rate: 9/s, queue: 9 } }",
        ("rate: 9/s, queue: 9 ", "rate: 10/s, queue: 9 "),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: ip, cost: 1, fixed_window: { limit: 20, window: 1m } }\n\
         - { id: b, per: ip, cost: 1, fixed_window: { limit: 10, window: 1m } }",
        ("{ id: a,", "{ id: a, on_failure: closed,"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: ip, fixed_window: { limit: 20, window: 1m } }\n\
         - { id: b, per: ip, fixed_window: { limit: 10, window: 1m } }",
        ("{ id: b,", "{ id: b, mode: shadow,"),
    ),
];

/// Amounts.
const LIMITS: [Case; 8] = [
    case(
        "huge-log",
        Severity::Warning,
        (3, 36),
        "rules:\n- { id: a, per: ip, sliding_log: { limit: 1001, window: 1m } }",
        ("1001", "1000"),
    ),
    case(
        "huge-log",
        Severity::Warning,
        (5, 22),
        "rules:\n- id: a\n  per: ip\n  limits: { burst: { sliding_log: { limit: 2000, window: 1m } }, \
         day: { fixed_window: { limit: 9000, window: 1d } } }",
        ("sliding_log", "sliding_window"),
    ),
    case(
        "zero-limit",
        Severity::Note,
        (3, 37),
        "rules:\n- { id: a, per: ip, fixed_window: { limit: 0, window: 1m } }",
        ("limit: 0", "limit: 1"),
    ),
    case(
        "cost-above-limit",
        Severity::Warning,
        (3, 27),
        "rules:\n- { id: a, per: ip, cost: 21, token_bucket: { capacity: 20, refill: 1/s } }",
        ("cost: 21", "cost: 20"),
    ),
    case(
        "cost-above-limit",
        Severity::Warning,
        (3, 29),
        "rules:\n- { id: a, per: ip, cost: { GET: 1, POST: 21 }, token_bucket: { capacity: 20, refill: 1/s } }",
        ("POST: 21", "POST: 20"),
    ),
    case(
        "cost-above-limit",
        Severity::Warning,
        (4, 27),
        "plans: { small: { a: { token_bucket: { capacity: 2, refill: 1/s } } } }\n\
         rules:\n- { id: a, per: ip, cost: 3, token_bucket: { capacity: 20, refill: 1/s } }",
        ("capacity: 2,", "capacity: 3,"),
    ),
    case(
        "long-queue",
        Severity::Note,
        (3, 37),
        "rules:\n- { id: a, per: [], leaky_bucket: { rate: 10/s, queue: 301 } }",
        ("301", "300"),
    ),
    case(
        "unused-identity",
        Severity::Note,
        (2, 13),
        "identify: { device: attr:device }\nrules:\n- { id: a, per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        ("per: ip", "per: device"),
    ),
];

fn cases() -> impl Iterator<Item = &'static Case> {
    IDENTITY.iter().chain(&SECURITY).chain(&REACH).chain(&LIMITS)
}

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
fn each_mistake_draws_its_lint_where_it_stands() {
    for case in cases() {
        let report = report(case.file);
        let found = of(&report, case.code);
        assert_eq!(found.len(), 1, "{} once in:\n{}\n{report}", case.code, case.file);
        assert_eq!(report.position(found[0]), case.at, "{report}");
        assert_eq!(found[0].severity(), case.severity, "{report}");
        assert!(found[0].suggestion().is_some_and(|help| !help.is_empty()), "{report}");
    }
}

#[test]
fn nearly_the_same_file_without_the_mistake_does_not() {
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
fn an_ordinary_file_draws_only_what_it_deserves() {
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
    assert_eq!(codes(&report(ordinary)), ["local-refuses", "local-refuses"]);
    assert_eq!(codes(&report(&ordinary.replace("on_failure: local", "on_failure: closed"))), [""; 0]);
}

#[test]
fn an_unwise_identity_is_told_once_however_many_rules_use_it() {
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
    let file = "rules:\n- { id: a, mode: disabled, per: header:x, security: true, fixed_window: { limit: 0, window: 1m } }\n\
                - { id: b, per: ip, fixed_window: { limit: 9, window: 1m } }";
    assert_eq!(codes(&report(file)), [""; 0]);
}

#[test]
fn rules_that_share_a_budget_are_no_duplicates() {
    let file = "rules:\n- { id: a, per: ip, budget: b, fixed_window: { limit: 9, window: 1m } }\n\
                - { id: b, per: ip, budget: b, fixed_window: { limit: 9, window: 1m } }";
    assert_eq!(codes(&report(file)), [""; 0]);
}

/// Rules that all apply to `/x`, each with a window of its own.
fn crowd(size: u64) -> String {
    let rule = |n: u64| {
        format!("- {{ id: r{n}, match: {{ path: /x }}, per: ip, fixed_window: {{ limit: 9, window: {n}s }} }}\n")
    };
    format!("rules:\n{}", (1..=size).map(rule).collect::<String>())
}

#[test]
fn more_limits_than_a_decision_takes_are_an_error_at_the_first_that_is_too_many() {
    let most = tidegate::MOST_CHECKS as u64;
    assert_eq!(codes(&report(&crowd(most))), [""; 0]);
    let crowded = report(&crowd(most + 3));
    assert_eq!(codes(&crowded), ["too-many-checks"]);
    assert!(crowded.has_errors());
    assert_eq!(crowded.position(&crowded.problems()[0]), (35, 9));
    let message = crowded.problems()[0].message();
    assert!(message.starts_with("35 limits"), "{message}");
    // Exempt requests meet no limits.
    assert_eq!(of(&report(&format!("exempt: [ {{ path: /x }} ]\n{}", crowd(40))), "too-many-checks").len(), 0);
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
