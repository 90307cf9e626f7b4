//! The numbers of statuses: limit, remaining, reset.

use std::time::Duration;

use tidegate_server::envoy::messages::{RateLimitOverride, RateLimitRequest, RateLimitUnit};
use tidegate_server::envoy::{ConfigHandle, EnvoyConfig, EnvoyOptions, EnvoyService};

use crate::envoy::{EnvoyClient, clock, handle, hit, no_rules, service, store, with_hits};

const UNITS: &str = "
domain: edge
descriptors:
  - { key: s, rate_limit: { unit: second, requests_per_unit: 5 } }
  - { key: m, rate_limit: { unit: MINUTE, requests_per_unit: 5, name: per-minute } }
  - { key: h, rate_limit: { unit: Hour, requests_per_unit: 5 } }
  - { key: d, rate_limit: { unit: day, requests_per_unit: 5 } }
  - { key: w, rate_limit: { unit: week, requests_per_unit: 5 } }
  - { key: mo, rate_limit: { unit: month, requests_per_unit: 5 } }
  - { key: y, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: none, rate_limit: { unit: minute, requests_per_unit: 0 } }
  - { key: free, rate_limit: { unlimited: true } }
";

#[tokio::test]
async fn a_status_has_limit_remaining_and_reset() {
    let cases = [
        ("s", "OK: OK 4/5 SECOND 1s"),
        ("m", "OK: OK 4/5 MINUTE per-minute 40s"),
        ("h", "OK: OK 4/5 HOUR 2800s"),
        ("d", "OK: OK 4/5 DAY 6400s"),
        ("w", "OK: OK 4/5 WEEK 92800s"),
        ("mo", "OK: OK 4/5 MONTH 1388800s"),
        ("y", "OK: OK 4/5 YEAR 4067200s"),
        ("none", "OVER_LIMIT: OVER_LIMIT 0/0 MINUTE 40s"),
        ("free", "OK: OK 4294967295"),
        ("unknown", "OK: OK 0"),
    ];
    let mut client = EnvoyClient::with_config(UNITS).await;
    for (key, expected) in cases {
        assert_eq!(client.summary(hit("edge", &[&[(key, "v")]])).await, expected, "{key}");
    }
    assert_eq!(client.summary(hit("elsewhere", &[&[("m", "v")]])).await, "OK: OK 0");
}

/// By default they end with the calendar's.
#[tokio::test]
async fn in_strict_mode_months_have_thirty_days_and_years_365() {
    let mut client = EnvoyClient::with_strict_config(UNITS).await;
    assert_eq!(client.summary(hit("edge", &[&[("mo", "v")]])).await, "OK: OK 4/5 MONTH 352000s");
    assert_eq!(client.summary(hit("edge", &[&[("y", "v")]])).await, "OK: OK 4/5 YEAR 2944000s");
}

#[tokio::test]
async fn statuses_are_in_the_order_of_descriptors_and_a_denied_request_consumes_nothing() {
    let mut client = EnvoyClient::with_config(UNITS).await;
    let both = || hit("edge", &[&[("h", "v")], &[("unknown", "v")], &[("m", "v")], &[("free", "v")]]);
    for left in (0..5).rev() {
        let expected = format!("OK: OK {left}/5 HOUR 2800s, OK 0, OK {left}/5 MINUTE per-minute 40s, OK 4294967295");
        assert_eq!(client.summary(both()).await, expected);
    }
    let mixed = || hit("edge", &[&[("m", "w")], &[("h", "v")]]);
    for _ in 0..3 {
        let expected = "OVER_LIMIT: OK 5/5 MINUTE per-minute 40s, OVER_LIMIT 0/5 HOUR 2800s";
        assert_eq!(client.summary(mixed()).await, expected);
    }
}

/// The reference server counts denied hits, so that one exhausted limit exhausts the others.
#[tokio::test]
async fn in_strict_mode_denied_hits_count() {
    let mut client = EnvoyClient::with_strict_config(UNITS).await;
    assert_eq!(client.summary(with_hits(hit("edge", &[&[("h", "v")]]), 0, 5)).await, "OK: OK 0/5 HOUR 2800s");
    let mixed = || hit("edge", &[&[("m", "w")], &[("h", "v")]]);
    for left in (3..5).rev() {
        let expected = format!("OVER_LIMIT: OK {left}/5 MINUTE per-minute 40s, OVER_LIMIT 0/5 HOUR 2800s");
        assert_eq!(client.summary(mixed()).await, expected);
    }
    // Too many hits exhaust the rest of the limit.
    let large = with_hits(hit("edge", &[&[("d", "v")]]), 0, 6);
    assert_eq!(client.summary(large).await, "OVER_LIMIT: OVER_LIMIT 0/5 DAY 6400s");
    assert_eq!(client.summary(hit("edge", &[&[("d", "v")]])).await, "OVER_LIMIT: OVER_LIMIT 0/5 DAY 6400s");
}

