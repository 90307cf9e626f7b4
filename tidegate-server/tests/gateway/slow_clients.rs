//! Clients that read or send slowly: they lose their connections and the upstream's, and nobody waits for them. A client that waits
//! for a silent upstream keeps both.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use tidegate::ManualClock;
use tidegate_server::ConnectionLimits;
use tidegate_server::gateway::GatewayOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::gateway::http2_frames::Http2Connection;
use crate::gateway::{RawConnection, START, exchange, gateway_at, gateway_with, limits, listener, serve};

pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_millis(100);

/// A client must read within a short time, however much it has read before.
fn strict_limits() -> ConnectionLimits {
    ConnectionLimits::new().with_write_timeout(SHORT_TIMEOUT).with_min_rate(u64::MAX)
}

async fn gateway_with_limits(upstream: &str, connection_limits: ConnectionLimits) -> SocketAddr {
    let listener = listener().await.with_limits(connection_limits);
    gateway_at(listener, upstream, GatewayOptions::new(), limits([], &ManualClock::starting_at(START)))
}

/// An upstream with a response that never ends, on one connection. The task ends when the gateway closes that connection.
pub(crate) async fn endless_upstream() -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let writing = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n").await.unwrap();
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    });
    (address, writing)
}

/// An HTTP/2 client decides how much it takes of each response, also while its connection is idle.
#[tokio::test]
async fn a_response_that_an_http2_client_does_not_take_is_ended() {
    for window in [0, 1, 100_000] {
        let (upstream, writing) = endless_upstream().await;
        let gateway = gateway_with_limits(&upstream, ConnectionLimits::new().with_write_timeout(SHORT_TIMEOUT)).await;
        let mut client = Http2Connection::open(gateway, window).await;
        client.get(1, 1).await;
        writing.await.unwrap();
        assert!(client.read_frame().await.is_some(), "window {window}");
    }
}

/// Small responses have been read from the upstream as a whole when they stall.
#[tokio::test]
async fn a_small_response_that_an_http2_client_does_not_take_is_no_longer_under_way() {
    for (window, bytes) in [(0, 10), (1, 10_000)] {
        let app = Router::new().fallback(async move || "x".repeat(bytes));
        let limits = ConnectionLimits::new().with_write_timeout(SHORT_TIMEOUT).with_max_requests(1);
        let gateway = gateway_with_limits(&format!("http://{}", serve(app).await), limits).await;
        let mut client = Http2Connection::open(gateway, window).await;
        client.get(1, 1).await;
        // The next request is refused until the first one is ended.
        loop {
            let response = crate::gateway::get(gateway, "/", "").await;
            if response.starts_with("HTTP/1.1 200 ") {
                break;
            }
            assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
        }
    }
}

/// The gateway has read such a response as a whole. A client that reads nothing could have any number of them in memory.
#[tokio::test]
async fn a_response_that_waits_in_the_buffers_of_its_connection_is_under_way() {
    let app = Router::new().fallback(async || "x".repeat(15_000));
    let limits = ConnectionLimits::new().with_max_requests(40);
    let gateway = gateway_with_limits(&format!("http://{}", serve(app).await), limits).await;
    let mut client = Http2Connection::open(gateway, i32::MAX as u32).await;
    // The buffers of the system are full after some megabytes. From then on, no request ends.
    let (mut stream, mut refused) = (1, 0);
    while refused < 50 {
        if crate::gateway::get(gateway, "/", "").await.starts_with("HTTP/1.1 503 ") {
            refused += 1;
        } else {
            client.get(stream, 10).await;
            (stream, refused) = (stream + 20, 0);
        }
    }
    drop(client);
    while !crate::gateway::get(gateway, "/", "").await.starts_with("HTTP/1.1 200 ") {}
}

#[tokio::test]
async fn an_http2_client_that_reads_at_the_pace_gets_all_of_a_response() {
    let app = Router::new().fallback(async || "x".repeat(1_000_000));
    let gateway = gateway_with_limits(&format!("http://{}", serve(app).await), strict_limits()).await;
    let mut client = Http2Connection::open(gateway, i32::MAX as u32).await;
    client.get(1, 1).await;
    let mut received = 0;
    while received < 1_000_000 {
        received += client.read_data().await.payload.len();
    }
    assert_eq!(received, 1_000_000);
}

