//! Paths that servers read in several ways: no spelling avoids the limit of a path.

use proptest::prelude::*;
use tidegate::attributes::{EscapedSlashes, PathError, PathReadings};
use tidegate::{Limiter, MemoryStore, Request, Secret};
use tidegate_rule_tools::{RuleStatus, explain};
use tidegate_rules::{RequestDescription, RuleFile};

const LIMIT: &str = "per: [], token_bucket: { capacity: 100, refill: 1/h }";

/// Spellings that a server may read as `/api/login`.
const SPELLINGS_OF_LOGIN: &[&str] = &[
    "/api/login",
    "/api/login/",
    "/%61pi/login",
    "/api%2Flogin",
    "/api%2flogin",
    "/api%252Flogin",
    "/api%25%32%46login",
    "/%2561pi/login",
    "//api/login",
    "/api//login",
    "/api/login//",
    "/%2Fapi/login",
    "/x%2F..%2Fapi%2Flogin",
    "/x/..%2Fapi/login",
    "/x/../api/login",
    "/x/%2e%2e/api/login",
    "/x/%252e%252e/api/login",
    "/api/./login",
    "/api/login/.",
    "/api/login/x/..",
    "/api;x/login",
    "/api;x=1/login;y",
    "/api/login%3Bx",
    "/x/..;/api/login",
    "/;/api/login",
    "/api\\login",
    "/api%5Clogin",
    "/x\\..\\api\\login",
    "http://host/api/login",
    "/api/login#top",
];

fn parse(text: &str) -> RuleFile {
    RuleFile::parse("rules.yaml", &format!("version: 1\n{text}")).unwrap_or_else(|report| panic!("{report}"))
}

fn request(path: &str) -> Request<'_> {
    Request::new("").with_attribute("method", "GET").with_attribute("path", path)
}

/// The rules that apply, sorted, with their costs.
fn checks(file: &RuleFile, path: &str) -> Vec<(String, u64)> {
    let plan = file.rules().resolve(&request(path));
    assert_eq!(plan.problem(), None, "{path}");
    let mut checks: Vec<_> =
        plan.checks().iter().map(|check| (check.gate().rule().id.to_string(), check.cost())).collect();
    checks.sort();
    checks
}

fn ids(file: &RuleFile, path: &str) -> Vec<String> {
    checks(file, path).into_iter().map(|(id, _)| id).collect()
}

#[test]
fn no_spelling_of_a_path_avoids_its_limit() {
    let file = parse(
        "rules:\n- { id: login, match: { path: /api/login }, per: [], token_bucket: { capacity: 1, refill: 1/d } }\n",
    );
    let limiter = Limiter::new(file.rules().clone(), MemoryStore::new());
    assert!(limiter.check_now(&request("/api/login")).is_allowed());
    for path in SPELLINGS_OF_LOGIN {
        let decision = limiter.check_now(&request(path));
        assert!(!decision.is_allowed(), "{path}");
    }
    for path in ["/api", "/api/log", "/api/login/x", "/login", "/api/logi%2Fn", "/API/login", "/x/../login"] {
        assert!(limiter.check_now(&request(path)).is_allowed(), "{path}");
    }
}

#[test]
fn a_request_is_exempt_only_if_every_reading_is() {
    let file = parse(&format!(
        "exempt: [{{ path: /healthz }}, {{ path: '/static/*' }}]\nrules:\n- {{ id: all, {LIMIT} }}\n- {{ id: api, match: {{ path: '/api/*' }}, {LIMIT} }}\n"
    ));
    for path in ["/healthz", "/healthz/", "/static/a", "/static/a%2Fb", "/static/a//b", "/static/a;b"] {
        assert!(checks(&file, path).is_empty(), "{path}");
    }
    for (path, expected) in [
        ("/api/files/big/../../../healthz", &["all", "api"][..]),
        ("/api%2F..%2Fhealthz", &["all", "api"]),
        ("/static/../api/x", &["all", "api"]),
        ("/static%2F..%2Fx", &["all"]),
        ("/healthz;x", &["all"]),
        ("//healthz", &["all"]),
    ] {
        assert_eq!(ids(&file, path), expected, "{path}");
    }
}

