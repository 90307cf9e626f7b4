//! Requests that a leaky bucket delays.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use tidegate::{Limit, ManualClock, MemoryStore, Rate, Rule};
use tidegate_tower::LimitLayer;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tower::limit::ConcurrencyLimit;
use tower::{Layer, ServiceExt, service_fn};

use crate::layer::{START, TestResponse, app, limiter_on, request_with_key, send, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// An application with one request per second and key, and a queue of this length.
fn one_per_second(queue: u64) -> (Router, ManualClock) {
    let (layer, clock) = leaky_bucket_layer(queue);
    (app(layer), clock)
}

fn leaky_bucket_layer(queue: u64) -> (LimitLayer<Arc<MemoryStore>>, ManualClock) {
    let clock = ManualClock::starting_at(START);
    let limit = Limit::leaky_bucket(Rate::per_second(1).unwrap(), queue).unwrap();
    let rule = Rule::new("drip", limit).with_per(["header:x-key"]);
    (LimitLayer::new(limiter_on(&clock, [rule])).with_timer(clock.clone()), clock)
}

/// Sends a request and returns once it is delayed.
async fn send_delayed(app: &Router, clock: &ManualClock) -> JoinHandle<TestResponse> {
    let before = clock.pending_sleeps();
    let app = app.clone();
    let delayed = tokio::spawn(async move { send(&app, request_with_key("k1")).await });
    wait_until(|| clock.pending_sleeps() == before + 1).await;
    delayed
}

#[tokio::test]
async fn a_delayed_request_continues_when_its_slot_is_reached() {
    let (app, clock) = one_per_second(2);
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
    let (second, third) = (send_delayed(&app, &clock).await, send_delayed(&app, &clock).await);
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::TOO_MANY_REQUESTS);

    clock.advance(SECOND);
    assert_eq!(second.await.unwrap().status, StatusCode::OK);
    assert_eq!(clock.pending_sleeps(), 1);
    assert!(!third.is_finished());
    clock.advance(SECOND);
    let third = third.await.unwrap();
    assert_eq!((third.status, third.header("x-ratelimit-remaining")), (StatusCode::OK, Some("0")));
}

#[tokio::test]
async fn a_delayed_request_does_not_block_other_keys() {
    let (app, clock) = one_per_second(2);
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
    let delayed = send_delayed(&app, &clock).await;
    assert_eq!(send(&app, request_with_key("k2")).await.status, StatusCode::OK);
    assert!(!delayed.is_finished());
}

/// Regression: a service that reported ready keeps its permit until it is called. A delayed request that kept it would
/// block all others.
#[tokio::test]
async fn a_delayed_request_releases_the_permit_of_the_inner_service() {
    let (layer, clock) = leaky_bucket_layer(2);
    let (sender, is_open) = watch::channel(true);
    let page = service_fn(move |_: Request<Body>| {
        let mut is_open = is_open.clone();
        async move {
            is_open.wait_for(|open| *open).await.unwrap();
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    let service = layer.layer(ConcurrencyLimit::new(page, 1));
    let start = |key: &str| tokio::spawn(service.clone().oneshot(request_with_key(key)));
    assert_eq!(start("k1").await.unwrap().unwrap().status(), StatusCode::OK);
    let delayed = start("k1");
    wait_until(|| clock.pending_sleeps() == 1).await;

    let other = start("k2");
    wait_until(|| other.is_finished()).await;
    assert_eq!(other.await.unwrap().unwrap().status(), StatusCode::OK);

    // When its slot is reached, it waits for the permit.
    sender.send_replace(false);
    let slow = start("k3");
    tokio::task::yield_now().await;
    clock.advance(SECOND);
    wait_until(|| clock.pending_sleeps() == 0).await;
    assert!(!delayed.is_finished() && !slow.is_finished());
    sender.send_replace(true);
    assert_eq!(slow.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(delayed.await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_cancelled_request_frees_its_place_in_the_queue() {
    let (app, clock) = one_per_second(1);
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
    let delayed = send_delayed(&app, &clock).await;
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::TOO_MANY_REQUESTS);

    delayed.abort();
    assert!(delayed.await.unwrap_err().is_cancelled());
    // The next request is delayed instead of denied.
    let next = send_delayed(&app, &clock).await;
    clock.advance(SECOND);
    assert_eq!(next.await.unwrap().status, StatusCode::OK);
}

/// Two requests for each key, and a queue that all keys share.
fn shared_queue_layer() -> (LimitLayer<Arc<MemoryStore>>, ManualClock) {
    let clock = ManualClock::starting_at(START);
    let rules = [
        Rule::new("own", Limit::fixed_window(2, 1000 * SECOND).unwrap()).with_per(["header:x-key"]),
        Rule::new("queue", Limit::leaky_bucket(Rate::per_second(1).unwrap(), 9).unwrap()),
    ];
    (LimitLayer::new(limiter_on(&clock, rules)).with_timer(clock.clone()), clock)
}

/// Regression: a client that hung up got its own units back, while its place in the queue of all clients stayed taken. So it filled
/// that queue at no cost.
#[tokio::test]
async fn a_cancelled_request_with_others_behind_it_counts() {
    let (layer, clock) = shared_queue_layer();
    let app = app(layer);
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
    let cancelled = send_delayed(&app, &clock).await;
    let behind = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request_with_key("k2")).await }
    });
    wait_until(|| clock.pending_sleeps() == 2).await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::TOO_MANY_REQUESTS);
    clock.advance(2 * SECOND);
    assert_eq!(behind.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn a_cancelled_request_with_nobody_behind_it_is_refunded_under_every_rule() {
    let (layer, clock) = shared_queue_layer();
    let app = app(layer);
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
    let cancelled = send_delayed(&app, &clock).await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    let next = send_delayed(&app, &clock).await;
    clock.advance(SECOND);
    assert_eq!(next.await.unwrap().status, StatusCode::OK, "it has the place and the unit of the cancelled request");
}

#[tokio::test]
async fn a_request_that_is_cancelled_after_its_slot_was_reached_is_not_refunded() {
    let clock = ManualClock::starting_at(START);
    let limit = Limit::leaky_bucket(Rate::per_second(1).unwrap(), 1).unwrap();
    let layer = LimitLayer::new(limiter_on(&clock, [Rule::new("drip", limit)])).with_timer(clock.clone());
    let (arrived, arrivals) = tokio::sync::watch::channel(0_u32);
    let stuck = axum::routing::get(async move || {
        arrived.send_modify(|arrivals| *arrivals += 1);
        std::future::pending::<&str>().await
    });
    let app = Router::new().route("/", stuck).layer(layer);
    let start = || {
        tokio::spawn({
            let app = app.clone();
            async move { send(&app, request_with_key("k1")).await }
        })
    };
    let first = start();
    wait_until(|| *arrivals.borrow() == 1).await;
    let second = start();
    wait_until(|| clock.pending_sleeps() == 1).await;
    clock.advance(SECOND);
    wait_until(|| *arrivals.borrow() == 2).await;
    first.abort();
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    let third = start();
    // If the slot had been refunded, this request would not be delayed.
    wait_until(|| clock.pending_sleeps() == 1).await;
    third.abort();
}
