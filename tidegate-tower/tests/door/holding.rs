//! Requests in the queue of a leaky bucket.

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

use crate::{Heard, START, app, ask, from, limiter_on, until};

const SECOND: Duration = Duration::from_secs(1);

/// One request a second for each key, and so many may wait.
fn one_a_second(queue: u64) -> (Router, ManualClock) {
    let (layer, clock) = drip(queue);
    (app(layer), clock)
}

fn drip(queue: u64) -> (LimitLayer<Arc<MemoryStore>>, ManualClock) {
    let clock = ManualClock::at(START);
    let limit = Limit::leaky_bucket(Rate::per_second(1).unwrap(), queue).unwrap();
    let rule = Rule::new("drip", limit).with_per(["header:x-key"]);
    (LimitLayer::new(limiter_on(&clock, [rule])).timer(clock.clone()), clock)
}

/// Asks, and stays until the request waits.
async fn hold(app: &Router, clock: &ManualClock) -> JoinHandle<Heard> {
    let before = clock.pending_sleeps();
    let app = app.clone();
    let held = tokio::spawn(async move { ask(&app, from("k1")).await });
    until(|| clock.pending_sleeps() == before + 1).await;
    held
}

#[tokio::test]
async fn a_held_request_goes_on_when_its_slot_comes() {
    let (app, clock) = one_a_second(2);
    assert_eq!(ask(&app, from("k1")).await.status, StatusCode::OK);
    let (second, third) = (hold(&app, &clock).await, hold(&app, &clock).await);
    assert_eq!(ask(&app, from("k1")).await.status, StatusCode::TOO_MANY_REQUESTS);

    clock.advance(SECOND);
    assert_eq!(second.await.unwrap().status, StatusCode::OK);
    assert_eq!(clock.pending_sleeps(), 1);
    assert!(!third.is_finished());
    clock.advance(SECOND);
    let third = third.await.unwrap();
    assert_eq!((third.status, third.header("x-ratelimit-remaining")), (StatusCode::OK, Some("0")));
}

#[tokio::test]
async fn a_held_request_blocks_nobody_else() {
    let (app, clock) = one_a_second(2);
    assert_eq!(ask(&app, from("k1")).await.status, StatusCode::OK);
    let held = hold(&app, &clock).await;
    assert_eq!(ask(&app, from("k2")).await.status, StatusCode::OK);
    assert!(!held.is_finished());
}

/// Trap: the service that said it is ready keeps a permit until it is called. Held with a request, it keeps everybody out.
#[tokio::test]
async fn a_held_request_keeps_no_permit_of_the_inner_service() {
    let (layer, clock) = drip(2);
    let (open, door) = watch::channel(true);
    let page = service_fn(move |_: Request<Body>| {
        let mut door = door.clone();
        async move {
            door.wait_for(|open| *open).await.unwrap();
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    let service = layer.layer(ConcurrencyLimit::new(page, 1));
    let start = |key: &str| tokio::spawn(service.clone().oneshot(from(key)));
    assert_eq!(start("k1").await.unwrap().unwrap().status(), StatusCode::OK);
    let held = start("k1");
    until(|| clock.pending_sleeps() == 1).await;

    let other = start("k2");
    until(|| other.is_finished()).await;
    assert_eq!(other.await.unwrap().unwrap().status(), StatusCode::OK);

    // When its slot has come, it waits for the permit like everybody else.
    open.send_replace(false);
    let slow = start("k3");
    tokio::task::yield_now().await;
    clock.advance(SECOND);
    until(|| clock.pending_sleeps() == 0).await;
    assert!(!held.is_finished() && !slow.is_finished());
    open.send_replace(true);
    assert_eq!(slow.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(held.await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn whoever_leaves_the_queue_gives_the_place_back() {
    let (app, clock) = one_a_second(1);
    assert_eq!(ask(&app, from("k1")).await.status, StatusCode::OK);
    let held = hold(&app, &clock).await;
    assert_eq!(ask(&app, from("k1")).await.status, StatusCode::TOO_MANY_REQUESTS);

    held.abort();
    assert!(held.await.unwrap_err().is_cancelled());
    // The place is free again: the next one waits in it instead of being denied.
    let next = hold(&app, &clock).await;
    clock.advance(SECOND);
    assert_eq!(next.await.unwrap().status, StatusCode::OK);
}

/// A slot that was reached is used, even if the caller leaves later.
#[tokio::test]
async fn a_slot_that_was_reached_is_not_given_back() {
    let clock = ManualClock::at(START);
    let limit = Limit::leaky_bucket(Rate::per_second(1).unwrap(), 1).unwrap();
    let layer = LimitLayer::new(limiter_on(&clock, [Rule::new("drip", limit)])).timer(clock.clone());
    let (arrived, arrivals) = tokio::sync::watch::channel(0_u32);
    let stuck = axum::routing::get(async move || {
        arrived.send_modify(|arrivals| *arrivals += 1);
        std::future::pending::<&str>().await
    });
    let app = Router::new().route("/", stuck).layer(layer);
    let start = || {
        tokio::spawn({
            let app = app.clone();
            async move { ask(&app, from("k1")).await }
        })
    };
    let first = start();
    until(|| *arrivals.borrow() == 1).await;
    let second = start();
    until(|| clock.pending_sleeps() == 1).await;
    clock.advance(SECOND);
    until(|| *arrivals.borrow() == 2).await;
    first.abort();
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    let third = start();
    // Had the slot come back, it would not have to wait.
    until(|| clock.pending_sleeps() == 1).await;
    third.abort();
}
