//! Another limiter in place of the one that runs.

use tidegate::http::{HeaderPolicy, ResetFormat};
use tidegate::{Limit, ManualClock, Rate, Rule, RuleSet};
use tidegate_tower::LimitLayer;

use crate::{START, app, ask, at_once, from, limiter, limiter_on, passes, until};

#[tokio::test]
async fn new_rules_hold_for_every_clone_at_once() {
    let layer = LimitLayer::new(limiter([Rule::new("api", at_once(2))]));
    let handle = layer.handle();
    let (one, other) = (app(layer.clone()), app(layer));
    assert_eq!(passes(&one, 5).await, 2);

    // A larger bucket on the same store: what was spent stays spent.
    handle.replace(handle.limiter().with_rules(RuleSet::new([Rule::new("api", at_once(5))]).unwrap()));
    assert_eq!(passes(&one, 1).await + passes(&other, 9).await, 3);
}

#[tokio::test]
async fn new_rules_may_read_what_the_old_ones_did_not() {
    let layer = LimitLayer::new(limiter([Rule::new("api", at_once(1))]));
    let handle = layer.handle();
    let app = app(layer);
    assert_eq!(passes(&app, 2).await, 1);
    let rules = RuleSet::new([Rule::new("keys", at_once(1)).with_per(["header:x-key"])]).unwrap();
    handle.replace(handle.limiter().with_rules(rules));
    let mut statuses = Vec::new();
    for key in ["k1", "k2", "k1"] {
        statuses.push(ask(&app, from(key)).await.status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn new_rules_bring_their_fields_unless_the_layer_has_its_own() {
    let layer = LimitLayer::new(limiter([Rule::new("api", at_once(9))]));
    let own = layer.clone().contract(HeaderPolicy::new().with_ratelimit(None));
    let handle = layer.handle();
    let (app, own) = (app(layer), app(own));
    assert!(ask(&app, from("k1")).await.header("ratelimit").is_some());

    let fields =
        HeaderPolicy::new().with_ratelimit(None).with_x_ratelimit(None).with_legacy_ratelimit(Some(ResetFormat::Delta));
    let rules = RuleSet::new([Rule::new("api", at_once(9))]).unwrap().with_header_policy(fields);
    handle.replace(handle.limiter().with_rules(rules));
    let heard = ask(&app, from("k1")).await;
    assert_eq!((heard.header("ratelimit"), heard.header("ratelimit-remaining")), (None, Some("7")));
    let heard = ask(&own, from("k1")).await;
    assert_eq!((heard.header("ratelimit-remaining"), heard.header("x-ratelimit-remaining")), (None, Some("6")));
}

#[tokio::test]
async fn a_request_under_way_ends_with_the_limiter_that_it_met() {
    let clock = ManualClock::at(START);
    let drip = Limit::leaky_bucket(Rate::per_second(1).unwrap(), 1).unwrap();
    let layer = LimitLayer::new(limiter_on(&clock, [Rule::new("drip", drip)])).timer(clock.clone());
    let handle = layer.handle();
    let app = app(layer);
    assert_eq!(passes(&app, 1).await, 1);
    let held = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, from("k1")).await }
    });
    until(|| clock.pending_sleeps() == 1).await;

    handle.replace(limiter([Rule::new("closed", at_once(0))]));
    assert_eq!(ask(&app, from("k1")).await.status, 429);
    clock.advance(std::time::Duration::from_secs(1));
    let heard = held.await.unwrap();
    assert_eq!((heard.status.as_u16(), heard.header("x-ratelimit-limit")), (200, Some("2")));
}
