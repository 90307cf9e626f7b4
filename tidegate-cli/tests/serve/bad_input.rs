//! Malformed, slow and endless requests: each gets a clear status, and other clients are not affected.

use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::json;
use tidegate_server::envoy::messages::{Entry, RateLimitDescriptor, RateLimitRequest};

use crate::serve::{Running, ask};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Sends `text` and returns the whole response. The server may stop reading before the end.
fn exchange(address: &str, text: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let _ = stream.write_all(text);
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    String::from_utf8_lossy(&heard).into_owned()
}

/// A call with this declared length and this body, which may be shorter.
fn call(length: usize, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

#[test]
fn slow_clients_time_out_and_other_clients_are_served() {
    let server = Running::start(&["--header-timeout", "1", "--request-timeout", "1"]);
    let mut held: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&server.http).unwrap()).collect();
    for stream in &mut held {
        stream.write_all(b"POST /v1/check HTTP/1.1\r\nhost: a\r\nx-slow: ").unwrap();
    }
    assert_eq!(server.check("{}")["allowed"], json!(true), "beside them");
    for mut stream in held {
        let mut heard = Vec::new();
        // The connection is closed, with or without a response.
        let ended = stream.read_to_end(&mut heard);
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
        assert!(!heard.starts_with(b"HTTP/1.1 200"));
    }
    for address in [&server.http, &server.admin, &server.grpc] {
        assert_eq!(exchange(address, b"GET"), "", "{address}");
    }
    let stopped = exchange(&server.http, &call(100, b"{\"path\":"));
    assert!(stopped.starts_with("HTTP/1.1 408 ") && stopped.contains("request_timeout"), "{stopped}");
}

