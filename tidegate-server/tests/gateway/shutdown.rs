//! Graceful shutdown of the gateway.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tidegate::ManualClock;
use tidegate_server::ConnectionLimits;
use tidegate_server::gateway::{Gateway, GatewayOptions};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::gateway::{RawConnection, START, limits, listener, serve};

const SHORT_DRAIN: ConnectionLimits = ConnectionLimits::new().with_drain_timeout(Duration::from_millis(20));

/// An upstream that responds once the test releases the request.
fn held_upstream() -> (Router, mpsc::UnboundedReceiver<oneshot::Sender<()>>) {
    let (requests, held_requests) = mpsc::unbounded_channel();
    let app = Router::new().fallback(async move || {
        let (release, released) = oneshot::channel();
        requests.send(release).unwrap();
        let _ = released.await;
        "at last"
    });
    (app, held_requests)
}

async fn start(app: Router, connection_limits: ConnectionLimits) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let upstream = format!("http://{}", serve(app).await);
    let gateway = Gateway::new(&upstream.parse().unwrap(), GatewayOptions::new()).unwrap();
    let listener = listener().await.with_limits(connection_limits);
    let address = listener.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let layer = limits([], &ManualClock::starting_at(START));
    let serving = tokio::spawn(async {
        gateway.serve(listener, layer, async { drop(stopped.await) }).await;
    });
    (address, stop, serving)
}

#[tokio::test]
async fn a_shutdown_waits_for_open_requests() {
    let (app, mut held_requests) = held_upstream();
    let (gateway, stop, serving) = start(app, ConnectionLimits::new()).await;
    let mut connection = RawConnection::connect(gateway).await;
    connection.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let release = held_requests.recv().await.unwrap();
    let idle = RawConnection::connect(gateway).await;
    stop.send(()).unwrap();
    // New connections are refused, and idle ones do not delay the shutdown.
    while TcpStream::connect(gateway).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!serving.is_finished());
    release.send(()).unwrap();
    assert!(connection.receive_to_end().await.ends_with("at last"));
    assert_eq!(idle.receive_to_end().await, "");
    serving.await.unwrap();
}

#[tokio::test]
async fn a_shutdown_ends_after_the_drain_timeout() {
    let (app, mut held_requests) = held_upstream();
    let (gateway, stop, serving) = start(app, SHORT_DRAIN).await;
    let mut connection = RawConnection::connect(gateway).await;
    connection.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let _go = held_requests.recv().await.unwrap();
    stop.send(()).unwrap();
    serving.await.unwrap();
    assert_eq!(connection.receive_to_end().await, "");
}

#[tokio::test]
async fn a_shutdown_closes_tunnels_after_the_drain_timeout() {
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = backend.local_addr().unwrap();
    let upstream = tokio::spawn(async move {
        let mut connection = RawConnection::new(backend.accept().await.unwrap().0);
        connection.receive_until("\r\n\r\n").await;
        connection.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nhello").await;
        connection.receive_to_end().await
    });
    let gateway = Gateway::new(&format!("http://{address}").parse().unwrap(), GatewayOptions::new());
    let listener = listener().await.with_limits(SHORT_DRAIN);
    let address = listener.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let layer = limits([], &ManualClock::starting_at(START));
    let serving = tokio::spawn(gateway.unwrap().serve(listener, layer, async { drop(stopped.await) }));
    let mut connection = RawConnection::connect(address).await;
    connection.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n").await;
    connection.receive_until("hello").await;
    stop.send(()).unwrap();
    serving.await.unwrap();
    assert!(connection.receive_to_end().await.ends_with("hello"));
    upstream.await.unwrap();
}
