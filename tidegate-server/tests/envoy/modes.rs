//! Shadow, quota, and limits that replace others.

use tidegate_server::envoy::{EnvoyOptions, Stats};

use crate::{Envoy, hit, service, with_hits};

const MODES: &str = "
domain: edge
descriptors:
  - { key: dark, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: plain, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: quota, value: one, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: quota, value: two, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: all, rate_limit: { unit: minute, requests_per_unit: 1, name: everybody } }
  - { key: vip, rate_limit: { unit: minute, requests_per_unit: 9, replaces: [{ name: everybody }] } }
  - { key: staff, rate_limit: { unlimited: true, replaces: [{ name: everybody }] } }
";

#[tokio::test]
async fn a_limit_in_shadow_tells_its_numbers_and_refuses_nobody() {
    for mut envoy in [Envoy::of_config(MODES).await, Envoy::strict(MODES).await] {
        for _ in 0..3 {
            assert_eq!(envoy.says(hit("edge", &[&[("dark", "v")]])).await, "OK: OK 0/1 MINUTE 40s");
        }
    }
}

#[tokio::test]
async fn quotas_refuse_only_when_all_of_them_are_used_up() {
    let mut envoy = Envoy::of_config(MODES).await;
    let quotas: [&[(&str, &str)]; 2] = [&[("quota", "one")], &[("quota", "two")]];
    let expected = [
        "OK: OK 0/1 MINUTE 40s, OK 1/2 MINUTE 40s",
        "OK: OVER_LIMIT 0/1 MINUTE 40s, OK 0/2 MINUTE 40s",
        "OVER_LIMIT: OVER_LIMIT 0/1 MINUTE 40s, OVER_LIMIT 0/2 MINUTE 40s",
    ];
    for expected in expected {
        assert_eq!(envoy.says(hit("edge", &quotas)).await, expected);
    }
    // A limit beside them stands for itself.
    let beside: [&[(&str, &str)]; 2] = [&[("quota", "one")], &[("plain", "v")]];
    let expected = "OVER_LIMIT: OVER_LIMIT 0/1 MINUTE 40s, OK 1/1 MINUTE 40s";
    assert_eq!(envoy.says(hit("edge", &beside)).await, expected);
}

#[tokio::test]
async fn a_quota_that_only_looks_opens_the_others() {
    let mut envoy = Envoy::of_config(MODES).await;
    assert!(envoy.says(hit("edge", &[&[("quota", "one")]])).await.starts_with("OK:"));
    let quotas = || hit("edge", &[&[("quota", "one")], &[("quota", "two")]]);
    let said = envoy.says(with_hits(quotas(), 1, 0)).await;
    assert_eq!(said, "OK: OVER_LIMIT 0/1 MINUTE 40s, OK 2/2 MINUTE 40s");
}

#[tokio::test]
async fn a_limit_that_is_replaced_neither_counts_nor_refuses() {
    let mut envoy = Envoy::of_config(MODES).await;
    for left in (6..9).rev() {
        let said = envoy.says(hit("edge", &[&[("all", "v")], &[("vip", "v")]])).await;
        assert_eq!(said, format!("OK: OK 0, OK {left}/9 MINUTE 40s"));
    }
    for _ in 0..3 {
        let said = envoy.says(hit("edge", &[&[("staff", "v")], &[("all", "v")]])).await;
        assert_eq!(said, "OK: OK 4294967295, OK 0");
    }
    assert_eq!(envoy.says(hit("edge", &[&[("all", "v")]])).await, "OK: OK 0/1 MINUTE everybody 40s");
    assert_eq!(envoy.says(hit("edge", &[&[("all", "v")]])).await, "OVER_LIMIT: OVER_LIMIT 0/1 MINUTE everybody 40s");
}

#[tokio::test]
async fn the_global_shadow_changes_the_code_of_the_whole_alone() {
    for strict in [false, true] {
        let (stats, options) = (Stats::default(), EnvoyOptions::default().strict(strict));
        let service = service(MODES, &options).strict(strict).shadow(true).stats(&stats);
        let mut envoy = Envoy::of(service).await;
        assert_eq!(envoy.says(hit("edge", &[&[("plain", "v")]])).await, "OK: OK 0/1 MINUTE 40s");
        for _ in 0..2 {
            assert_eq!(envoy.says(hit("edge", &[&[("plain", "v")]])).await, "OK: OVER_LIMIT 0/1 MINUTE 40s");
        }
        assert!(stats.lines().contains("ratelimit.service.global_shadow_mode: 2\n"));
    }
}

