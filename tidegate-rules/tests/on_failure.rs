//! `on_failure`: the policy of a rule while the store fails, as a name, as a static cap, or by method and route.

use std::time::Duration;

use tidegate::rules::OnOverload;
use tidegate::{Limiter, ManualClock, MemoryStore, OnFailure, Rate, Request, Secret, StoreError, StoreErrorKind};
use tidegate_rule_tools::{RuleEffect, RuleStatus, explain};
use tidegate_rules::{Report, RuleFile};

const LIMIT: &str = "per: [attr:who], token_bucket: { capacity: 4, refill: 1/h }";

fn text(on_failure: &str) -> String {
    format!("version: 1\nrules:\n- {{ id: a, {LIMIT}, on_failure: {on_failure} }}\n")
}

fn rule(on_failure: &str) -> RuleFile {
    RuleFile::parse("rules.yaml", &text(on_failure)).unwrap_or_else(|report| panic!("{report}"))
}

fn errors(on_failure: &str) -> Report {
    RuleFile::parse("rules.yaml", &text(on_failure)).expect_err("the file is invalid")
}

fn request<'a>(method: &'a str, path: &'a str) -> Request<'a> {
    Request::new("").with_attribute("method", method).with_attribute("path", path).with_attribute("who", "ann")
}

/// The failure policy of the check of a request.
fn policy(file: &RuleFile, method: &str, path: &str) -> OnFailure {
    file.rules().resolve(&request(method, path)).checks()[0].on_failure()
}

/// A limiter whose store fails from the start, one of `instances`.
fn failing(file: &RuleFile, instances: u32) -> (impl Fn(&Request<'_>) -> Option<bool> + use<>, ManualClock) {
    let clock = ManualClock::default();
    let memory = MemoryStore::new().with_clock(clock.clone());
    let limiter =
        Limiter::new(file.rules().clone(), MemoryStore::new()).with_instances(instances).with_fallback_store(memory);
    let ask = move |request: &Request<'_>| {
        let plan = limiter.plan(request);
        let decision = limiter.plans().fall_back(&plan, StoreError::new(StoreErrorKind::Unavailable, "gone")).ok()?;
        assert_eq!(decision.degraded(), Some(StoreErrorKind::Unavailable));
        Some(decision.is_allowed())
    };
    (ask, clock)
}

#[test]
fn a_policy_name_applies_to_every_request() {
    for expected in [OnFailure::Local, OnFailure::Share, OnFailure::Open, OnFailure::Closed, OnFailure::Degraded] {
        let file = rule(expected.as_str());
        assert_eq!(policy(&file, "GET", "/"), expected);
        assert_eq!(policy(&file, "POST", "/x"), expected);
    }
    let without = RuleFile::parse("rules.yaml", &format!("version: 1\nrules:\n- {{ id: a, {LIMIT} }}\n")).unwrap();
    assert_eq!(policy(&without, "GET", "/"), OnFailure::Local);
}

#[test]
fn on_overload_and_denial_cache_are_settings_of_a_rule() {
    let gate = |settings: &str| {
        let text = format!("version: 1\nrules:\n- {{ id: a, {LIMIT}{settings} }}\n");
        let file = RuleFile::parse("rules.yaml", &text).unwrap_or_else(|report| panic!("{report}"));
        let plan = file.rules().resolve(&request("GET", "/"));
        let gate = plan.checks()[0].gate();
        (gate.rule().on_overload, gate.rule().denial_cache)
    };
    assert_eq!(gate(""), (OnOverload::Policy, true));
    assert_eq!(gate(", on_overload: policy, denial_cache: true"), (OnOverload::Policy, true));
    assert_eq!(gate(", on_overload: local"), (OnOverload::Local, true));
    assert_eq!(gate(", on_overload: open"), (OnOverload::Open, true));
    assert_eq!(gate(", denial_cache: false"), (OnOverload::Policy, false));
    for wrong in ["on_overload: closed", "on_overload: opn", "denial_cache: 1", "denial_cache: off"] {
        let text = format!("version: 1\nrules:\n- {{ id: a, {LIMIT}, {wrong} }}\n");
        assert!(RuleFile::parse("rules.yaml", &text).is_err(), "{wrong}");
    }
}

