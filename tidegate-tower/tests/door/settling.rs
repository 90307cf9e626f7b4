//! Costs that turn out with the answer.

use axum::Router;
use axum::extract::RawQuery;
use axum::routing::get;
use http::HeaderName;
use tidegate::Rule;
use tidegate_tower::LimitLayer;

use crate::{ask, at_once, from, limiter};

const USED: HeaderName = HeaderName::from_static("x-tokens-used");

/// Answers with the number of tokens that the query names.
fn model(layer: LimitLayer<impl tidegate::spi::Store + 'static>) -> Router {
    let page = get(async |RawQuery(used): RawQuery| ([(USED, used.unwrap_or_default())], "answer"));
    Router::new().route("/", page).layer(layer)
}

/// What is left of the tokens before a request that uses so many.
async fn left_before(app: &Router, used: &str) -> String {
    let mut request = from("k1");
    *request.uri_mut() = format!("/?{used}").parse().unwrap();
    let heard = ask(app, request).await;
    let left = |item: &str| item.trim().strip_prefix(r#""tokens";r="#)?.split(';').next().map(str::to_owned);
    heard.header("ratelimit").unwrap().split(',').find_map(left).unwrap()
}

#[tokio::test]
async fn too_much_is_given_back_and_too_little_is_charged() {
    let rules = [
        Rule::new("tokens", at_once(100)).with_cost(10).with_cost_header(USED.as_str()),
        Rule::new("requests", at_once(50)),
    ];
    let layer = LimitLayer::new(limiter(rules));
    let handle = layer.handle();
    let app = model(layer);
    // Each takes 10 at first, and the field shows what is left then.
    assert_eq!(left_before(&app, "2").await, "90");
    assert_eq!(left_before(&app, "30").await, "88");
    assert_eq!(left_before(&app, "10").await, "58");
    // Without a number the cost stands.
    assert_eq!(left_before(&app, "many").await, "48");
    assert_eq!(left_before(&app, "0").await, "38");
    let decision = handle.limiter().check_now(&tidegate::Request::new(""));
    let left: Vec<_> = decision.checks().iter().map(|check| check.outcome().remaining).collect();
    assert_eq!(left, [38, 44], "the other rule counts requests");
}

/// Who takes it into their own hands does so for every rule.
#[tokio::test]
async fn what_the_layer_is_told_goes_before_what_the_rules_name() {
    let rules = [Rule::new("tokens", at_once(100)).with_cost(10).with_cost_header(USED.as_str())];
    let app = model(LimitLayer::new(limiter(rules)).settle(|_, _| Some(1)));
    assert_eq!(left_before(&app, "30").await, "90");
    assert_eq!(left_before(&app, "30").await, "89");
    let rules = [Rule::new("tokens", at_once(100)).with_cost(10).with_cost_header(USED.as_str())];
    let app = model(LimitLayer::new(limiter(rules)).settle(|_, _| None));
    assert_eq!(left_before(&app, "30").await, "90");
    assert_eq!(left_before(&app, "30").await, "80");
}

#[tokio::test]
async fn a_header_that_is_no_number_settles_nothing() {
    let rules = [Rule::new("tokens", at_once(100)).with_cost(10).with_cost_header(USED.as_str())];
    let app = model(LimitLayer::new(limiter(rules)));
    let mut left = 90;
    for rubbish in ["", "-3", "+3", "3.5", "0x3", "3,4"] {
        assert_eq!(left_before(&app, rubbish).await, left.to_string(), "before {rubbish:?}");
        left -= 10;
    }
}

#[tokio::test]
async fn a_cost_can_be_settled_for_each_rule() {
    let rules = [Rule::new("requests", at_once(10)), Rule::new("errors", at_once(10))];
    let layer = LimitLayer::new(limiter(rules))
        .settle(|response, rule| (rule == "errors" && response.status.is_success()).then_some(0));
    let handle = layer.handle();
    let app = model(layer);
    for path in ["/", "/", "/missing"] {
        let mut request = from("k1");
        *request.uri_mut() = path.parse().unwrap();
        ask(&app, request).await;
    }
    let decision = handle.limiter().check_now(&tidegate::Request::new("").with_cost(0));
    let left: Vec<_> = decision.checks().iter().map(|check| check.outcome().remaining).collect();
    assert_eq!(left, [7, 9]);
}
