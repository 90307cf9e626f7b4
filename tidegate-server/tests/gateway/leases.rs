//! Slots of concurrency limits at the gateway: held until the response or the tunnel ends, whatever a client or the upstream does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tidegate::{Limit, ManualClock, MemoryStore, Rule, RuleSet};
use tidegate_server::ConnectionLimits;
use tidegate_server::gateway::GatewayOptions;
use tidegate_tower::{Handle, LimitLayer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::gateway::http2_frames::Http2Connection;
use crate::gateway::slow_clients::{SHORT_TIMEOUT, endless_upstream, held_upstream};
use crate::gateway::upgrades::{UPGRADE_REQUEST, UPGRADE_RESPONSE};
use crate::gateway::{RawConnection, START, gateway_at, gateway_with, get, limits, listener, mirror, serve, until};

const LEASE: Duration = Duration::from_secs(30);
const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

fn slots(max: u64) -> Rule {
    Rule::new("exports", Limit::concurrency(max, LEASE).unwrap())
}

type TestHandle = Handle<Arc<MemoryStore>>;

fn layer(max: u64) -> (LimitLayer<Arc<MemoryStore>>, TestHandle, ManualClock) {
    let clock = ManualClock::starting_at(START);
    let layer = limits([slots(max)], &clock);
    let handle = layer.handle();
    (layer, handle, clock)
}

/// Starts a gateway with so many slots.
async fn gateway_of(upstream: &str, max: u64) -> (SocketAddr, TestHandle, ManualClock) {
    let (layer, handle, clock) = layer(max);
    (gateway_with(upstream, GatewayOptions::new(), layer).await, handle, clock)
}

/// The slots that are free in the store.
fn free(handle: &TestHandle) -> u64 {
    let limiter = handle.limiter();
    let plan = limiter.plan(&tidegate::Request::new("")).with_peek();
    limiter.plans().check_now(&plan).checks()[0].outcome().remaining
}

/// An upstream that accepts every upgrade and echoes.
async fn echo_upstream() -> String {
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", backend.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let mut connection = RawConnection::new(backend.accept().await.unwrap().0);
            tokio::spawn(async move {
                connection.receive_until("\r\n\r\n").await;
                connection.send(UPGRADE_RESPONSE).await;
                let (mut reader, mut writer) = connection.stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    address
}

/// Opens a tunnel and sends something through it.
async fn tunnel(gateway: SocketAddr) -> RawConnection {
    let mut connection = RawConnection::connect(gateway).await;
    connection.send(UPGRADE_REQUEST).await;
    connection.receive_until("\r\n\r\n").await;
    assert!(connection.received.starts_with("HTTP/1.1 101 "), "{}", connection.received);
    connection.send("in the tunnel").await;
    connection.receive_until("in the tunnel").await;
    connection
}

/// Before the upstream has answered, and in the middle of a response.
#[tokio::test]
async fn a_client_that_hangs_up_or_resets_its_stream_releases_its_slot() {
    let (app, mut held_requests) = held_upstream();
    let streaming = format!("http://{}", serve(app).await);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_address = format!("http://{}", silent.local_addr().unwrap());
    for (upstream, is_answered) in [(&streaming, true), (&silent_address, false)] {
        let (gateway, handle, _clock) = gateway_of(upstream, 3).await;
        let mut http1 = RawConnection::connect(gateway).await;
        http1.send(GET).await;
        let mut http2 = Http2Connection::open(gateway, 100_000).await;
        http2.get(1, 2).await;
        until(|| free(&handle) == 0).await;
        if is_answered {
            http1.receive_until("first").await;
            assert_eq!(http2.read_data().await.payload, b"first");
            assert_eq!(http2.read_data().await.payload, b"first");
        }
        http2.reset(1).await;
        until(|| free(&handle) == 1).await;
        drop(http1);
        until(|| free(&handle) == 2).await;
        drop(http2);
        until(|| free(&handle) == 3).await;
        assert_eq!(handle.held_leases(), 0);
        while held_requests.try_recv().is_ok() {}
    }
}

#[tokio::test]
async fn an_upstream_that_fails_times_out_or_breaks_off_releases_the_slot() {
    let (layer, handle, _clock) = layer(1);
    let unreachable = gateway_with("http://127.0.0.1:1", GatewayOptions::new(), layer.clone()).await;
    assert!(get(unreachable, "/", "").await.starts_with("HTTP/1.1 502 "));
    until(|| free(&handle) == 1).await;

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = GatewayOptions::new().with_response_timeout(SHORT_TIMEOUT);
    let gateway = gateway_with(&format!("http://{}", silent.local_addr().unwrap()), options, layer.clone()).await;
    assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 504 "));
    until(|| free(&handle) == 1).await;

    let broken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", broken.local_addr().unwrap());
    tokio::spawn(async move {
        let mut connection = RawConnection::new(broken.accept().await.unwrap().0);
        connection.receive_until("\r\n\r\n").await;
        connection.send("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nhalf").await;
    });
    let gateway = gateway_with(&address, GatewayOptions::new(), layer).await;
    assert!(get(gateway, "/", "").await.ends_with("half"));
    until(|| free(&handle) == 1).await;
    assert_eq!(handle.held_leases(), 0);
}

/// The time for which a client may keep bytes waiting (`--client-timeout`, `--min-rate`) bounds the time for which it holds a slot.
#[tokio::test]
async fn a_client_that_does_not_read_its_response_holds_its_slot_until_the_write_timeout() {
    for http2_window in [None, Some(0), Some(1), Some(100_000)] {
        let (upstream, writing) = endless_upstream().await;
        let (layer, handle, _clock) = layer(1);
        let limits = ConnectionLimits::new().with_write_timeout(SHORT_TIMEOUT);
        let gateway = gateway_at(listener().await.with_limits(limits), &upstream, GatewayOptions::new(), layer);
        let mut http1 = RawConnection::connect(gateway).await;
        let mut http2 = Http2Connection::open(gateway, http2_window.unwrap_or_default()).await;
        match http2_window {
            Some(_) => http2.get(1, 1).await,
            None => http1.send(GET).await,
        }
        until(|| free(&handle) == 0).await;
        until(|| free(&handle) == 1).await;
        writing.await.unwrap();
        assert_eq!((handle.held_leases(), handle.lost_leases()), (0, 0), "{http2_window:?}");
    }
}

#[tokio::test]
async fn a_client_that_sends_its_body_too_slowly_holds_its_slot_until_the_upload_timeout() {
    let (layer, handle, _clock) = layer(1);
    let options = GatewayOptions::new().with_upload_pace(SHORT_TIMEOUT, u64::MAX);
    let gateway = gateway_with(&format!("http://{}", serve(mirror()).await), options, layer).await;
    let mut client = RawConnection::connect(gateway).await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf").await;
    until(|| free(&handle) == 0).await;
    client.receive_until("HTTP/1.1 408 ").await;
    until(|| free(&handle) == 1).await;
}

#[tokio::test]
async fn a_tunnel_holds_its_slot_until_it_closes() {
    let (gateway, handle, clock) = gateway_of(&echo_upstream().await, 1).await;
    let mut connection = tunnel(gateway).await;
    for _ in 0..10 {
        until(|| clock.pending_sleeps() == 1).await;
        clock.advance(LEASE / 3);
    }
    until(|| clock.pending_sleeps() == 1).await;
    assert_eq!((free(&handle), handle.held_leases()), (0, 1));
    let mut denied = RawConnection::connect(gateway).await;
    denied.send(UPGRADE_REQUEST).await;
    denied.receive_until("HTTP/1.1 429 ").await;
    connection.send("later").await;
    connection.receive_until("later").await;
    drop(connection);
    until(|| free(&handle) == 1).await;
    assert_eq!(handle.held_leases(), 0);
}

/// The bytes of a tunnel have the same time as those of a response.
#[tokio::test]
async fn a_client_that_does_not_read_from_its_tunnel_holds_its_slot_until_the_write_timeout() {
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", backend.local_addr().unwrap());
    let writing = tokio::spawn(async move {
        let mut connection = RawConnection::new(backend.accept().await.unwrap().0);
        connection.receive_until("\r\n\r\n").await;
        connection.send(UPGRADE_RESPONSE).await;
        while connection.stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    });
    let (layer, handle, _clock) = layer(1);
    let limits = ConnectionLimits::new().with_write_timeout(SHORT_TIMEOUT);
    let gateway = gateway_at(listener().await.with_limits(limits), &upstream, GatewayOptions::new(), layer);
    let mut client = RawConnection::connect(gateway).await;
    client.send(UPGRADE_REQUEST).await;
    client.receive_until("\r\n\r\n").await;
    until(|| free(&handle) == 1).await;
    writing.await.unwrap();
    assert_eq!(handle.held_leases(), 0);
}

/// The client has closed its connection, or only its sending side.
#[tokio::test]
async fn an_upstream_that_ignores_the_end_of_a_tunnel_keeps_its_slot_only_until_the_client_timeout() {
    for closes_fully in [true, false] {
        let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = format!("http://{}", backend.local_addr().unwrap());
        let (layer, handle, _clock) = layer(1);
        let options = GatewayOptions::new().with_upload_pace(SHORT_TIMEOUT, 0);
        let mut client = RawConnection::connect(gateway_with(&upstream, options, layer).await).await;
        client.send(UPGRADE_REQUEST).await;
        let mut ignoring = RawConnection::new(backend.accept().await.unwrap().0);
        ignoring.receive_until("\r\n\r\n").await;
        ignoring.send(UPGRADE_RESPONSE).await;
        client.receive_until("\r\n\r\n").await;
        assert_eq!(free(&handle), 0);
        if closes_fully {
            drop(client);
        } else {
            client.stream.shutdown().await.unwrap();
            assert_eq!(client.read_some(&mut [0]).await, 0, "the tunnel is closed");
        }
        until(|| free(&handle) == 1).await;
        assert_eq!(handle.held_leases(), 0);
        ignoring.receive_to_end().await;
    }
}

#[tokio::test]
async fn tunnels_whose_slots_are_lost_are_closed() {
    let (gateway, handle, clock) = gateway_of(&echo_upstream().await, 1).await;
    let connection = tunnel(gateway).await;
    until(|| clock.pending_sleeps() == 1).await;
    handle.replace(handle.limiter().with_rules(RuleSet::new([slots(0)]).unwrap()));
    clock.advance(LEASE / 3);
    connection.receive_to_end().await;
    until(|| handle.held_leases() == 0).await;
    assert_eq!(handle.lost_leases(), 1);
}

/// A hostile client does all of it again and again. It never has more than the limit, and at the end nothing is held.
#[tokio::test]
async fn a_client_that_opens_hangs_up_and_resets_at_random_neither_leaks_nor_farms_slots() {
    const SLOTS: u64 = 5;
    let (app, mut held_requests) = held_upstream();
    let (streaming, echo) = (format!("http://{}", serve(app).await), echo_upstream().await);
    let (layer, handle, clock) = layer(SLOTS);
    let streaming = gateway_with(&streaming, GatewayOptions::new(), layer.clone()).await;
    let echo = gateway_with(&echo, GatewayOptions::new(), layer).await;
    let unlimited = crate::gateway::gateway(Router::new().fallback(async || "ok")).await;
    for round in 0..12_u32 {
        let mut http1 = Vec::new();
        for number in 0..8 {
            let gateway = if number % 2 == 0 { streaming } else { echo };
            let mut connection = RawConnection::connect(gateway).await;
            connection.send(if number % 2 == 0 { GET } else { UPGRADE_REQUEST }).await;
            http1.push(connection);
        }
        let mut http2 = Http2Connection::open(streaming, round % 3 * 1000).await;
        http2.get(1, 10).await;
        // Different numbers of round trips let the requests get to different stages.
        for _ in 0..round % 4 {
            get(unlimited, "/", "").await;
        }
        assert!(handle.held_leases() as u64 <= SLOTS);
        clock.advance(LEASE / 3);
        for stream in 0..10 {
            http2.reset(2 * stream + 1).await;
        }
        drop((http1, http2));
        while held_requests.try_recv().is_ok() {}
    }
    until(|| handle.held_leases() == 0).await;
    assert_eq!((free(&handle), handle.lost_leases()), (SLOTS, 0));
}
