//! Connections that go on in another protocol.

use std::net::SocketAddr;

use tidegate::ManualClock;
use tidegate_server::ConnectionLimits;
use tidegate_server::gateway::GatewayOptions;
use tokio::net::TcpListener;

use crate::{START, Wire, gateway, gateway_at, gateway_with, get, limits, listener, mirror};

const HANDSHAKE: &str = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
                         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                      sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// An upstream for one connection, which answers a request with `answer` and from then on with what it hears.
async fn upstream(answer: &'static str) -> (SocketAddr, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = tokio::spawn(async move {
        let mut wire = Wire { stream: listener.accept().await.unwrap().0, heard: String::new() };
        wire.hear("\r\n\r\n").await;
        wire.say(answer).await;
        let (mut reader, mut writer) = wire.stream.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
        wire.heard
    });
    (address, asked)
}

async fn through(upstream: SocketAddr) -> SocketAddr {
    gateway_with(&format!("http://{upstream}"), GatewayOptions::new(), limits([], &ManualClock::at(START))).await
}

#[tokio::test]
async fn a_web_socket_carries_bytes_both_ways() {
    let (upstream, asked) = upstream(AGREED).await;
    let mut wire = Wire::to(through(upstream).await).await;
    wire.say(HANDSHAKE).await;
    wire.hear("\r\n\r\n").await;
    assert!(wire.heard.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{}", wire.heard);
    for line in
        ["connection: upgrade\r\n", "upgrade: websocket\r\n", "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"]
    {
        assert!(wire.heard.contains(line), "{line}: {}", wire.heard);
    }
    for frame in ["\u{1}first", "\u{2}second"] {
        wire.say(frame).await;
        wire.hear(frame).await;
    }
    drop(wire);
    // The upstream is told that the client has left.
    let asked = asked.await.unwrap();
    assert!(asked.contains("connection: upgrade\r\n") && asked.contains("upgrade: websocket\r\n"), "{asked}");
    assert!(asked.contains("sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), "{asked}");
}

#[tokio::test]
async fn an_upstream_that_does_not_agree_answers_as_ever() {
    let gateway = gateway(mirror()).await;
    let mut wire = Wire::to(gateway).await;
    wire.say(HANDSHAKE).await;
    wire.hear("body: ").await;
    assert!(wire.heard.starts_with("HTTP/1.1 200 OK\r\n"), "{}", wire.heard);
    wire.say("GET /next HTTP/1.1\r\nhost: a\r\n\r\n").await;
    wire.hear("GET /next HTTP/1.1\n").await;
}

/// Story: through an upgrade to HTTP/2, whole requests were hidden in a tunnel where no proxy saw them.
#[tokio::test]
async fn requests_cannot_be_hidden_in_a_tunnel() {
    let gateway = gateway(mirror()).await;
    for protocol in ["h2c", "H2C", "websocket, h2c", "HTTP/2.0"] {
        let lines = format!(
            "connection: upgrade, http2-settings\r\nupgrade: {protocol}\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
        );
        let heard = get(gateway, "/", &lines).await;
        assert!(heard.starts_with("HTTP/1.1 200 OK\r\n"), "{heard}");
        assert!(!heard.contains("upgrade") && !heard.contains("http2-settings"), "{heard}");
    }
}

#[tokio::test]
async fn an_upstream_that_opens_a_tunnel_unasked_is_not_followed() {
    let (upstream, _) = upstream(AGREED).await;
    let heard = get(through(upstream).await, "/", "").await;
    assert!(heard.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{heard}");
}

/// Story: there could be any number of tunnels, since each gave its place back when it was opened.
#[tokio::test]
async fn a_tunnel_keeps_its_place() {
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", backend.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let mut wire = Wire { stream: backend.accept().await.unwrap().0, heard: String::new() };
            wire.hear("\r\n\r\n").await;
            wire.say("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nhello").await;
            tokio::spawn(wire.rest());
        }
    });
    let free = gateway(mirror()).await;
    let one = listener().await.limits(ConnectionLimits::new().max_connections(1));
    let door = gateway_at(one, &upstream, GatewayOptions::new(), limits([], &ManualClock::at(START)));
    let ask = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    let mut first = Wire::to(door).await;
    first.say(ask).await;
    first.hear("hello").await;
    let mut second = Wire::to(door).await;
    second.say(ask).await;
    // If it had a place, it would have been answered by the time that this has been there and back a few times.
    for _ in 0..10 {
        get(free, "/", "").await;
    }
    assert_eq!(second.stream.try_read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    drop(first);
    second.hear("hello").await;
}