#[test]
fn a_static_cap_is_one_bucket_per_instance_for_all_subjects() {
    let file = rule("{ static: 6/m }");
    assert_eq!(policy(&file, "GET", "/"), OnFailure::Static);
    let plan = file.rules().resolve(&request("GET", "/"));
    let expected = tidegate::Limit::token_bucket(6, Rate::per_minute(6).unwrap()).unwrap();
    assert_eq!(plan.checks()[0].gate().rule().static_limit, Some(expected));
    // The cap is the same for any number of instances, and all subjects share it.
    let (ask, clock) = failing(&file, 10);
    let who = |name: &'static str| Request::new("").with_attribute("who", name);
    let names = ["ann", "bob", "cyd", "dee", "eve", "fay", "guy"];
    let passed: Vec<_> = names.iter().map(|name| ask(&who(name))).collect();
    assert_eq!(passed, [Some(true), Some(true), Some(true), Some(true), Some(true), Some(true), Some(false)]);
    clock.advance(Duration::from_secs(10));
    assert_eq!([ask(&who("ann")), ask(&who("ann"))], [Some(true), Some(false)]);
}

#[test]
fn a_static_cap_is_written_as_a_rate() {
    for (written, capacity, refill) in [
        ("100/s", 100, Rate::per_second(100)),
        ("600/m", 600, Rate::per_second(10)),
        ("5/10m", 5, Rate::new(5, Duration::from_secs(600))),
        ("1k per second", 1000, Rate::per_second(1000)),
        ("1.5k/s", 1500, Rate::per_second(1500)),
    ] {
        let file = rule(&format!("{{ static: {written} }}"));
        let plan = file.rules().resolve(&request("GET", "/"));
        let expected = tidegate::Limit::token_bucket(capacity, refill.unwrap()).unwrap();
        assert_eq!(plan.checks()[0].gate().rule().static_limit, Some(expected), "{written}");
    }
}

const TABLE: &str = "{ GET: open, POST /api/pay: closed, POST: { static: 2/h }, /api/stats: degraded, default: share }";

#[test]
fn the_first_matching_route_of_a_table_decides() {
    let file = rule(TABLE);
    assert_eq!(policy(&file, "GET", "/api/stats"), OnFailure::Open);
    assert_eq!(policy(&file, "HEAD", "/api/pay"), OnFailure::Open, "GET includes HEAD");
    assert_eq!(policy(&file, "POST", "/api/pay"), OnFailure::Closed);
    assert_eq!(policy(&file, "POST", "/api//./pay/"), OnFailure::Closed, "paths are compared in their normal form");
    assert_eq!(policy(&file, "POST", "/api/stats"), OnFailure::Static);
    assert_eq!(policy(&file, "PUT", "/api/stats"), OnFailure::Degraded);
    assert_eq!(policy(&file, "PUT", "/api/pay"), OnFailure::Share);
    assert_eq!(
        policy(&rule("{ POST: closed }"), "PUT", "/"),
        OnFailure::Local,
        "a request that matches no route has the default"
    );
}

#[test]
fn each_route_has_its_own_failure_policy() {
    let (ask, _) = failing(&rule(TABLE), 2);
    let times = |method: &str, path: &str| [0; 4].map(|_| ask(&request(method, path)));
    assert_eq!(times("GET", "/"), [Some(true); 4]);
    assert_eq!(times("POST", "/api/pay"), [None; 4]);
    assert_eq!(times("POST", "/"), [Some(true), Some(true), Some(false), Some(false)], "the cap");
    assert_eq!(times("PUT", "/api/stats"), [Some(true); 4]);
    assert_eq!(times("PUT", "/"), [Some(true), Some(true), Some(false), Some(false)], "half of four");
}

/// Front ends add only the attributes that the rules read, so a table by method must request the method.
#[test]
fn the_attributes_of_a_policy_table_are_requested_from_front_doors() {
    let reads = |on_failure: &str| {
        let names = rule(on_failure).rules().reads();
        ["method", "path"].map(|wanted| names.iter().any(|name| name == wanted))
    };
    assert_eq!(reads("closed"), [false, false]);
    assert_eq!(reads("{ static: 1/s }"), [false, false]);
    assert_eq!(reads("{ POST: closed }"), [true, false]);
    assert_eq!(reads("{ /pay: closed }"), [false, true]);
}