/// An upstream whose response begins at once, and goes on when the test wants it to.
pub(crate) fn held_upstream() -> (Router, mpsc::UnboundedReceiver<oneshot::Sender<()>>) {
    let (requests, held_requests) = mpsc::unbounded_channel();
    let app = Router::new().fallback(async move || {
        let (release, released) = oneshot::channel();
        requests.send(release).unwrap();
        let (sender, receiver) = mpsc::channel::<Result<&str, std::convert::Infallible>>(2);
        sender.send(Ok("first")).await.unwrap();
        tokio::spawn(async move {
            let closed = sender.clone();
            tokio::select! {
                _ = released => drop(sender.send(Ok("second")).await),
                // The gateway has closed the connection.
                () = closed.closed() => {}
            }
        });
        Body::from_stream(ReceiverStream(receiver))
    });
    (app, held_requests)
}

/// The items of a channel as a stream.
struct ReceiverStream<T>(mpsc::Receiver<T>);

impl<T> futures_core::Stream for ReceiverStream<T> {
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}

/// Events, long polls: there is nothing that the client could read.
#[tokio::test]
async fn a_client_may_wait_for_a_silent_upstream() {
    let (app, mut held_requests) = held_upstream();
    let upstream = format!("http://{}", serve(app).await);
    let gateway = gateway_with_limits(&upstream, strict_limits()).await;
    let mut client = Http2Connection::open(gateway, 100).await;
    client.get(1, 1).await;
    let release = held_requests.recv().await.unwrap();
    assert_eq!(client.read_data().await.payload, b"first");
    // Another client, which takes nothing, runs into the timeout in the meantime.
    let mut stalled = Http2Connection::open(gateway, 0).await;
    stalled.get(1, 1).await;
    held_requests.recv().await.unwrap().closed().await;
    release.send(()).unwrap();
    assert_eq!(client.read_data().await.payload, b"second");
}

/// A body that comes in single bytes makes progress, so that no timeout for silence ends it.
#[tokio::test]
async fn a_body_that_drips_gets_408() {
    let app = Router::new().fallback(async |request: Request| {
        axum::body::to_bytes(request.into_body(), usize::MAX).await.map_or("broken", |_| "read")
    });
    let upstream = format!("http://{}", serve(app).await);
    for options in [
        GatewayOptions::new().with_upload_pace(SHORT_TIMEOUT, u64::MAX),
        GatewayOptions::new().with_upload_timeout(SHORT_TIMEOUT),
    ] {
        let gateway = gateway_with(&upstream, options, limits([], &ManualClock::starting_at(START))).await;
        let mut connection = RawConnection::connect(gateway).await;
        connection.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await;
        let (mut reader, mut writer) = connection.stream.into_split();
        let dripping = tokio::spawn(async move {
            while writer.write_all(b"1\r\nx\r\n").await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
        let mut response = Vec::new();
        let _ = reader.read_to_end(&mut response).await;
        assert!(response.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&response));
        dripping.await.unwrap();
    }
}

/// The time of an upstream that does not read, or does not answer, is not the client's.
#[tokio::test]
async fn a_client_whose_body_is_complete_may_wait_for_the_upstream() {
    let (requests, mut held_requests) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
    let app = Router::new().fallback(async move || {
        let (release, released) = oneshot::channel();
        requests.send(release).unwrap();
        let _ = released.await;
        "at last"
    });
    let options = GatewayOptions::new().with_upload_pace(SHORT_TIMEOUT, u64::MAX);
    let upstream = format!("http://{}", serve(app).await);
    let gateway = gateway_with(&upstream, options, limits([], &ManualClock::starting_at(START))).await;
    let mut connection = RawConnection::connect(gateway).await;
    connection.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi").await;
    let release = held_requests.recv().await.unwrap();
    // Another client, whose body is not complete, runs into the timeout in the meantime.
    let stopped = exchange(gateway, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf").await;
    assert!(stopped.starts_with("HTTP/1.1 408 "), "{stopped}");
    release.send(()).unwrap();
    connection.receive_until("at last").await;
}
