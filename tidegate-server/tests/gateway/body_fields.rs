//! Rules that count by a field of the body, and clients that hide it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_server::gateway::GatewayOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::gateway::{RawConnection, exchange, file_limits, gateway_with, mirror, serve};

/// Two attempts for each account.
const RULES: &str = "
version: 1
rules:
  - { id: login, match: { path: /login }, per: ['body:account'], sliding_log: { limit: 2, window: 10m }, on_failure: share }
";

/// The longest body that is read, in bytes.
const MAX_BODY_BYTES: usize = 64 * 1024;

async fn gateway() -> SocketAddr {
    gateway_with_options(GatewayOptions::new()).await
}

async fn gateway_with_options(options: GatewayOptions) -> SocketAddr {
    gateway_with(&format!("http://{}", serve(mirror()).await), options, file_limits(RULES)).await
}

/// Posts a body with these header lines. Returns the whole response.
async fn post(gateway: SocketAddr, path: &str, lines: &str, body: &str) -> String {
    let length = body.len();
    exchange(
        gateway,
        &format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{lines}content-length: {length}\r\n\r\n{body}"
        ),
    )
    .await
}

async fn login(gateway: SocketAddr, lines: &str, body: &str) -> u16 {
    let response = post(gateway, "/login", lines, body).await;
    response.split(' ').nth(1).unwrap().parse().unwrap()
}

const JSON: &str = "content-type: application/json\r\n";

