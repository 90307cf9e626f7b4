//! Error responses of the gateway, and timeouts of clients and upstreams.

use std::future::pending;
use std::time::Duration;

use axum::Router;
use tidegate::ManualClock;
use tidegate_server::ConnectionLimits;
use tidegate_server::gateway::GatewayOptions;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::gateway::{
    RawConnection, START, exchange, field, gateway, gateway_at, gateway_with, get, limits, listener, mirror, serve,
};

const SHORT_TIMEOUT: Duration = Duration::from_millis(100);

async fn gateway_with_options(app: Router, options: GatewayOptions) -> std::net::SocketAddr {
    gateway_with(&format!("http://{}", serve(app).await), options, limits([], &ManualClock::starting_at(START))).await
}

async fn gateway_with_connection_limits(app: Router, connection_limits: ConnectionLimits) -> std::net::SocketAddr {
    let upstream = format!("http://{}", serve(app).await);
    let layer = limits([], &ManualClock::starting_at(START));
    gateway_at(listener().await.with_limits(connection_limits), &upstream, GatewayOptions::new(), layer)
}

fn silent() -> Router {
    Router::new().fallback(async || pending::<&str>().await)
}

#[tokio::test]
async fn an_unreachable_upstream_gives_502() {
    // The listener is dropped at once, so nothing listens on the port.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let layer = limits([], &ManualClock::starting_at(START));
    let gateway = gateway_with(&format!("http://{free}"), GatewayOptions::new(), layer).await;
    let response = get(gateway, "/", "").await;
    assert!(response.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{response}");
    assert_eq!(field(&response, "content-type"), Some("application/json"));
    assert!(response.contains(r#"{"error":"upstream_unreachable","message":""#), "{response}");
}

#[tokio::test]
async fn an_upstream_that_does_not_speak_http_gives_502() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut connection = RawConnection::new(listener.accept().await.unwrap().0);
        connection.receive_until("\r\n\r\n").await;
        connection.send("SSH-2.0-OpenSSH\r\n").await;
    });
    let layer = limits([], &ManualClock::starting_at(START));
    let gateway = gateway_with(&format!("http://{address}"), GatewayOptions::new(), layer).await;
    assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 502 "));
}

#[tokio::test]
async fn an_upstream_that_does_not_respond_in_time_gives_504() {
    let gateway = gateway_with_options(silent(), GatewayOptions::new().with_response_timeout(SHORT_TIMEOUT)).await;
    let response = get(gateway, "/", "").await;
    assert!(response.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{response}");
    assert!(response.contains(r#"{"error":"upstream_timeout","message":""#), "{response}");
    let response =
        exchange(gateway, "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi").await;
    assert!(response.starts_with("HTTP/1.1 504 "), "{response}");
}

#[tokio::test]
async fn a_client_that_stops_in_the_middle_of_its_body_gets_408() {
    let gateway = gateway_with_options(mirror(), GatewayOptions::new().with_response_timeout(SHORT_TIMEOUT)).await;
    let response = exchange(gateway, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf").await;
    assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
}

#[tokio::test]
async fn a_request_body_over_the_maximum_gets_413() {
    let gateway = gateway_with_options(mirror(), GatewayOptions::new().with_max_body_bytes(4)).await;
    let head = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n";
    for body in ["content-length: 5\r\n\r\nhello", "transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"]
    {
        let response = exchange(gateway, &format!("{head}{body}")).await;
        assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
        assert!(response.contains(r#"{"error":"body_too_long","#), "{response}");
    }
    let response = exchange(gateway, &format!("{head}transfer-encoding: chunked\r\n\r\n4\r\nfits\r\n0\r\n\r\n")).await;
    assert!(response.starts_with("HTTP/1.1 200 ") && response.contains("fits"), "{response}");
}

#[tokio::test]
async fn request_headers_over_the_maximum_get_431() {
    let gateway = gateway_with_connection_limits(mirror(), ConnectionLimits::new().with_max_header_bytes(8192)).await;
    let response = get(gateway, "/", &format!("x-long: {}\r\n", "x".repeat(9000))).await;
    assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
    assert!(get(gateway, "/", "x-short: x\r\n").await.starts_with("HTTP/1.1 200 "));
}

/// Against slow clients (Slowloris): a connection without complete request headers is closed after the header timeout.
#[tokio::test]
async fn a_client_without_a_complete_request_is_disconnected() {
    let gateway =
        gateway_with_connection_limits(mirror(), ConnectionLimits::new().with_header_timeout(SHORT_TIMEOUT)).await;
    for start in ["", "P", "PRI * HTTP/2.0\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nhost: a\r\n"] {
        let response = exchange(gateway, start).await;
        assert!(!response.contains("200 OK"), "{start:?}: {response}");
    }
}

/// Without a write timeout, a client that reads nothing would hold its connection and that of the upstream for ever.
#[tokio::test]
async fn a_client_that_does_not_read_its_response_is_disconnected() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", upstream.local_addr().unwrap());
    let writing = tokio::spawn(async move {
        let (mut stream, _) = upstream.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n").await.unwrap();
        while stream.write_all(&[0; 4096]).await.is_ok() {}
    });
    let limited = listener().await.with_limits(ConnectionLimits::new().with_write_timeout(SHORT_TIMEOUT));
    let gateway = gateway_at(limited, &address, GatewayOptions::new(), limits([], &ManualClock::starting_at(START)));
    let mut connection = RawConnection::connect(gateway).await;
    connection.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    writing.await.unwrap();
}

#[tokio::test]
async fn a_client_over_the_maximum_of_connections_waits() {
    let gateway = gateway_with_connection_limits(mirror(), ConnectionLimits::new().with_max_connections(1)).await;
    let mut first = RawConnection::connect(gateway).await;
    first.send("GET /1 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    first.receive_until("GET /1 ").await;
    let mut second = RawConnection::connect(gateway).await;
    second.send("GET /2 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    first.send("GET /3 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    first.receive_until("GET /3 ").await;
    assert_eq!(second.received, "");
    drop(first);
    second.receive_until("GET /2 ").await;
}

#[tokio::test]
async fn the_header_timeout_does_not_apply_to_a_slow_response() {
    let (requests, mut held_requests) = tokio::sync::mpsc::unbounded_channel::<tokio::sync::oneshot::Sender<()>>();
    let app = Router::new().fallback(async move || {
        let (release, released) = tokio::sync::oneshot::channel();
        requests.send(release).unwrap();
        released.await.unwrap();
        "at last"
    });
    let gateway = gateway_with_connection_limits(app, ConnectionLimits::new().with_header_timeout(SHORT_TIMEOUT)).await;
    let mut connection = RawConnection::connect(gateway).await;
    connection.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let release = held_requests.recv().await.unwrap();
    // Another client, which sends nothing, has run into the timeout by now.
    exchange(gateway, "").await;
    release.send(()).unwrap();
    connection.receive_until("at last").await;
}

#[tokio::test]
async fn connect_is_rejected_with_405() {
    let gateway = gateway(mirror()).await;
    let response = exchange(gateway, "CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\nconnection: close\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 405 "), "{response}");
}
