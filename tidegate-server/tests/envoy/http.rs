//! The HTTP endpoints: `/json`, `/healthcheck` and `/rlconfig`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use tidegate_server::envoy::{ConfigHandle, EnvoyOptions, EnvoyService, router, router_with_refunds};
use tower::ServiceExt;

use crate::envoy::{clock, handle, no_rules, service, store, store_failures};

const LIMITS: &str = "
domain: edge
descriptors:
  - { key: k, rate_limit: { unit: minute, requests_per_unit: 2, name: n } }
  - { key: free, rate_limit: { unlimited: true } }
";

async fn send(app: &Router, request: Request<Body>) -> (StatusCode, String) {
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn post(app: &Router, body: &str) -> (StatusCode, String) {
    send(app, Request::post("/json").body(body.to_owned().into()).unwrap()).await
}

async fn get(app: &Router, path: &str) -> (StatusCode, String) {
    send(app, Request::get(path).body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn a_json_request_is_decided_like_a_grpc_request() {
    let app = router(service(LIMITS, &EnvoyOptions::default()));
    let one = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    let expected = r#"{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"n","requestsPerUnit":2,"unit":"MINUTE"},"durationUntilReset":"40s","limitRemaining":1}]}"#;
    let (status, body) = post(&app, one).await;
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!((status, parse(&body)), (StatusCode::OK, parse(expected)));
    let two = r#"{"domain":"edge","hitsAddend":2,"descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    assert_eq!(post(&app, two).await.0, StatusCode::TOO_MANY_REQUESTS);
    // Camel case and snake case, and numbers as text.
    let own =
        r#"{"domain":"edge","hits_addend":7,"descriptors":[{"entries":[{"key":"k","value":"v"}],"hitsAddend":"1"}]}"#;
    assert_eq!(post(&app, own).await.0, StatusCode::OK);
    let (status, body) = post(&app, one).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert!(body.contains(r#""overallCode":"OVER_LIMIT""#), "{body}");
    let with_override = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"k","value":"w"}],"limit":{"requestsPerUnit":9,"unit":"HOUR"}}]}"#;
    assert!(post(&app, with_override).await.1.contains(r#"{"requestsPerUnit":9,"unit":"HOUR"}"#));
}

/// Anyone who reaches the address could send them, and there is no receipt that proves a take.
#[tokio::test]
async fn hits_are_given_back_in_json_only_where_that_is_switched_on() {
    let request =
        |more: &str| format!(r#"{{"domain":"edge","descriptors":[{{"entries":[{{"key":"k","value":"v"}}]{more}}}]}}"#);
    for (app, status, passes) in [
        (router(service(LIMITS, &EnvoyOptions::default())), StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS),
        (router_with_refunds(service(LIMITS, &EnvoyOptions::default())), StatusCode::OK, StatusCode::OK),
    ] {
        assert_eq!(post(&app, &request(r#","hitsAddend":2"#)).await.0, StatusCode::OK);
        for name in ["isNegativeHits", "is_negative_hits"] {
            assert_eq!(post(&app, &request(&format!(r#","hitsAddend":1,"{name}":true"#))).await.0, status);
        }
        assert_eq!(post(&app, &request("")).await.0, passes);
    }
}

#[tokio::test]
async fn a_malformed_request_gets_400_without_its_values() {
    let app = router(service(LIMITS, &EnvoyOptions::default()));
    let cases = [
        ("", "line 1, column 0: this is not JSON"),
        ("{\"domain\":", "line 1, column 10: this is not JSON"),
        ("[]", "line 1, column 1: a RateLimitRequest is an object"),
        ("{}", "rate limit domain must not be empty"),
        (r#"{"domain":"edge"}"#, "rate limit descriptor list must not be empty"),
        (r#"{"domain":"edge","hitsAddend":4294967296,"descriptors":[{}]}"#, "hits_addend: at most 4294967295"),
        (r#"{"domain":"d","descriptors":[{"limit":{"unit":"EON"}}]}"#, "limit.unit: send one from SECOND to YEAR"),
    ];
    for (body, expected) in cases {
        assert_eq!(post(&app, body).await, (StatusCode::BAD_REQUEST, expected.to_owned()), "{body}");
    }
    for body in [
        r#"{"domain":7}"#,
        r#"{"secret7":1}"#,
        r#"{"domain":"d","hitsAddend":-1}"#,
        r#"{"domain":"d","descriptors":"secret7"}"#,
    ] {
        let (status, summary) = post(&app, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert!(
            summary.ends_with("this is not a RateLimitRequest in JSON") && !summary.contains("secret7"),
            "{summary}"
        );
    }
    let large = format!(r#"{{"domain":"{}"}}"#, "d".repeat(1024 * 1024));
    assert_eq!(post(&app, &large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn a_store_failure_gives_503_or_400_in_strict_mode() {
    let body = r#"{"domain":"closed","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    assert_eq!(post(&router(store_failures::service_with_rules()), body).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        post(&router(store_failures::service_with_rules().with_strict(true)), body).await.0,
        StatusCode::BAD_REQUEST
    );
    let open = post(&router(store_failures::service_with_rules()), &body.replace("closed", "open")).await;
    assert!(open.0 == StatusCode::OK && open.1.contains("x-tidegate-degraded"), "{open:?}");
}

#[tokio::test]
async fn the_health_check_requires_a_configuration_a_store_and_a_healthy_server() {
    let is_healthy = Arc::new(AtomicBool::new(true));
    let health = Arc::clone(&is_healthy);
    let service = service(LIMITS, &EnvoyOptions::default()).with_health_check(move || health.load(Ordering::Relaxed));
    let app = router(service);
    assert_eq!(get(&app, "/healthcheck").await, (StatusCode::OK, "OK".to_owned()));
    is_healthy.store(false, Ordering::Relaxed);
    assert_eq!(get(&app, "/healthcheck").await.0, StatusCode::INTERNAL_SERVER_ERROR);
    let none = EnvoyService::from_config(handle(no_rules(), store(&clock())), ConfigHandle::default());
    assert_eq!(get(&router(none), "/healthcheck").await.0, StatusCode::INTERNAL_SERVER_ERROR);
    // Unhealthy without the store.
    assert_eq!(
        get(&router(store_failures::service_with_rules()), "/healthcheck").await.0,
        StatusCode::INTERNAL_SERVER_ERROR
    );
}

#[tokio::test]
async fn rlconfig_lists_the_limits() {
    let expected = "edge.free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, unlimited: true\n\
                    edge.k: unit=MINUTE requests_per_unit=2, shadow_mode: false, quota_mode: false\n";
    let app = router(service(LIMITS, &EnvoyOptions::default()));
    assert_eq!(get(&app, "/rlconfig").await, (StatusCode::OK, expected.to_owned()));
    let rules = router(EnvoyService::from_rules(handle(no_rules(), store(&clock()))));
    assert_eq!(get(&rules, "/rlconfig").await.0, StatusCode::NOT_FOUND);
}
