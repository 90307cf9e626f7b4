//! What clients are told when something is wrong, on their side or behind the gateway.

use std::future::pending;
use std::time::Duration;

use axum::Router;
use tidegate::ManualClock;
use tidegate_server::ConnectionLimits;
use tidegate_server::gateway::GatewayOptions;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::{START, Wire, exchange, field, gateway, gateway_at, gateway_with, get, limits, listener, mirror, serve};

const SOON: Duration = Duration::from_millis(100);

async fn with(app: Router, options: GatewayOptions) -> std::net::SocketAddr {
    gateway_with(&format!("http://{}", serve(app).await), options, limits([], &ManualClock::at(START))).await
}

/// One that bounds its connections.
async fn bounded(app: Router, bounds: ConnectionLimits) -> std::net::SocketAddr {
    let upstream = format!("http://{}", serve(app).await);
    let layer = limits([], &ManualClock::at(START));
    gateway_at(listener().await.limits(bounds), &upstream, GatewayOptions::new(), layer)
}

fn silent() -> Router {
    Router::new().fallback(async || pending::<&str>().await)
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_a_502() {
    // A port that was free a moment ago, and that nobody listens on.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let layer = limits([], &ManualClock::at(START));
    let gateway = gateway_with(&format!("http://{free}"), GatewayOptions::new(), layer).await;
    let heard = get(gateway, "/", "").await;
    assert!(heard.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{heard}");
    assert_eq!(field(&heard, "content-type"), Some("application/json"));
    assert!(heard.contains(r#"{"error":"upstream_unreachable","message":""#), "{heard}");
}

#[tokio::test]
async fn an_upstream_that_does_not_speak_http_is_a_502() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut wire = Wire { stream: listener.accept().await.unwrap().0, heard: String::new() };
        wire.hear("\r\n\r\n").await;
        wire.say("SSH-2.0-OpenSSH\r\n").await;
    });
    let layer = limits([], &ManualClock::at(START));
    let gateway = gateway_with(&format!("http://{address}"), GatewayOptions::new(), layer).await;
    assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 502 "));
}

#[tokio::test]
async fn an_upstream_that_takes_too_long_is_a_504() {
    let gateway = with(silent(), GatewayOptions::new().response_timeout(SOON)).await;
    let heard = get(gateway, "/", "").await;
    assert!(heard.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{heard}");
    assert!(heard.contains(r#"{"error":"upstream_timeout","message":""#), "{heard}");
    let heard =
        exchange(gateway, "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi").await;
    assert!(heard.starts_with("HTTP/1.1 504 "), "{heard}");
}

#[tokio::test]
async fn a_client_that_stops_in_the_middle_of_its_body_is_a_408() {
    let gateway = with(mirror(), GatewayOptions::new().response_timeout(SOON)).await;
    let heard = exchange(gateway, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf").await;
    assert!(heard.starts_with("HTTP/1.1 408 "), "{heard}");
}

#[tokio::test]
async fn a_body_that_is_too_long_is_a_413() {
    let gateway = with(mirror(), GatewayOptions::new().max_body_bytes(4)).await;
    let told = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n";
    for body in ["content-length: 5\r\n\r\nhello", "transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"]
    {
        let heard = exchange(gateway, &format!("{told}{body}")).await;
        assert!(heard.starts_with("HTTP/1.1 413 "), "{heard}");
        assert!(heard.contains(r#"{"error":"body_too_long","#), "{heard}");
    }
    let heard = exchange(gateway, &format!("{told}transfer-encoding: chunked\r\n\r\n4\r\nfits\r\n0\r\n\r\n")).await;
    assert!(heard.starts_with("HTTP/1.1 200 ") && heard.contains("fits"), "{heard}");
}

#[tokio::test]
async fn a_head_that_is_too_long_is_a_431() {
    let gateway = bounded(mirror(), ConnectionLimits::new().max_header_bytes(8192)).await;
    let heard = get(gateway, "/", &format!("x-long: {}\r\n", "x".repeat(9000))).await;
    assert!(heard.starts_with("HTTP/1.1 431 "), "{heard}");
    assert!(get(gateway, "/", "x-short: x\r\n").await.starts_with("HTTP/1.1 200 "));
}

/// Story: a handful of clients that send a byte now and then held all connections of a server. What has not become a request
/// in time is closed.
#[tokio::test]
async fn a_client_that_never_asks_is_sent_away() {
    let gateway = bounded(mirror(), ConnectionLimits::new().header_timeout(SOON)).await;
    for start in ["", "P", "PRI * HTTP/2.0\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nhost: a\r\n"] {
        let heard = exchange(gateway, start).await;
        assert!(!heard.contains("200 OK"), "{start:?}: {heard}");
    }
}

/// Story: a client asked for a large file and read none of it; its connection, and the one behind it, were held for ever.
#[tokio::test]
async fn a_client_that_takes_nothing_is_sent_away() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", upstream.local_addr().unwrap());
    let writing = tokio::spawn(async move {
        let (mut stream, _) = upstream.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n").await.unwrap();
        while stream.write_all(&[0; 4096]).await.is_ok() {}
    });
    let limited = listener().await.limits(ConnectionLimits::new().write_timeout(SOON));
    let gateway = gateway_at(limited, &address, GatewayOptions::new(), limits([], &ManualClock::at(START)));
    let mut wire = Wire::to(gateway).await;
    wire.say("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    writing.await.unwrap();
}

#[tokio::test]
async fn who_comes_when_all_places_are_taken_waits_for_one() {
    let gateway = bounded(mirror(), ConnectionLimits::new().max_connections(1)).await;
    let mut first = Wire::to(gateway).await;
    first.say("GET /1 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    first.hear("GET /1 ").await;
    let mut second = Wire::to(gateway).await;
    second.say("GET /2 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    first.say("GET /3 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    first.hear("GET /3 ").await;
    assert_eq!(second.heard, "");
    drop(first);
    second.hear("GET /2 ").await;
}

#[tokio::test]
async fn a_slow_answer_outlives_the_time_for_a_head() {
    let (asked, mut answers) = tokio::sync::mpsc::unbounded_channel::<tokio::sync::oneshot::Sender<()>>();
    let app = Router::new().fallback(async move || {
        let (go, gone) = tokio::sync::oneshot::channel();
        asked.send(go).unwrap();
        gone.await.unwrap();
        "at last"
    });
    let gateway = bounded(app, ConnectionLimits::new().header_timeout(SOON)).await;
    let mut wire = Wire::to(gateway).await;
    wire.say("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let go = answers.recv().await.unwrap();
    // Another that never asks has met the timeout by now.
    exchange(gateway, "").await;
    go.send(()).unwrap();
    wire.hear("at last").await;
}

#[tokio::test]
async fn a_gateway_is_no_proxy_for_everywhere() {
    let gateway = gateway(mirror()).await;
    let heard = exchange(gateway, "CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\nconnection: close\r\n\r\n").await;
    assert!(heard.starts_with("HTTP/1.1 405 "), "{heard}");
}
