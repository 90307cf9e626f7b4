//! Hits that are given back, and hits that count although they were refused.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate::ManualClock;
use tidegate_server::envoy::{ConfigHandle, RateLimits};
use tonic::Code;

use crate::{Envoy, clock, configs, failures, handle, hit, no_rules, store, with_hits};

const LIMITS: &str = "
domain: edge
descriptors:
  - { key: w, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: t, rate_limit: { unit: minute, requests_per_unit: 5, algorithm: token_bucket } }
  - { key: s, rate_limit: { unit: minute, requests_per_unit: 5, algorithm: sliding_window } }
  - { key: l, rate_limit: { unit: minute, requests_per_unit: 5, algorithm: sliding_log } }
  - { key: tokens, rate_limit: { unit: minute, requests_per_unit: 100, count_refused: true } }
  - { key: free, rate_limit: { unlimited: true } }
";

/// The same request, which gives its hits back at `place`.
fn back(mut request: RateLimitRequest, place: usize) -> RateLimitRequest {
    request.descriptors[place].is_negative_hits = true;
    request
}

fn take(key: &str, hits: u64) -> RateLimitRequest {
    with_hits(hit("edge", &[&[(key, "v")]]), 0, hits)
}

async fn at(clock: &ManualClock) -> Envoy {
    let config = ConfigHandle::new(configs::parse(LIMITS).unwrap());
    Envoy::of(RateLimits::of_config(handle(no_rules(), store(clock)), config)).await
}

#[tokio::test]
async fn what_is_given_back_can_be_taken_again_and_is_never_more_than_was_taken() {
    let plain = "domain: edge\ndescriptors:\n  - { key: w, rate_limit: { unit: minute, requests_per_unit: 5 } }\n";
    for mut envoy in [Envoy::of_config(plain).await, Envoy::strict(plain).await] {
        assert_eq!(envoy.says(take("w", 5)).await, "OK: OK 0/5 MINUTE 40s");
        assert_eq!(envoy.says(back(take("w", 2), 0)).await, "OK: OK 2/5 MINUTE 40s");
        assert_eq!(envoy.says(take("w", 2)).await, "OK: OK 0/5 MINUTE 40s");
        assert_eq!(envoy.says(back(take("w", u64::MAX), 0)).await, "OK: OK 5/5 MINUTE 40s");
        assert_eq!(envoy.says(back(take("w", 1), 0)).await, "OK: OK 5/5 MINUTE 40s");
        // One hit, unless something is said; of none, it is a look.
        assert_eq!(envoy.says(take("w", 5)).await, "OK: OK 0/5 MINUTE 40s");
        assert_eq!(envoy.says(back(hit("edge", &[&[("w", "v")]]), 0)).await, "OK: OK 1/5 MINUTE 40s");
        assert_eq!(envoy.says(back(take("w", 0), 0)).await, "OK: OK 1/5 MINUTE 40s");
        // Nobody else has anything of it.
        assert_eq!(envoy.says(back(hit("edge", &[&[("w", "other")]]), 0)).await, "OK: OK 5/5 MINUTE 40s");
        assert_eq!(envoy.says(back(take("unknown", 1), 0)).await, "OK: OK 0");
    }
}

#[tokio::test]
async fn only_the_window_of_now_gets_anything_back() {
    let clock = clock();
    let mut envoy = at(&clock).await;
    assert_eq!(envoy.says(take("w", 5)).await, "OK: OK 0/5 MINUTE 40s");
    clock.advance(Duration::from_secs(60));
    assert_eq!(envoy.says(take("w", 1)).await, "OK: OK 4/5 MINUTE 40s");
    assert_eq!(envoy.says(back(take("w", 4), 0)).await, "OK: OK 5/5 MINUTE 40s");
    assert_eq!(envoy.says(take("w", 6)).await, "OVER_LIMIT: OVER_LIMIT 5/5 MINUTE 40s");
}

#[tokio::test]
async fn buckets_and_slices_get_back_what_they_can() {
    let clock = clock();
    let mut envoy = at(&clock).await;
    assert!(envoy.says(take("t", 5)).await.starts_with("OK: OK 0/5"));
    assert!(envoy.says(back(take("t", 3), 0)).await.starts_with("OK: OK 3/5"));
    assert!(envoy.says(take("s", 3)).await.starts_with("OK: OK 2/5"));
    clock.advance(Duration::from_secs(12));
    assert!(envoy.says(take("s", 1)).await.starts_with("OK: OK 1/5"));
    assert!(envoy.says(back(take("s", 3), 0)).await.starts_with("OK: OK 2/5"), "only of the slice of now");
    // A log keeps requests, and does not know which one is meant.
    assert!(envoy.says(take("l", 5)).await.starts_with("OK: OK 0/5"));
    clock.advance(Duration::from_secs(1));
    assert!(envoy.says(back(take("l", 3), 0)).await.starts_with("OK: OK 0/5"));
}