#[tokio::test]
async fn without_strict_mode_denied_hits_of_the_request_do_not_count() {
    let mut client = EnvoyClient::with_config(UNITS).await;
    let large = RateLimitRequest { hits_addend: 6, ..hit("edge", &[&[("d", "v")]]) };
    assert_eq!(client.summary(large).await, "OVER_LIMIT: OVER_LIMIT 5/5 DAY 6400s");
    assert_eq!(client.summary(hit("edge", &[&[("d", "v")]])).await, "OK: OK 4/5 DAY 6400s");
}

#[tokio::test]
async fn hits_come_from_the_descriptor_else_from_the_request_else_are_one() {
    let mut client = EnvoyClient::with_config(UNITS).await;
    let mut request = hit("edge", &[&[("m", "v")], &[("h", "v")]]);
    request.hits_addend = 2;
    let summary = client.summary(with_hits(request, 1, 3)).await;
    assert_eq!(summary, "OK: OK 3/5 MINUTE per-minute 40s, OK 2/5 HOUR 2800s");
    // Equal descriptors are summed.
    let summary = client.summary(hit("edge", &[&[("d", "v")], &[("d", "v")]])).await;
    assert_eq!(summary, "OK: OK 3/5 DAY 6400s, OK 3/5 DAY 6400s");
    let summary = client.summary(with_hits(hit("edge", &[&[("d", "v")]]), 0, u64::MAX)).await;
    assert_eq!(summary, "OVER_LIMIT: OVER_LIMIT 0/5 DAY 6400s");
}

#[tokio::test]
async fn a_descriptor_with_0_hits_is_a_peek() {
    let mut client = EnvoyClient::with_config(UNITS).await;
    let peek = || with_hits(hit("edge", &[&[("m", "v")]]), 0, 0);
    for _ in 0..3 {
        assert_eq!(client.summary(peek()).await, "OK: OK 5/5 MINUTE per-minute 40s");
    }
    assert!(client.summary(with_hits(hit("edge", &[&[("m", "v")]]), 0, 5)).await.starts_with("OK:"));
    assert_eq!(client.summary(peek()).await, "OVER_LIMIT: OVER_LIMIT 0/5 MINUTE per-minute 40s");
    // A denied peek denies the request, and the other descriptor consumes nothing.
    let beside = || with_hits(hit("edge", &[&[("m", "v")], &[("h", "v")]]), 0, 0);
    for _ in 0..2 {
        let expected = "OVER_LIMIT: OVER_LIMIT 0/5 MINUTE per-minute 40s, OK 5/5 HOUR 2800s";
        assert_eq!(client.summary(beside()).await, expected);
    }
    let beside = with_hits(hit("edge", &[&[("m", "w")], &[("h", "v")]]), 0, 0);
    assert_eq!(client.summary(beside).await, "OK: OK 5/5 MINUTE per-minute 40s, OK 4/5 HOUR 2800s");
}

#[tokio::test]
async fn the_limit_of_a_descriptor_overrides_the_configured_one() {
    let mut client = EnvoyClient::with_config(UNITS).await;
    let with_override = |domain: &str, key: &str, requests_per_unit| {
        let mut request = hit(domain, &[&[(key, "v")]]);
        let unit = RateLimitUnit::Minute.into();
        request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit, unit });
        request
    };
    assert_eq!(client.summary(hit("edge", &[&[("m", "v")]])).await, "OK: OK 4/5 MINUTE per-minute 40s");
    assert_eq!(client.summary(with_override("edge", "m", 9)).await, "OK: OK 7/9 MINUTE 40s");
    assert_eq!(client.summary(with_override("edge", "m", 2)).await, "OVER_LIMIT: OVER_LIMIT 0/2 MINUTE 40s");
    assert_eq!(client.summary(with_override("edge", "unknown", 9)).await, "OK: OK 8/9 MINUTE 40s");
    assert_eq!(client.summary(with_override("elsewhere", "m", 9)).await, "OK: OK 0");
}

