//! When the store fails, and when the inner service does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use http::{Response, StatusCode};
use tidegate::spi::{Adjustment, Key, Observer, Plan, Store, Verdict};
use tidegate::{Limiter, MemoryStore, OnFailure, Rule, RuleSet, StoreError, StoreErrorKind};
use tidegate_tower::{Degraded, LimitLayer};
use tower::{Layer, Service, ServiceExt};

use crate::{Heard, app, ask, at_once, from, limiter};

/// A store whose server went away: every call fails, or only corrections do.
pub(crate) struct Failing {
    store: MemoryStore,
    corrections_only: bool,
}

impl Failing {
    fn error() -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable, "the server went away")
    }
}

impl Store for Failing {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        if self.corrections_only { self.store.decide(plan).await } else { Err(Self::error()) }
    }

    async fn adjust(&self, _: &[Adjustment<'_>]) -> Result<(), StoreError> {
        Err(Self::error())
    }

    fn adjust_soon(&self, _: &[Adjustment<'_>]) {}

    async fn forget(&self, _: &[Key<'_>]) -> Result<(), StoreError> {
        Err(Self::error())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Err(Self::error())
    }
}

/// Counts failures.
#[derive(Clone, Default)]
pub(crate) struct Failures(Arc<AtomicU32>);

impl Observer for Failures {
    fn store_failed(&self, _: &StoreError) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn failing(
    rules: impl IntoIterator<Item = Rule>,
    corrections_only: bool,
) -> (LimitLayer<Failing>, Failures) {
    let failures = Failures::default();
    let store = Failing { store: MemoryStore::new(), corrections_only };
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store).with_observer(failures.clone());
    (LimitLayer::new(limiter), failures)
}

/// What comes of a request while the store of these rules fails. The page says whether it was told.
async fn while_failing(rules: impl IntoIterator<Item = Rule>) -> Heard {
    let (layer, failures) = failing(rules, false);
    let page = get(
        async |request: Request| {
            if request.extensions().get::<Degraded>().is_some() { "less" } else { "everything" }
        },
    );
    let heard = ask(&Router::new().route("/", page).layer(layer), from("k1")).await;
    assert_eq!(failures.0.load(Ordering::Relaxed), 1, "the observer sees the failure, once");
    heard
}

#[tokio::test]
async fn an_open_rule_lets_pass_and_the_application_is_told() {
    for policy in [OnFailure::Open, OnFailure::Degraded] {
        let heard = while_failing([Rule::new("api", at_once(0)).with_on_failure(policy)]).await;
        assert_eq!((heard.status, heard.body.as_str()), (StatusCode::OK, "less"));
        assert!(heard.headers.keys().all(|name| !name.as_str().contains("ratelimit")), "{heard:?}");
    }
}

#[tokio::test]
async fn a_closed_rule_refuses_as_a_failure_of_ours() {
    let closed = Rule::new("pay", at_once(9)).with_on_failure(OnFailure::Closed);
    let heard = while_failing([Rule::new("api", at_once(9)), closed]).await;
    assert_eq!((heard.status, heard.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, Some("1")));
    assert_eq!(
        (heard.header("content-type"), heard.header("cache-control")),
        (Some("application/json"), Some("no-store"))
    );
    assert_eq!(heard.json()["error"], "temporarily_unavailable");
    assert!(!heard.body.contains("went away"), "{heard:?}");
}

#[tokio::test]
async fn a_request_that_no_rule_applies_to_does_not_need_the_store() {
    let (layer, failures) =
        failing([Rule::new("pay", at_once(9)).with_action("pay").with_on_failure(OnFailure::Closed)], false);
    assert_eq!(ask(&app(layer), from("k1")).await.status, StatusCode::OK);
    assert_eq!(failures.0.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_correction_that_fails_does_not_fail_the_answer() {
    let (layer, failures) = failing([Rule::new("units", at_once(9))], true);
    let heard = ask(&app(layer.settle(|_, _| Some(5))), from("k1")).await;
    assert_eq!(
        (heard.status, heard.body.as_str(), heard.header("x-ratelimit-limit")),
        (StatusCode::OK, "hello", Some("9"))
    );
    assert_eq!(failures.0.load(Ordering::Relaxed), 1);
}

/// A service that can be called only on the clone that said it is ready, as those with a limit of their own are.
struct Picky {
    ready: bool,
}

impl Clone for Picky {
    fn clone(&self) -> Self {
        Self { ready: false }
    }
}

impl Service<Request> for Picky {
    type Response = Response<String>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        let broken = request.headers()["x-key"] == "broken";
        std::future::ready(if broken { Err("broken") } else { Ok(Response::new("hello".into())) })
    }
}

#[tokio::test]
async fn the_service_that_is_ready_is_the_one_that_is_called() {
    let mut service = LimitLayer::new(limiter([Rule::new("api", at_once(9))])).layer(Picky { ready: false });
    for _ in 0..3 {
        let response = service.ready().await.unwrap().call(from("k1")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn errors_of_the_inner_service_pass_through() {
    let service = LimitLayer::new(limiter([Rule::new("api", at_once(9))])).layer(Picky { ready: false });
    assert_eq!(service.oneshot(from("broken")).await.unwrap_err(), "broken");
}
