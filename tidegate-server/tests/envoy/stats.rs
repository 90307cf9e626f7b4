//! Statistics: what is counted, under which names.

use tidegate_server::envoy::messages::{RateLimitOverride, RateLimitUnit};
use tidegate_server::envoy::{ConfigHandle, EnvoyConfig, EnvoyOptions, EnvoyService, Stats};

use crate::envoy::{EnvoyClient, clock, handle, hit, no_rules, store, store_failures, with_hits};

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

/// A client, and the statistics of its server.
async fn client_with_stats(options: EnvoyOptions, strict: bool) -> (EnvoyClient, Stats) {
    let (stats, options) = (Stats::default(), options.with_strict(strict));
    let config = EnvoyConfig::parse([("a.yaml", LIMITS)], &options.with_stats(&stats)).unwrap();
    let service = EnvoyService::from_config(handle(no_rules(), store(&clock())), ConfigHandle::new(config));
    (EnvoyClient::connect(service.with_strict(strict).with_stats(&stats)).await, stats)
}

/// The non-zero counters of a limit.
fn nonzero_counters(stats: &Stats, name: &str) -> String {
    let prefix = format!("ratelimit.service.rate_limit.{name}.");
    let lines = stats.lines();
    let counters = lines.lines().filter_map(|line| line.strip_prefix(&prefix)).filter(|line| !line.ends_with(": 0"));
    counters.collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn hits_are_split_between_within_near_and_over() {
    for strict in [false, true] {
        let (mut client, stats) = client_with_stats(EnvoyOptions::default(), strict).await;
        let hits = |hits| with_hits(hit("edge", &[&[("plain", "v")]]), 0, hits);
        client.summary(hits(7)).await;
        assert_eq!(nonzero_counters(&stats, "edge.plain"), "total_hits: 7, within_limit: 7");
        client.summary(hits(2)).await;
        assert_eq!(nonzero_counters(&stats, "edge.plain"), "near_limit: 1, total_hits: 9, within_limit: 9");
        // From 9 to 14: four over, and the one before them was near.
        client.summary(hits(5)).await;
        assert_eq!(
            nonzero_counters(&stats, "edge.plain"),
            "near_limit: 2, over_limit: 4, total_hits: 14, within_limit: 9"
        );
        // A peek is not counted.
        client.summary(hits(0)).await;
        assert_eq!(
            nonzero_counters(&stats, "edge.plain"),
            "near_limit: 2, over_limit: 4, total_hits: 14, within_limit: 9"
        );
        // The denied hits filled the window, so all of these are over.
        client.summary(hits(3)).await;
        assert_eq!(
            nonzero_counters(&stats, "edge.plain"),
            "near_limit: 2, over_limit: 7, total_hits: 17, within_limit: 9"
        );
    }
}

#[tokio::test]
async fn the_near_limit_ratio_is_configurable() {
    let (mut client, stats) = client_with_stats(EnvoyOptions::default().with_near_limit(0.5), false).await;
    client.summary(with_hits(hit("edge", &[&[("plain", "v")]]), 0, 7)).await;
    assert_eq!(nonzero_counters(&stats, "edge.plain"), "near_limit: 2, total_hits: 7, within_limit: 7");
}

#[tokio::test]
async fn descriptors_with_the_same_counter_are_counted_in_order() {
    let (mut client, stats) = client_with_stats(EnvoyOptions::default(), false).await;
    let both = with_hits(with_hits(hit("edge", &[&[("plain", "v")], &[("plain", "v")]]), 0, 8), 1, 2);
    client.summary(both).await;
    assert_eq!(nonzero_counters(&stats, "edge.plain"), "near_limit: 2, total_hits: 10, within_limit: 10");
}

#[tokio::test]
async fn hits_in_shadow_mode_count_as_over_limit_and_as_shadow() {
    for strict in [false, true] {
        let (mut client, stats) = client_with_stats(EnvoyOptions::default(), strict).await;
        for _ in 0..3 {
            assert!(client.summary(hit("edge", &[&[("dark", "v")]])).await.starts_with("OK: OK 0/1"));
        }
        let expected = "near_limit: 1, over_limit: 2, shadow_mode: 2, total_hits: 3, within_limit: 1";
        assert_eq!(nonzero_counters(&stats, "edge.dark"), expected);
    }
}

#[tokio::test]
async fn metric_names_contain_request_values_only_if_configured() {
    let (mut client, stats) = client_with_stats(EnvoyOptions::default(), false).await;
    client.summary(hit("edge", &[&[("plain", "secret7")], &[("free", "secret7")]])).await;
    client.summary(hit("edge", &[&[("user", "ann")]])).await;
    client.summary(hit("edge", &[&[("user", "bob:smith|x")]])).await;
    client.summary(hit("edge", &[&[("route", "search"), ("method", "GET")]])).await;
    client.summary(hit("edge", &[&[("route", "203.0.113.9"), ("address", "secret7")]])).await;
    client.summary(hit("edge", &[&[("path", "/a/one")]])).await;
    client.summary(hit("edge", &[&[("path", "/a/two")]])).await;
    for name in ["plain", "user_ann", "user_bob_smith_x", "route_search.method_GET", "route_203_0_113_9.address"] {
        assert_eq!(nonzero_counters(&stats, &format!("edge.{name}")), "total_hits: 1, within_limit: 1", "{name}");
    }
    assert_eq!(nonzero_counters(&stats, "edge.path_/a/*"), "total_hits: 2, within_limit: 2");
    assert!(!stats.lines().contains("secret7") && !stats.open_metrics().contains("secret7"));
}

#[tokio::test]
async fn an_override_is_counted_under_the_name_of_the_configured_limit() {
    let (mut client, stats) = client_with_stats(EnvoyOptions::default(), false).await;
    for key in ["plain", "unknown"] {
        let mut request = hit("edge", &[&[(key, "secret7")]]);
        let unit = RateLimitUnit::Minute.into();
        request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 3, unit });
        client.summary(request).await;
    }
    assert_eq!(nonzero_counters(&stats, "edge.plain"), "total_hits: 1, within_limit: 1");
    assert_eq!(nonzero_counters(&stats, "edge.override"), "total_hits: 1, within_limit: 1");
    assert!(!stats.lines().contains("secret7"));
}

