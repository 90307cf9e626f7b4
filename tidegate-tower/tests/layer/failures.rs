//! Failures of the store and of the inner service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use axum::extract::Request;
use http::{Response, StatusCode};
use tidegate::spi::{FailingCall, FailingStore, Fault, Observer};
use tidegate::{Limiter, MemoryStore, OnFailure, Rule, RuleSet, StoreError, StoreErrorKind};
use tidegate_tower::LimitLayer;
use tower::{Layer, Service, ServiceExt};

use crate::layer::{app, burst, limiter, request_with_key, send};

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
    let failures = FailureCount::default();
    let store = FailingStore::new(MemoryStore::new());
    store.fail_if(move |call| {
        let is_adjustment = matches!(call, FailingCall::Apply(_) | FailingCall::SpawnApply(_));
        (is_adjustment || !adjustments_only).then(|| Fault::Error(error.clone()))
    });
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store).with_observer(failures.clone());
    (LimitLayer::new(limiter), failures)
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
