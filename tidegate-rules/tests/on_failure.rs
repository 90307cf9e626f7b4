//! What happens while the store fails: by a word, under a cap, by method or route.

use std::time::Duration;

use tidegate::{Limiter, ManualClock, MemoryStore, OnFailure, Rate, Request, Secret, StoreError, StoreErrorKind};
use tidegate_rules::{Report, RuleEffect, RuleFile, RuleStatus};

const LIMIT: &str = "per: [attr:who], token_bucket: { capacity: 4, refill: 1/h }";

fn text(on_failure: &str) -> String {
    format!("version: 1\nrules:\n- {{ id: a, {LIMIT}, on_failure: {on_failure} }}\n")
}

fn rule(on_failure: &str) -> RuleFile {
    RuleFile::parse("rules.yaml", &text(on_failure)).unwrap_or_else(|report| panic!("{report}"))
}

fn refused(on_failure: &str) -> Report {
    RuleFile::parse("rules.yaml", &text(on_failure)).expect_err("the file is wrong")
}

fn asks<'a>(method: &'a str, path: &'a str) -> Request<'a> {
    Request::new("").with_attribute("method", method).with_attribute("path", path).with_attribute("who", "ann")
}

/// What happens to a request, by the check that it must pass.
fn policy(file: &RuleFile, method: &str, path: &str) -> OnFailure {
    file.rules().resolve(&asks(method, path)).checks()[0].on_failure()
}

/// A limiter whose store fails from the start, one of `instances`.
fn failing(file: &RuleFile, instances: u32) -> (impl Fn(&Request<'_>) -> Option<bool> + use<>, ManualClock) {
    let clock = ManualClock::default();
    let memory = MemoryStore::new().with_clock(clock.clone());
    let limiter =
        Limiter::new(file.rules().clone(), MemoryStore::new()).with_instances(instances).with_fallback_store(memory);
    let ask = move |request: &Request<'_>| {
        let plan = limiter.plan(request);
        let decision = limiter.fall_back(&plan, StoreError::new(StoreErrorKind::Unavailable, "gone")).ok()?;
        assert_eq!(decision.degraded(), Some(StoreErrorKind::Unavailable));
        Some(decision.is_allowed())
    };
    (ask, clock)
}

#[test]
fn a_word_holds_for_every_request() {
    for policy_of_all in [OnFailure::Open, OnFailure::Closed, OnFailure::Local, OnFailure::Degraded] {
        let file = rule(policy_of_all.as_str());
        assert_eq!(policy(&file, "GET", "/"), policy_of_all);
        assert_eq!(policy(&file, "POST", "/x"), policy_of_all);
    }
    let unsaid = RuleFile::parse("rules.yaml", &format!("version: 1\nrules:\n- {{ id: a, {LIMIT} }}\n")).unwrap();
    assert_eq!(policy(&unsaid, "GET", "/"), OnFailure::Open);
}

#[test]
fn a_cap_is_one_bucket_for_everybody_at_one_instance() {
    let file = rule("{ static: 6/m }");
    assert_eq!(policy(&file, "GET", "/"), OnFailure::Static);
    let plan = file.rules().resolve(&asks("GET", "/"));
    let expected = tidegate::Limit::token_bucket(6, Rate::per_minute(6).unwrap()).unwrap();
    assert_eq!(plan.checks()[0].gate().static_limit(), Some(&expected));
    // However many instances there are, this one has its cap; and whoever asks.
    let (ask, clock) = failing(&file, 10);
    let who = |name: &'static str| Request::new("").with_attribute("who", name);
    let names = ["ann", "bob", "cyd", "dee", "eve", "fay", "guy"];
    let passed: Vec<_> = names.iter().map(|name| ask(&who(name))).collect();
    assert_eq!(passed, [Some(true), Some(true), Some(true), Some(true), Some(true), Some(true), Some(false)]);
    clock.advance(Duration::from_secs(10));
    assert_eq!([ask(&who("ann")), ask(&who("ann"))], [Some(true), Some(false)]);
}

#[test]
fn a_cap_may_be_written_like_any_rate() {
    for (written, capacity, refill) in [
        ("100/s", 100, Rate::per_second(100)),
        ("600/m", 600, Rate::per_second(10)),
        ("5/10m", 5, Rate::new(5, Duration::from_secs(600))),
        ("1k per second", 1000, Rate::per_second(1000)),
        ("1.5k/s", 1500, Rate::per_second(1500)),
    ] {
        let file = rule(&format!("{{ static: {written} }}"));
        let plan = file.rules().resolve(&asks("GET", "/"));
        let expected = tidegate::Limit::token_bucket(capacity, refill.unwrap()).unwrap();
        assert_eq!(plan.checks()[0].gate().static_limit(), Some(&expected), "{written}");
    }
}

