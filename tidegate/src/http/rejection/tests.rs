//! The bodies, messages and formats of rejections.

use serde_json::Value;

use super::*;
use crate::plan::{Check, Gate, Plan};
use crate::rules::UsageKind;
use crate::spi::{KnownDenial, Subject};
use crate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet};

const PROBLEM: Option<&str> = Some("application/problem+json");

fn store() -> MemoryStore {
    MemoryStore::new().with_clock(ManualClock::default())
}

fn bucket(capacity: u64, per_minute: u64) -> Limit {
    Limit::token_bucket(capacity, Rate::per_minute(per_minute).unwrap()).unwrap()
}

/// The decision on a request of this cost, after one of cost 1.
fn second_decision(rules: impl IntoIterator<Item = Rule>, cost: u64) -> Decision {
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store());
    assert!(limiter.check_now(&Request::new("")).is_allowed());
    limiter.check_now(&Request::new("").with_cost(cost))
}

fn field<'a>(rejection: &'a Rejection, name: &str) -> Option<&'a str> {
    rejection.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
}

#[test]
fn a_rejection_names_the_rule_and_the_time_to_wait() {
    // 7 a minute: the next one in 8,571,428.57 microseconds.
    let rejection = HeaderPolicy::new().reject(&second_decision([Rule::new("api", bucket(1, 7))], 1), None, None);
    assert_eq!(
        rejection.body,
        "{\"error\":\"rate_limit_exceeded\",\"message\":\"Too many requests. Retry later.\",\"rule_id\":\"api\",\
         \"retry_after\":9,\"retry_after_ms\":8572}"
    );
    assert_eq!((rejection.status, field(&rejection, "retry-after")), (429, Some("9")));
    assert_eq!(field(&rejection, "content-type"), Some("application/json"));
    assert_eq!(field(&rejection, "cache-control"), Some("no-store"));
    assert_eq!(field(&rejection, "x-ratelimit-remaining"), Some("0"));
}

#[test]
fn a_problem_document_names_the_limits_that_denied() {
    let rules = [
        Rule::new("api", bucket(2, 60)).with_limit("burst", bucket(1, 30)),
        Rule::new("wide", bucket(9, 60)),
        Rule::new("all", bucket(1, 60)),
    ];
    let rejection = HeaderPolicy::new().reject(&second_decision(rules, 1), None, PROBLEM);
    assert_eq!(
        rejection.body,
        "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\"title\":\"Quota exceeded\",\
         \"status\":429,\"detail\":\"Too many requests. Retry later.\",\
         \"violated-policies\":[\"api.burst\",\"all\"],\"retry_after\":2,\"retry_after_ms\":2000}"
    );
    assert_eq!(field(&rejection, "content-type"), Some("application/problem+json"));
    assert_eq!(field(&rejection, "cache-control"), Some("no-store"));
}

#[test]
fn a_group_that_admits_is_not_among_the_violated_policies() {
    let gate = |rule: &str, limit, role| Gate::for_rule(rule, limit).with_role(role);
    let gates = [
        gate("shut", bucket(1, 1), Role::AnyOf(1)),
        gate("open", bucket(9, 1), Role::AnyOf(1)),
        gate("first", bucket(1, 1), Role::AnyOf(2)),
        gate("second", bucket(1, 1), Role::AnyOf(2)),
    ];
    let store = store();
    let plan = Plan::new(gates.iter().map(|gate| Check::new(gate, Subject::from_hash(7), 1))).unwrap();
    assert!(Decision::new(&plan, &store.decide_now(&plan)).is_allowed());
    let denied = Decision::new(&plan, &store.decide_now(&plan));
    assert_eq!(violated_policies(&denied), Some(vec!["first".to_owned(), "second".to_owned()]));
}

#[test]
fn the_message_of_the_rule_is_escaped_as_json() {
    let decision = second_decision([Rule::new("zug \"7\"", bucket(1, 60))], 1);
    let body = HeaderPolicy::new().reject(&decision, Some("Nicht \"so\" schnell,\nbitte \u{1f682}"), None).body;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["message"], "Nicht \"so\" schnell,\nbitte \u{1f682}");
    assert_eq!(body["rule_id"], "zug \"7\"");
}

#[test]
fn a_permanent_denial_says_that_waiting_does_not_help() {
    let decision = second_decision([Rule::new("api", bucket(5, 60))], 6);
    let rejection = HeaderPolicy::new().reject(&decision, None, None);
    assert_eq!(
        rejection.body,
        "{\"error\":\"rate_limit_exceeded\",\"message\":\"The request costs more than the limit ever allows at \
         once. Waiting does not help.\",\"rule_id\":\"api\"}"
    );
    assert_eq!(field(&rejection, "retry-after"), None);
    assert!(!HeaderPolicy::new().reject(&decision, None, PROBLEM).body.contains("retry_after"));
}

