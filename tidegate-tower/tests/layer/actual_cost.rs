//! Costs that are corrected by the response.

use axum::Router;
use axum::extract::RawQuery;
use axum::routing::get;
use http::HeaderName;
use tidegate::Rule;
use tidegate_tower::LimitLayer;

use crate::layer::{burst, limiter, request_with_key, send};

const USED: HeaderName = HeaderName::from_static("x-tokens-used");

/// An application whose responses report the number of tokens in the query.
fn token_app(layer: LimitLayer<impl tidegate::spi::Store + 'static>) -> Router {
    let page = get(async |RawQuery(used): RawQuery| ([(USED, used.unwrap_or_default())], "answer"));
    Router::new().route("/", page).layer(layer)
}

/// Sends a request that uses this many tokens. Returns the remaining tokens in the header, before the correction.
async fn remaining_before(app: &Router, used: &str) -> String {
    let mut request = request_with_key("k1");
    *request.uri_mut() = format!("/?{used}").parse().unwrap();
    let response = send(app, request).await;
    let remaining = |item: &str| item.trim().strip_prefix(r#""tokens";r="#)?.split(';').next().map(str::to_owned);
    response.header("ratelimit").unwrap().split(',').find_map(remaining).unwrap()
}

#[tokio::test]
async fn the_difference_to_the_actual_cost_is_refunded_or_charged() {
    let rules = [
        Rule::new("tokens", burst(100)).with_cost(10).with_cost_header(USED.as_str()),
        Rule::new("requests", burst(50)),
    ];
    let layer = LimitLayer::new(limiter(rules));
    let handle = layer.handle();
    let app = token_app(layer);
    // Each request takes 10 at first, and the header shows what remains then.
    assert_eq!(remaining_before(&app, "2").await, "90");
    assert_eq!(remaining_before(&app, "30").await, "88");
    assert_eq!(remaining_before(&app, "10").await, "58");
    // Without a number the cost stays.
    assert_eq!(remaining_before(&app, "many").await, "48");
    assert_eq!(remaining_before(&app, "0").await, "38");
    let decision = handle.limiter().check_now(&tidegate::Request::new(""));
    let remaining: Vec<_> = decision.checks().iter().map(|check| check.outcome().remaining).collect();
    assert_eq!(remaining, [38, 44], "the other rule counts requests");
}

#[tokio::test]
async fn the_cost_function_of_the_layer_replaces_the_cost_headers_of_rules() {
    let rules = [Rule::new("tokens", burst(100)).with_cost(10).with_cost_header(USED.as_str())];
    let app = token_app(LimitLayer::new(limiter(rules)).with_actual_cost(|_, _| Some(1)));
    assert_eq!(remaining_before(&app, "30").await, "90");
    assert_eq!(remaining_before(&app, "30").await, "89");
    let rules = [Rule::new("tokens", burst(100)).with_cost(10).with_cost_header(USED.as_str())];
    let app = token_app(LimitLayer::new(limiter(rules)).with_actual_cost(|_, _| None));
    assert_eq!(remaining_before(&app, "30").await, "90");
    assert_eq!(remaining_before(&app, "30").await, "80");
}

#[tokio::test]
async fn a_cost_header_that_is_not_a_number_is_ignored() {
    let rules = [Rule::new("tokens", burst(100)).with_cost(10).with_cost_header(USED.as_str())];
    let app = token_app(LimitLayer::new(limiter(rules)));
    let mut remaining = 90;
    for value in ["", "-3", "+3", "3.5", "0x3", "3,4"] {
        assert_eq!(remaining_before(&app, value).await, remaining.to_string(), "before {value:?}");
        remaining -= 10;
    }
}

#[tokio::test]
async fn the_actual_cost_can_differ_by_rule() {
    let rules = [Rule::new("requests", burst(10)), Rule::new("errors", burst(10))];
    let layer = LimitLayer::new(limiter(rules))
        .with_actual_cost(|response, rule| (rule == "errors" && response.status.is_success()).then_some(0));
    let handle = layer.handle();
    let app = token_app(layer);
    for path in ["/", "/", "/missing"] {
        let mut request = request_with_key("k1");
        *request.uri_mut() = path.parse().unwrap();
        send(&app, request).await;
    }
    let decision = handle.limiter().check_now(&tidegate::Request::new("").with_cost(0));
    let remaining: Vec<_> = decision.checks().iter().map(|check| check.outcome().remaining).collect();
    assert_eq!(remaining, [7, 9]);
}