#[tokio::test]
async fn each_account_in_a_body_has_its_own_limit() {
    let gateway = gateway().await;
    for account in ["ann", "ben"] {
        let body = format!(r#"{{ "account": "{account}", "password": "x" }}"#);
        let response = post(gateway, "/login", JSON, &body).await;
        assert!(response.ends_with(&format!("body: {body}")), "the same bytes: {response}");
        assert!(response.contains(&format!("\ncontent-length: {}\n", body.len())), "{response}");
        assert_eq!(login(gateway, JSON, &body).await, 200);
        assert_eq!(login(gateway, JSON, &body).await, 429);
    }
}

/// Many servers parse a body as JSON whatever its type is.
#[tokio::test]
async fn no_header_hides_the_field_of_a_body() {
    let gateway = gateway().await;
    let ann = r#"{"account":"ann"}"#;
    assert_eq!([login(gateway, JSON, ann).await, login(gateway, JSON, ann).await], [200, 200]);
    for lines in [
        "",
        "content-type: text/plain\r\n",
        "content-type: application/x-www-form-urlencoded\r\n",
        "content-type: application/json\r\ncontent-encoding: gzip\r\n",
        "content-type: application/json; charset=utf-16\r\n",
        "expect: 100-continue\r\n",
    ] {
        let response = post(gateway, "/login", lines, ann).await;
        assert!(response.contains("HTTP/1.1 429 "), "{lines}: {response}");
    }
    let chunks = "1\r\n{\r\n10\r\n\"account\":\"ann\"}\r\n0\r\n\r\n";
    let request =
        format!("POST /login HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{chunks}");
    assert!(exchange(gateway, &request).await.starts_with("HTTP/1.1 429 "));
    for spelling in [r#"{"\u0061ccount":"\u0061nn"}"#, " {\n\"x\": [1], \"account\" : \"ann\"}\n"] {
        assert_eq!(login(gateway, JSON, spelling).await, 429, "{spelling}");
    }
}

/// They share one limit, so that it cannot be avoided; a flood of them denies nobody whose body can be read.
#[tokio::test]
async fn bodies_that_cannot_be_read_share_one_limit() {
    let gateway = gateway().await;
    let unreadable = [
        "account=ann",
        r#"{"account":"ann""#,
        "\u{feff}{\"account\":\"ann\"}",
        r#"{"Account":"ann"}"#,
        r#"[{"account":"ann"}]"#,
        r#"{"account":["ann"]}"#,
        r#"{"account":"ann"}{}"#,
        r#"{"account":"ann",}"#,
        "",
    ];
    let mut admitted = 0;
    for body in unreadable {
        admitted += usize::from(login(gateway, JSON, body).await == 200);
    }
    assert_eq!(admitted, 2);
    assert_eq!(login(gateway, JSON, r#"{"account":"ann"}"#).await, 200);
}

#[tokio::test]
async fn a_field_that_servers_read_differently_is_refused() {
    let gateway = gateway().await;
    for body in [
        r#"{"account":"random","account":"ann"}"#,
        r#"{"account":"random","Account":"ann"}"#,
        r#"{"account":"ann","\u0061ccount":"random"}"#,
    ] {
        assert_eq!(login(gateway, JSON, body).await, 400, "{body}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_long_to_be_read_gets_413() {
    let gateway = gateway().await;
    let padded = |bytes: usize| format!("{{\"account\":\"ann\"{}}}", " ".repeat(bytes - r#"{"account":"ann"}"#.len()));
    assert_eq!(login(gateway, JSON, &padded(MAX_BODY_BYTES)).await, 200);
    assert_eq!(login(gateway, JSON, &padded(MAX_BODY_BYTES + 1)).await, 413);
    assert_eq!(login(gateway, "content-type: text/plain\r\n", &padded(MAX_BODY_BYTES + 1)).await, 413);
    let body = padded(MAX_BODY_BYTES + 1);
    let chunked = format!(
        "POST /login HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    assert!(exchange(gateway, &chunked).await.starts_with("HTTP/1.1 413 "));
    let elsewhere = post(gateway, "/upload", JSON, &body).await;
    assert!(elsewhere.starts_with("HTTP/1.1 200 "), "no rule reads it: {}", &elsewhere[..200]);
}

/// A slow client is cut off before the decision as it is after it.
#[tokio::test]
async fn a_body_that_drips_gets_408_before_it_is_judged() {
    const SHORT_TIMEOUT: Duration = Duration::from_millis(100);
    for options in [
        GatewayOptions::new().with_upload_pace(SHORT_TIMEOUT, u64::MAX),
        GatewayOptions::new().with_upload_timeout(SHORT_TIMEOUT),
    ] {
        let gateway = gateway_with_options(options).await;
        let mut connection = RawConnection::connect(gateway).await;
        connection.send("POST /login HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\n").await;
        let (mut reader, mut writer) = connection.stream.into_split();
        let dripping = tokio::spawn(async move {
            while writer.write_all(b" ").await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
        let mut response = Vec::new();
        let _ = reader.read_to_end(&mut response).await;
        assert!(response.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&response));
        dripping.await.unwrap();
    }
    let gateway = gateway().await;
    let mut gone = RawConnection::connect(gateway).await;
    gone.send("POST /login HTTP/1.1\r\nhost: a\r\ncontent-length: 17\r\n\r\n{\"account\":").await;
    drop(gone);
    for expected in [200, 200, 429] {
        assert_eq!(
            login(gateway, JSON, r#"{"account":"ann"}"#).await,
            expected,
            "the client that left consumed nothing"
        );
    }
}

/// A body that does not end.
struct OpenStream;

impl Body for OpenStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// Its request may last as long as its response.
#[tokio::test]
async fn a_grpc_stream_is_not_awaited() {
    let app = Router::new().fallback(async || "early");
    let gateway =
        gateway_with(&format!("http://{}", serve(app).await), GatewayOptions::new(), file_limits(RULES)).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let request =
        http::Request::post(format!("http://{gateway}/login")).header("content-type", "application/grpc+json");
    let response = client.request(request.body(OpenStream).unwrap()).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "early");
}

#[tokio::test]
async fn trailers_of_a_body_that_was_read_are_forwarded() {
    let app = Router::new().fallback(async |request: axum::extract::Request| {
        let whole = request.into_body().collect().await.unwrap();
        format!("{:?}", whole.trailers().map(|trailers| trailers["x-sum"].clone()))
    });
    let upstream = format!("h2c://{}", serve(app).await);
    let gateway = gateway_with(&upstream, GatewayOptions::new(), file_limits(RULES)).await;
    let trailers = async { Some(Ok([("x-sum".parse().unwrap(), "7".parse().unwrap())].into_iter().collect())) };
    let body = http_body_util::Full::new(Bytes::from_static(b"{}")).with_trailers(trailers);
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let request = http::Request::post(format!("http://{gateway}/login"));
    let response = client.request(request.body(Box::pin(body)).unwrap()).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "Some(\"7\")");
}

/// A shadow rule affects no request, whatever its body is.
#[tokio::test]
async fn a_shadow_rule_refuses_no_body() {
    let rules = RULES
        .replace("per:", "mode: shadow, cost: 1 + request.size / 9, per:")
        .replace("rules:", "unknown_size: 9\nrules:");
    let layer = file_limits(&rules);
    let gateway = gateway_with(&format!("http://{}", serve(mirror()).await), GatewayOptions::new(), layer).await;
    let long = " ".repeat(MAX_BODY_BYTES + 1);
    for body in [r#"{"account":"ann"}"#, "account=ann", &long] {
        assert_eq!(login(gateway, JSON, body).await, 200);
        let chunked = format!(
            "POST /login HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        assert!(exchange(gateway, &chunked).await.starts_with("HTTP/1.1 200 "));
    }
}

/// The same rule for two paths, at one of which it only observes. Bodies may be long.
const RULES_FOR_LARGE_BODIES: &str = "
version: 1
max_body: 16777216
rules:
  - { id: login, match: { path: /login }, per: ['body:account'], sliding_log: { limit: 2, window: 10m }, on_failure: share }
  - { id: shadow, mode: shadow, match: { path: /shadow }, per: ['body:account'], sliding_log: { limit: 2, window: 10m }, on_failure: share }
";

/// Otherwise clients that announce bodies and send nothing would have all others with large bodies refused.
#[tokio::test]
async fn a_body_that_a_shadow_rule_reads_takes_memory_only_as_it_arrives() {
    let upstream = format!("http://{}", serve(mirror()).await);
    let gateway = gateway_with(&upstream, GatewayOptions::new(), file_limits(RULES_FOR_LARGE_BODIES)).await;
    let mut silent = Vec::new();
    for _ in 0..9 {
        let mut client = RawConnection::connect(gateway).await;
        let lines = "host: a\r\nexpect: 100-continue\r\ncontent-length: 16777216";
        client.send(&format!("POST /shadow HTTP/1.1\r\n{lines}\r\n\r\n")).await;
        client.receive_until("100 Continue").await;
        silent.push(client);
    }
    let body = format!(r#"{{"account":"ann"{}}}"#, " ".repeat(1 << 20));
    assert_eq!(login(gateway, JSON, &body).await, 200);
}

/// The first 64 KiB of each body are free, and what is longer shares 128 MiB.
#[tokio::test]
async fn large_bodies_share_a_bounded_memory_until_they_are_forwarded() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", upstream.local_addr().unwrap());
    let gateway = gateway_with(&address, GatewayOptions::new(), file_limits(RULES_FOR_LARGE_BODIES)).await;
    let request = |account: &str, length: usize| {
        let body = format!(r#"{{"account":"{account}","x":"{}"}}"#, "x".repeat(length - 21 - account.len()));
        let lines = format!("host: a\r\nconnection: close\r\ncontent-length: {}", body.len());
        format!("POST /login HTTP/1.1\r\n{lines}\r\n\r\n{body}")
    };
    // The upstream does not read them, so that they stay in memory.
    let mut waiting = Vec::new();
    for account in ["a", "b", "c", "d", "g", "h", "i", "j"] {
        let mut client = RawConnection::connect(gateway).await;
        client.send(&request(account, 16 << 20)).await;
        waiting.push((client, upstream.accept().await.unwrap()));
    }
    let refused = exchange(gateway, &request("e", 1 << 20)).await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    let mut client = RawConnection::connect(gateway).await;
    client.send(&request("e", MAX_BODY_BYTES)).await;
    let small = upstream.accept().await.unwrap();
    // A body that only a shadow rule reads is forwarded all the same, and as it is.
    let request_in_shadow = request("e", 1 << 20).replace("/login", "/shadow");
    let mut client = RawConnection::connect(gateway).await;
    client.send(&request_in_shadow).await;
    let mut shadow = RawConnection::new(upstream.accept().await.unwrap().0);
    shadow.receive_until("\"}").await;
    let [sent, received] = [&request_in_shadow, &shadow.received].map(|text| text.split_once("\r\n\r\n").unwrap());
    assert!(sent.1 == received.1, "{}: {}", received.0, received.1.len());
    assert!(received.0.contains("\r\ncontent-length: 1048576\r\n"), "{}", received.0);
    // One of them ends.
    let (other, connection) = waiting.pop().unwrap();
    drop(connection);
    other.receive_to_end().await;
    let mut client = RawConnection::connect(gateway).await;
    client.send(&request("f", 1 << 20)).await;
    drop((upstream.accept().await.unwrap(), small));
}
