//! Rules that count by the body of a request.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::routing::post;
use axum::{Extension, Router};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use tidegate::Rule;
use tidegate_tower::{BodyText, BufferBody, LimitLayer};
use tokio::sync::mpsc;
use tower::limit::ConcurrencyLimit;
use tower::{Layer, ServiceExt, service_fn};

use crate::{Heard, ask, at_once, limiter, until};

/// Sends a body back, one request for each text of a body.
fn echo() -> Router {
    let layer = LimitLayer::new(limiter([Rule::new("body", at_once(1)).with_per(["body"])]));
    Router::new().route("/", post(async |body: Bytes| body)).layer(layer).layer(BufferBody::new().longest(16))
}

async fn send(app: &Router, media_type: &str, body: impl Into<Body>) -> Heard {
    let request = Request::post("/").header("content-type", media_type).body(body.into()).unwrap();
    ask(app, request).await
}

/// A body that comes piece by piece, without saying how long it will be.
struct Pieces(VecDeque<Result<&'static str, Broken>>);

/// A body that comes when the caller feels like it.
struct Slow(mpsc::Receiver<&'static str>);

/// The connection went away.
#[derive(Clone, Copy, Debug)]
struct Broken;

impl Pieces {
    fn of(pieces: &[Result<&'static str, Broken>]) -> Body {
        Body::new(Self(pieces.iter().copied().collect()))
    }
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Poll::Ready(self.0.pop_front().map(|piece| piece.map(|text| Frame::data(Bytes::from_static(text.as_bytes())))))
    }
}

impl http_body::Body for Slow {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken")
    }
}

impl std::error::Error for Broken {}

#[tokio::test]
async fn a_rule_counts_by_the_body() {
    let app = echo();
    let first = send(&app, "application/json", r#"{"user":"ann"}"#).await;
    assert_eq!((first.status, first.body.as_str()), (StatusCode::OK, r#"{"user":"ann"}"#));
    assert_eq!(send(&app, "application/json", r#"{"user":"ann"}"#).await.status, StatusCode::TOO_MANY_REQUESTS);
    let other =
        send(&app, "application/vnd.api+JSON; charset=utf-8", Pieces::of(&[Ok(r#"{"user":"#), Ok(r#""ben"}"#)])).await;
    assert_eq!((other.status, other.body.as_str()), (StatusCode::OK, r#"{"user":"ben"}"#));
}

/// What is not read still counts: all such requests are one subject, so nobody gets around the rule.
#[tokio::test]
async fn a_body_that_is_not_read_passes_untouched_and_counts() {
    let long = r#"{"user":"ann of green gables"}"#;
    for (media_type, body) in [("application/json", long), ("text/plain", "ann"), ("image/png", "\u{89}PNG")] {
        let app = echo();
        let first = send(&app, media_type, body).await;
        assert_eq!((first.status, first.body.as_str()), (StatusCode::OK, body), "{media_type}");
        assert_eq!(send(&app, media_type, body).await.status, StatusCode::TOO_MANY_REQUESTS, "{media_type}");
    }
    let app = echo();
    let packed = || {
        let request = Request::post("/").header("content-type", "application/json").header("content-encoding", "gzip");
        request.body(Body::from("packed")).unwrap()
    };
    assert_eq!([ask(&app, packed()).await.status.as_u16(), ask(&app, packed()).await.status.as_u16()], [200, 429]);
    assert_eq!(send(&app, "application/json", "packed").await.status, StatusCode::OK);
}

/// A stream of gRPC may go on for as long as its answer: whoever waits for its end waits for ever.
#[tokio::test]
async fn streams_of_grpc_are_not_read_even_if_their_messages_are_json() {
    for media_type in ["application/grpc+json", "application/gRPC+JSON; x=y", "application/grpc-web+json"] {
        let (sender, pieces) = mpsc::channel(1);
        let page = post(async |text: Option<Extension<BodyText>>| if text.is_some() { "read" } else { "not read" });
        let app = Router::new().route("/", page).layer(BufferBody::new());
        let request = Request::post("/").header("content-type", media_type).body(Body::new(Slow(pieces))).unwrap();
        let asked = tokio::spawn(async move { ask(&app, request).await.body });
        until(|| asked.is_finished()).await;
        assert_eq!(asked.await.unwrap(), "not read", "{media_type}");
        drop(sender);
    }
}

/// Trap: the service that said it is ready keeps a permit until it is called, and a slow caller would keep it for as long
/// as it likes.
#[tokio::test]
async fn a_slow_body_keeps_no_permit_of_the_inner_service() {
    let page = service_fn(async |request: Request<Body>| Ok::<_, Infallible>(Response::new(request.into_body())));
    let service = BufferBody::new().layer(ConcurrencyLimit::new(page, 1));
    let start = |body: Body| {
        let request = Request::post("/").header("content-type", "application/json").body(body).unwrap();
        tokio::spawn(service.clone().oneshot(request))
    };
    let (sender, pieces) = mpsc::channel(1);
    let slow = start(Body::new(Slow(pieces)));
    sender.send("{").await.unwrap();
    until(|| sender.capacity() == 1).await;

    let quick = start(Body::from("{}"));
    until(|| quick.is_finished()).await;
    assert_eq!(quick.await.unwrap().unwrap().status(), StatusCode::OK);
    assert!(!slow.is_finished());
    sender.send("}").await.unwrap();
    drop(sender);
    assert_eq!(slow.await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_body_that_is_no_text_passes_on_as_it_is() {
    let request = Request::post("/").header("content-type", "application/json").body(Body::from(&b"\xff\xfe"[..]));
    let app = Router::new().route("/", post(async |body: Bytes| format!("{body:?}"))).layer(BufferBody::default());
    assert_eq!(ask(&app, request.unwrap()).await.body, r#"b"\xff\xfe""#);
}

#[tokio::test]
async fn a_body_that_grows_too_long_is_refused() {
    let app = echo();
    let exact = Pieces::of(&[Ok("0123456789"), Ok("012345")]);
    assert_eq!(send(&app, "application/json", exact).await.status, StatusCode::OK);
    let heard = send(&app, "application/json", Pieces::of(&[Ok("0123456789"), Ok("0123456")])).await;
    assert_eq!((heard.status, heard.header("content-type")), (StatusCode::PAYLOAD_TOO_LARGE, Some("application/json")));
    assert_eq!(heard.json()["error"], "body_too_large");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_refused_and_costs_nothing() {
    let app = echo();
    let heard = send(&app, "application/json", Pieces::of(&[Ok("{}"), Err(Broken)])).await;
    assert_eq!((heard.status, &heard.json()["error"]), (StatusCode::BAD_REQUEST, &"body_unreadable".into()));
    assert_eq!(send(&app, "application/json", "{}").await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_text_of_a_body_is_there_for_others_and_stays_out_of_logs() {
    let app = Router::new()
        .route("/", post(async |Extension(text): Extension<BodyText>| format!("{text:?} {}", text.as_str())))
        .layer(BufferBody::new());
    assert_eq!(send(&app, "application/json", "{}").await.body, "BodyText(2 bytes) {}");
}