#[test]
fn a_path_before_and_after_its_dots_is_limited() {
    let file = parse(&format!(
        "rules:\n- {{ id: api, match: {{ path: '/api/*' }}, {LIMIT} }}\n- {{ id: x, match: {{ path: /x }}, {LIMIT} }}\n"
    ));
    assert_eq!(ids(&file, "/api/../x"), ["api", "x"]);
    assert_eq!(ids(&file, "/api%2F..%2Fx"), ["api", "x"]);
    assert_eq!(ids(&file, "/x"), ["x"]);
}

#[test]
fn equal_keys_count_once_at_the_largest_cost() {
    let file = parse(
        "rules:\n- { id: all, per: [], cost: { /a/b: 7, default: 2 }, token_bucket: { capacity: 100, refill: 1/h } }\n\
         - { id: page, per: [path], token_bucket: { capacity: 100, refill: 1/h } }\n",
    );
    let each = |all: u64, pages: usize| {
        let pages = std::iter::repeat_n(("page".to_owned(), 1), pages);
        std::iter::once(("all".to_owned(), all)).chain(pages).collect::<Vec<_>>()
    };
    assert_eq!(checks(&file, "/a/b"), each(7, 1));
    assert_eq!(checks(&file, "/a%2Fb"), each(7, 2));
    assert_eq!(checks(&file, "/a/c"), each(2, 1));
    assert_eq!(checks(&file, "/a%2Fc"), each(2, 2));
}

#[test]
fn the_costs_of_a_budget_add_up_within_a_reading_and_not_across() {
    let limit = "per: [], budget: units, token_bucket: { capacity: 100, refill: 1/h }";
    let file = parse(&format!(
        "rules:\n- {{ id: a, match: {{ path: '/a%2Fb' }}, cost: 5, {limit} }}\n- {{ id: b, match: {{ path: '/a/*' }}, cost: 2, {limit} }}\n\
         - {{ id: c, match: {{ path: /a/b }}, cost: 4, {limit} }}\n"
    ));
    assert_eq!(checks(&file, "/a/b"), [("b".to_owned(), 6)]);
    // 5 as written, 2 + 4 as decoded.
    assert_eq!(checks(&file, "/a%2Fb"), [("a".to_owned(), 6)]);
    let limiter = Limiter::new(file.rules().clone(), MemoryStore::new());
    assert_eq!(limiter.check_now(&request("/a%2Fb")).remaining(), Some(94));
}

#[test]
fn paths_with_legitimate_escapes_are_limited_under_both_readings() {
    let file = parse(&format!(
        "rules:\n- {{ id: project, match: {{ path: '/projects/{{id}}' }}, {LIMIT} }}\n\
         - {{ id: below, match: {{ path: '/projects/*' }}, {LIMIT} }}\n- {{ id: fetch, match: {{ path: '/fetch/*' }}, {LIMIT} }}\n"
    ));
    assert_eq!(ids(&file, "/projects/group%2Fname"), ["below", "project"]);
    assert_eq!(ids(&file, "/fetch/https://x"), ["fetch"]);
    assert_eq!(ids(&file, "/fetch/https%3A%2F%2Fx%2Fy"), ["fetch"]);
    assert_eq!(ids(&file, "/fetch/https%253A%252F%252Fx"), ["fetch"]);
}

#[test]
fn a_path_with_too_many_readings_is_denied() {
    let file = parse(&format!("rules:\n- {{ id: login, match: {{ path: /login }}, {LIMIT} }}\n"));
    let path = "/a;b%2Fc\\d";
    assert_eq!(file.rules().resolve(&request(path)).problem(), Some(&PathError::TooManyReadings.into()));
    assert!(!Limiter::new(file.rules().clone(), MemoryStore::new()).check_now(&request(path)).is_allowed());
    let explained = explain(&file, &request(path), &Secret::public());
    assert_eq!((explained.problem, explained.rules.len()), (Some(PathError::TooManyReadings.into()), 0));
}

