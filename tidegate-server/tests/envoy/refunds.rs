//! Refunded hits (`is_negative_hits`), and denied hits that count: charges after the response, and `count_refused`.

use std::time::Duration;

use tidegate::ManualClock;
use tidegate_server::envoy::messages::RateLimitRequest;
use tidegate_server::envoy::{ConfigHandle, EnvoyService};
use tonic::Code;

use crate::envoy::{EnvoyClient, clock, config_files, handle, hit, no_rules, store, store_failures, with_hits};

const LIMITS: &str = "
domain: edge
descriptors:
  - { key: w, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: t, rate_limit: { unit: minute, requests_per_unit: 5, algorithm: token_bucket } }
  - { key: s, rate_limit: { unit: minute, requests_per_unit: 5, algorithm: sliding_window } }
  - { key: l, rate_limit: { unit: minute, requests_per_unit: 5, algorithm: sliding_log } }
  - { key: tokens, rate_limit: { unit: minute, requests_per_unit: 100, count_refused: true } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: used, rate_limit: { unit: minute, requests_per_unit: 1000 } }
  - { key: all, rate_limit: { unit: minute, requests_per_unit: 5000 } }
  - { key: weighted, rate_limit: { unit: minute, requests_per_unit: 1000, count_refused: false } }
  - { key: dark, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1000 } }
";

/// The request with a refund in place of the hits of the descriptor at `index`.
fn refund(mut request: RateLimitRequest, index: usize) -> RateLimitRequest {
    request.descriptors[index].is_negative_hits = true;
    request
}

fn hits(key: &str, hits: u64) -> RateLimitRequest {
    with_hits(hit("edge", &[&[(key, "v")]]), 0, hits)
}

async fn client_at(clock: &ManualClock) -> EnvoyClient {
    let config = ConfigHandle::new(config_files::parse(LIMITS).unwrap());
    EnvoyClient::connect(EnvoyService::from_config(handle(no_rules(), store(clock)), config)).await
}

#[tokio::test]
async fn refunded_hits_can_be_consumed_again_and_never_exceed_those_consumed() {
    let plain = "domain: edge\ndescriptors:\n  - { key: w, rate_limit: { unit: minute, requests_per_unit: 5 } }\n";
    for mut client in [EnvoyClient::with_config(plain).await, EnvoyClient::with_strict_config(plain).await] {
        assert_eq!(client.summary(hits("w", 5)).await, "OK: OK 0/5 MINUTE 40s");
        assert_eq!(client.summary(refund(hits("w", 2), 0)).await, "OK: OK 2/5 MINUTE 40s");
        assert_eq!(client.summary(hits("w", 2)).await, "OK: OK 0/5 MINUTE 40s");
        assert_eq!(client.summary(refund(hits("w", u64::MAX), 0)).await, "OK: OK 5/5 MINUTE 40s");
        assert_eq!(client.summary(refund(hits("w", 1), 0)).await, "OK: OK 5/5 MINUTE 40s");
        // The default is one hit; 0 hits are a peek.
        assert_eq!(client.summary(hits("w", 5)).await, "OK: OK 0/5 MINUTE 40s");
        assert_eq!(client.summary(refund(hit("edge", &[&[("w", "v")]]), 0)).await, "OK: OK 1/5 MINUTE 40s");
        assert_eq!(client.summary(refund(hits("w", 0), 0)).await, "OK: OK 1/5 MINUTE 40s");
        // Other subjects are not affected.
        assert_eq!(client.summary(refund(hit("edge", &[&[("w", "other")]]), 0)).await, "OK: OK 5/5 MINUTE 40s");
        assert_eq!(client.summary(refund(hits("unknown", 1), 0)).await, "OK: OK 0");
    }
}

#[tokio::test]
async fn a_refund_applies_to_the_current_window_only() {
    let clock = clock();
    let mut client = client_at(&clock).await;
    assert_eq!(client.summary(hits("w", 5)).await, "OK: OK 0/5 MINUTE 40s");
    clock.advance(Duration::from_mins(1));
    assert_eq!(client.summary(hits("w", 1)).await, "OK: OK 4/5 MINUTE 40s");
    assert_eq!(client.summary(refund(hits("w", 4), 0)).await, "OK: OK 5/5 MINUTE 40s");
    let six = RateLimitRequest { hits_addend: 6, ..hit("edge", &[&[("w", "v")]]) };
    assert_eq!(client.summary(six).await, "OVER_LIMIT: OVER_LIMIT 5/5 MINUTE 40s");
}

