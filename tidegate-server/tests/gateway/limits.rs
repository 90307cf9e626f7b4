//! Limits at the gateway: denied, allowed, held, given back, failed, and beside those of the upstream.

use std::time::Duration;

use axum::Router;
use axum::response::AppendHeaders;
use tidegate::spi::{Adjustment, Key, Plan, Store, Verdict};
use tidegate::{Limit, Limiter, ManualClock, OnFailure, Rate, Rule, RuleSet, StoreError, StoreErrorKind};
use tidegate_server::gateway::GatewayOptions;
use tidegate_tower::LimitLayer;

use crate::{START, Wire, field, gateway_with, get, limits, mirror, serve, until};

const SECOND: Duration = Duration::from_secs(1);

fn at_once(amount: u64) -> Limit {
    Limit::token_bucket(amount, Rate::per_hour(1).unwrap()).unwrap()
}

async fn limited<S: Store + 'static>(app: Router, layer: LimitLayer<S>) -> std::net::SocketAddr {
    gateway_with(&format!("http://{}", serve(app).await), GatewayOptions::new(), layer).await
}

#[tokio::test]
async fn who_is_denied_is_told_so_and_the_upstream_is_not_asked() {
    let layer = limits([Rule::new("api", at_once(2)).per(["ip"])], &ManualClock::at(START));
    let gateway = limited(mirror(), layer).await;
    for left in ["1", "0"] {
        let heard = get(gateway, "/", "").await;
        assert!(heard.starts_with("HTTP/1.1 200 OK\r\n"), "{heard}");
        assert_eq!(field(&heard, "x-ratelimit-remaining"), Some(left));
        assert_eq!(field(&heard, "ratelimit-policy"), Some(r#""api";q=2;w=7200"#));
    }
    let heard = get(gateway, "/", "x-forwarded-for: 10.0.0.1\r\n").await;
    assert!(heard.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{heard}");
    assert_eq!(field(&heard, "retry-after"), Some("3600"));
    assert!(heard.contains(r#""error":"rate_limit_exceeded""#) && !heard.contains("GET /"), "{heard}");
}

#[tokio::test]
async fn a_connection_outlives_a_denial() {
    let rule = Rule::new("api", at_once(1)).per(["path"]);
    let gateway = limited(mirror(), limits([rule], &ManualClock::at(START))).await;
    let mut wire = Wire::to(gateway).await;
    wire.say(&"GET /closed HTTP/1.1\r\nhost: a\r\n\r\n".repeat(2)).await;
    wire.hear("rate_limit_exceeded").await;
    wire.say("GET /open HTTP/1.1\r\nhost: a\r\n\r\n").await;
    wire.hear("GET /open HTTP/1.1\n").await;
}

fn drip(clock: &ManualClock) -> LimitLayer<std::sync::Arc<tidegate::MemoryStore>> {
    limits([Rule::new("drip", Limit::leaky_bucket(Rate::per_second(1).unwrap(), 1).unwrap())], clock)
}

#[tokio::test]
async fn a_leaky_bucket_holds_a_request_until_its_turn() {
    let clock = ManualClock::at(START);
    let gateway = limited(mirror(), drip(&clock)).await;
    assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 200 "));
    let held = tokio::spawn(get(gateway, "/held", ""));
    until(|| clock.sleeping() == 1).await;
    // The queue is full, and nobody is kept from hearing so.
    assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 429 "));
    assert!(!held.is_finished());
    clock.advance(SECOND);
    assert!(held.await.unwrap().contains("GET /held HTTP/1.1\n"));
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_gives_its_place_back() {
    let clock = ManualClock::at(START);
    let gateway = limited(mirror(), drip(&clock)).await;
    assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 200 "));
    let mut wire = Wire::to(gateway).await;
    wire.say("GET /left HTTP/1.1\r\nhost: a\r\n\r\n").await;
    until(|| clock.sleeping() == 1).await;
    drop(wire);
    until(|| clock.sleeping() == 0).await;

    let next = tokio::spawn(get(gateway, "/next", ""));
    until(|| clock.sleeping() == 1).await;
    clock.advance(SECOND);
    assert!(next.await.unwrap().contains("GET /next HTTP/1.1\n"));
}

#[tokio::test]
async fn what_the_upstream_says_about_its_own_limits_is_heard_as_well() {
    let said = AppendHeaders([
        ("ratelimit-policy", r#""day";q=1000"#),
        ("ratelimit", r#""day";r=3"#),
        ("x-ratelimit-limit", "1000"),
        ("x-ratelimit-remaining", "3"),
        ("retry-after", "5"),
    ]);
    let app = Router::new().fallback(async move || (said, "hello"));
    let gateway = limited(app, limits([Rule::new("api", at_once(5))], &ManualClock::at(START))).await;
    let heard = get(gateway, "/", "").await;
    assert!(heard.contains("ratelimit: \"day\";r=3\r\nratelimit: \"api\";r=4;t=3600\r\n"), "{heard}");
    assert!(heard.contains("ratelimit-policy: \"day\";q=1000\r\nratelimit-policy: \"api\";q=5;w=18000\r\n"), "{heard}");
    assert_eq!((field(&heard, "x-ratelimit-limit"), field(&heard, "x-ratelimit-remaining")), (Some("1000"), Some("3")));
    assert_eq!((field(&heard, "x-ratelimit-reset"), field(&heard, "retry-after")), (None, Some("5")));
    get(gateway, "/", "").await;
    let heard = get(gateway, "/", "").await;
    assert_eq!((field(&heard, "x-ratelimit-limit"), field(&heard, "x-ratelimit-remaining")), (Some("5"), Some("2")));
}

/// A store whose server went away.
struct Gone;

impl Gone {
    fn error() -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable, "the server went away")
    }
}

impl Store for Gone {
    async fn decide(&self, _: &Plan<'_>) -> Result<Verdict, StoreError> {
        Err(Self::error())
    }

    async fn peek(&self, _: &Plan<'_>) -> Result<Verdict, StoreError> {
        Err(Self::error())
    }

    async fn adjust(&self, _: &[Adjustment<'_>]) -> Result<(), StoreError> {
        Err(Self::error())
    }

    fn adjust_soon(&self, _: &[Adjustment<'_>]) {}

    async fn forget(&self, _: &[Key<'_>]) -> Result<(), StoreError> {
        Err(Self::error())
    }
}

#[tokio::test]
async fn while_the_store_is_away_the_upstream_is_told_or_spared() {
    for (policy, status) in [(OnFailure::Open, "HTTP/1.1 200 "), (OnFailure::Closed, "HTTP/1.1 503 ")] {
        let rules = RuleSet::new([Rule::new("api", at_once(5)).on_failure(policy)]).unwrap();
        let gateway = limited(mirror(), LimitLayer::new(Limiter::new(rules, Gone))).await;
        let heard = get(gateway, "/", "x-tidegate-degraded: no\r\n").await;
        assert!(heard.starts_with(status), "{heard}");
        assert_eq!(heard.contains("\nx-tidegate-degraded: true\n"), policy == OnFailure::Open, "{heard}");
        assert!(!heard.contains("degraded: no"), "{heard}");
    }
}

#[tokio::test]
async fn while_the_store_is_away_a_local_rule_lets_its_share_pass() {
    let rules = RuleSet::new([Rule::new("api", at_once(4)).on_failure(OnFailure::Local)]).unwrap();
    let limiter = Limiter::new(rules, Gone).instances(2);
    let gateway = limited(mirror(), LimitLayer::new(limiter)).await;
    for _ in 0..2 {
        let heard = get(gateway, "/", "").await;
        assert!(heard.starts_with("HTTP/1.1 200 ") && heard.contains("\nx-tidegate-degraded: true\n"), "{heard}");
        assert!(!heard.contains("ratelimit"), "{heard}");
    }
    let heard = get(gateway, "/", "").await;
    assert!(heard.starts_with("HTTP/1.1 429 ") && field(&heard, "retry-after").is_some(), "{heard}");
    assert!(!heard.contains("ratelimit"), "{heard}");
}