const TABLE: &str = "{ GET: open, POST /api/pay: closed, POST: { static: 2/h }, /api/stats: degraded, default: local }";

#[test]
fn of_a_table_the_first_route_that_fits_counts() {
    let file = rule(TABLE);
    assert_eq!(policy(&file, "GET", "/api/stats"), OnFailure::Open);
    assert_eq!(policy(&file, "HEAD", "/api/pay"), OnFailure::Open, "GET stands for HEAD too");
    assert_eq!(policy(&file, "POST", "/api/pay"), OnFailure::Closed);
    assert_eq!(policy(&file, "POST", "/api//./pay/"), OnFailure::Closed, "paths are compared in their normal form");
    assert_eq!(policy(&file, "POST", "/api/stats"), OnFailure::Static);
    assert_eq!(policy(&file, "PUT", "/api/stats"), OnFailure::Degraded);
    assert_eq!(policy(&file, "PUT", "/api/pay"), OnFailure::Local);
    assert_eq!(policy(&rule("{ POST: closed }"), "PUT", "/"), OnFailure::Open, "what nobody speaks of is open");
}

#[test]
fn each_route_fails_as_it_says() {
    let (ask, _) = failing(&rule(TABLE), 2);
    let times = |method: &str, path: &str| [0; 4].map(|_| ask(&asks(method, path)));
    assert_eq!(times("GET", "/"), [Some(true); 4]);
    assert_eq!(times("POST", "/api/pay"), [None; 4]);
    assert_eq!(times("POST", "/"), [Some(true), Some(true), Some(false), Some(false)], "the cap");
    assert_eq!(times("PUT", "/api/stats"), [Some(true); 4]);
    assert_eq!(times("PUT", "/"), [Some(true), Some(true), Some(false), Some(false)], "half of four");
}

/// A door brings only what the rules read: a table by method would otherwise never see one.
#[test]
fn doors_bring_what_a_table_asks_for() {
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
        ("{ static: 10/s, POST: open }", "`default: { static: 100/s }`", ""),
        ("{ POST: open, static: 10/s }", "`default: { static: 100/s }`", ""),
        ("{ static: 100 }", "not a rate", ""),
        ("{ static: 0.5/s }", "is not a whole number; write 1/2s", ""),
        ("{ static: 0/s }", "0 is below the smallest value", ""),
        ("{ POST: { static: 10/s }, default: { static: 20/s } }", "another `static` limit", "move the others"),
        ("{ POST: { static: 60/m }, default: { static: 1/s } }", "another `static` limit", "move the others"),
        ("{ post: closed }", "`post` is not a field of a failure policy", ""),
        ("{ POST: { statik: 10/s } }", "unknown field `statik`", "did you mean `static`?"),
        ("{ POST /a//b: closed }", "two slashes", "write /a/b"),
        ("lokal", "`lokal` is not a valid value", "did you mean `local`?"),
        ("{ default: clsed }", "`clsed` is not a valid value", "did you mean `closed`?"),
        ("[open]", "found a list", ""),
    ] {
        let report = refused(on_failure);
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
    let report = refused("{ POST /a//b: clsd, /x: static, GET: { static: x }, default: static }");
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
    assert_eq!([ask(&asks("GET", "/")), ask(&asks("GET", "/"))], [Some(true), Some(false)]);
    let report = file("{ static: 2/h }", "{ static: 1/h }").unwrap_err();
    assert_eq!(report.problems().len(), 1, "{report}");
    assert!(report.problems()[0].message().contains("rule `a`, which has another `static` limit"), "{report}");
}

#[test]
fn an_explanation_tells_what_happens_to_this_request() {
    let file = rule(TABLE);
    let explained = |method: &str, path: &str| -> RuleEffect {
        let explanation = file.explain(&asks(method, path), &Secret::public());
        let RuleStatus::Applies(applied) = &explanation.rules[0].status else { panic!("it applies") };
        applied.clone()
    };
    assert_eq!(explained("PUT", "/").on_failure, OnFailure::Local);
    assert_eq!(explained("GET", "/").emergency, None);
    let capped = explained("POST", "/");
    assert_eq!(capped.on_failure, OnFailure::Static);
    assert_eq!(capped.emergency.as_deref(), Some("token bucket: 2 at once, then 2/h"));
}

/// An editor must not accept what the reader refuses, nor the other way round.
#[test]
fn the_schema_knows_every_form() {
    let schema = serde_json::from_str(&tidegate_rules::schema()).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let json = |text: &str| serde_saphyr::from_str::<serde_json::Value>(text).expect("YAML");
    for good in ["local", "{ static: 5/s }", TABLE, "{ default: { static: 5/s } }", "{ /a/*: closed }"] {
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
        refused(bad);
    }
}
