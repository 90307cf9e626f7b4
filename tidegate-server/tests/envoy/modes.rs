//! Shadow, quota, and limits that replace others.

use crate::{Envoy, hit, with_hits};

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
