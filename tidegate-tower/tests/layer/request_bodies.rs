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
use tidegate::spi::BodyNeed;
use tidegate::{Rule, RuleMode};
use tidegate_tower::{BodyText, BufferBody, LimitLayer};
use tokio::sync::mpsc;
use tower::limit::ConcurrencyLimit;
use tower::{Layer, ServiceExt, service_fn};

use crate::layer::{TestResponse, burst, limiter, send, wait_until};

/// An application that returns the body, with one request for each body text.
fn echo() -> Router {
    let layer = LimitLayer::new(limiter([Rule::new("body", burst(1)).with_per(["body"])]));
    Router::new().route("/", post(async |body: Bytes| body)).layer(layer).layer(BufferBody::new().with_max_bytes(16))
}

async fn post_body(app: &Router, media_type: &str, body: impl Into<Body>) -> TestResponse {
    let request = Request::post("/").header("content-type", media_type).body(body.into()).unwrap();
    send(app, request).await
}

/// A body of several frames without a declared length.
pub(crate) struct Chunks(VecDeque<Result<&'static str, ConnectionLost>>);

/// A body whose frames the test sends.
struct SlowBody(mpsc::Receiver<&'static str>);

/// The connection was lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLost;

impl Chunks {
    pub(crate) fn new_body(chunks: &[Result<&'static str, ConnectionLost>]) -> Body {
        Body::new(Self(chunks.iter().copied().collect()))
    }
}

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = ConnectionLost;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ConnectionLost>>> {
        Poll::Ready(self.0.pop_front().map(|chunk| chunk.map(|text| Frame::data(Bytes::from_static(text.as_bytes())))))
    }
}

impl http_body::Body for SlowBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
    }
}

impl fmt::Display for ConnectionLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection lost")
    }
}

impl std::error::Error for ConnectionLost {}

