//! Responses while the store fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use tidegate::spi::{FailingStore, Fault, Observer, Plan};
use tidegate::{Decision, Limiter, MemoryStore, StoreError, StoreErrorKind};
use tidegate_rules::RuleFile;
use tidegate_server::envoy::{ConfigHandle, EnvoyService, router};
use tidegate_tower::LimitLayer;
use tonic::Code;
use tower::ServiceExt;

use crate::envoy::{EnvoyClient, config_files, handle, hit, no_rules, with_hits};

/// A store that always fails.
pub(crate) fn unavailable_store() -> FailingStore {
    FailingStore::failing_with(StoreError::new(StoreErrorKind::Unavailable, "10.0.0.7 is unreachable"))
}

/// A store for which too many plans wait.
fn overloaded_store() -> FailingStore {
    FailingStore::failing_with(StoreError::new(StoreErrorKind::Overloaded, "4096 plans wait"))
}

/// The same, where the subject has other plans waiting.
fn crowded_store() -> FailingStore {
    FailingStore::failing_with(StoreError::new(StoreErrorKind::Overloaded, "4096 plans wait").with_crowded())
}

/// A store that never answers.
fn silent_store() -> FailingStore {
    let store = FailingStore::new(MemoryStore::new());
    store.fail_if(|_| Some(Fault::Silence));
    store
}

const RULES: &str = "
version: 1
rules:
  - id: open
    match: { action: open }
    fixed_window: { limit: 3, window: 1m }
    per: []
    on_failure: open
  - id: closed
    match: { action: closed }
    per: []
    fixed_window: { limit: 3, window: 1m }
    on_failure: closed
  - id: local
    match: { action: local }
    per: []
    token_bucket: { capacity: 2, refill: 1/h }
    on_failure: local
";

pub(crate) fn service_with_rules() -> EnvoyService<FailingStore> {
    let file = RuleFile::parse("rules.yaml", RULES).unwrap();
    EnvoyService::from_rules(handle(file.rules().clone(), unavailable_store()))
}

/// Envoy waits 20 ms by default; the failure policies of the rules apply before.
#[tokio::test]
async fn a_store_that_hangs_does_not_exceed_the_timeout_of_envoy() {
    let file = RuleFile::parse("rules.yaml", RULES).unwrap();
    let hanging = EnvoyService::from_rules(handle(file.rules().clone(), silent_store()));
    let mut client = EnvoyClient::connect(hanging).await;
    for hits in [0, 1] {
        let response = client.send(with_hits(hit("open", &[&[("k", "v")]]), 0, hits)).await.unwrap();
        assert_eq!(response.request_headers_to_add[0].key, "x-tidegate-degraded");
    }
    assert_eq!(client.send(hit("closed", &[&[("k", "v")]])).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_local_rule_is_decided_by_the_instance_and_shows_no_numbers() {
    let mut client = EnvoyClient::connect(service_with_rules()).await;
    let local = || hit("local", &[&[("k", "v")]]);
    for _ in 0..2 {
        let response = client.send(local()).await.unwrap();
        assert_eq!(crate::envoy::summarize(&response), "OK: OK 0");
        assert_eq!(response.request_headers_to_add[0].key, "x-tidegate-degraded");
    }
    let denied = client.send(local()).await.unwrap();
    assert_eq!(crate::envoy::summarize(&denied), "OVER_LIMIT: OVER_LIMIT 0");
    // A peek gives the same result, and consumes nothing.
    let peeked = client.send(with_hits(local(), 0, 0)).await.unwrap();
    assert_eq!(crate::envoy::summarize(&peeked), "OVER_LIMIT: OVER_LIMIT 0");
    assert!(denied.statuses[0].current_limit.is_none() && denied.request_headers_to_add.is_empty());
    let names: Vec<&str> = denied.response_headers_to_add.iter().map(|header| header.key.as_str()).collect();
    assert_eq!(names, ["retry-after", "retry-after-ms", "content-type", "cache-control"]);
}

#[tokio::test]
async fn a_closed_rule_gives_an_error_so_that_the_failure_mode_of_envoy_applies() {
    let expected = "the limits cannot be checked at the moment; retry later";
    let mut client = EnvoyClient::connect(service_with_rules()).await;
    let status = client.send(hit("closed", &[&[("k", "v")]])).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, expected));
    // A request without a rule needs no store.
    assert_eq!(client.summary(hit("free", &[&[("k", "v")]])).await, "OK: OK 0");
}

#[tokio::test]
async fn every_limit_of_an_envoy_configuration_fails_closed() {
    let config = || {
        let text = "domain: edge\ndescriptors:\n  - { key: k, rate_limit: { unit: day, requests_per_unit: 1 } }\n";
        ConfigHandle::new(config_files::parse(text).unwrap())
    };
    for (strict, code) in [(false, Code::Unavailable), (true, Code::Unknown)] {
        let service = EnvoyService::from_config(handle(no_rules(), unavailable_store()), config()).with_strict(strict);
        let mut client = EnvoyClient::connect(service).await;
        assert_eq!(client.send(hit("edge", &[&[("k", "v")]])).await.unwrap_err().code(), code);
        assert_eq!(client.summary(hit("edge", &[&[("other", "v")]])).await, "OK: OK 0");
    }
}