#[tokio::test]
async fn rules_can_be_in_the_global_shadow_too() {
    let rules = "
version: 1
rules:
  - { id: edge, match: { action: edge }, per: [], fixed_window: { limit: 1, window: 1m }, on_failure: open }
";
    let file = tidegate_rules::RuleFile::parse("rules.yaml", rules).unwrap();
    let handle = crate::handle(file.rules().clone(), crate::store(&crate::clock()));
    let mut envoy = Envoy::of(tidegate_server::envoy::RateLimits::of_rules(handle).shadow(true)).await;
    assert!(envoy.says(hit("edge", &[&[("k", "v")]])).await.starts_with("OK: OK 0/1"));
    let over = envoy.ask(hit("edge", &[&[("k", "v")]])).await.unwrap();
    assert_eq!(crate::words(&over), "OK: OVER_LIMIT 0/1 MINUTE edge 40s");
    assert!(over.raw_body.is_empty() && over.response_headers_to_add.is_empty(), "it would look refused");
}

#[tokio::test]
async fn every_limit_can_be_a_quota() {
    for strict in [false, true] {
        let options = EnvoyOptions::default().quota(true).strict(strict);
        let mut envoy = Envoy::of(service(MODES, &options).strict(strict)).await;
        let both: [&[(&str, &str)]; 2] = [&[("plain", "v")], &[("quota", "two")]];
        let expected = [
            "OK: OK 0/1 MINUTE 40s, OK 1/2 MINUTE 40s",
            "OK: OVER_LIMIT 0/1 MINUTE 40s, OK 0/2 MINUTE 40s",
            "OVER_LIMIT: OVER_LIMIT 0/1 MINUTE 40s, OVER_LIMIT 0/2 MINUTE 40s",
        ];
        for expected in expected {
            assert_eq!(envoy.says(hit("edge", &both)).await, expected);
        }
    }
}

/// In the reference server, what is in shadow counts like everything else.
#[tokio::test]
async fn in_strict_mode_a_limit_in_shadow_counts_requests_that_others_refuse() {
    let yaml =
        MODES.replace("requests_per_unit: 1 } }\n  - { key: plain", "requests_per_unit: 3 } }\n  - { key: plain");
    let mut envoy = Envoy::strict(&yaml).await;
    let both = || hit("edge", &[&[("dark", "v")], &[("plain", "v")]]);
    let expected = [
        "OK: OK 2/3 MINUTE 40s, OK 0/1 MINUTE 40s",
        "OVER_LIMIT: OK 1/3 MINUTE 40s, OVER_LIMIT 0/1 MINUTE 40s",
        "OVER_LIMIT: OK 0/3 MINUTE 40s, OVER_LIMIT 0/1 MINUTE 40s",
        "OVER_LIMIT: OK 0/3 MINUTE 40s, OVER_LIMIT 0/1 MINUTE 40s",
    ];
    for expected in expected {
        assert_eq!(envoy.says(both()).await, expected);
    }
    assert_eq!(envoy.says(hit("edge", &[&[("dark", "v")]])).await, "OK: OK 0/3 MINUTE 40s");
}

#[tokio::test]
async fn in_strict_mode_quotas_refuse_only_when_all_of_them_are_used_up() {
    let mut envoy = Envoy::strict(MODES).await;
    let quotas: [&[(&str, &str)]; 2] = [&[("quota", "one")], &[("quota", "two")]];
    let expected = [
        "OK: OK 0/1 MINUTE 40s, OK 1/2 MINUTE 40s",
        "OK: OVER_LIMIT 0/1 MINUTE 40s, OK 0/2 MINUTE 40s",
        "OVER_LIMIT: OVER_LIMIT 0/1 MINUTE 40s, OVER_LIMIT 0/2 MINUTE 40s",
    ];
    for expected in expected {
        assert_eq!(envoy.says(hit("edge", &quotas)).await, expected);
    }
}
