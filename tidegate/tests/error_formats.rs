//! Which format the body of a refusal has, and what the format of language models says.

use serde_json::{Value, json};
use tidegate::http::{ErrorFormat, HeaderPolicy, Rejection};
use tidegate::limits::{Period, Periods};
use tidegate::rules::UsageKind;
use tidegate::{
    Decision, Limit, Limiter, ManualClock, MemoryStore, OnFailure, Rate, Request, Rule, RuleMode, RuleSet, StoreError,
    StoreErrorKind,
};

use crate::fallback::store::poll_once;

const PROBLEM: Option<&str> = Some("application/problem+json");
const FORMATS: [ErrorFormat; 3] = [ErrorFormat::Json, ErrorFormat::Problem, ErrorFormat::OpenAi];

fn bucket(capacity: u64) -> Limit {
    Limit::token_bucket(capacity, Rate::per_minute(4).unwrap()).unwrap()
}

fn year(amount: u64) -> Limit {
    Limit::quota(amount, Periods::utc(Period::Year)).unwrap()
}

fn limiter(rules: impl IntoIterator<Item = Rule>) -> Limiter<MemoryStore> {
    Limiter::new(RuleSet::new(rules).unwrap(), MemoryStore::new().with_clock(ManualClock::default()))
}

/// The denial of a request with this cost after so many others.
fn denial(rules: impl IntoIterator<Item = Rule>, before: usize, cost: u64) -> Decision {
    let limiter = limiter(rules);
    for _ in 0..before {
        assert!(limiter.check_now(&Request::new("")).is_allowed());
    }
    let decision = limiter.check_now(&Request::new("").with_cost(cost));
    assert!(!decision.is_allowed());
    decision
}

fn reject(decision: &Decision) -> Rejection {
    HeaderPolicy::new().reject(decision, None, None)
}

fn body(rejection: &Rejection) -> Value {
    serde_json::from_str(&rejection.body).unwrap()
}

fn format(rejection: &Rejection) -> ErrorFormat {
    let body = body(rejection);
    let format = match (&body["error"], &body["title"]) {
        (Value::Object(_), Value::Null) => ErrorFormat::OpenAi,
        (Value::String(_), Value::Null) => ErrorFormat::Json,
        (Value::Null, Value::String(_)) => ErrorFormat::Problem,
        _ => panic!("{body}"),
    };
    let content_type = ("content-type", format.media_type().to_owned());
    assert!(rejection.headers.contains(&content_type), "{:?}", rejection.headers);
    format
}