/// Envoy lets requests pass after an error, so that a client who overloads the server would pass without a limit.
#[tokio::test]
async fn a_subject_with_other_requests_waiting_is_over_its_limit_and_no_error() {
    let file = RuleFile::parse("rules.yaml", RULES).unwrap();
    let by_rules = || EnvoyService::from_rules(handle(file.rules().clone(), crowded_store()));
    let mut client = EnvoyClient::connect(by_rules()).await;
    for domain in ["open", "closed", "local"] {
        for hits in [0, 1] {
            let response = client.send(with_hits(hit(domain, &[&[("k", "v")]]), 0, hits)).await.unwrap();
            assert_eq!(crate::envoy::summarize(&response), "OVER_LIMIT: OVER_LIMIT 0", "{domain}");
            let retry = &response.response_headers_to_add[0];
            assert_eq!((retry.key.as_str(), retry.value.as_str()), ("retry-after", "1"));
            assert!(response.raw_body.starts_with(br#"{"error":"overloaded","#), "{response:?}");
        }
    }
    let openai = RuleFile::parse("rules.yaml", &format!("{RULES}http: {{ error_format: openai }}\n")).unwrap();
    let mut client =
        EnvoyClient::connect(EnvoyService::from_rules(handle(openai.rules().clone(), crowded_store()))).await;
    let response = client.send(hit("open", &[&[("k", "v")]])).await.unwrap();
    assert!(
        response.raw_body.ends_with(br#","type":"overloaded_error","param":null,"code":"overloaded"}}"#),
        "{response:?}"
    );
    let mut shadow = EnvoyClient::connect(by_rules().with_shadow(true)).await;
    assert_eq!(shadow.summary(hit("open", &[&[("k", "v")]])).await, "OK: OVER_LIMIT 0");
    let text = "domain: edge\ndescriptors:\n  - { key: k, rate_limit: { unit: day, requests_per_unit: 1 } }\n";
    for strict in [false, true] {
        let config = ConfigHandle::new(config_files::parse(text).unwrap());
        let service = EnvoyService::from_config(handle(no_rules(), crowded_store()), config).with_strict(strict);
        let summary = EnvoyClient::connect(service).await.summary(hit("edge", &[&[("k", "v")]])).await;
        assert_eq!(summary, "OVER_LIMIT: OVER_LIMIT 0", "strict: {strict}");
    }
}

/// Limits of a configuration leave failures to Envoy, which lets everything pass by default. An overload is none.
#[tokio::test]
async fn while_overloaded_the_limits_of_a_configuration_are_applied_by_the_instance() {
    let text = "domain: edge\ndescriptors:\n  - { key: k, rate_limit: { unit: day, requests_per_unit: 2 } }\n";
    for strict in [false, true] {
        let config = ConfigHandle::new(config_files::parse(text).unwrap());
        let service = EnvoyService::from_config(handle(no_rules(), overloaded_store()), config).with_strict(strict);
        let mut client = EnvoyClient::connect(service).await;
        for expected in ["OK: OK 0", "OK: OK 0", "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0"] {
            assert_eq!(client.summary(hit("edge", &[&[("k", "v")]])).await, expected, "strict: {strict}");
        }
    }
}

/// Counts what a limiter reports.
#[derive(Default)]
struct CountingObserver {
    store_failures: AtomicU32,
    decisions: AtomicU32,
}

impl CountingObserver {
    fn counts(&self) -> (u32, u32) {
        (self.store_failures.load(Ordering::Relaxed), self.decisions.load(Ordering::Relaxed))
    }
}

impl Observer for CountingObserver {
    fn decided(&self, _: &Plan<'_>, _: &Decision) {
        self.decisions.fetch_add(1, Ordering::Relaxed);
    }

    fn store_failed(&self, _: &StoreError) {
        self.store_failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// The service calls the store through the limiter only, so that the observer sees failed peeks, refunds and health checks too.
#[tokio::test]
async fn the_observer_sees_each_failed_call_to_the_store_once() {
    let observer = Arc::new(CountingObserver::default());
    let rules = RuleFile::parse("rules.yaml", RULES).unwrap().rules().clone();
    let limiter = Limiter::new(rules, unavailable_store()).with_observer(Arc::clone(&observer));
    let service = EnvoyService::from_rules(LimitLayer::new(limiter).handle());
    let mut client = EnvoyClient::connect(service.clone()).await;
    let open = || hit("open", &[&[("k", "v")]]);
    let mut refund = open();
    refund.descriptors[0].is_negative_hits = true;
    let cases = [("hits", open()), ("a peek", with_hits(open(), 0, 0)), ("a refund", refund)];
    for (number, (case, request)) in (1..).zip(cases) {
        assert_eq!(client.summary(request).await, "OK: OK 0", "{case}");
        assert_eq!(observer.counts().0, number, "{case}");
    }
    assert_eq!(observer.counts(), (3, 3), "each request was decided by the fallback");
    let health_check = Request::get("/healthcheck").body(Body::empty()).unwrap();
    assert_eq!(router(service).oneshot(health_check).await.unwrap().status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(observer.counts(), (4, 3));
}
