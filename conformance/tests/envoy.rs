//! Envoy's rate limit service on every store: hits, negative hits, charges, and the statistics.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use conformance::suite::{AnyStore, StoreFixture, on_every_store};
use serde_json::Value;
use tidegate::{Limiter, RuleSet};
use tidegate_server::envoy::{ConfigHandle, EnvoyConfig, EnvoyOptions, EnvoyService, Stats, router_with_refunds};
use tidegate_tower::Handle;
use tower::ServiceExt;

const LIMITS: &str = "
domain: edge
descriptors:
  - { key: window, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: bucket, rate_limit: { window: 90s, requests_per_unit: 5, algorithm: token_bucket } }
  - { key: tokens, rate_limit: { unit: minute, requests_per_unit: 5, count_refused: true } }
";

const PLAIN: &str = "
domain: edge
descriptors:
  - { key: window, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: dark, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 5 } }
";

/// Longer than any decision, even if this machine is busy.
const NO_TIMEOUT: Duration = Duration::from_secs(60);

struct Envoy {
    service: EnvoyService<AnyStore>,
    stats: Stats,
}

impl Envoy {
    fn new(fixture: &StoreFixture, yaml: &str, strict: bool) -> Self {
        let stats = Stats::default();
        let options = EnvoyOptions::default().with_strict(strict).with_stats(&stats);
        let config = ConfigHandle::new(EnvoyConfig::parse([("edge.yaml", yaml)], &options).unwrap());
        let limiter = Limiter::new(RuleSet::new([]).unwrap(), fixture.store.clone());
        let service = EnvoyService::from_config(Handle::new(limiter), config).with_strict(strict);
        Self { service: service.with_max_decision_time(NO_TIMEOUT), stats }
    }

    /// The code and the remaining hits for each descriptor, given as key and hits; negative hits refund.
    async fn send(&self, descriptors: &[(&str, i64)]) -> String {
        let descriptor = |(key, hits): &(&str, i64)| {
            let (number, back) = (hits.unsigned_abs(), *hits < 0);
            let entries = serde_json::json!([{ "key": key, "value": "v" }]);
            serde_json::json!({ "entries": entries, "hitsAddend": number, "isNegativeHits": back })
        };
        let descriptors: Vec<Value> = descriptors.iter().map(descriptor).collect();
        let body = serde_json::json!({ "domain": "edge", "descriptors": descriptors }).to_string();
        let request = Request::post("/json").body(Body::from(body)).unwrap();
        let response = router_with_refunds(self.service.clone()).oneshot(request).await.unwrap();
        let answer: Value = serde_json::from_slice(&to_bytes(response.into_body(), 1 << 20).await.unwrap()).unwrap();
        let status = |status: &Value| {
            format!("{} {}", status["code"].as_str().unwrap(), status["limitRemaining"].as_u64().unwrap_or_default())
        };
        answer["statuses"].as_array().unwrap().iter().map(status).collect::<Vec<_>>().join(", ")
    }

    fn counted(&self, name: &str) -> String {
        let prefix = format!("ratelimit.service.rate_limit.edge.{name}.");
        let lines = self.stats.lines();
        let lines = lines.lines().filter_map(|line| line.strip_prefix(&prefix)).filter(|line| !line.ends_with(": 0"));
        lines.collect::<Vec<_>>().join(", ")
    }
}

#[tokio::test]
async fn negative_hits_refund_the_current_window() {
    on_every_store(async |fixture| {
        let envoy = Envoy::new(fixture, LIMITS, false);
        for key in ["window", "bucket"] {
            assert_eq!(envoy.send(&[(key, 5)]).await, "OK 0");
            assert_eq!(envoy.send(&[(key, -2)]).await, "OK 2");
            assert_eq!(envoy.send(&[(key, -9)]).await, "OK 5");
            assert_eq!(envoy.send(&[(key, 6)]).await, "OVER_LIMIT 0");
        }
        fixture.clock.advance(Duration::from_secs(60));
        assert_eq!(envoy.send(&[("window", -5)]).await, "OK 5");
        assert_eq!(envoy.send(&[("window", 1), ("window", -1)]).await, "OK 4, OK 5");
    })
    .await;
}

#[tokio::test]
async fn charges_that_do_not_fit_exhaust_the_limit() {
    on_every_store(async |fixture| {
        let envoy = Envoy::new(fixture, LIMITS, false);
        assert_eq!(envoy.send(&[("tokens", 3)]).await, "OK 2");
        // A charge fills only the limits that it exceeds.
        assert_eq!(envoy.send(&[("tokens", 4), ("window", 1)]).await, "OVER_LIMIT 0, OK 5");
        assert_eq!(envoy.send(&[("tokens", 0), ("window", 0)]).await, "OVER_LIMIT 0, OK 5");
        // Without the flag it is the same, since every descriptor has hits of its own.
        assert_eq!(envoy.send(&[("window", 6)]).await, "OVER_LIMIT 0");
        assert_eq!(envoy.send(&[("window", 0)]).await, "OVER_LIMIT 0");
    })
    .await;
}

#[tokio::test]
async fn the_counters_are_exact_in_both_modes() {
    on_every_store(async |fixture| {
        for (strict, key) in [(false, "window"), (true, "dark")] {
            let envoy = Envoy::new(fixture, PLAIN, strict);
            for hits in [3, 4, 1] {
                envoy.send(&[(key, hits)]).await;
            }
            // Near begins after 4. The 3 pass, the 4 use the limit up, and the 1 is over.
            let expected = if strict {
                "near_limit: 1, over_limit: 3, shadow_mode: 3, total_hits: 8, within_limit: 3"
            } else {
                "near_limit: 1, over_limit: 3, total_hits: 8, within_limit: 3"
            };
            assert_eq!(envoy.counted(key), expected);
        }
    })
    .await;
}