/// The `code` of a denial with this cost after another one with cost 1.
fn code(rule: Rule, cost: u64) -> String {
    body(&reject(&denial([rule.with_error_format(ErrorFormat::OpenAi)], 1, cost)))["error"]["code"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn a_denial_by_a_rule_that_counts_tokens_has_the_form_that_both_client_libraries_read() {
    let rejection = reject(&denial([Rule::new("tokens", bucket(1)).with_usage(UsageKind::Total)], 1, 1));
    assert_eq!(
        rejection.body,
        r#"{"type":"error","error":{"message":"Too many requests. Retry later.","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}"#
    );
    assert_eq!(rejection.message, "Too many requests. Retry later.");
    assert_eq!(format(&rejection), ErrorFormat::OpenAi);
}

#[test]
fn the_format_changes_neither_the_status_nor_the_header_fields() {
    let rejection = |format| reject(&denial([Rule::new("api", bucket(1)).with_error_format(format)], 1, 1));
    let [json, problem, openai] = FORMATS.map(rejection);
    assert_eq!([&json, &problem, &openai].map(format), FORMATS);
    assert_eq!((json.status, &json.headers), (openai.status, &openai.headers));
    let names = |rejection: &Rejection| rejection.headers.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    assert_eq!((problem.status, names(&problem)), (429, names(&json)));
    for (name, value) in [("retry-after", "15"), ("retry-after-ms", "15000"), ("x-ratelimit-remaining", "0")] {
        assert!(openai.headers.contains(&(name, value.to_owned())), "{name}");
    }
}

#[test]
fn rules_without_tokens_keep_the_stable_json_unless_they_say_otherwise() {
    let plain = || Rule::new("api", bucket(1));
    let tokens = || plain().with_usage(UsageKind::Output);
    let format_of = |rule, policy: HeaderPolicy| format(&policy.reject(&denial([rule], 1, 1), None, None));
    assert_eq!(format_of(plain(), HeaderPolicy::new()), ErrorFormat::Json);
    assert_eq!(format_of(tokens(), HeaderPolicy::new()), ErrorFormat::OpenAi);
    for wanted in FORMATS {
        assert_eq!(format_of(plain().with_error_format(wanted), HeaderPolicy::new()), wanted);
        assert_eq!(format_of(tokens().with_error_format(wanted), HeaderPolicy::new()), wanted);
        assert_eq!(format_of(plain(), HeaderPolicy::new().with_error_format(wanted)), wanted);
        assert_eq!(format_of(tokens(), HeaderPolicy::new().with_error_format(wanted)), ErrorFormat::OpenAi);
    }
}

#[test]
fn a_client_that_asks_for_a_problem_document_gets_it_in_every_format() {
    for wanted in FORMATS {
        let decision = denial([Rule::new("api", bucket(1)).with_error_format(wanted)], 1, 1);
        let format_for = |accept| format(&HeaderPolicy::new().reject(&decision, None, accept));
        assert_eq!(format_for(PROBLEM), ErrorFormat::Problem);
        // What client libraries send.
        assert_eq!([format_for(Some("application/json")), format_for(Some("*/*"))], [wanted; 2]);
    }
}

#[test]
fn the_rule_that_the_response_names_decides_its_format() {
    let requests = || Rule::new("requests", bucket(2));
    let tokens = || Rule::new("tokens", bucket(3)).with_usage(UsageKind::Total);
    // The longer wait is named.
    for (cost, rule, expected) in [(1, "requests", ErrorFormat::Json), (3, "tokens", ErrorFormat::OpenAi)] {
        let decision = denial([requests().with_cost(1), tokens()], 2, cost);
        assert_eq!((decision.rule(), format(&reject(&decision))), (Some(rule), expected));
    }
}

#[test]
fn only_a_used_quota_is_an_insufficient_quota() {
    assert_eq!(code(Rule::new("year", year(1)), 1), "insufficient_quota");
    assert_eq!(code(Rule::new("api", bucket(1)), 1), "rate_limit_exceeded");
    let month = Limit::fixed_window(1, tidegate::limits::Window::MONTH).unwrap();
    assert_eq!(code(Rule::new("month", month), 1), "rate_limit_exceeded");
    // A quota is left: less would pass.
    assert_eq!(code(Rule::new("year", year(5)), 6), "rate_limit_exceeded");
    let none = denial([Rule::new("year", year(0)).with_error_format(ErrorFormat::OpenAi)], 0, 1);
    assert_eq!(body(&reject(&none))["error"]["code"], "insufficient_quota");

    // What is reserved may be free again in a moment.
    let held = limiter([Rule::new("year", year(1)).with_error_format(ErrorFormat::OpenAi)]);
    assert!(poll_once(held.reserve(&Request::new(""), None)).unwrap().is_allowed());
    assert_eq!(body(&reject(&held.check_now(&Request::new(""))))["error"]["code"], "rate_limit_exceeded");
}

#[test]
fn a_cost_above_the_limit_says_that_waiting_does_not_help() {
    let rejection = reject(&denial([Rule::new("api", bucket(5)).with_error_format(ErrorFormat::OpenAi)], 0, 6));
    assert_eq!(
        body(&rejection)["error"],
        json!({ "message": "The request costs more than the limit ever allows at once. Waiting does not help.",
                "type": "rate_limit_error", "param": null, "code": "rate_limit_exceeded" })
    );
    assert!(!rejection.headers.iter().any(|(name, _)| name.starts_with("retry-after")));
}

/// Otherwise a client that guesses passwords would learn from the format or the code whether it is the account or something else that
/// others have used up.
#[test]
fn a_denial_beside_a_security_rule_looks_the_same_whichever_rule_denies() {
    let login = |format: Option<ErrorFormat>| {
        let rule = Rule::new("login", bucket(2)).with_security().with_cost(1);
        format.map_or(rule.clone(), |format| rule.with_error_format(format))
    };
    let quota = || Rule::new("year", year(3)).with_usage(UsageKind::Total);
    for (own, expected) in [
        (None, ErrorFormat::OpenAi),
        (Some(ErrorFormat::Problem), ErrorFormat::OpenAi),
        (Some(ErrorFormat::OpenAi), ErrorFormat::OpenAi),
    ] {
        let by_login = denial([login(own), quota()], 2, 1);
        let by_quota = denial([login(own), quota()], 1, 3);
        assert_eq!((by_login.rule(), by_quota.rule()), (Some("login"), Some("year")));
        let bodies = [&by_login, &by_quota].map(|decision| reject(decision).body);
        assert_eq!(bodies[0], bodies[1]);
        assert_eq!(format(&reject(&by_quota)), expected);
        assert_eq!(
            bodies[0],
            r#"{"type":"error","error":{"message":"Too many requests.","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}"#
        );
    }
    // A rule in shadow mode decides nothing.
    let shadow = denial([login(None), quota().with_mode(RuleMode::Shadow)], 2, 1);
    assert_eq!(format(&reject(&shadow)), ErrorFormat::Json);
    let alone = denial([login(Some(ErrorFormat::Problem))], 2, 1);
    assert_eq!(format(&reject(&alone)), ErrorFormat::Problem);
}

#[test]
fn a_request_that_cannot_be_judged_has_the_format_of_the_rules_that_apply() {
    let rules = |action: &str| {
        [
            Rule::new("api", bucket(9)).with_per(["header:x-key"]).with_action("other"),
            Rule::new("requests", bucket(9)).with_per(["header:x-key"]).with_action(action),
            Rule::new("tokens", bucket(9)).with_usage(UsageKind::Total).with_action("ask"),
        ]
    };
    let problem = |action: &str| {
        let limiter = limiter(rules("ask"));
        let request = Request::new(action).with_attribute("header:x-key", "a").with_further_value("header:x-key", "b");
        reject(&limiter.check_now(&request))
    };
    let asked = problem("ask");
    assert_eq!(
        asked.body,
        r#"{"type":"error","error":{"message":"The request has more than one `header:x-key`. Send it once.","type":"invalid_request_error","param":null,"code":"bad_request"}}"#
    );
    assert_eq!(asked.status, 400);
    assert_eq!(format(&problem("other")), ErrorFormat::Json);
    // Of two requests in one plan, too.
    let limiter = limiter(rules("other"));
    let good = Request::new("ask");
    let bad = Request::new("other").with_attribute("header:x-key", "a").with_further_value("header:x-key", "b");
    for (one, other) in [(&good, &bad), (&bad, &good)] {
        let plan = limiter.plan(one).merge(&limiter.plan(other));
        assert!(plan.problem().is_some());
        assert_eq!(plan.error_format(), Some(ErrorFormat::OpenAi));
    }
    let [_, requests, tokens] = rules("ask");
    let shadow = self::limiter([requests, tokens.with_mode(RuleMode::Shadow)]);
    let bad = Request::new("ask").with_attribute("header:x-key", "a").with_further_value("header:x-key", "b");
    assert_eq!(format(&reject(&shadow.check_now(&bad))), ErrorFormat::Json, "a shadow rule affects nothing");
}

#[test]
fn a_503_has_the_format_of_the_rules_that_apply() {
    let tokens = || Rule::new("tokens", bucket(9)).with_usage(UsageKind::Total).with_action("ask");
    let limiter = limiter([Rule::new("api", bucket(9)).with_on_failure(OnFailure::Closed), tokens()]);
    let rejection = |action: &str, kind, accept| {
        let plan = limiter.plan(&Request::new(action));
        let error = limiter.plans().fall_back(&plan, StoreError::new(kind, "it is down")).unwrap_err();
        HeaderPolicy::new().reject_unavailable(&error, plan.error_format(), accept)
    };
    let failed = rejection("ask", StoreErrorKind::Unavailable, None);
    assert_eq!(
        failed.body,
        r#"{"type":"error","error":{"message":"The request cannot be checked against its limits at the moment. Retry later.","type":"api_error","param":null,"code":"temporarily_unavailable"}}"#
    );
    assert!(failed.headers.contains(&("retry-after-ms", "1000".to_owned())));
    let overloaded = HeaderPolicy::new().reject_unavailable(
        &StoreError::new(StoreErrorKind::Overloaded, "many plans wait"),
        Some(ErrorFormat::OpenAi),
        None,
    );
    assert_eq!((&body(&overloaded)["error"]["type"], overloaded.status), (&json!("overloaded_error"), 503));
    assert_eq!(format(&rejection("other", StoreErrorKind::Unavailable, None)), ErrorFormat::Json);
    assert_eq!(format(&rejection("ask", StoreErrorKind::Unavailable, PROBLEM)), ErrorFormat::Problem);
}

#[test]
fn a_denial_without_the_store_has_the_format_of_its_rule() {
    let month = || Rule::new("tokens", year(1)).with_usage(UsageKind::Total);
    for rule in [
        month().with_on_failure(OnFailure::Local),
        month().with_on_failure(OnFailure::Share),
        month().with_on_failure(OnFailure::Static).with_static_limit(bucket(1)),
    ] {
        let limiter = limiter([rule]);
        let decide = || {
            let plan = limiter.plan(&Request::new(""));
            limiter.plans().fall_back(&plan, StoreError::new(StoreErrorKind::Unavailable, "it is down")).unwrap()
        };
        assert!(decide().is_allowed());
        let rejection = reject(&decide());
        assert_eq!(format(&rejection), ErrorFormat::OpenAi);
        // What the quota really has left is not known.
        assert_eq!(body(&rejection)["error"]["code"], "rate_limit_exceeded");
    }
}

#[test]
fn a_message_of_the_rule_is_escaped() {
    let decision = denial([Rule::new("api", bucket(1)).with_error_format(ErrorFormat::OpenAi)], 1, 1);
    let message = "Nicht \"so\" schnell,\nbitte \u{1f682}\u{2028}";
    let rejection = HeaderPolicy::new().reject(&decision, Some(message), None);
    assert_eq!(body(&rejection)["error"]["message"], message);
}
