//! The format of errors: of denials, of failures of the store, and of requests that cannot be judged.

use axum::extract::Request;
use axum::routing::get;
use axum::{Router, body::Body};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate::http::{ErrorFormat, HeaderPolicy};
use tidegate::rules::UsageKind;
use tidegate::{OnFailure, Rule};
use tidegate_tower::LimitLayer;

use crate::layer::failures::failing_layer;
use crate::layer::{TestResponse, app, burst, limiter, request_with_key, send};

fn tokens() -> Rule {
    Rule::new("tokens", burst(1)).with_usage(UsageKind::Total)
}

/// The type and the code of an error in the form of language models, which has nothing else but a message.
fn openai_error(response: &TestResponse) -> (String, String) {
    assert_eq!(response.header("content-type"), Some("application/json"));
    let body = response.json();
    assert_eq!((&body["type"], body.as_object().unwrap().len()), (&json!("error"), 2), "{body}");
    let error = &body["error"];
    assert!(error["message"].is_string() && error["param"].is_null(), "{body}");
    assert_eq!(error.as_object().unwrap().len(), 4, "{body}");
    let text = |name: &str| error[name].as_str().unwrap().to_owned();
    (text("type"), text("code"))
}

fn pair(kind: &str, code: &str) -> (String, String) {
    (kind.to_owned(), code.to_owned())
}

#[tokio::test]
async fn a_client_of_a_language_model_gets_an_error_that_its_library_reads() {
    let app = app(LimitLayer::new(limiter([tokens()])));
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
    let denied = send(&app, request_with_key("k1")).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(openai_error(&denied), pair("rate_limit_error", "rate_limit_exceeded"));
    assert_eq!((denied.header("retry-after"), denied.header("retry-after-ms")), (Some("3600"), Some("3600000")));
    let mut asks_for_problem = request_with_key("k1");
    asks_for_problem.headers_mut().insert("accept", "application/problem+json".parse().unwrap());
    let problem = send(&app, asks_for_problem).await;
    assert_eq!(problem.header("content-type"), Some("application/problem+json"));
}

#[tokio::test]
async fn a_rule_that_is_closed_while_the_store_fails_refuses_in_the_format_of_the_rules() {
    for (rules, is_openai) in [
        (vec![tokens().with_on_failure(OnFailure::Closed)], true),
        (vec![Rule::new("api", burst(1)).with_on_failure(OnFailure::Closed)], false),
    ] {
        let response = send(&app(failing_layer(rules, false).0), request_with_key("k1")).await;
        assert_eq!(response.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.header("retry-after-ms"), Some("1000"));
        if is_openai {
            assert_eq!(openai_error(&response), pair("api_error", "temporarily_unavailable"));
        } else {
            assert_eq!(response.json()["error"], "temporarily_unavailable");
        }
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_judged_has_the_format_of_its_rules_or_of_the_policy() {
    let keys = |format: Option<ErrorFormat>| {
        let rule = Rule::new("keys", burst(9)).with_per(["header:x-key"]);
        let rules = format.map_or(rule.clone(), |format| rule.with_error_format(format));
        app(LimitLayer::new(limiter([rules])))
    };
    let two_keys = || {
        let mut request = request_with_key("k1");
        request.headers_mut().append("x-key", "k2".parse().unwrap());
        request
    };
    let response = send(&keys(Some(ErrorFormat::OpenAi)), two_keys()).await;
    assert_eq!(response.status, StatusCode::BAD_REQUEST);
    assert_eq!(openai_error(&response), pair("invalid_request_error", "bad_request"));
    assert_eq!(send(&keys(None), two_keys()).await.json()["error"], "bad_request");

    // The method is refused before the rules are known.
    let bad_method = || Request::builder().method("get").uri("/").body(Body::empty()).unwrap();
    let limits = || LimitLayer::new(limiter([tokens()]));
    assert_eq!(send(&app(limits()), bad_method()).await.json()["error"], "bad_request");
    let policy = HeaderPolicy::new().with_error_format(ErrorFormat::OpenAi);
    let response = send(&app(limits().with_header_policy(policy)), bad_method()).await;
    assert_eq!(openai_error(&response), pair("invalid_request_error", "bad_request"));
}

#[tokio::test]
async fn a_service_finds_the_format_of_errors_in_the_request_unless_it_is_json() {
    let page = get(async |request: Request| format!("{:?}", request.extensions().get::<ErrorFormat>()));
    for (rules, expected) in [
        (vec![Rule::new("api", burst(9))], "None"),
        (vec![Rule::new("api", burst(9)).with_error_format(ErrorFormat::Json)], "None"),
        (vec![Rule::new("api", burst(9)), tokens()], "Some(OpenAi)"),
        (vec![Rule::new("api", burst(9)).with_error_format(ErrorFormat::Problem)], "Some(Problem)"),
    ] {
        let layer = LimitLayer::new(limiter(rules));
        let parts = request_with_key("k1").into_parts().0;
        let format = Some(layer.error_format(&parts)).filter(|format| *format != ErrorFormat::Json);
        let app = Router::new().route("/", page.clone()).layer(layer);
        assert_eq!(send(&app, request_with_key("k1")).await.body, expected);
        assert_eq!(format!("{format:?}"), expected);
    }
}

/// Otherwise a service that names no reason would look as if it were limited by something else.
#[tokio::test]
async fn a_denial_beside_a_security_rule_names_no_rule_and_no_reason() {
    let login = Rule::new("login", burst(1)).with_security().with_per(["header:x-key"]);
    let app = app(LimitLayer::new(limiter([login, tokens()])));
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
    let by_both = send(&app, request_with_key("k1")).await;
    let by_tokens = send(&app, request_with_key("k2")).await;
    assert_eq!((by_both.status, &by_both.body), (by_tokens.status, &by_tokens.body));
    assert_eq!(openai_error(&by_tokens), pair("rate_limit_error", "rate_limit_exceeded"));
    let names: Vec<_> = by_tokens.headers.keys().map(http::HeaderName::as_str).collect();
    assert!(!by_tokens.body.contains("tokens") && !names.contains(&"ratelimit"), "{names:?}");
    assert_ne!(by_tokens.json()["error"]["message"], Value::Null);
}
