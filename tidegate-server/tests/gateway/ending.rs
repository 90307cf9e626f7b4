//! The end of a gateway.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tidegate::ManualClock;
use tidegate_server::ConnectionLimits;
use tidegate_server::gateway::{Gateway, GatewayOptions};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::{START, Wire, limits, listener, serve};

const HURRIED: ConnectionLimits = ConnectionLimits::new().drain_timeout(Duration::from_millis(20));

/// An upstream that answers when a test lets it.
fn patient() -> (Router, mpsc::UnboundedReceiver<oneshot::Sender<()>>) {
    let (asked, waiting) = mpsc::unbounded_channel();
    let app = Router::new().fallback(async move || {
        let (go, gone) = oneshot::channel();
        asked.send(go).unwrap();
        let _ = gone.await;
        "at last"
    });
    (app, waiting)
}

async fn start(app: Router, bounds: ConnectionLimits) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let upstream = format!("http://{}", serve(app).await);
    let gateway = Gateway::new(&upstream.parse().unwrap(), GatewayOptions::new()).unwrap();
    let listener = listener().await.limits(bounds);
    let address = listener.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let layer = limits([], &ManualClock::at(START));
    let serving = tokio::spawn(async {
        gateway.serve(listener, layer, async { drop(stopped.await) }).await;
    });
    (address, stop, serving)
}

#[tokio::test]
async fn what_is_under_way_ends_before_the_gateway_does() {
    let (app, mut waiting) = patient();
    let (gateway, stop, serving) = start(app, ConnectionLimits::new()).await;
    let mut wire = Wire::to(gateway).await;
    wire.say("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let go = waiting.recv().await.unwrap();
    let idle = Wire::to(gateway).await;
    stop.send(()).unwrap();
    // Nobody new is taken, and who says nothing is not waited for.
    while TcpStream::connect(gateway).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!serving.is_finished());
    go.send(()).unwrap();
    assert!(wire.rest().await.ends_with("at last"));
    assert_eq!(idle.rest().await, "");
    serving.await.unwrap();
}

#[tokio::test]
async fn whoever_takes_too_long_does_not_keep_the_gateway() {
    let (app, mut waiting) = patient();
    let (gateway, stop, serving) = start(app, HURRIED).await;
    let mut wire = Wire::to(gateway).await;
    wire.say("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let _go = waiting.recv().await.unwrap();
    stop.send(()).unwrap();
    serving.await.unwrap();
    assert_eq!(wire.rest().await, "");
}

#[tokio::test]
async fn a_tunnel_ends_with_the_gateway() {
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = backend.local_addr().unwrap();
    let upstream = tokio::spawn(async move {
        let mut wire = Wire { stream: backend.accept().await.unwrap().0, heard: String::new() };
        wire.hear("\r\n\r\n").await;
        wire.say("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nhello").await;
        wire.rest().await
    });
    let gateway = Gateway::new(&format!("http://{address}").parse().unwrap(), GatewayOptions::new());
    let listener = listener().await.limits(HURRIED);
    let address = listener.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let layer = limits([], &ManualClock::at(START));
    let serving = tokio::spawn(gateway.unwrap().serve(listener, layer, async { drop(stopped.await) }));
    let mut wire = Wire::to(address).await;
    wire.say("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n").await;
    wire.hear("hello").await;
    stop.send(()).unwrap();
    serving.await.unwrap();
    assert!(wire.rest().await.ends_with("hello"));
    upstream.await.unwrap();
}
