//! Requests that hold slots of concurrency limits until their responses end, whatever ends them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use tidegate::grants::HeldLease;
use tidegate::{Limit, ManualClock, MemoryStore, Rate, Rule, RuleSet};
use tidegate_tower::{Handle, LeaseLost, LimitLayer};
use tokio::sync::{mpsc, oneshot};
use tower::{Layer, ServiceExt, service_fn};

use crate::layer::{START, limiter_on, request_with_key, send, wait_until};

const LEASE: Duration = Duration::from_secs(30);

type Store = Arc<MemoryStore>;

fn slots(max: u64) -> Rule {
    Rule::new("exports", Limit::concurrency(max, LEASE).unwrap())
}

/// A layer with one slot, by a manual clock.
fn one_slot() -> (LimitLayer<Store>, ManualClock) {
    layer_with([slots(1)])
}

fn layer_with(rules: impl IntoIterator<Item = Rule>) -> (LimitLayer<Store>, ManualClock) {
    let clock = ManualClock::starting_at(START);
    (LimitLayer::new(limiter_on(&clock, rules)).with_timer(clock.clone()), clock)
}

/// The slots that are free.
fn free(handle: &Handle<Store>) -> u64 {
    let limiter = handle.limiter();
    let plan = limiter.plan(&tidegate::Request::new("")).with_peek();
    limiter.plans().check_now(&plan).checks()[0].outcome().remaining
}

type FrameSender = mpsc::UnboundedSender<Result<&'static str, std::io::Error>>;

/// A body whose frames the test sends.
struct StreamedBody(mpsc::UnboundedReceiver<Result<&'static str, std::io::Error>>);

fn streamed_body() -> (FrameSender, Body) {
    let (sender, frames) = mpsc::unbounded_channel();
    (sender, Body::new(StreamedBody(frames)))
}

impl http_body::Body for StreamedBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(self.0.poll_recv(context));
        assert!(!matches!(frame, Some(Ok("panic"))), "the body fails");
        Poll::Ready(frame.map(|frame| frame.map(|text| Frame::data(Bytes::from_static(text.as_bytes())))))
    }
}

