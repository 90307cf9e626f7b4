//! The HTTP twins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use tidegate::spi::Store;
use tidegate_server::envoy::{ConfigHandle, EnvoyOptions, RateLimits, router};
use tower::ServiceExt;

use crate::{clock, failures, handle, no_rules, service, store};

const LIMITS: &str = "
domain: edge
descriptors:
  - { key: k, rate_limit: { unit: minute, requests_per_unit: 2, name: n } }
  - { key: free, rate_limit: { unlimited: true } }
";

async fn ask(router: &Router, request: Request<Body>) -> (StatusCode, String) {
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn post(router: &Router, body: &str) -> (StatusCode, String) {
    ask(router, Request::post("/json").body(body.to_owned().into()).unwrap()).await
}

async fn get(router: &Router, path: &str) -> (StatusCode, String) {
    ask(router, Request::get(path).body(Body::empty()).unwrap()).await
}

fn of<S: Store + 'static>(service: RateLimits<S>) -> Router {
    router(service)
}

#[tokio::test]
async fn json_is_decided_like_the_message_it_stands_for() {
    let router = of(service(LIMITS, &EnvoyOptions::default()));
    let one = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    let expected = r#"{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"n","requestsPerUnit":2,"unit":"MINUTE"},"durationUntilReset":"40s","limitRemaining":1}]}"#;
    let (status, body) = post(&router, one).await;
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!((status, read(&body)), (StatusCode::OK, read(expected)));
    let two = r#"{"domain":"edge","hitsAddend":2,"descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    assert_eq!(post(&router, two).await.0, StatusCode::TOO_MANY_REQUESTS);
    // Both spellings, and numbers as text.
    let own =
        r#"{"domain":"edge","hits_addend":7,"descriptors":[{"entries":[{"key":"k","value":"v"}],"hitsAddend":"1"}]}"#;
    assert_eq!(post(&router, own).await.0, StatusCode::OK);
    let (status, body) = post(&router, one).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert!(body.contains(r#""overallCode":"OVER_LIMIT""#), "{body}");
    let instead = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"k","value":"w"}],"limit":{"requestsPerUnit":9,"unit":"HOUR"}}]}"#;
    assert!(post(&router, instead).await.1.contains(r#"{"requestsPerUnit":9,"unit":"HOUR"}"#));
}

#[tokio::test]
async fn nonsense_is_a_bad_request_and_is_not_repeated() {
    let router = of(service(LIMITS, &EnvoyOptions::default()));
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
        assert_eq!(post(&router, body).await, (StatusCode::BAD_REQUEST, expected.to_owned()), "{body}");
    }
    for body in [
        r#"{"domain":7}"#,
        r#"{"secret7":1}"#,
        r#"{"domain":"d","hitsAddend":-1}"#,
        r#"{"domain":"d","descriptors":"secret7"}"#,
    ] {
        let (status, said) = post(&router, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert!(said.ends_with("this is not a RateLimitRequest in JSON") && !said.contains("secret7"), "{said}");
    }
    let large = format!(r#"{{"domain":"{}"}}"#, "d".repeat(1024 * 1024));
    assert_eq!(post(&router, &large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn a_store_that_fails_is_not_the_fault_of_the_caller() {
    let body = r#"{"domain":"closed","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    assert_eq!(post(&of(failures::by_rules()), body).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(post(&of(failures::by_rules().strict(true)), body).await.0, StatusCode::BAD_REQUEST);
    let open = post(&of(failures::by_rules()), &body.replace("closed", "open")).await;
    assert!(open.0 == StatusCode::OK && open.1.contains("x-tidegate-degraded"), "{open:?}");
}

#[tokio::test]
async fn health_needs_a_configuration_and_what_the_server_says() {
    let well = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&well);
    let service = service(LIMITS, &EnvoyOptions::default()).healthy(move || asked.load(Ordering::Relaxed));
    let router = of(service);
    assert_eq!(get(&router, "/healthcheck").await, (StatusCode::OK, "OK".to_owned()));
    well.store(false, Ordering::Relaxed);
    assert_eq!(get(&router, "/healthcheck").await.0, StatusCode::INTERNAL_SERVER_ERROR);
    let none = RateLimits::of_config(handle(no_rules(), store(&clock())), ConfigHandle::default());
    assert_eq!(get(&of(none), "/healthcheck").await.0, StatusCode::INTERNAL_SERVER_ERROR);
    // Nor is it well without its store.
    assert_eq!(get(&of(failures::by_rules()), "/healthcheck").await.0, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn the_limits_are_listed() {
    let expected = "edge.free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, unlimited: true\n\
                    edge.k: unit=MINUTE requests_per_unit=2, shadow_mode: false, quota_mode: false\n";
    let router = of(service(LIMITS, &EnvoyOptions::default()));
    assert_eq!(get(&router, "/rlconfig").await, (StatusCode::OK, expected.to_owned()));
    let rules = of(RateLimits::of_rules(handle(no_rules(), store(&clock()))));
    assert_eq!(get(&rules, "/rlconfig").await.0, StatusCode::NOT_FOUND);
}
