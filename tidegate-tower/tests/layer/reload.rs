//! Replacing the limiter while the service runs.

use tidegate::http::{HeaderPolicy, ResetFormat};
use tidegate::{Limit, ManualClock, Rate, Rule, RuleSet};
use tidegate_tower::LimitLayer;

use crate::layer::{START, app, burst, count_allowed, limiter, limiter_on, request_with_key, send, wait_until};

#[tokio::test]
async fn new_rules_apply_to_all_clones_at_once() {
    let layer = LimitLayer::new(limiter([Rule::new("api", burst(2))]));
    let handle = layer.handle();
    let (one, other) = (app(layer.clone()), app(layer));
    assert_eq!(count_allowed(&one, 5).await, 2);

    // A larger bucket on the same store: consumed units stay consumed.
    handle.replace(handle.limiter().with_rules(RuleSet::new([Rule::new("api", burst(5))]).unwrap()));
    assert_eq!(count_allowed(&one, 1).await + count_allowed(&other, 9).await, 3);
}

#[tokio::test]
async fn new_rules_can_read_other_attributes() {
    let layer = LimitLayer::new(limiter([Rule::new("api", burst(1))]));
    let handle = layer.handle();
    let app = app(layer);
    assert_eq!(count_allowed(&app, 2).await, 1);
    let rules = RuleSet::new([Rule::new("keys", burst(1)).with_per(["header:x-key"])]).unwrap();
    handle.replace(handle.limiter().with_rules(rules));
    let mut statuses = Vec::new();
    for key in ["k1", "k2", "k1"] {
        statuses.push(send(&app, request_with_key(key)).await.status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn new_rules_bring_their_header_policy_unless_the_layer_has_one() {
    let layer = LimitLayer::new(limiter([Rule::new("api", burst(9))]));
    let own = layer.clone().with_header_policy(HeaderPolicy::new().with_ratelimit(None));
    let handle = layer.handle();
    let (app, own) = (app(layer), app(own));
    assert!(send(&app, request_with_key("k1")).await.header("ratelimit").is_some());

    let policy =
        HeaderPolicy::new().with_ratelimit(None).with_x_ratelimit(None).with_legacy_ratelimit(Some(ResetFormat::Delta));
    let rules = RuleSet::new([Rule::new("api", burst(9))]).unwrap().with_header_policy(policy);
    handle.replace(handle.limiter().with_rules(rules));
    let response = send(&app, request_with_key("k1")).await;
    assert_eq!((response.header("ratelimit"), response.header("ratelimit-remaining")), (None, Some("7")));
    let response = send(&own, request_with_key("k1")).await;
    assert_eq!((response.header("ratelimit-remaining"), response.header("x-ratelimit-remaining")), (None, Some("6")));
}

#[tokio::test]
async fn a_request_in_flight_finishes_with_its_limiter() {
    let clock = ManualClock::starting_at(START);
    let limit = Limit::leaky_bucket(Rate::per_second(1).unwrap(), 1).unwrap();
    let layer = LimitLayer::new(limiter_on(&clock, [Rule::new("drip", limit)])).with_timer(clock.clone());
    let handle = layer.handle();
    let app = app(layer);
    assert_eq!(count_allowed(&app, 1).await, 1);
    let delayed = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request_with_key("k1")).await }
    });
    wait_until(|| clock.pending_sleeps() == 1).await;

    handle.replace(limiter([Rule::new("closed", burst(0))]));
    assert_eq!(send(&app, request_with_key("k1")).await.status, 429);
    clock.advance(std::time::Duration::from_secs(1));
    let response = delayed.await.unwrap();
    assert_eq!((response.status.as_u16(), response.header("x-ratelimit-limit")), (200, Some("2")));
}