/// Sends a request whose response has `body`.
async fn respond(layer: &LimitLayer<Store>, body: Body) -> Response<tidegate_tower::ResponseBody<Body>> {
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let page = service_fn(move |_: Request<Body>| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    layer.layer(page).oneshot(request_with_key("k1")).await.unwrap()
}

#[tokio::test]
async fn a_request_holds_its_slot_until_its_response_body_ends() {
    let (layer, _clock) = one_slot();
    let handle = layer.handle();
    let (frames, body) = streamed_body();
    let mut response = respond(&layer, body).await;
    assert_eq!((free(&handle), handle.held_leases()), (0, 1));
    frames.send(Ok("some")).unwrap();
    assert_eq!(response.frame().await.unwrap().unwrap().into_data().unwrap(), "some");
    assert_eq!(free(&handle), 0);
    let denied = respond(&layer, Body::empty()).await;
    assert_eq!(
        (denied.status(), &denied.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap())
    );
    drop(frames);
    assert!(response.frame().await.is_none());
    assert_eq!((free(&handle), handle.held_leases()), (1, 0), "before the body is dropped");
}

#[tokio::test]
async fn a_body_with_a_known_end_releases_its_slot_with_the_last_frame() {
    let (layer, _clock) = one_slot();
    let handle = layer.handle();
    let mut response = respond(&layer, Body::from("hello")).await;
    assert_eq!(free(&handle), 0);
    assert_eq!(response.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
    assert_eq!(free(&handle), 1);
}

#[tokio::test]
async fn a_body_that_fails_panics_or_is_dropped_releases_its_slot() {
    let (layer, _clock) = one_slot();
    let handle = layer.handle();
    let (frames, body) = streamed_body();
    let mut failed = respond(&layer, body).await;
    frames.send(Err(std::io::Error::other("broken"))).unwrap();
    assert_eq!(failed.frame().await.unwrap().unwrap_err().to_string(), "broken");
    assert_eq!(free(&handle), 1);

    let (frames, body) = streamed_body();
    let mut panicking = respond(&layer, body).await;
    assert_eq!(free(&handle), 0);
    frames.send(Ok("panic")).unwrap();
    let reading = tokio::spawn(async move { panicking.frame().await.is_some() });
    assert!(reading.await.unwrap_err().is_panic());
    assert_eq!(free(&handle), 1);

    let (_frames, body) = streamed_body();
    let dropped = respond(&layer, body).await;
    assert_eq!(free(&handle), 0);
    drop(dropped);
    assert_eq!(free(&handle), 1);
}

#[tokio::test]
async fn a_service_that_fails_panics_or_is_cancelled_releases_its_slot() {
    let (layer, _clock) = one_slot();
    let handle = layer.handle();
    let failing = service_fn(async |_: Request<Body>| Err::<Response<Body>, _>("no"));
    assert_eq!(layer.layer(failing).oneshot(request_with_key("k1")).await.unwrap_err(), "no");
    assert_eq!(free(&handle), 1);

    let panicking =
        service_fn(async |_: Request<Body>| -> Result<Response<Body>, Infallible> { panic!("the handler fails") });
    let service = layer.layer(panicking);
    let panicked = tokio::spawn(service.oneshot(request_with_key("k1")));
    assert!(panicked.await.unwrap_err().is_panic());
    assert_eq!(free(&handle), 1);

    let stuck = service_fn(async |_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>().await);
    let service = layer.layer(stuck);
    let cancelled = tokio::spawn(service.oneshot(request_with_key("k1")));
    wait_until(|| free(&handle) == 0).await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    assert_eq!((free(&handle), handle.held_leases()), (1, 0));
}

#[tokio::test]
async fn a_delayed_request_holds_its_slot_while_it_waits_and_releases_it_if_it_is_cancelled() {
    for is_cancelled in [true, false] {
        let queue = Limit::leaky_bucket(Rate::per_minute(1).unwrap(), 9).unwrap();
        let (layer, clock) = layer_with([slots(2), Rule::new("queue", queue)]);
        let handle = layer.handle();
        let app = crate::layer::app(layer);
        assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
        let delayed = tokio::spawn({
            let app = app.clone();
            async move { send(&app, request_with_key("k1")).await }
        });
        wait_until(|| free(&handle) == 1).await;
        for _ in 0..5 {
            wait_until(|| clock.pending_sleeps() == 2).await;
            clock.advance(LEASE / 3);
            assert_eq!(free(&handle), 1, "a minute is longer than the lease");
        }
        wait_until(|| clock.pending_sleeps() == 2).await;
        if is_cancelled {
            delayed.abort();
            assert!(delayed.await.unwrap_err().is_cancelled());
        } else {
            clock.advance(LEASE / 3);
            assert_eq!(delayed.await.unwrap().status, StatusCode::OK);
        }
        assert_eq!((free(&handle), handle.held_leases()), (2, 0));
    }
}

#[tokio::test]
async fn a_response_whose_slot_is_lost_ends_with_an_error() {
    let (layer, clock) = one_slot();
    let handle = layer.handle();
    let (frames, body) = streamed_body();
    let mut response = respond(&layer, body).await;
    wait_until(|| clock.pending_sleeps() == 1).await;
    handle.replace(handle.limiter().with_rules(RuleSet::new([slots(0)]).unwrap()));
    let reading = tokio::spawn(async move {
        let error = response.frame().await.unwrap().unwrap_err();
        (error.is::<LeaseLost>(), response.frame().await.is_none())
    });
    clock.advance(LEASE / 3);
    assert_eq!(reading.await.unwrap(), (true, true));
    assert!(frames.is_closed(), "the body of the service is dropped");
    assert_eq!((handle.held_leases(), handle.lost_leases()), (0, 1));
}

#[tokio::test]
async fn a_request_whose_slot_is_lost_before_its_response_is_refused() {
    let (layer, clock) = one_slot();
    let handle = layer.handle();
    let (dropped, is_dropped) = oneshot::channel::<()>();
    let dropped = Arc::new(std::sync::Mutex::new(Some(dropped)));
    let stuck = service_fn(move |_: Request<Body>| {
        let dropped = dropped.lock().unwrap().take();
        async move {
            let _dropped = dropped;
            std::future::pending::<Result<Response<Body>, Infallible>>().await
        }
    });
    let waiting = tokio::spawn(layer.layer(stuck).oneshot(request_with_key("k1")));
    wait_until(|| clock.pending_sleeps() == 1).await;
    handle.replace(handle.limiter().with_rules(RuleSet::new([slots(0)]).unwrap()));
    clock.advance(LEASE / 3);
    let response = waiting.await.unwrap().unwrap();
    assert_eq!(
        (response.status(), &response.headers()["retry-after"]),
        (StatusCode::SERVICE_UNAVAILABLE, &"1".parse().unwrap())
    );
    assert!(is_dropped.await.is_err(), "the service is stopped");
    assert_eq!(handle.held_leases(), 0);
}

/// Such as a WebSocket, whose response ends before its connection.
#[tokio::test]
async fn a_handler_can_hold_the_slot_for_longer_than_the_response() {
    let (layer, _clock) = one_slot();
    let handle = layer.handle();
    let (taken, mut leases) = mpsc::unbounded_channel();
    let page = get(async move |request: axum::extract::Request| {
        taken.send(request.extensions().get::<HeldLease>().cloned()).unwrap();
        StatusCode::SWITCHING_PROTOCOLS
    });
    let app = Router::new().route("/", page).layer(layer);
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::SWITCHING_PROTOCOLS);
    let lease = leases.recv().await.unwrap().unwrap();
    assert_eq!(free(&handle), 0);
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::TOO_MANY_REQUESTS);
    drop(lease);
    assert_eq!(free(&handle), 1);
}

#[tokio::test]
async fn a_request_without_a_concurrency_rule_has_no_lease() {
    let (layer, clock) = layer_with([Rule::new("api", crate::layer::burst(9))]);
    let handle = layer.handle();
    let page = get(async |request: axum::extract::Request| match request.extensions().get::<HeldLease>() {
        Some(_) => StatusCode::IM_A_TEAPOT,
        None => StatusCode::OK,
    });
    let app = Router::new().route("/", page).layer(layer);
    assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
    assert_eq!((handle.held_leases(), clock.pending_sleeps()), (0, 0));
}

/// The task that renews leases ends with the runtime that it was spawned in.
#[test]
fn leases_are_renewed_in_another_runtime_after_the_first_was_shut_down() {
    let (layer, clock) = layer_with([slots(2)]);
    let handle = layer.handle();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_frames, body) = streamed_body();
    let first = runtime();
    let _first_response = first.block_on(respond(&layer, body));
    drop(first);
    let (_frames, body) = streamed_body();
    runtime().block_on(async {
        let _second_response = respond(&layer, body).await;
        for _ in 0..9 {
            wait_until(|| clock.pending_sleeps() == 1).await;
            clock.advance(LEASE / 3);
        }
        wait_until(|| clock.pending_sleeps() == 1).await;
        assert_eq!(free(&handle), 0, "both are held");
    });
}