#[tokio::test]
async fn what_stands_beside_it_is_decided_after_it() {
    let mut envoy = Envoy::of_config(LIMITS).await;
    assert_eq!(envoy.says(take("w", 5)).await, "OK: OK 0/5 MINUTE 40s");
    let beside = || hit("edge", &[&[("w", "v")], &[("w", "v")], &[("free", "v")]]);
    let said = envoy.says(back(beside(), 0)).await;
    assert_eq!(said, "OK: OK 1/5 MINUTE 40s, OK 0/5 MINUTE 40s, OK 4294967295");
    // Given back is given back, whatever becomes of the rest.
    let said = envoy.says(with_hits(back(beside(), 0), 1, 3)).await;
    assert_eq!(said, "OVER_LIMIT: OK 1/5 MINUTE 40s, OVER_LIMIT 1/5 MINUTE 40s, OK 4294967295");
}

#[tokio::test]
async fn rules_give_back_too() {
    let rules = "
version: 1
rules:
  - { id: edge, match: { action: edge }, per: [ip], fixed_window: { limit: 3, window: 1m }, on_failure: open }
";
    let mut envoy = Envoy::of_rules(rules).await;
    let ip = |hits| with_hits(hit("edge", &[&[("ip", "203.0.113.9")]]), 0, hits);
    assert_eq!(envoy.says(ip(3)).await, "OK: OK 0/3 MINUTE edge 40s");
    assert_eq!(envoy.says(back(ip(2), 0)).await, "OK: OK 2/3 MINUTE edge 40s");
    assert_eq!(envoy.says(back(ip(9), 0)).await, "OK: OK 3/3 MINUTE edge 40s");
}

#[tokio::test]
async fn a_rule_against_guessing_tells_nothing_when_it_gets_hits_back() {
    let rules = "
version: 1
rules:
  - id: guess
    match: { action: guess }
    per: [ip]
    fixed_window: { limit: 5, window: 1m }
    on_failure: closed
    security: true
";
    let mut envoy = Envoy::of_rules(rules).await;
    let guess = |hits| with_hits(hit("guess", &[&[("ip", "203.0.113.9")]]), 0, hits);
    assert_eq!(envoy.says(guess(4)).await, "OK: OK 0");
    assert_eq!(envoy.says(back(guess(1), 0)).await, "OK: OK 0");
}

#[tokio::test]
async fn a_store_that_fails_gives_nothing_back() {
    let config = ConfigHandle::new(configs::parse(LIMITS).unwrap());
    let mut envoy =
        Envoy::of(RateLimits::of_config(handle(no_rules(), Arc::<failures::Gone>::default()), config)).await;
    assert_eq!(envoy.ask(back(take("w", 1), 0)).await.unwrap_err().code(), Code::Unavailable);
}

/// Envoy charges tokens after the response (`apply_on_stream_done`): refused or not, they were used.
#[tokio::test]
async fn a_limit_may_count_what_it_refuses() {
    let mut envoy = Envoy::of_config(LIMITS).await;
    assert_eq!(envoy.says(take("tokens", 90)).await, "OK: OK 10/100 MINUTE 40s");
    assert_eq!(envoy.says(take("tokens", 0)).await, "OK: OK 10/100 MINUTE 40s");
    assert_eq!(envoy.says(take("tokens", 25)).await, "OVER_LIMIT: OVER_LIMIT 0/100 MINUTE 40s");
    assert_eq!(envoy.says(take("tokens", 0)).await, "OVER_LIMIT: OVER_LIMIT 0/100 MINUTE 40s");
    // Even if another limit refuses; that one counts nothing.
    let both = || with_hits(hit("edge", &[&[("tokens", "w")], &[("w", "v")]]), 0, 30);
    let said = envoy.says(with_hits(both(), 1, 6)).await;
    assert_eq!(said, "OVER_LIMIT: OK 70/100 MINUTE 40s, OVER_LIMIT 5/5 MINUTE 40s");
    assert_eq!(envoy.says(both()).await, "OK: OK 40/100 MINUTE 40s, OK 4/5 MINUTE 40s");
}
