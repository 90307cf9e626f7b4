//! Protocol upgrades and the tunnels that follow them.

use std::net::SocketAddr;

use tidegate::ManualClock;
use tidegate_server::ConnectionLimits;
use tidegate_server::gateway::GatewayOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::gateway::tokens::{RULES, TestGateway};
use crate::gateway::{RawConnection, START, gateway, gateway_at, gateway_with, get, limits, listener, mirror};

pub(crate) const UPGRADE_REQUEST: &str = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
                         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
pub(crate) const UPGRADE_RESPONSE: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                      sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// An upstream for one connection, which sends `response` and then echoes. Returns its address and the request it received.
async fn upstream(response: &'static str) -> (SocketAddr, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let request = tokio::spawn(async move {
        let mut connection = RawConnection::new(listener.accept().await.unwrap().0);
        connection.receive_until("\r\n\r\n").await;
        connection.send(response).await;
        let (mut reader, mut writer) = connection.stream.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
        connection.received
    });
    (address, request)
}

async fn gateway_to(upstream: SocketAddr) -> SocketAddr {
    gateway_with(&format!("http://{upstream}"), GatewayOptions::new(), limits([], &ManualClock::starting_at(START)))
        .await
}

#[tokio::test]
async fn a_web_socket_carries_bytes_both_ways() {
    let (upstream, request) = upstream(UPGRADE_RESPONSE).await;
    let mut connection = RawConnection::connect(gateway_to(upstream).await).await;
    connection.send(UPGRADE_REQUEST).await;
    connection.receive_until("\r\n\r\n").await;
    assert!(connection.received.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{}", connection.received);
    for line in
        ["connection: upgrade\r\n", "upgrade: websocket\r\n", "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"]
    {
        assert!(connection.received.contains(line), "{line}: {}", connection.received);
    }
    for frame in ["\u{1}first", "\u{2}second"] {
        connection.send(frame).await;
        connection.receive_until(frame).await;
    }
    drop(connection);
    // The upstream's connection ends with the client's.
    let request = request.await.unwrap();
    assert!(request.contains("connection: upgrade\r\n") && request.contains("upgrade: websocket\r\n"), "{request}");
    assert!(request.contains("sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), "{request}");
}

/// Its messages are not read.
#[tokio::test]
async fn a_web_socket_costs_the_tokens_that_were_reserved() {
    let (upstream, _request) = upstream(UPGRADE_RESPONSE).await;
    let rules = RULES.replace("match: { method: POST }", "match: {}");
    let gateway = TestGateway::new(&rules, &format!("http://{upstream}")).await;
    let mut connection = RawConnection::connect(gateway.address).await;
    connection.send(UPGRADE_REQUEST).await;
    connection.receive_until("\r\n\r\n").await;
    assert!(connection.received.starts_with("HTTP/1.1 101 "), "{}", connection.received);
    drop(connection);
    gateway.wait_until_committed().await;
    assert_eq!(gateway.used(), 500);
}

/// More than the buffers of the connections hold.
#[tokio::test]
async fn a_client_that_has_closed_its_sending_side_receives_all_that_the_upstream_still_sends() {
    const BYTES: usize = 16 << 20;
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = backend.local_addr().unwrap();
    let upstream = tokio::spawn(async move {
        let mut connection = RawConnection::new(backend.accept().await.unwrap().0);
        connection.receive_until("\r\n\r\n").await;
        connection.send(UPGRADE_RESPONSE).await;
        let mut received = Vec::new();
        connection.stream.read_to_end(&mut received).await.unwrap();
        connection.stream.write_all(&vec![b'x'; BYTES]).await.unwrap();
        received
    });
    let mut client = RawConnection::connect(gateway_to(address).await).await;
    client.send(UPGRADE_REQUEST).await;
    client.receive_until("\r\n\r\n").await;
    client.send("last").await;
    client.stream.shutdown().await.unwrap();
    let received = client.receive_to_end().await;
    let (_, body) = received.split_once("\r\n\r\n").unwrap();
    assert!(body.len() == BYTES && body.bytes().all(|byte| byte == b'x'), "{} bytes", body.len());
    assert_eq!(upstream.await.unwrap(), b"last");
}

#[tokio::test]
async fn an_upstream_may_ignore_an_upgrade() {
    let gateway = gateway(mirror()).await;
    let mut connection = RawConnection::connect(gateway).await;
    connection.send(UPGRADE_REQUEST).await;
    connection.receive_until("body: ").await;
    assert!(connection.received.starts_with("HTTP/1.1 200 OK\r\n"), "{}", connection.received);
    connection.send("GET /next HTTP/1.1\r\nhost: a\r\n\r\n").await;
    connection.receive_until("GET /next HTTP/1.1\n").await;
}

/// Requests inside an HTTP/2 tunnel would bypass the limits.
#[tokio::test]
async fn an_upgrade_to_http_2_is_not_forwarded() {
    let gateway = gateway(mirror()).await;
    for protocol in ["h2c", "H2C", "websocket, h2c", "HTTP/2.0"] {
        let lines = format!(
            "connection: upgrade, http2-settings\r\nupgrade: {protocol}\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
        );
        let response = get(gateway, "/", &lines).await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(!response.contains("upgrade") && !response.contains("http2-settings"), "{response}");
    }
}

#[tokio::test]
async fn an_upgrade_that_the_client_did_not_request_gives_502() {
    let (upstream, _) = upstream(UPGRADE_RESPONSE).await;
    let response = get(gateway_to(upstream).await, "/", "").await;
    assert!(response.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{response}");
}

/// A permit released with the HTTP connection would allow any number of tunnels.
#[tokio::test]
async fn a_tunnel_counts_as_a_connection() {
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", backend.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let mut connection = RawConnection::new(backend.accept().await.unwrap().0);
            connection.receive_until("\r\n\r\n").await;
            connection.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nhello").await;
            tokio::spawn(connection.receive_to_end());
        }
    });
    let unlimited = gateway(mirror()).await;
    let one_connection = listener().await.with_limits(ConnectionLimits::new().with_max_connections(1));
    let gateway =
        gateway_at(one_connection, &upstream, GatewayOptions::new(), limits([], &ManualClock::starting_at(START)));
    let request = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    let mut first = RawConnection::connect(gateway).await;
    first.send(request).await;
    first.receive_until("hello").await;
    let mut second = RawConnection::connect(gateway).await;
    second.send(request).await;
    // With a permit, the second request would be answered before these round trips complete.
    for _ in 0..10 {
        get(unlimited, "/", "").await;
    }
    assert_eq!(second.stream.try_read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    drop(first);
    second.receive_until("hello").await;
}

/// Otherwise one client could take all connections to the upstream with tunnels.
#[tokio::test]
async fn a_tunnel_counts_as_a_request_under_way_and_at_the_upstream() {
    for bounds_requests in [true, false] {
        let (upstream, _request) = upstream(UPGRADE_RESPONSE).await;
        let (mut connection_limits, mut options) = (ConnectionLimits::new(), GatewayOptions::new());
        if bounds_requests {
            connection_limits = connection_limits.with_max_requests(1);
        } else {
            options = options.with_max_upstream_connections(1).with_max_upstream_queue(0);
        }
        let layer = limits([], &ManualClock::starting_at(START));
        let limited = listener().await.with_limits(connection_limits);
        let gateway = gateway_at(limited, &format!("http://{upstream}"), options, layer);
        let mut connection = RawConnection::connect(gateway).await;
        connection.send(UPGRADE_REQUEST).await;
        connection.receive_until("\r\n\r\n").await;
        connection.send("in the tunnel").await;
        connection.receive_until("in the tunnel").await;
        assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 503 "));
        drop(connection);
        // The upstream accepts one connection only.
        while get(gateway, "/", "").await.starts_with("HTTP/1.1 503 ") {}
    }
}