#[tokio::test]
async fn requests_errors_and_configurations_are_counted() {
    let (mut client, stats) = client_with_stats(EnvoyOptions::default(), false).await;
    let has = |line: &str| assert!(stats.lines().lines().any(|other| other == line), "{line}\n{}", stats.lines());
    client.summary(hit("elsewhere", &[&[("k", "v")], &[("k", "v")]])).await;
    has("ratelimit.service.rate_limit.elsewhere.domain_not_found: 2");
    client.send(hit("", &[&[("k", "v")]])).await.unwrap_err();
    has("ratelimit.service.call.should_rate_limit.service_error: 1");
    has("ratelimit_server.ShouldRateLimit.total_requests: 2");
    has("ratelimit.service.config_load_success: 1");
    let broken = EnvoyConfig::parse([("a.yaml", "limits: 1\n")], &EnvoyOptions::default().with_stats(&stats));
    assert!(broken.is_err());
    has("ratelimit.service.config_load_error: 1");
    let missing = EnvoyConfig::load("/nowhere/at/all", &EnvoyOptions::default().with_stats(&stats));
    assert!(missing.is_err());
    has("ratelimit.service.config_load_error: 2");
    let config = ConfigHandle::new(EnvoyConfig::parse([("a.yaml", LIMITS)], &EnvoyOptions::default()).unwrap());
    let failing =
        EnvoyService::from_config(handle(no_rules(), store_failures::unavailable_store()), config).with_stats(&stats);
    EnvoyClient::connect(failing).await.send(hit("edge", &[&[("plain", "v")]])).await.unwrap_err();
    has("ratelimit.service.call.should_rate_limit.redis_error: 1");
}

#[tokio::test]
async fn statistics_survive_a_new_configuration() {
    let (stats, options) = (Stats::default(), EnvoyOptions::default());
    let parse = || EnvoyConfig::parse([("a.yaml", LIMITS)], &options.clone().with_stats(&stats)).unwrap();
    let config = ConfigHandle::new(parse());
    let service = EnvoyService::from_config(handle(no_rules(), store(&clock())), config.clone());
    let mut client = EnvoyClient::connect(service).await;
    client.summary(hit("edge", &[&[("plain", "v")]])).await;
    config.replace(parse());
    client.summary(hit("edge", &[&[("plain", "v")]])).await;
    assert_eq!(nonzero_counters(&stats, "edge.plain"), "total_hits: 2, within_limit: 2");
}

#[tokio::test]
async fn open_metrics_has_the_names_of_the_statsd_exporter() {
    let (mut client, stats) = client_with_stats(EnvoyOptions::default(), false).await;
    client.summary(hit("edge", &[&[("plain", "v")]])).await;
    client.summary(hit("edge", &[&[("route", "r\"1"), ("address", "a")]])).await;
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
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
    // Each family is contiguous and has one type line.
    let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let mut once = types.clone();
    once.dedup();
    assert_eq!(types, once);
}
