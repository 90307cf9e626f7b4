//! What is counted for dashboards, and under which names.

use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use tidegate_server::envoy::{ConfigHandle, EnvoyConfig, EnvoyOptions, RateLimits, Stats};

use crate::{Envoy, clock, failures, handle, hit, no_rules, store, with_hits};

const LIMITS: &str = "
domain: edge
descriptors:
  - { key: plain, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - { key: dark, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: user, detailed_metric: true, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - key: route
    value_to_metric: true
    descriptors:
      - { key: method, value: GET, rate_limit: { unit: minute, requests_per_unit: 10 } }
      - { key: address, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - { key: path, value: /a/*, share_threshold: true, detailed_metric: true, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - { key: free, rate_limit: { unlimited: true } }
";

/// A client, and what its server counts.
async fn counting(options: EnvoyOptions, strict: bool) -> (Envoy, Stats) {
    let (stats, options) = (Stats::default(), options.strict(strict));
    let config = EnvoyConfig::parse([("a.yaml", LIMITS)], &options.stats(&stats)).unwrap();
    let service = RateLimits::of_config(handle(no_rules(), store(&clock())), ConfigHandle::new(config));
    (Envoy::of(service.strict(strict).stats(&stats)).await, stats)
}

/// The counters of a limit that are not 0.
fn of(stats: &Stats, name: &str) -> String {
    let prefix = format!("ratelimit.service.rate_limit.{name}.");
    let lines = stats.lines();
    let counted = lines.lines().filter_map(|line| line.strip_prefix(&prefix)).filter(|line| !line.ends_with(": 0"));
    counted.collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn hits_are_split_between_within_near_and_over() {
    for strict in [false, true] {
        let (mut envoy, stats) = counting(EnvoyOptions::default(), strict).await;
        let hits = |hits| with_hits(hit("edge", &[&[("plain", "v")]]), 0, hits);
        envoy.says(hits(7)).await;
        assert_eq!(of(&stats, "edge.plain"), "total_hits: 7, within_limit: 7");
        envoy.says(hits(2)).await;
        assert_eq!(of(&stats, "edge.plain"), "near_limit: 1, total_hits: 9, within_limit: 9");
        // From 9 to 14: four over, and the one before them was near.
        envoy.says(hits(5)).await;
        assert_eq!(of(&stats, "edge.plain"), "near_limit: 2, over_limit: 4, total_hits: 14, within_limit: 9");
        // A look is no hit.
        envoy.says(hits(0)).await;
        assert_eq!(of(&stats, "edge.plain"), "near_limit: 2, over_limit: 4, total_hits: 14, within_limit: 9");
        // In strict mode the refused ones were counted, and all of these are over; otherwise there is still one left.
        envoy.says(hits(3)).await;
        let (near, over) = if strict { (2, 7) } else { (3, 6) };
        let expected = format!("near_limit: {near}, over_limit: {over}, total_hits: 17, within_limit: 9");
        assert_eq!(of(&stats, "edge.plain"), expected);
    }
}

#[tokio::test]
async fn near_is_where_the_share_says() {
    let (mut envoy, stats) = counting(EnvoyOptions::default().near_limit(0.5), false).await;
    envoy.says(with_hits(hit("edge", &[&[("plain", "v")]]), 0, 7)).await;
    assert_eq!(of(&stats, "edge.plain"), "near_limit: 2, total_hits: 7, within_limit: 7");
}

#[tokio::test]
async fn descriptors_of_one_counter_are_counted_one_after_the_other() {
    let (mut envoy, stats) = counting(EnvoyOptions::default(), false).await;
    let both = with_hits(with_hits(hit("edge", &[&[("plain", "v")], &[("plain", "v")]]), 0, 8), 1, 2);
    envoy.says(both).await;
    assert_eq!(of(&stats, "edge.plain"), "near_limit: 2, total_hits: 10, within_limit: 10");
}

#[tokio::test]
async fn what_is_in_shadow_is_counted_as_over_and_apart() {
    for strict in [false, true] {
        let (mut envoy, stats) = counting(EnvoyOptions::default(), strict).await;
        for _ in 0..3 {
            assert!(envoy.says(hit("edge", &[&[("dark", "v")]])).await.starts_with("OK: OK 0/1"));
        }
        let expected = "near_limit: 1, over_limit: 2, shadow_mode: 2, total_hits: 3, within_limit: 1";
        assert_eq!(of(&stats, "edge.dark"), expected);
    }
}

#[tokio::test]
async fn values_of_requests_are_in_names_only_where_the_file_asks_for_it() {
    let (mut envoy, stats) = counting(EnvoyOptions::default(), false).await;
    envoy.says(hit("edge", &[&[("plain", "secret7")], &[("free", "secret7")]])).await;
    envoy.says(hit("edge", &[&[("user", "ann")]])).await;
    envoy.says(hit("edge", &[&[("user", "bob:smith|x")]])).await;
    envoy.says(hit("edge", &[&[("route", "search"), ("method", "GET")]])).await;
    envoy.says(hit("edge", &[&[("route", "203.0.113.9"), ("address", "secret7")]])).await;
    envoy.says(hit("edge", &[&[("path", "/a/one")]])).await;
    envoy.says(hit("edge", &[&[("path", "/a/two")]])).await;
    for name in ["plain", "user_ann", "user_bob_smith_x", "route_search.method_GET", "route_203_0_113_9.address"] {
        assert_eq!(of(&stats, &format!("edge.{name}")), "total_hits: 1, within_limit: 1", "{name}");
    }
    assert_eq!(of(&stats, "edge.path_/a/*"), "total_hits: 2, within_limit: 2");
    assert!(!stats.lines().contains("secret7") && !stats.open_metrics().contains("secret7"));
}

#[tokio::test]
async fn a_limit_of_the_request_counts_where_that_of_the_file_does() {
    let (mut envoy, stats) = counting(EnvoyOptions::default(), false).await;
    for key in ["plain", "unknown"] {
        let mut request = hit("edge", &[&[(key, "secret7")]]);
        let unit = RateLimitUnit::Minute.into();
        request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 3, unit });
        envoy.says(request).await;
    }
    assert_eq!(of(&stats, "edge.plain"), "total_hits: 1, within_limit: 1");
    assert_eq!(of(&stats, "edge.override"), "total_hits: 1, within_limit: 1");
    assert!(!stats.lines().contains("secret7"));
}

#[tokio::test]
async fn requests_errors_and_configurations_are_counted() {
    let (mut envoy, stats) = counting(EnvoyOptions::default(), false).await;
    let has = |line: &str| assert!(stats.lines().lines().any(|known| known == line), "{line}\n{}", stats.lines());
    envoy.says(hit("elsewhere", &[&[("k", "v")], &[("k", "v")]])).await;
    has("ratelimit.service.rate_limit.elsewhere.domain_not_found: 2");
    envoy.ask(hit("", &[&[("k", "v")]])).await.unwrap_err();
    has("ratelimit.service.call.should_rate_limit.service_error: 1");
    has("ratelimit_server.ShouldRateLimit.total_requests: 2");
    has("ratelimit.service.config_load_success: 1");
    let broken = EnvoyConfig::parse([("a.yaml", "limits: 1\n")], &EnvoyOptions::default().stats(&stats));
    assert!(broken.is_err());
    has("ratelimit.service.config_load_error: 1");
    let missing = EnvoyConfig::load("/nowhere/at/all", &EnvoyOptions::default().stats(&stats));
    assert!(missing.is_err());
    has("ratelimit.service.config_load_error: 2");
    let config = ConfigHandle::new(EnvoyConfig::parse([("a.yaml", LIMITS)], &EnvoyOptions::default()).unwrap());
    let gone = RateLimits::of_config(handle(no_rules(), Arc::<failures::Gone>::default()), config).stats(&stats);
    Envoy::of(gone).await.ask(hit("edge", &[&[("plain", "v")]])).await.unwrap_err();
    has("ratelimit.service.call.should_rate_limit.redis_error: 1");
}

#[tokio::test]
async fn counters_outlive_the_configuration() {
    let (stats, options) = (Stats::default(), EnvoyOptions::default());
    let parse = || EnvoyConfig::parse([("a.yaml", LIMITS)], &options.clone().stats(&stats)).unwrap();
    let config = ConfigHandle::new(parse());
    let service = RateLimits::of_config(handle(no_rules(), store(&clock())), config.clone());
    let mut envoy = Envoy::of(service).await;
    envoy.says(hit("edge", &[&[("plain", "v")]])).await;
    config.replace(parse());
    envoy.says(hit("edge", &[&[("plain", "v")]])).await;
    assert_eq!(of(&stats, "edge.plain"), "total_hits: 2, within_limit: 2");
}

#[tokio::test]
async fn prometheus_reads_the_names_of_the_exporter() {
    let (mut envoy, stats) = counting(EnvoyOptions::default(), false).await;
    envoy.says(hit("edge", &[&[("plain", "v")]])).await;
    envoy.says(hit("edge", &[&[("route", "r\"1"), ("address", "a")]])).await;
    let text = stats.open_metrics();
    for line in [
        "# TYPE ratelimit_service_rate_limit_total_hits unknown",
        "ratelimit_service_rate_limit_total_hits{domain=\"edge\",key1=\"plain\"} 1",
        "ratelimit_service_rate_limit_within_limit{domain=\"edge\",key1=\"route_r\\\"1\",key2=\"address\"} 1",
        "ratelimit_service_rate_limit_over_limit{domain=\"edge\",key1=\"plain\"} 0",
        "ratelimit_service_rate_limit_near_limit{domain=\"edge\",key1=\"plain\"} 0",
        "ratelimit_service_rate_limit_shadow_mode{domain=\"edge\",key1=\"plain\"} 0",
        "ratelimit_service_rate_limit_over_limit_with_local_cache{domain=\"edge\",key1=\"plain\"} 0",
        "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 2",
        "# TYPE ratelimit_service_response_time_seconds histogram",
        "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"+Inf\"} 2",
        "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"} 2",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}\n{text}");
    }
    // A family stands together, and its type is said once.
    let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let mut once = types.clone();
    once.dedup();
    assert_eq!(types, once);
}