#[test]
fn the_file_says_what_happens_to_escaped_slashes() {
    let file = |setting: &str| parse(&format!("{setting}rules:\n- {{ id: all, match: {{ path: '*' }}, {LIMIT} }}\n"));
    for (setting, expected) in [
        ("", EscapedSlashes::Both),
        ("identify: { escaped_slashes: both }\n", EscapedSlashes::Both),
        ("identify: { escaped_slashes: reject }\n", EscapedSlashes::Reject),
        ("identify: { escaped_slashes: decode }\n", EscapedSlashes::Decode),
    ] {
        assert_eq!(file(setting).rules().escaped_slashes(), expected, "{setting}");
    }
    let reject = file("identify: { escaped_slashes: reject }\n");
    for path in ["/a%2Fb", "/a%2fb", "/a%252Fb"] {
        let plan = reject.rules().resolve(&request(path));
        assert_eq!(plan.problem(), Some(&PathError::EscapedSlash.into()), "{path}");
    }
    assert_eq!(ids(&reject, "/a%20b"), ["all"]);
    let wrong =
        RuleFile::parse("rules.yaml", "version: 1\nidentify: { escaped_slashes: keep }\nrules: []\n").unwrap_err();
    assert!(wrong.to_string().contains("escaped_slashes") && wrong.to_string().contains("reject"), "{wrong}");
}

#[test]
fn an_explanation_shows_every_reading() {
    let file = parse(&format!(
        "exempt: [{{ path: /healthz }}]\nrules:\n- {{ id: page, match: {{ path: '/a/*' }}, per: [path], token_bucket: {{ capacity: 1, refill: 1/h }} }}\n\
         - {{ id: written, match: {{ path: '/{{x}}' }}, {LIMIT} }}\n- {{ id: other, match: {{ path: /b }}, {LIMIT} }}\n"
    ));
    let explain = |path| explain(&file, &request(path), &Secret::public());
    let explained = explain("/a%2Fb//c");
    assert_eq!(explained.path_readings, ["/a%2Fb//c", "/a%2Fb/c", "/a/b//c", "/a/b/c"]);
    let applies: Vec<_> =
        explained.rules.iter().map(|rule| (rule.id.as_str(), matches!(rule.status, RuleStatus::Applies(_)))).collect();
    // The first rule counts two readings by their own paths.
    assert_eq!(applies, [("page", true), ("page", true), ("written", false), ("other", false)]);
    assert_eq!(explain("/healthz").exempt, Some(2));
    assert_eq!(explain("/healthz;x").exempt, None);
    assert_eq!(explain("/%61/b").path_readings, ["/a/b"]);
}

#[test]
fn a_request_description_has_a_method_in_its_own_letters() {
    let error = RequestDescription::new().with_method("post").attributes().unwrap_err();
    assert_eq!(error.to_string(), "method: methods are case-sensitive; write `POST`");
    assert!(RequestDescription::new().with_method("purge-all").attributes().is_ok());
}

proptest! {
    /// A naive reading of the rules: a rule applies if it applies to one of the readings.
    #[test]
    fn the_rules_of_every_reading_apply(path in "(/|%2F|%252F|\\\\|;|\\.\\.|%2e|a|b|x){0,6}") {
        let file = parse(&format!(
            "rules:\n- {{ id: r0, match: {{ path: /a }}, {LIMIT} }}\n- {{ id: r1, match: {{ path: '/a/*' }}, {LIMIT} }}\n\
             - {{ id: r2, match: {{ path: '/{{x}}/b' }}, {LIMIT} }}\n- {{ id: r3, match: {{ path: /a/b }}, {LIMIT} }}\n- {{ id: r4, match: {{ path: / }}, {LIMIT} }}\n"
        ));
        let path = format!("/{path}");
        let plan = file.rules().resolve(&request(&path));
        match PathReadings::new(&path) {
            Err(error) => prop_assert_eq!(plan.problem(), Some(&error.into())),
            Ok(readings) => {
                let mut expected: Vec<&str> = readings.iter().flat_map(naive_rules).collect();
                expected.sort_unstable();
                expected.dedup();
                prop_assert_eq!(ids(&file, &path), expected);
            }
        }
    }
}

/// The rules for a reading, by splitting it.
fn naive_rules(reading: &str) -> Vec<&'static str> {
    let segments: Vec<&str> = if reading == "/" { Vec::new() } else { reading[1..].split('/').collect() };
    let rules = [
        ("r0", segments == ["a"]),
        ("r1", segments.len() > 1 && segments[0] == "a"),
        ("r2", segments.len() == 2 && segments[1] == "b"),
        ("r3", segments == ["a", "b"]),
        ("r4", segments.is_empty()),
    ];
    rules.into_iter().filter(|(_, applies)| *applies).map(|(rule, _)| rule).collect()
}