#[tokio::test]
async fn a_refund_applies_to_token_buckets_and_to_the_current_slice_of_a_sliding_window() {
    let clock = clock();
    let mut client = client_at(&clock).await;
    assert!(client.summary(hits("t", 5)).await.starts_with("OK: OK 0/5"));
    assert!(client.summary(refund(hits("t", 3), 0)).await.starts_with("OK: OK 3/5"));
    assert!(client.summary(hits("s", 3)).await.starts_with("OK: OK 2/5"));
    clock.advance(Duration::from_secs(12));
    assert!(client.summary(hits("s", 1)).await.starts_with("OK: OK 1/5"));
    assert!(client.summary(refund(hits("s", 3), 0)).await.starts_with("OK: OK 2/5"), "only the current slice");
    // A sliding log has an entry for each request; the refund does not say which one to remove.
    assert!(client.summary(hits("l", 5)).await.starts_with("OK: OK 0/5"));
    clock.advance(Duration::from_secs(1));
    assert!(client.summary(refund(hits("l", 3), 0)).await.starts_with("OK: OK 0/5"));
}

#[tokio::test]
async fn a_refund_is_applied_before_the_other_descriptors_are_decided() {
    let mut client = EnvoyClient::with_config(LIMITS).await;
    assert_eq!(client.summary(hits("w", 5)).await, "OK: OK 0/5 MINUTE 40s");
    let beside = || hit("edge", &[&[("w", "v")], &[("w", "v")], &[("free", "v")]]);
    let summary = client.summary(refund(beside(), 0)).await;
    assert_eq!(summary, "OK: OK 1/5 MINUTE 40s, OK 0/5 MINUTE 40s, OK 4294967295");
    // The refund stays, even if the request is denied.
    let summary = client.summary(with_hits(refund(beside(), 0), 1, 3)).await;
    assert_eq!(summary, "OVER_LIMIT: OK 1/5 MINUTE 40s, OVER_LIMIT 1/5 MINUTE 40s, OK 4294967295");
}

#[tokio::test]
async fn hits_of_a_rule_file_can_be_refunded() {
    let rules = "
version: 1
rules:
  - { id: edge, match: { action: edge }, per: [ip], fixed_window: { limit: 3, window: 1m }, on_failure: open }
";
    let mut client = EnvoyClient::with_rules(rules).await;
    let ip = |hits| with_hits(hit("edge", &[&[("ip", "203.0.113.9")]]), 0, hits);
    assert_eq!(client.summary(ip(3)).await, "OK: OK 0/3 MINUTE edge 40s");
    assert_eq!(client.summary(refund(ip(2), 0)).await, "OK: OK 2/3 MINUTE edge 40s");
    assert_eq!(client.summary(refund(ip(9), 0)).await, "OK: OK 3/3 MINUTE edge 40s");
}

#[tokio::test]
async fn a_security_rule_shows_no_numbers_after_a_refund() {
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
    let mut client = EnvoyClient::with_rules(rules).await;
    let guess = |hits| with_hits(hit("guess", &[&[("ip", "203.0.113.9")]]), 0, hits);
    assert_eq!(client.summary(guess(4)).await, "OK: OK 0");
    assert_eq!(client.summary(refund(guess(1), 0)).await, "OK: OK 0");
}

#[tokio::test]
async fn a_refund_fails_while_the_store_is_unavailable() {
    let config = ConfigHandle::new(config_files::parse(LIMITS).unwrap());
    let mut client = EnvoyClient::connect(EnvoyService::from_config(
        handle(no_rules(), store_failures::unavailable_store()),
        config,
    ))
    .await;
    assert_eq!(client.send(refund(hits("w", 1), 0)).await.unwrap_err().code(), Code::Unavailable);
}

