//! Reservations that handlers hold.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use tidegate::grants::{Costs, GrantError};
use tidegate::{Ending, MemoryStore, Request, Rule};
use tidegate_tower::{Handle, LimitLayer};
use tokio::sync::Notify;

use crate::layer::{burst, limiter, request_with_key, send};

type Limits = Handle<Arc<MemoryStore>>;

/// 100 requests, and 1,000 tokens of the action `complete`.
fn limits() -> (LimitLayer<Arc<MemoryStore>>, Limits) {
    let tokens = Rule::new("tokens", burst(1_000)).with_action("complete");
    let layer = LimitLayer::new(limiter([Rule::new("requests", burst(100)).with_action("page"), tokens]));
    let layer = layer.with_action("page");
    let handle = layer.handle();
    (layer, handle)
}

fn work() -> Request<'static> {
    Request::new("complete").with_cost(400)
}

/// The tokens that are left, and the open reservations.
async fn tokens(limits: &Limits) -> (u64, u64) {
    let limiter = limits.limiter();
    let outstanding = limiter.outstanding(&work()).await.unwrap();
    (limiter.peek(&work()).await.unwrap().remaining().unwrap(), outstanding[0].reservations)
}

#[tokio::test]
async fn a_handler_reserves_what_it_may_need_and_commits_what_it_used() {
    let (layer, limits) = limits();
    let page = async |State(limits): State<Limits>| {
        let (decision, reserved) = limits.reserve(&work(), None).await.unwrap();
        assert_eq!((decision.is_allowed(), tokens(&limits).await), (true, (600, 1)));
        reserved.end(Ending::Commit(150.into())).await.unwrap();
        "done"
    };
    let app = Router::new().route("/", get(page)).layer(layer).with_state(limits.clone());
    assert_eq!(send(&app, request_with_key("k1")).await.body, "done");
    assert_eq!(tokens(&limits).await, (850, 0));
}

#[tokio::test]
async fn a_handler_that_returns_early_panics_or_is_dropped_releases_what_it_reserved() {
    let (layer, limits) = limits();
    let started = Arc::new(Notify::new());
    let begun = Arc::clone(&started);
    let early = async |State(limits): State<Limits>| {
        let (_, _reserved) = limits.reserve(&work(), None).await.unwrap();
        StatusCode::BAD_GATEWAY
    };
    let panics = async |State(limits): State<Limits>| -> &'static str {
        let (_, _reserved) = limits.reserve(&work(), None).await.unwrap();
        panic!("the handler fails")
    };
    let never_ends = async move |State(limits): State<Limits>| -> &'static str {
        let (_, _reserved) = limits.reserve(&work(), Some("with a key")).await.unwrap();
        begun.notify_one();
        std::future::pending().await
    };
    let app = Router::new().route("/", get(early)).route("/panics", get(panics)).route("/never", get(never_ends));
    let app: Router = app.layer(layer).with_state(limits.clone());
    let call = |path: &str| {
        let request = http::Request::get(path).body(axum::body::Body::empty()).unwrap();
        let app = app.clone();
        tokio::spawn(async move { send(&app, request).await.status })
    };
    assert_eq!((call("/").await.unwrap(), tokens(&limits).await), (StatusCode::BAD_GATEWAY, (1_000, 0)));
    assert!(call("/panics").await.unwrap_err().is_panic());
    assert_eq!(tokens(&limits).await, (1_000, 0));
    let gone = call("/never");
    started.notified().await;
    assert_eq!(tokens(&limits).await, (600, 1));
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    assert_eq!(tokens(&limits).await, (1_000, 0));
}

#[tokio::test]
async fn a_commit_whose_future_is_dropped_is_charged() {
    let (_, limits) = limits();
    let (_, first) = limits.reserve(&work(), None).await.unwrap();
    drop(first.end(Ending::Commit(150.into())));
    assert_eq!(tokens(&limits).await, (850, 0));
    let (_, second) = limits.reserve(&work(), None).await.unwrap();
    drop(second.end(Ending::Commit(Costs::default().with("tokens", 50))));
    assert_eq!(tokens(&limits).await, (800, 0));
    let (_, third) = limits.reserve(&work(), None).await.unwrap();
    third.end(Ending::Commit(Costs::default())).await.unwrap();
    assert_eq!(tokens(&limits).await, (400, 0), "as reserved");
}

#[tokio::test]
async fn a_denied_request_holds_nothing_and_its_end_changes_nothing() {
    let (_, limits) = limits();
    let (decision, held) = limits.reserve(&work().with_cost(1_001), None).await.unwrap();
    assert!(!decision.is_allowed() && held.grant().is_empty());
    held.end(Ending::Commit(1_001.into())).await.unwrap();
    assert_eq!(tokens(&limits).await, (1_000, 0));
}

#[tokio::test]
async fn a_kept_reservation_outlives_its_handler_and_is_ended_elsewhere() {
    let (_, limits) = limits();
    let (_, held) = limits.reserve(&work(), Some("job-1")).await.unwrap();
    let mut reservation = held.keep();
    assert_eq!(tokens(&limits).await, (600, 1));
    limits.limiter().end(&mut reservation, &Ending::Commit(1.into())).await.unwrap();
    let (_, again) = limits.reserve(&work(), Some("job-2")).await.unwrap();
    again.end(Ending::Release).await.unwrap();
    let ended = limits.reserve(&work(), Some("job-2")).await.unwrap_err();
    assert!(matches!(ended, GrantError::AlreadyEnded));
    assert_eq!(tokens(&limits).await, (999, 0));
}
