//! Costs by the size of a body, and clients that hide it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Frame};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_server::gateway::GatewayOptions;
use tokio::sync::mpsc;

use crate::gateway::{RawConnection, exchange, field, file_limits, gateway_with, mirror, serve};

/// A body without a length counts as 10 KiB, and the bucket has room for one.
const RULES: &str = "
version: 1
http: { x_ratelimit: delta }
unknown_size: 10_240
rules:
  - id: upload
    match: { path: /upload }
    per: [ip]
    cost: 1 + request.size / 1024
    token_bucket: { capacity: 20, refill: 1/h }
    on_failure: share
";

async fn gateway(app: Router) -> SocketAddr {
    gateway_with(&format!("http://{}", serve(app).await), GatewayOptions::new(), file_limits(RULES)).await
}

/// A chunked request with this body in chunks of at most 1,000 bytes.
fn chunked(path: &str, body: &str) -> String {
    let chunk = |chunk: &[u8]| format!("{:x}\r\n{}\r\n", chunk.len(), String::from_utf8_lossy(chunk));
    let chunks: String = body.as_bytes().chunks(1000).map(chunk).collect();
    format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
    )
}

fn with_length(body: &str) -> String {
    format!("POST /upload HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// The tokens that are left after a GET, which costs 1.
async fn tokens_left(gateway: SocketAddr) -> u64 {
    let response = exchange(gateway, "GET /upload HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    field(&response, "x-ratelimit-remaining").unwrap_or_else(|| panic!("{response}")).parse().unwrap()
}

#[tokio::test]
async fn a_chunked_body_costs_what_an_announced_one_does() {
    let gateway = gateway(mirror()).await;
    let body = "x".repeat(3000);
    assert_eq!(tokens_left(gateway).await, 19);
    let announced = exchange(gateway, &with_length(&body)).await;
    assert_eq!((field(&announced, "x-ratelimit-remaining"), tokens_left(gateway).await), (Some("16"), 15));
    // 11 are taken until the size is known.
    let chunked = exchange(gateway, &chunked("/upload", &body)).await;
    assert!(chunked.contains(&body), "{chunked}");
    assert_eq!((field(&chunked, "x-ratelimit-remaining"), tokens_left(gateway).await), (Some("4"), 11));
}

/// Otherwise many clients could upload as much as they like, as long as none of them has finished.
#[tokio::test]
async fn uploads_without_a_length_that_are_under_way_count_in_full() {
    let (started, mut starts) = mpsc::unbounded_channel();
    let app = Router::new().fallback(async move |request: Request| {
        started.send(()).unwrap();
        axum::body::to_bytes(request.into_body(), usize::MAX).await.map_or("broken", |_| "complete")
    });
    let gateway = gateway(app).await;
    let mut first = RawConnection::connect(gateway).await;
    let request = chunked("/upload", "x");
    let (begin, end) = request.split_at(request.len() - "0\r\n\r\n".len());
    first.send(begin).await;
    starts.recv().await.unwrap();
    let second = exchange(gateway, &chunked("/upload", "x")).await;
    assert!(second.starts_with("HTTP/1.1 429 "), "{second}");
    first.send(end).await;
    first.receive_until("complete").await;
    let third = exchange(gateway, &chunked("/upload", "x")).await;
    assert!(third.starts_with("HTTP/1.1 200 "), "{third}");
}

#[tokio::test]
async fn a_body_without_a_length_cannot_be_longer_than_it_was_charged_for() {
    let gateway = gateway(mirror()).await;
    let refused = exchange(gateway, &chunked("/upload", &"x".repeat(10_241))).await;
    assert!(refused.starts_with("HTTP/1.1 413 ") && refused.contains("Send a Content-Length"), "{refused}");
    assert_eq!(tokens_left(gateway).await, 8, "what was taken stays taken");
}

#[tokio::test]
async fn a_body_without_a_length_may_be_as_long_as_it_was_charged_for() {
    let gateway = gateway(mirror()).await;
    let response = exchange(gateway, &chunked("/upload", &"x".repeat(10_240))).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert_eq!(tokens_left(gateway).await, 8);
}

#[tokio::test]
async fn bodies_that_no_rule_weighs_have_any_length() {
    let gateway = gateway(mirror()).await;
    let response = exchange(gateway, &chunked("/other", &"x".repeat(50_000))).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
}

/// A client that hangs up, or an upstream that answers before the body has arrived, must not make an upload cheap.
#[tokio::test]
async fn an_upload_that_does_not_end_keeps_its_cost() {
    let (started, mut starts) = mpsc::unbounded_channel();
    let app = Router::new().fallback(async move |request: Request| {
        let mut body = request.into_body();
        let _ = body.frame().await;
        started.send(()).unwrap();
        "early"
    });
    let gateway = gateway(app).await;
    let mut connection = RawConnection::connect(gateway).await;
    connection.send("POST /upload HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n").await;
    starts.recv().await.unwrap();
    connection.receive_until("early").await;
    drop(connection);
    assert_eq!(tokens_left(gateway).await, 8);
}

async fn send_http2<B>(gateway: SocketAddr, method: &str, length: Option<&str>, body: B) -> Option<u64>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let request = http::Request::builder().method(method).uri(format!("http://{gateway}/upload"));
    let request = length.into_iter().fold(request, |request, length| request.header("content-length", length));
    let response =
        client.request(request.body(body).unwrap()).await.ok().filter(|response| response.status() == 200)?;
    response.headers()["x-ratelimit-remaining"].to_str().unwrap().parse().ok()
}

/// A body that does not say how long it is.
struct Chunks(&'static [&'static str]);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some((chunk, rest)) = self.0.split_first() else { return Poll::Ready(None) };
        self.0 = rest;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(chunk.as_bytes())))))
    }
}

#[tokio::test]
async fn in_http_2_a_body_without_a_length_counts_as_in_http_1() {
    let gateway = gateway(mirror()).await;
    for method in ["GET", "POST"] {
        assert!(send_http2(gateway, method, None, Empty::new()).await.is_some(), "no body costs 1");
    }
    assert_eq!(send_http2(gateway, "POST", None, Full::from("hello")).await, Some(17), "hyper announces its length");
    assert_eq!(send_http2(gateway, "POST", None, Chunks(&["hel", "lo"])).await, Some(6));
    assert_eq!(send_http2(gateway, "GET", None, Chunks(&["hel", "lo"])).await, Some(5), "a GET may have a body, too");
    assert_eq!(tokens_left(gateway).await, 14, "each has cost 1");
}

/// The length is what a client pays for, so more bytes than that must not pass.
#[tokio::test]
async fn a_body_cannot_be_longer_than_it_is_announced() {
    let gateway = gateway(mirror()).await;
    let longer = "POST /upload HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nxyyyyyyyyyy\r\n\r\n";
    let response = exchange(gateway, longer).await;
    assert!(response.contains("body: x") && !response.contains("xy"), "{response}");
    assert!(response.contains("HTTP/1.1 400 "), "the rest is no request: {response}");
    assert_eq!(send_http2(gateway, "POST", Some("1"), Chunks(&["xyyyy"])).await, None);
    assert_eq!(send_http2(gateway, "POST", Some("9"), Chunks(&["x"])).await, None);
}