#[test]
fn invalid_policies_are_reported_with_help() {
    for (on_failure, message, help) in [
        ("static", "`static` needs a limit", "`{ static: 100/s }`"),
        ("{ POST: static }", "`static` needs a limit", "`{ static: 100/s }`"),
        ("{ static: 10/s, POST: open }", "must say which ones it caps", "`default: { static: 100/s }`"),
        ("{ POST: open, static: 10/s }", "must say which ones it caps", "`default: { static: 100/s }`"),
        ("{ static: 100 }", "not a rate", ""),
        ("{ static: 0.5/s }", "is not a whole number; write 1/2s", ""),
        ("{ static: 0/s }", "0 is below the smallest value", ""),
        ("{ POST: { static: 10/s }, default: { static: 20/s } }", "another `static` limit", "move the others"),
        ("{ POST: { static: 60/m }, default: { static: 1/s } }", "another `static` limit", "move the others"),
        ("{ post: closed }", "`post` is not a field of a failure policy", ""),
        ("{ POST: { statik: 10/s } }", "unknown field `statik`", "did you mean `static`?"),
        ("{ POST /a//b: closed }", "no empty segments", "write /a/b"),
        ("lokal", "`lokal` is not a valid value", "did you mean `local`?"),
        ("{ default: clsed }", "`clsed` is not a valid value", "did you mean `closed`?"),
        ("[open]", "found a list", ""),
    ] {
        let report = errors(on_failure);
        let problem = &report.problems()[0];
        assert_eq!(report.problems().len(), 1, "{report}");
        assert!(problem.message().contains(message), "{report}");
        assert!(problem.help().unwrap_or_default().contains(help), "{report}");
        assert_eq!(report.position(problem).0, 3, "{report}");
    }
    assert!(RuleFile::parse("rules.yaml", &text("{ POST: { static: 10/s }, default: { static: 10/1s } }")).is_ok());
}

#[test]
fn all_problems_of_a_table_are_reported_at_once() {
    let report = errors("{ POST /a//b: clsd, /x: static, GET: { static: x }, default: static }");
    assert_eq!(report.problems().len(), 4, "{report}");
}

/// If several rules of a budget apply, only the first one has a check, with the static limit of any of them.
#[test]
fn rules_that_share_a_budget_share_a_static_limit() {
    let file = |first: &str, second: &str| {
        let text = format!(
            "version: 1\nrules:\n- {{ id: a, budget: b, {LIMIT}, on_failure: {first} }}\n\
             - {{ id: b, budget: b, {LIMIT}, on_failure: {second} }}\n"
        );
        RuleFile::parse("rules.yaml", &text)
    };
    let (ask, _) = failing(&file("open", "{ static: 1/h }").unwrap(), 1);
    assert_eq!([ask(&request("GET", "/")), ask(&request("GET", "/"))], [Some(true), Some(false)]);
    let report = file("{ static: 2/h }", "{ static: 1/h }").unwrap_err();
    assert_eq!(report.problems().len(), 1, "{report}");
    assert!(report.problems()[0].message().contains("rule `a`, which has another `static` limit"), "{report}");
}

#[test]
fn an_explanation_shows_the_failure_policy_of_the_request() {
    let file = rule(TABLE);
    let explained = |method: &str, path: &str| -> RuleEffect {
        let explanation = explain(&file, &request(method, path), &Secret::public());
        let RuleStatus::Applies(applied) = &explanation.rules[0].status else { panic!("it applies") };
        applied.clone()
    };
    assert_eq!(explained("PUT", "/").on_failure, OnFailure::Share);
    assert_eq!(explained("GET", "/").static_limit, None);
    let capped = explained("POST", "/");
    assert_eq!(capped.on_failure, OnFailure::Static);
    assert_eq!(capped.static_limit.as_deref(), Some("token bucket: 2 at once, then 2/h"));
}

/// An editor must accept exactly what the parser accepts.
#[test]
fn the_schema_accepts_every_form_of_on_failure() {
    let schema = serde_json::from_str(&tidegate_rules::schema()).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let json = |text: &str| serde_saphyr::from_str::<serde_json::Value>(text).expect("YAML");
    for good in ["local", "share", "{ static: 5/s }", TABLE, "{ default: { static: 5/s } }", "{ /a/*: closed }"] {
        assert!(validator.is_valid(&json(&text(good))), "{good}");
    }
    for bad in [
        "static",
        "never",
        "{ static: 5/s, POST: open }",
        "{ POST: static }",
        "{ default: { cap: 5/s } }",
        "{ POST: { POST: open } }",
        "5",
        "[open]",
    ] {
        assert!(!validator.is_valid(&json(&text(bad))), "{bad}");
        errors(bad);
    }
}