/// The body of a gRPC call, which may stop before its end.
struct Sent {
    bytes: Option<Bytes>,
    ends: bool,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.bytes.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// The `grpc-status` of a call of the rate limit service, of whose message all but the last `missing` bytes are sent.
async fn status_of(client: SendRequest<Sent>, missing: usize, ends: bool) -> String {
    let entries = vec![Entry { key: "k".to_owned(), value: "v".to_owned() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let request = RateLimitRequest { domain: "edge".to_owned(), descriptors, ..RateLimitRequest::default() };
    let message = request.encode_to_vec();
    let mut bytes = [&[0; 4][..], &[u8::try_from(message.len()).unwrap()], &message].concat();
    bytes.truncate(bytes.len() - missing);
    called(client, SHOULD_RATE_LIMIT, Sent { bytes: Some(bytes.into()), ends }).await
}

/// The `grpc-status` of any call.
async fn called(mut client: SendRequest<Sent>, path: &str, body: Sent) -> String {
    let request = Request::post(format!("http://test{path}")).header("content-type", "application/grpc");
    let answer = client.send_request(request.header("te", "trailers").body(body).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    let status = |fields: &HeaderMap| fields.get("grpc-status").map(|status| status.to_str().unwrap().to_owned());
    let in_head = status(answer.headers());
    let end = answer.into_body().collect().await.ok().and_then(|body| body.trailers().and_then(status));
    in_head.or(end).unwrap()
}

async fn grpc(server: &Running) -> SendRequest<Sent> {
    let stream = tokio::net::TcpStream::connect(&server.grpc).await.unwrap();
    let (client, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn an_endless_grpc_message_times_out_and_other_calls_are_answered() {
    let server = Running::start(&["--request-timeout", "1"]);
    let client = grpc(&server).await;
    let call = |missing, ends| tokio::spawn(status_of(client.clone(), missing, ends));
    // Some stop in the middle of the message, some after its length, and some send all of it but do not end the stream.
    let held: Vec<_> = (0..30).map(|number| call([1, 11, 0][number % 3], false)).collect();
    assert_eq!(call(0, true).await.unwrap(), "0", "beside them, on the same connection");
    for call in held {
        assert_eq!(call.await.unwrap(), "4", "DEADLINE_EXCEEDED");
    }
    assert_eq!(call(0, true).await.unwrap(), "0", "after them");
    assert_eq!(call(1, true).await.unwrap(), "13", "what ends too early is INTERNAL at once");
}

#[tokio::test]
async fn health_answers_for_its_names_and_an_unknown_grpc_path_is_unimplemented() {
    let server = Running::start(&[]);
    let client = grpc(&server).await;
    let status = |path: &'static str| {
        let empty = Sent { bytes: Some(Bytes::from_static(&[0; 5])), ends: true };
        called(client.clone(), path, empty)
    };
    assert_eq!(status("/grpc.health.v1.Health/Check").await, "0");
    let named = |name: &str| {
        // The only field of the request is the name of the service.
        let message = [&[0, 0, 0, 0, name.len() as u8 + 2, 0x0a, name.len() as u8], name.as_bytes()].concat();
        called(client.clone(), "/grpc.health.v1.Health/Check", Sent { bytes: Some(message.into()), ends: true })
    };
    assert_eq!(named("ratelimit").await, "0", "the name that Envoy's own server has");
    assert_eq!(named("another").await, "5", "NOT_FOUND");
    assert_eq!(status(SHOULD_RATE_LIMIT).await, "3", "INVALID_ARGUMENT: there is no domain in it");
    for path in [
        "/",
        "/grpc.health.v1.Health",
        "/grpc.health.v1.Health/",
        "/grpc.health.v1.Health/Chekc",
        "/grpc.health.v1.Healthy/Check",
        "/envoy.service.ratelimit.v3.RateLimitService/",
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimits",
        "//envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
    ] {
        assert_eq!(status(path).await, "12", "{path}");
    }
}

#[test]
fn an_endless_body_is_cut_off() {
    let server = Running::start(&[]);
    let response = exchange(&server.http, &call(2_000_000, b"{"));
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
    let mut endless = b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..40 {
        endless.extend_from_slice(b"10000\r\n");
        endless.resize(endless.len() + 0x10000, b' ');
        endless.extend_from_slice(b"\r\n");
    }
    let response = exchange(&server.http, &endless);
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 413 "), "{response}");
    assert_eq!(server.check("{}")["allowed"], json!(true));
}

#[test]
fn a_request_head_that_is_too_long_is_a_431() {
    let server = Running::start(&[]);
    let value = "x".repeat(64 * 1024);
    let response =
        exchange(&server.http, format!("GET /healthz HTTP/1.1\r\nhost: a\r\nx-long: {value}\r\n\r\n").as_bytes());
    assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
    let target = exchange(&server.http, format!("GET /{value} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes());
    assert!(target.starts_with("HTTP/1.1 414 ") || target.starts_with("HTTP/1.1 431 "), "{target}");
    let check = json!({ "path": "/hello", "headers": { "x-long": value } }).to_string();
    assert_eq!(server.post("/v1/check", &check).0, 200, "a long value in the JSON body is accepted");
}

#[test]
fn text_that_is_not_utf_8_is_a_bad_request() {
    let server = Running::start(&[]);
    for field in ["method", "path", "host", "ip", "tenant", "action", "body"] {
        let body = [format!("{{\"{field}\":\"/").as_bytes(), b"\xff\xfe\"}"].concat();
        let response = exchange(&server.http, &call(body.len(), &body));
        assert!(response.starts_with("HTTP/1.1 400 ") && response.contains("column"), "{field}: {response}");
    }
    for body in [&b"{\"headers\":{\"x\":\"\xff\"}}"[..], b"{\"\xff\":1}", b"{\"attributes\":{\"\xff\":\"\"}}", b"\xff"]
    {
        assert!(exchange(&server.http, &call(body.len(), body)).starts_with("HTTP/1.1 400 "));
    }
    let head = b"GET /v1/forward-auth HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-forwarded-uri: /\xff\r\nx-api-key: \xff\r\n\r\n";
    let response = exchange(&server.http, head);
    assert!(response.starts_with("HTTP/1.1 400 ") || response.starts_with("HTTP/1.1 200 "), "{response}");
    assert_eq!(server.check("{}")["allowed"], json!(true));
}

#[test]
fn deeply_nested_json_is_a_bad_request() {
    let server = Running::start(&[]);
    let deep = format!("{{\"attributes\":{}", "[".repeat(500_000));
    assert_eq!(server.post("/v1/check", &deep).0, 400);
    assert_eq!(server.post("/v1/check/batch", &deep.replace("attributes", "checks")).0, 400);
}

#[test]
fn a_content_length_beside_a_transfer_encoding_is_refused_on_every_address() {
    let server = Running::start(&[]);
    let both = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    for address in [&server.http, &server.admin, &server.grpc] {
        assert!(exchange(address, both).starts_with("HTTP/1.1 400 "), "{address}");
    }
}

#[test]
fn an_unknown_path_is_a_404() {
    let server = Running::start(&[]);
    assert_eq!(ask(&server.http, "POST", "/v1/chekc", "{}").0, 404);
    assert_eq!(ask(&server.http, "GET", "/v1/check", "").0, 405);
}
