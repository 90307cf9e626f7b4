//! Headers and bodies of responses.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use tidegate::http::{HeaderPolicy, ResetFormat};
use tidegate::limits::{Period, Periods};
use tidegate::{Limit, Rate, Rule, RuleMode};
use tidegate_tower::LimitLayer;

use crate::layer::{START, app, burst, limiter, request_with_key, send};

#[tokio::test]
async fn an_allowed_response_shows_the_remaining_requests() {
    let limit = Limit::token_bucket(2, Rate::per_minute(4).unwrap()).unwrap();
    let app = app(LimitLayer::new(limiter([Rule::new("api", limit)])));
    let response = send(&app, request_with_key("k1")).await;
    assert_eq!((response.status, response.body.as_str()), (StatusCode::OK, "hello"));
    assert_eq!(response.header("ratelimit-policy"), Some(r#""api";q=2;w=30"#));
    assert_eq!(response.header("ratelimit"), Some(r#""api";r=1;t=15"#));
    assert_eq!(
        (response.header("x-ratelimit-limit"), response.header("x-ratelimit-remaining")),
        (Some("2"), Some("1"))
    );
    let reset = START.plus(Duration::from_secs(15)).as_micros() / 1_000_000;
    assert_eq!(response.header("x-ratelimit-reset"), Some(reset.to_string().as_str()));
    assert_eq!(response.header("retry-after"), None);
}

#[tokio::test]
async fn a_denied_response_shows_when_to_retry() {
    let limit = Limit::token_bucket(1, Rate::per_minute(4).unwrap()).unwrap();
    let app = app(LimitLayer::new(limiter([Rule::new("api", limit).with_message("Slow down, please.")])));
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
    let response = send(&app, request_with_key("k1")).await;
    assert_eq!(response.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!((response.header("retry-after"), response.header("x-ratelimit-remaining")), (Some("15"), Some("0")));
    assert_eq!(response.header("retry-after-ms"), Some("15000"));
    assert_eq!(
        (response.header("content-type"), response.header("cache-control")),
        (Some("application/json"), Some("no-store"))
    );
    let body = response.json();
    assert_eq!((&body["error"], &body["rule_id"]), (&"rate_limit_exceeded".into(), &"api".into()));
    assert_eq!((&body["message"], &body["retry_after_ms"]), (&"Slow down, please.".into(), &15_000.into()));
}

#[tokio::test]
async fn a_client_that_accepts_problem_json_gets_it() {
    let app = app(LimitLayer::new(limiter([Rule::new("api", burst(0))])));
    let mut request = request_with_key("k1");
    request.headers_mut().append("accept", "text/html;q=0.5".parse().unwrap());
    request.headers_mut().append("accept", "application/problem+json".parse().unwrap());
    let response = send(&app, request).await;
    assert_eq!(response.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    assert_eq!((&response.json()["status"], &response.json()["violated-policies"]), (&429.into(), &vec!["api"].into()));
}

#[tokio::test]
async fn the_header_policy_selects_the_headers() {
    let policy =
        HeaderPolicy::new().with_ratelimit(None).with_x_ratelimit(None).with_legacy_ratelimit(Some(ResetFormat::Delta));
    let app = app(LimitLayer::new(limiter([Rule::new("api", burst(2))])).with_header_policy(policy));
    let response = send(&app, request_with_key("k1")).await;
    assert_eq!((response.header("ratelimit-limit"), response.header("ratelimit-reset")), (Some("2"), Some("3600")));
    assert_eq!((response.header("ratelimit"), response.header("x-ratelimit-limit")), (None, None));
}

#[tokio::test]
async fn a_request_without_an_enforced_rule_gets_no_limit_headers() {
    let rules = [
        Rule::new("exports", burst(0)).with_action("export"),
        Rule::new("trial", burst(0)).with_mode(RuleMode::Shadow),
    ];
    let response = send(&app(LimitLayer::new(limiter(rules))), request_with_key("k1")).await;
    assert_eq!(response.status, StatusCode::OK);
    assert!(response.headers.keys().all(|name| !name.as_str().contains("ratelimit")), "{response:?}");
}

/// The inner service has limits of its own: its headers stay and are not mixed with ours.
#[tokio::test]
async fn limit_headers_of_the_inner_service_stay() {
    let layer = LimitLayer::new(limiter([Rule::new("api", burst(9))]));
    let page = get(async || ([("x-ratelimit-limit", "70"), ("x-ratelimit-remaining", "69")], "hello"));
    let response = send(&Router::new().route("/", page).layer(layer), request_with_key("k1")).await;
    assert_eq!(
        (response.header("x-ratelimit-limit"), response.header("x-ratelimit-remaining")),
        (Some("70"), Some("69"))
    );
    assert_eq!((response.header("x-ratelimit-reset"), response.header("ratelimit")), (None, None));
    assert_eq!(response.headers.get_all("x-ratelimit-limit").iter().count(), 1);
}

#[tokio::test]
async fn a_security_rule_discloses_nothing() {
    let app = app(LimitLayer::new(limiter([Rule::new("login", burst(1)).with_security()])));
    let (allowed, denied) = (send(&app, request_with_key("k1")).await, send(&app, request_with_key("k1")).await);
    assert!(allowed.headers.keys().all(|name| !name.as_str().contains("ratelimit")), "{allowed:?}");
    assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("3600")));
    assert!(denied.headers.keys().all(|name| !name.as_str().contains("ratelimit")), "{denied:?}");
    assert!(!denied.body.contains("login"), "{denied:?}");
}

#[tokio::test]
async fn a_response_in_the_grace_of_a_quota_says_so() {
    let limit = Limit::quota_with_grace(1, 1, Periods::utc(Period::Year)).unwrap();
    let app = app(LimitLayer::new(limiter([Rule::new("year", limit)])));
    let mut answers = Vec::new();
    for _ in 0..3 {
        let response = send(&app, request_with_key("k1")).await;
        answers.push((response.status.as_u16(), response.header("x-tidegate-grace").map(str::to_owned)));
    }
    assert_eq!(answers, [(200, None), (200, Some("true".to_owned())), (429, None)]);
}