/// Envoy charges tokens after the response (`apply_on_stream_done`), so they are used even if denied.
#[tokio::test]
async fn a_limit_with_count_refused_counts_denied_hits() {
    let mut client = EnvoyClient::with_config(LIMITS).await;
    assert_eq!(client.summary(hits("tokens", 90)).await, "OK: OK 10/100 MINUTE 40s");
    assert_eq!(client.summary(hits("tokens", 0)).await, "OK: OK 10/100 MINUTE 40s");
    assert_eq!(client.summary(hits("tokens", 25)).await, "OVER_LIMIT: OVER_LIMIT 0/100 MINUTE 40s");
    assert_eq!(client.summary(hits("tokens", 0)).await, "OVER_LIMIT: OVER_LIMIT 0/100 MINUTE 40s");
    // It counts them even if another limit denies the request; the other limit counts nothing.
    let both = || with_hits(hit("edge", &[&[("tokens", "w")], &[("w", "v")]]), 0, 30);
    let summary = client.summary(RateLimitRequest { hits_addend: 6, ..both() }).await;
    assert_eq!(summary, "OVER_LIMIT: OK 70/100 MINUTE 40s, OVER_LIMIT 5/5 MINUTE 40s");
    assert_eq!(client.summary(both()).await, "OK: OK 40/100 MINUTE 40s, OK 4/5 MINUTE 40s");
}

/// The requests of 20 that a peek admits when each is charged 200 hits after its response, at 950 of 1,000.
async fn admitted_with_late_charges(client: &mut EnvoyClient, key: &str) -> usize {
    assert!(client.summary(hits(key, 950)).await.starts_with("OK: OK 50/1000"), "{key}");
    let mut admitted = 0;
    for _ in 0..20 {
        if client.summary(hits(key, 0)).await.starts_with("OK:") {
            admitted += 1;
            client.summary(hits(key, 200)).await;
        }
    }
    admitted
}

#[tokio::test]
async fn a_charge_after_the_response_that_does_not_fit_fills_the_window() {
    let mut client = EnvoyClient::with_config(LIMITS).await;
    assert_eq!(admitted_with_late_charges(&mut client, "used").await, 1);
    // The status shows what is left after the charge.
    let other = || with_hits(hit("edge", &[&[("used", "other")]]), 0, 950);
    assert_eq!(client.summary(other()).await, "OK: OK 50/1000 MINUTE 40s");
    assert_eq!(client.summary(other()).await, "OVER_LIMIT: OVER_LIMIT 0/1000 MINUTE 40s");
    // Limits without the hits of charges admit all, in strict mode none that the reference server denies.
    assert_eq!(admitted_with_late_charges(&mut client, "weighted").await, 20);
    let plain =
        "domain: edge\ndescriptors:\n  - { key: used, rate_limit: { unit: minute, requests_per_unit: 1000 } }\n";
    let mut strict = EnvoyClient::with_strict_config(plain).await;
    assert_eq!(admitted_with_late_charges(&mut strict, "used").await, 1);
}

#[tokio::test]
async fn a_charge_that_does_not_fit_fills_only_the_limits_that_it_exceeds() {
    let mut client = EnvoyClient::with_config(LIMITS).await;
    let charge = |hits| with_hits(with_hits(hit("edge", &[&[("used", "v")], &[("all", "v")]]), 0, hits), 1, hits);
    assert_eq!(client.summary(charge(950)).await, "OK: OK 50/1000 MINUTE 40s, OK 4050/5000 MINUTE 40s");
    let over = "OVER_LIMIT: OVER_LIMIT 0/1000 MINUTE 40s, OK 4050/5000 MINUTE 40s";
    assert_eq!(client.summary(charge(200)).await, over);
    assert_eq!(client.summary(hits("all", 0)).await, "OK: OK 4050/5000 MINUTE 40s");
    // A limit in shadow mode is filled as well, so that it shows what it would deny.
    assert!(client.summary(hits("dark", 950)).await.starts_with("OK: OK 50/1000"));
    assert!(client.summary(hits("dark", 200)).await.starts_with("OK: OK 0/1000"));
    assert!(client.summary(hits("dark", 0)).await.starts_with("OK: OK 0/1000"));
}

/// A route whose entries all have a static `hits_addend` sends requests before the response that look like charges.
#[tokio::test]
async fn a_client_over_its_own_limit_does_not_use_up_a_shared_one_whatever_hits_its_route_has() {
    let mut client = EnvoyClient::with_config(LIMITS).await;
    let route = || with_hits(with_hits(hit("edge", &[&[("w", "v")], &[("used", "v")]]), 0, 5), 1, 5);
    assert_eq!(client.summary(route()).await, "OK: OK 0/5 MINUTE 40s, OK 995/1000 MINUTE 40s");
    for _ in 0..200 {
        assert_eq!(client.summary(route()).await, "OVER_LIMIT: OVER_LIMIT 0/5 MINUTE 40s, OK 995/1000 MINUTE 40s");
    }
}

