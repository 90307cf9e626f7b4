//! Failures of the store and of the inner service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use http::{Response, StatusCode};
use tidegate::spi::{FailingCall, FailingStore, Fault, Observer};
use tidegate::{Limiter, MemoryStore, OnFailure, Rule, RuleSet, StoreError, StoreErrorKind};
use tidegate_tower::{DegradedMode, LimitLayer};
use tower::{Layer, Service, ServiceExt};

use crate::layer::{TestResponse, app, burst, limiter, request_with_key, send};

/// Counts reported store failures.
#[derive(Clone, Default)]
pub(crate) struct FailureCount(Arc<AtomicU32>);

impl Observer for FailureCount {
    fn store_failed(&self, _: &StoreError) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A layer whose store fails, and the number of failures that its observer sees.
pub(crate) fn failing_layer(
    rules: impl IntoIterator<Item = Rule>,
    adjustments_only: bool,
) -> (LimitLayer<FailingStore>, FailureCount) {
    let error = StoreError::new(StoreErrorKind::Unavailable, "the server went away");
    failing_layer_with(error, rules, adjustments_only)
}

/// The same with this error.
pub(crate) fn failing_layer_with(
    error: StoreError,
    rules: impl IntoIterator<Item = Rule>,
    adjustments_only: bool,
) -> (LimitLayer<FailingStore>, FailureCount) {
    let failures = FailureCount::default();
    let store = FailingStore::new(MemoryStore::new());
    store.fail_if(move |call| {
        let is_adjustment = matches!(call, FailingCall::Apply(_) | FailingCall::SpawnApply(_));
        (is_adjustment || !adjustments_only).then(|| Fault::Error(error.clone()))
    });
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store).with_observer(failures.clone());
    (LimitLayer::new(limiter), failures)
}

/// Sends a request while the store fails. The page shows whether the request is in degraded mode.
async fn send_while_failing(rules: impl IntoIterator<Item = Rule>) -> TestResponse {
    let (layer, failures) = failing_layer(rules, false);
    let page = get(
        async |request: Request| {
            if request.extensions().get::<DegradedMode>().is_some() { "degraded" } else { "normal" }
        },
    );
    let response = send(&Router::new().route("/", page).layer(layer), request_with_key("k1")).await;
    assert_eq!(failures.0.load(Ordering::Relaxed), 1, "the observer sees one failure");
    response
}

#[tokio::test]
async fn an_open_rule_admits_the_request_in_degraded_mode() {
    for policy in [OnFailure::Open, OnFailure::Degraded] {
        let response = send_while_failing([Rule::new("api", burst(0)).with_on_failure(policy)]).await;
        assert_eq!((response.status, response.body.as_str()), (StatusCode::OK, "degraded"));
        assert!(response.headers.keys().all(|name| !name.as_str().contains("ratelimit")), "{response:?}");
    }
}

#[tokio::test]
async fn a_closed_rule_rejects_the_request_with_503() {
    let closed = Rule::new("pay", burst(9)).with_on_failure(OnFailure::Closed);
    let response = send_while_failing([Rule::new("api", burst(9)), closed]).await;
    assert_eq!((response.status, response.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, Some("1")));
    assert_eq!(response.header("retry-after-ms"), Some("1000"));
    assert_eq!(
        (response.header("content-type"), response.header("cache-control")),
        (Some("application/json"), Some("no-store"))
    );
    assert_eq!(response.json()["error"], "temporarily_unavailable");
    assert!(!response.body.contains("went away"), "{response:?}");
}

#[tokio::test]
async fn a_subject_with_other_requests_waiting_is_rejected_with_503() {
    for policy in [OnFailure::Open, OnFailure::Local, OnFailure::Closed] {
        let crowded = StoreError::new(StoreErrorKind::Overloaded, "4096 plans wait").with_crowded();
        let layer = failing_layer_with(crowded, [Rule::new("api", burst(9)).with_on_failure(policy)], false).0;
        let response = send(&app(layer), request_with_key("k1")).await;
        assert_eq!((response.status, response.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, Some("1")));
        assert_eq!(response.json()["error"], "overloaded", "{policy:?}");
    }
}

#[tokio::test]
async fn an_overloaded_instance_decides_by_the_whole_limit_even_if_the_rule_is_open() {
    let overloaded = StoreError::new(StoreErrorKind::Overloaded, "4096 plans wait");
    let rule = Rule::new("api", burst(1)).with_on_failure(OnFailure::Open);
    let app = app(failing_layer_with(overloaded, [rule], false).0);
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_request_without_a_rule_does_not_need_the_store() {
    let (layer, failures) =
        failing_layer([Rule::new("pay", burst(9)).with_action("pay").with_on_failure(OnFailure::Closed)], false);
    assert_eq!(send(&app(layer), request_with_key("k1")).await.status, StatusCode::OK);
    assert_eq!(failures.0.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_failed_cost_correction_does_not_fail_the_response() {
    let (layer, failures) = failing_layer([Rule::new("units", burst(9))], true);
    let response = send(&app(layer.with_actual_cost(|_, _| Some(5))), request_with_key("k1")).await;
    assert_eq!(
        (response.status, response.body.as_str(), response.header("x-ratelimit-limit")),
        (StatusCode::OK, "hello", Some("9"))
    );
    assert_eq!(failures.0.load(Ordering::Relaxed), 1);
}

/// A service that panics if it is called on a clone that did not report ready, as services with a concurrency limit do.
struct ReadinessCheck {
    ready: bool,
}

impl Clone for ReadinessCheck {
    fn clone(&self) -> Self {
        Self { ready: false }
    }
}

impl Service<Request> for ReadinessCheck {
    type Response = Response<String>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called before it was ready");
        let broken = request.headers()["x-key"] == "broken";
        std::future::ready(if broken { Err("broken") } else { Ok(Response::new("hello".into())) })
    }
}

#[tokio::test]
async fn the_service_that_reported_ready_is_called() {
    let mut service = LimitLayer::new(limiter([Rule::new("api", burst(9))])).layer(ReadinessCheck { ready: false });
    for _ in 0..3 {
        let response = service.ready().await.unwrap().call(request_with_key("k1")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn errors_of_the_inner_service_pass_through() {
    let service = LimitLayer::new(limiter([Rule::new("api", burst(9))])).layer(ReadinessCheck { ready: false });
    assert_eq!(service.oneshot(request_with_key("broken")).await.unwrap_err(), "broken");
}