#[tokio::test]
async fn the_next_window_starts_with_the_full_limit() {
    let clock = clock();
    let config = EnvoyConfig::parse([("test.yaml", UNITS)], &EnvoyOptions::default()).unwrap();
    let service = EnvoyService::from_config(handle(no_rules(), store(&clock)), ConfigHandle::new(config));
    let mut client = EnvoyClient::connect(service).await;
    let hits = || with_hits(hit("edge", &[&[("m", "v")]]), 0, 5);
    assert!(client.summary(hits()).await.starts_with("OK:"));
    assert!(client.summary(hits()).await.starts_with("OVER_LIMIT:"));
    clock.advance(Duration::from_millis(39_500));
    assert_eq!(client.summary(hits()).await, "OK: OK 0/5 MINUTE per-minute 60s");
}

#[tokio::test]
async fn a_limit_may_have_another_algorithm() {
    let yaml = "
domain: edge
descriptors:
  - { key: t, rate_limit: { unit: minute, requests_per_unit: 6, algorithm: token_bucket } }
  - { key: l, rate_limit: { unit: minute, requests_per_unit: 6, algorithm: sliding_log } }
  - { key: w, rate_limit: { unit: minute, requests_per_unit: 6, algorithm: sliding_window } }
";
    let mut client = EnvoyClient::with_config(yaml).await;
    let all = || with_hits(hit("edge", &[&[("t", "v")]]), 0, 6);
    assert_eq!(client.summary(all()).await, "OK: OK 0/6 MINUTE 60s");
    // The bucket gains one token every ten seconds.
    assert_eq!(client.summary(hit("edge", &[&[("t", "v")]])).await, "OVER_LIMIT: OVER_LIMIT 0/6 MINUTE 10s");
    assert_eq!(client.summary(hit("edge", &[&[("l", "v")]])).await, "OK: OK 5/6 MINUTE 60s");
    assert!(client.summary(hit("edge", &[&[("w", "v")]])).await.starts_with("OK: OK 5/6 MINUTE"));
}

#[tokio::test]
async fn a_window_may_have_any_duration() {
    let yaml = "
domain: edge
descriptors:
  - { key: w, rate_limit: { window: 90s, requests_per_unit: 6 } }
  - { key: m, rate_limit: { unit: minute, unit_multiplier: 5, requests_per_unit: 6 } }
  - { key: t, rate_limit: { window: 90s, requests_per_unit: 6, algorithm: token_bucket } }
";
    let mut client = EnvoyClient::with_config(yaml).await;
    // 1,700,000,000 is 80 seconds into a window of 90, and 200 into one of 300.
    assert_eq!(client.summary(hit("edge", &[&[("w", "v")]])).await, "OK: OK 5/6 UNKNOWN 10s");
    assert_eq!(client.summary(hit("edge", &[&[("m", "v")]])).await, "OK: OK 5/6 UNKNOWN 100s");
    let all = with_hits(hit("edge", &[&[("t", "v")]]), 0, 6);
    assert_eq!(client.summary(all).await, "OK: OK 0/6 UNKNOWN 90s");
    assert_eq!(client.summary(hit("edge", &[&[("t", "v")]])).await, "OVER_LIMIT: OVER_LIMIT 0/6 UNKNOWN 15s");
}

#[tokio::test]
async fn response_headers_are_sent_if_enabled() {
    let headers_and_body = async |options: EnvoyOptions, request| {
        let response = EnvoyClient::connect(service(UNITS, &options)).await.send(request).await.unwrap();
        let fields = response.response_headers_to_add.into_iter().map(|field| format!("{}={}", field.key, field.value));
        (fields.collect::<Vec<_>>().join(" "), response.raw_body.len())
    };
    let with_headers =
        || EnvoyOptions::default().with_headers("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset");
    let two = || with_hits(hit("edge", &[&[("d", "v")], &[("m", "v")]]), 1, 3);
    assert_eq!(headers_and_body(EnvoyOptions::default(), two()).await, (String::new(), 0));
    let expected = "RateLimit-Limit=5 RateLimit-Remaining=2 RateLimit-Reset=40";
    assert_eq!(headers_and_body(with_headers(), two()).await, (expected.to_owned(), 0));
    let over = hit("edge", &[&[("none", "v")], &[("d", "v")]]);
    let expected = "RateLimit-Limit=0 RateLimit-Remaining=0 RateLimit-Reset=40";
    assert_eq!(headers_and_body(with_headers(), over).await, (expected.to_owned(), 0));
    assert_eq!(headers_and_body(with_headers(), hit("edge", &[&[("free", "v")]])).await, (String::new(), 0));
}