/// Both limits deny: the client has 100 hits of its own left, or none, and all clients together have 150 or 50.
#[tokio::test]
async fn a_request_that_exceeds_several_limits_fills_only_the_smallest_and_none_if_one_is_full() {
    let mut client = EnvoyClient::with_config(LIMITS).await;
    let route = || with_hits(with_hits(hit("edge", &[&[("used", "v")], &[("all", "v")]]), 0, 200), 1, 200);
    assert!(client.summary(hits("used", 900)).await.starts_with("OK: OK 100/1000"));
    assert!(client.summary(hits("all", 4850)).await.starts_with("OK: OK 150/5000"));
    for _ in 0..20 {
        let over = "OVER_LIMIT: OVER_LIMIT 0/1000 MINUTE 40s, OVER_LIMIT 150/5000 MINUTE 40s";
        assert_eq!(client.summary(route()).await, over);
    }
    assert_eq!(client.summary(hits("all", 150)).await, "OK: OK 0/5000 MINUTE 40s");
    // The limit of the client is the larger one, as one per day is beside one per minute, and is full.
    let mut client = EnvoyClient::with_config(LIMITS).await;
    assert!(client.summary(hits("all", 5000)).await.starts_with("OK: OK 0/5000"));
    assert!(client.summary(hits("used", 950)).await.starts_with("OK: OK 50/1000"));
    let over = "OVER_LIMIT: OVER_LIMIT 50/1000 MINUTE 40s, OVER_LIMIT 0/5000 MINUTE 40s";
    assert_eq!(client.summary(route()).await, over);
    assert_eq!(client.summary(hits("used", 50)).await, "OK: OK 0/1000 MINUTE 40s");
    // A limit in shadow mode neither takes the place of the limit that denies nor is filled beside it.
    let beside = || with_hits(with_hits(hit("edge", &[&[("dark", "v")], &[("all", "w")]]), 0, 3000), 1, 3000);
    assert_eq!(client.summary(hits("all", 0)).await, "OVER_LIMIT: OVER_LIMIT 0/5000 MINUTE 40s");
    assert!(client.summary(with_hits(hit("edge", &[&[("all", "w")]]), 0, 4000)).await.starts_with("OK: OK 1000/5000"));
    assert_eq!(client.summary(beside()).await, "OVER_LIMIT: OK 1000/1000 MINUTE 40s, OVER_LIMIT 0/5000 MINUTE 40s");
}

/// Quotas deny a request only together, so a charge that exceeds all of them fills all of them.
#[tokio::test]
async fn a_charge_that_exceeds_all_quotas_fills_all_of_them() {
    let quotas = "domain: edge\ndescriptors:
  - { key: one, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 100 } }
  - { key: two, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 200 } }\n";
    let mut client = EnvoyClient::with_config(quotas).await;
    let both = |hits| with_hits(with_hits(hit("edge", &[&[("one", "v")], &[("two", "v")]]), 0, hits), 1, hits);
    let over = "OVER_LIMIT: OVER_LIMIT 0/100 MINUTE 40s, OVER_LIMIT 0/200 MINUTE 40s";
    assert_eq!(client.summary(both(300)).await, over);
    assert_eq!(client.summary(both(0)).await, over);
}

/// A client over its own limit must not use up a limit that it shares with others.
#[tokio::test]
async fn a_denied_request_that_is_no_charge_counts_nothing_however_many_hits_it_has() {
    let mut client = EnvoyClient::with_config(LIMITS).await;
    assert!(client.summary(hits("w", 5)).await.starts_with("OK:"));
    // The hits of the whole request, and a descriptor without hits of its own.
    let mut whole = hit("edge", &[&[("w", "v")], &[("used", "v")]]);
    whole.hits_addend = 100_000;
    let beside = with_hits(hit("edge", &[&[("w", "v")], &[("used", "v")]]), 1, 100_000);
    let peek = with_hits(with_hits(hit("edge", &[&[("w", "v")], &[("used", "v")]]), 0, 0), 1, 100_000);
    for request in [whole, beside, peek] {
        assert!(client.summary(request).await.starts_with("OVER_LIMIT:"));
        assert_eq!(client.summary(hits("used", 0)).await, "OK: OK 1000/1000 MINUTE 40s");
    }
}
