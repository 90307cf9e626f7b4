//! What a caller hears.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use tidegate::http::{HeaderPolicy, ResetFormat};
use tidegate::{Limit, Rate, Rule, RuleMode};
use tidegate_tower::LimitLayer;

use crate::{START, app, ask, at_once, from, limiter};

#[tokio::test]
async fn an_allowed_answer_tells_what_is_left() {
    let limit = Limit::token_bucket(2, Rate::per_minute(4).unwrap()).unwrap();
    let app = app(LimitLayer::new(limiter([Rule::new("api", limit)])));
    let heard = ask(&app, from("k1")).await;
    assert_eq!((heard.status, heard.body.as_str()), (StatusCode::OK, "hello"));
    assert_eq!(heard.header("ratelimit-policy"), Some(r#""api";q=2;w=30"#));
    assert_eq!(heard.header("ratelimit"), Some(r#""api";r=1;t=15"#));
    assert_eq!((heard.header("x-ratelimit-limit"), heard.header("x-ratelimit-remaining")), (Some("2"), Some("1")));
    let reset = START.plus(Duration::from_secs(15)).as_micros() / 1_000_000;
    assert_eq!(heard.header("x-ratelimit-reset"), Some(reset.to_string().as_str()));
    assert_eq!(heard.header("retry-after"), None);
}

#[tokio::test]
async fn a_denied_answer_tells_when_to_come_back() {
    let limit = Limit::token_bucket(1, Rate::per_minute(4).unwrap()).unwrap();
    let app = app(LimitLayer::new(limiter([Rule::new("api", limit).with_message("Slow down, please.")])));
    assert_eq!(ask(&app, from("k1")).await.status, StatusCode::OK);
    let heard = ask(&app, from("k1")).await;
    assert_eq!(heard.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!((heard.header("retry-after"), heard.header("x-ratelimit-remaining")), (Some("15"), Some("0")));
    assert_eq!(
        (heard.header("content-type"), heard.header("cache-control")),
        (Some("application/json"), Some("no-store"))
    );
    let body = heard.json();
    assert_eq!((&body["error"], &body["rule_id"]), (&"rate_limit_exceeded".into(), &"api".into()));
    assert_eq!((&body["message"], &body["retry_after_ms"]), (&"Slow down, please.".into(), &15_000.into()));
}

#[tokio::test]
async fn a_problem_document_goes_to_those_who_prefer_it() {
    let app = app(LimitLayer::new(limiter([Rule::new("api", at_once(0))])));
    let mut request = from("k1");
    request.headers_mut().append("accept", "text/html;q=0.5".parse().unwrap());
    request.headers_mut().append("accept", "application/problem+json".parse().unwrap());
    let heard = ask(&app, request).await;
    assert_eq!(heard.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(heard.header("content-type"), Some("application/problem+json"));
    assert_eq!((&heard.json()["status"], &heard.json()["violated-policies"]), (&429.into(), &vec!["api"].into()));
}

#[tokio::test]
async fn the_fields_can_be_chosen() {
    let contract =
        HeaderPolicy::new().with_ratelimit(None).with_x_ratelimit(None).with_legacy_ratelimit(Some(ResetFormat::Delta));
    let app = app(LimitLayer::new(limiter([Rule::new("api", at_once(2))])).contract(contract));
    let heard = ask(&app, from("k1")).await;
    assert_eq!((heard.header("ratelimit-limit"), heard.header("ratelimit-reset")), (Some("2"), Some("3600")));
    assert_eq!((heard.header("ratelimit"), heard.header("x-ratelimit-limit")), (None, None));
}

#[tokio::test]
async fn without_a_rule_nothing_is_said() {
    let rules = [
        Rule::new("exports", at_once(0)).with_action("export"),
        Rule::new("trial", at_once(0)).with_mode(RuleMode::Shadow),
    ];
    let heard = ask(&app(LimitLayer::new(limiter(rules))), from("k1")).await;
    assert_eq!(heard.status, StatusCode::OK);
    assert!(heard.headers.keys().all(|name| !name.as_str().contains("ratelimit")), "{heard:?}");
}

/// Behind a service that has limits of its own, its numbers stay, and are not mixed with ours.
#[tokio::test]
async fn numbers_of_the_inner_service_stay() {
    let layer = LimitLayer::new(limiter([Rule::new("api", at_once(9))]));
    let page = get(async || ([("x-ratelimit-limit", "70"), ("x-ratelimit-remaining", "69")], "hello"));
    let heard = ask(&Router::new().route("/", page).layer(layer), from("k1")).await;
    assert_eq!((heard.header("x-ratelimit-limit"), heard.header("x-ratelimit-remaining")), (Some("70"), Some("69")));
    assert_eq!((heard.header("x-ratelimit-reset"), heard.header("ratelimit")), (None, None));
    assert_eq!(heard.headers.get_all("x-ratelimit-limit").iter().count(), 1);
}

#[tokio::test]
async fn a_rule_against_guessing_gives_nothing_away() {
    let app = app(LimitLayer::new(limiter([Rule::new("login", at_once(1)).with_security()])));
    let (allowed, denied) = (ask(&app, from("k1")).await, ask(&app, from("k1")).await);
    assert!(allowed.headers.keys().all(|name| !name.as_str().contains("ratelimit")), "{allowed:?}");
    assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("3600")));
    assert!(denied.headers.keys().all(|name| !name.as_str().contains("ratelimit")), "{denied:?}");
    assert!(!denied.body.contains("login"), "{denied:?}");
}