#[tokio::test]
async fn a_rule_counts_by_the_body() {
    let app = echo();
    let first = post_body(&app, "application/json", r#"{"user":"ann"}"#).await;
    assert_eq!((first.status, first.body.as_str()), (StatusCode::OK, r#"{"user":"ann"}"#));
    assert_eq!(post_body(&app, "application/json", r#"{"user":"ann"}"#).await.status, StatusCode::TOO_MANY_REQUESTS);
    let other = post_body(
        &app,
        "application/vnd.api+JSON; charset=utf-8",
        Chunks::new_body(&[Ok(r#"{"user":"#), Ok(r#""ben"}"#)]),
    )
    .await;
    assert_eq!((other.status, other.body.as_str()), (StatusCode::OK, r#"{"user":"ben"}"#));
}

/// Requests whose body is not read count as one subject, so the rule cannot be evaded.
#[tokio::test]
async fn a_body_that_is_not_read_passes_unchanged_and_counts() {
    let long = r#"{"user":"ann of green gables"}"#;
    for (media_type, body) in [("application/json", long), ("text/plain", "ann"), ("image/png", "\u{89}PNG")] {
        let app = echo();
        let first = post_body(&app, media_type, body).await;
        assert_eq!((first.status, first.body.as_str()), (StatusCode::OK, body), "{media_type}");
        assert_eq!(post_body(&app, media_type, body).await.status, StatusCode::TOO_MANY_REQUESTS, "{media_type}");
    }
    let app = echo();
    let packed = || {
        let request = Request::post("/").header("content-type", "application/json").header("content-encoding", "gzip");
        request.body(Body::from("packed")).unwrap()
    };
    assert_eq!([send(&app, packed()).await.status.as_u16(), send(&app, packed()).await.status.as_u16()], [200, 429]);
    assert_eq!(post_body(&app, "application/json", "packed").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_layer_says_whether_a_rule_that_applies_reads_the_body() {
    let by_body = || Rule::new("body", burst(1)).with_per(["body"]);
    let rules = [
        by_body().with_action("login"),
        Rule::new("new", burst(1)).with_per(["body"]).with_mode(RuleMode::Shadow).with_action("new"),
        Rule::new("all", burst(1)),
    ];
    let layer = LimitLayer::new(limiter(rules));
    let need = |layer: &LimitLayer<_>, media_type: &str| {
        layer.body_need(&mut Request::post("/").header("content-type", media_type).body(()).unwrap().into_parts().0)
    };
    assert_eq!(need(&layer, "application/json"), BodyNeed::None);
    assert_eq!(need(&layer.clone().with_action("new"), "application/json"), BodyNeed::Shadow);
    let layer = layer.with_action("login");
    for (media_type, expected) in [
        ("application/json", BodyNeed::Enforced),
        ("text/plain", BodyNeed::Enforced),
        ("application/grpc+json", BodyNeed::None),
    ] {
        assert_eq!(need(&layer, media_type), expected, "{media_type}");
    }
    layer.handle().replace(limiter([Rule::new("all", burst(1))]));
    assert_eq!(need(&layer, "application/json"), BodyNeed::None);
}

/// A gRPC stream may last as long as its response, so its end must not be awaited.
#[tokio::test]
async fn grpc_streams_are_not_read_even_if_their_messages_are_json() {
    for media_type in ["application/grpc+json", "application/gRPC+JSON; x=y", "application/grpc-web+json"] {
        let (sender, chunks) = mpsc::channel(1);
        let page = post(async |text: Option<Extension<BodyText>>| if text.is_some() { "read" } else { "not read" });
        let app = Router::new().route("/", page).layer(BufferBody::new());
        let request = Request::post("/").header("content-type", media_type).body(Body::new(SlowBody(chunks))).unwrap();
        let task = tokio::spawn(async move { send(&app, request).await.body });
        wait_until(|| task.is_finished()).await;
        assert_eq!(task.await.unwrap(), "not read", "{media_type}");
        drop(sender);
    }
}

/// Regression: a service that reported ready keeps its permit until it is called, so a slow client would block all others.
#[tokio::test]
async fn a_slow_body_does_not_hold_a_permit_of_the_inner_service() {
    let page = service_fn(async |request: Request<Body>| Ok::<_, Infallible>(Response::new(request.into_body())));
    let service = BufferBody::new().layer(ConcurrencyLimit::new(page, 1));
    let start = |body: Body| {
        let request = Request::post("/").header("content-type", "application/json").body(body).unwrap();
        tokio::spawn(service.clone().oneshot(request))
    };
    let (sender, chunks) = mpsc::channel(1);
    let slow = start(Body::new(SlowBody(chunks)));
    sender.send("{").await.unwrap();
    wait_until(|| sender.capacity() == 1).await;

    let quick = start(Body::from("{}"));
    wait_until(|| quick.is_finished()).await;
    assert_eq!(quick.await.unwrap().unwrap().status(), StatusCode::OK);
    assert!(!slow.is_finished());
    sender.send("}").await.unwrap();
    drop(sender);
    assert_eq!(slow.await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_body_that_is_not_utf8_passes_unchanged() {
    let request = Request::post("/").header("content-type", "application/json").body(Body::from(&b"\xff\xfe"[..]));
    let app = Router::new().route("/", post(async |body: Bytes| format!("{body:?}"))).layer(BufferBody::default());
    assert_eq!(send(&app, request.unwrap()).await.body, r#"b"\xff\xfe""#);
}

#[tokio::test]
async fn a_body_that_exceeds_the_maximum_is_rejected_with_413() {
    let app = echo();
    let exact = Chunks::new_body(&[Ok("0123456789"), Ok("012345")]);
    assert_eq!(post_body(&app, "application/json", exact).await.status, StatusCode::OK);
    let response = post_body(&app, "application/json", Chunks::new_body(&[Ok("0123456789"), Ok("0123456")])).await;
    assert_eq!(
        (response.status, response.header("content-type")),
        (StatusCode::PAYLOAD_TOO_LARGE, Some("application/json"))
    );
    assert_eq!(response.json()["error"], "body_too_large");
}

#[tokio::test]
async fn an_incomplete_body_is_rejected_with_400_and_consumes_nothing() {
    let app = echo();
    let response = post_body(&app, "application/json", Chunks::new_body(&[Ok("{}"), Err(ConnectionLost)])).await;
    assert_eq!((response.status, &response.json()["error"]), (StatusCode::BAD_REQUEST, &"body_unreadable".into()));
    assert_eq!(post_body(&app, "application/json", "{}").await.status, StatusCode::OK);
}

#[tokio::test]
async fn handlers_can_read_the_body_text_and_logs_do_not_show_it() {
    let app = Router::new()
        .route("/", post(async |Extension(text): Extension<BodyText>| format!("{text:?} {}", text.as_str())))
        .layer(BufferBody::new());
    assert_eq!(post_body(&app, "application/json", "{}").await.body, "BodyText(2 bytes) {}");
}