#[test]
fn a_security_rule_is_not_named() {
    let rules = || [Rule::new("api", bucket(1, 60)), Rule::new("login", bucket(3, 60)).with_security()];
    let rejection = HeaderPolicy::new().reject(&second_decision(rules(), 1), None, None);
    assert_eq!(
        rejection.body,
        "{\"error\":\"rate_limit_exceeded\",\"message\":\"Too many requests.\",\"retry_after\":1,\
         \"retry_after_ms\":1000}"
    );
    let problem = HeaderPolicy::new().reject(&second_decision(rules(), 1), None, PROBLEM).body;
    assert!(!problem.contains("violated-policies") && !problem.contains("api"), "{problem}");
    // Not even the size of the limit is revealed.
    assert!(
        HeaderPolicy::new().reject(&second_decision(rules(), 4), None, None).body.contains("\"Too many requests.\"")
    );
}

#[test]
fn a_security_rule_reports_whole_seconds_only() {
    let rejections = |rule: Rule| {
        let clock = ManualClock::default();
        let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), MemoryStore::new().with_clock(clock.clone()));
        assert!(limiter.check_now(&Request::new("")).is_allowed());
        clock.advance(Duration::from_millis(3_217));
        let decision = limiter.check_now(&Request::new(""));
        assert_eq!(decision.retry_after(), Some(Duration::from_millis(596_783)));
        [None, PROBLEM].map(|accept| HeaderPolicy::new().reject(&decision, None, accept))
    };
    let login = || Rule::new("login", Limit::sliding_log(1, Duration::from_secs(600)).unwrap());
    for (rule, millis) in [(login(), 596_783), (login().with_security(), 597_000)] {
        for rejection in rejections(rule) {
            let body: Value = serde_json::from_str(&rejection.body).unwrap();
            assert_eq!((&body["retry_after"], &body["retry_after_ms"]), (&597.into(), &millis.into()), "{body}");
            assert_eq!(field(&rejection, "retry-after"), Some("597"));
            assert_eq!(field(&rejection, "retry-after-ms"), Some(millis.to_string().as_str()));
        }
    }
}

#[test]
fn a_store_failure_is_a_503_with_a_retry() {
    let error = StoreError::new(StoreErrorKind::Unavailable, "it is down");
    let rejection = HeaderPolicy::new().reject_unavailable(&error, None, None);
    assert_eq!(
        rejection.body,
        "{\"error\":\"temporarily_unavailable\",\"message\":\"The request cannot be checked against its limits at \
         the moment. Retry later.\",\"retry_after\":1,\"retry_after_ms\":1000}"
    );
    assert_eq!((rejection.status, field(&rejection, "retry-after")), (503, Some("1")));
    assert_eq!(field(&rejection, "retry-after-ms"), Some("1000"));
    assert_eq!(field(&rejection, "cache-control"), Some("no-store"));

    let problem = HeaderPolicy::new().reject_unavailable(&error, None, PROBLEM);
    let body: Value = serde_json::from_str(&problem.body).unwrap();
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert_eq!((&body["status"], &body["retry_after"]), (&Value::from(503), &Value::from(1)));
    assert_eq!(field(&problem, "content-type"), Some("application/problem+json"));
}

#[test]
fn an_overload_is_a_503_that_says_so() {
    let error = StoreError::new(StoreErrorKind::Overloaded, "4096 plans wait").with_crowded();
    let rejection = HeaderPolicy::new().reject_unavailable(&error, None, None);
    assert_eq!(
        rejection.body,
        "{\"error\":\"overloaded\",\"message\":\"Too many requests wait to be checked against their limits. Retry \
         later.\",\"retry_after\":1,\"retry_after_ms\":1000}"
    );
    assert_eq!((rejection.status, field(&rejection, "retry-after")), (503, Some("1")));
    assert_eq!(field(&rejection, "retry-after-ms"), Some("1000"));
    let problem: Value =
        serde_json::from_str(&HeaderPolicy::new().reject_unavailable(&error, None, PROBLEM).body).unwrap();
    assert_eq!((&problem["title"], &problem["status"]), (&Value::from("Overloaded"), &Value::from(503)));
}

#[test]
fn clients_that_prefer_problem_documents_get_them() {
    let prefers = [
        "application/problem+json",
        "APPLICATION/Problem+JSON",
        "application/json, application/problem+json",
        "text/html, application/json;q=0.8, application/problem+json;q=0.9",
        "application/problem+json;charset=utf-8 ; q = 0.1, application/json;Q=0.1",
        "*/*, application/problem+json",
        "*/*, application/json;q=0.2, application/problem+json;q=0.3",
    ];
    for accept in prefers {
        assert_eq!(ErrorFormat::Json.for_client(Some(accept)), ErrorFormat::Problem, "{accept}");
    }
    let does_not = [
        "*/*",
        "",
        "text/html",
        "application/json",
        "application/*+json",
        "application/problem+xml",
        "application/problem+json;q=0",
        "application/problem+json;q=0.000, application/json;q=0",
        "application/json, application/problem+json;q=0.999",
        "application/problem+json;q=0.5, */*",
        "*/*;q=0.1, application/*, application/problem+json;q=0.5",
    ];
    for accept in does_not {
        assert_eq!(ErrorFormat::Json.for_client(Some(accept)), ErrorFormat::Json, "{accept}");
    }
    assert_eq!(ErrorFormat::Json.for_client(None), ErrorFormat::Json);
}

#[test]
fn invalid_accept_fields_are_ignored() {
    let named = "application/problem+json";
    for quality in ["", "1.5", "-1", "2", "0.1234", "nan", "0.5.5", "00", "\u{661}", "0x1", "+1", ".5"] {
        let accept = format!("{named};q={quality}");
        assert_eq!(ErrorFormat::Json.for_client(Some(&accept)), ErrorFormat::Json, "{accept}");
    }
    for rubbish in [",,,;;;==", ";q=1", "\u{0},\u{feff}", "\"a,b\";q"] {
        assert_eq!(
            ErrorFormat::Json.for_client(Some(&format!("{rubbish},{named}"))),
            ErrorFormat::Problem,
            "{rubbish}"
        );
    }
    let far_behind = ",".repeat(MAX_MEDIA_RANGES) + named;
    assert_eq!(ErrorFormat::Json.for_client(Some(&far_behind)), ErrorFormat::Json);
}

#[test]
fn a_request_that_cannot_be_judged_gets_its_own_status_and_no_numbers() {
    let rules = RuleSet::new([Rule::new("api", bucket(1, 4)).with_per(["header:x-key"])]).unwrap();
    let limiter = Limiter::new(rules, store());
    let request = || Request::new("").with_attribute("header:x-key", "a");
    let decision = limiter.check_now(&request().with_further_value("header:x-key", "b"));
    assert!(!decision.is_allowed() && decision.is_permanent() && decision.retry_after().is_none());
    let rejection = HeaderPolicy::new().reject(&decision, None, None);
    assert_eq!(rejection.status, 400);
    assert_eq!(
        rejection.body,
        r#"{"error":"bad_request","message":"The request has more than one `header:x-key`. Send it once."}"#
    );
    assert_eq!(rejection.headers.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["content-type", "cache-control"]);
    let problem = HeaderPolicy::new().reject(&decision, None, PROBLEM);
    assert!(problem.body.starts_with(r#"{"type":"about:blank","title":"Bad request","status":400,"detail":""#));
    assert!(limiter.check_now(&request()).is_allowed(), "nothing was consumed");
    let other = request().with_further_value("header:x-other", "b");
    assert_eq!(limiter.check_now(&other).problem(), None, "no rule reads it");
}

/// An instance that repeats a denial without a call knows one check, and must not tell more than the store.
#[test]
fn a_known_denial_by_a_security_rule_has_the_same_body_as_the_first_one() {
    let rules = [
        Rule::new("login", bucket(2, 4)).with_security(),
        Rule::new("tokens", bucket(9, 4)).with_usage(UsageKind::Total),
    ];
    let (rules, store) = (RuleSet::new(rules).unwrap(), store());
    let plan = rules.resolve(&Request::new(""));
    let [.., verdict] = [(); 3].map(|()| store.decide_now(&plan));
    let known = KnownDenial { check: 0, verdict: verdict.checks()[0], decided_at: verdict.decided_at() };
    let decisions = [Decision::new(&plan, &verdict), Decision::from_known_denial(&plan, &known).unwrap()];
    let [first, repeated] = decisions.map(|decision| HeaderPolicy::new().reject(&decision, None, None));
    assert_eq!(first, repeated);
    assert!(repeated.body.starts_with(r#"{"type":"error","error":{"#), "{}", repeated.body);
}
