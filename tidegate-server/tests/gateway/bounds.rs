//! Bounds on what clients and requests may use: connections, requests under way, requests at the upstream.

use std::net::SocketAddr;

use axum::Router;
use tidegate::{Limit, ManualClock, Rate, Rule};
use tidegate_server::ConnectionLimits;
use tidegate_server::gateway::GatewayOptions;
use tokio::sync::{mpsc, oneshot};

use crate::gateway::{RawConnection, START, field, gateway_at, gateway_with, get, limits, listener, mirror, serve};

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

async fn send(gateway: SocketAddr, path: &str) -> RawConnection {
    let mut connection = RawConnection::connect(gateway).await;
    connection.send(&format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).await;
    connection
}

fn no_limits() -> tidegate_tower::LimitLayer<std::sync::Arc<tidegate::MemoryStore>> {
    limits([], &ManualClock::starting_at(START))
}

#[tokio::test]
async fn requests_beyond_the_upstream_connections_wait_and_beyond_the_queue_get_503() {
    let (app, mut held_requests) = held_upstream();
    let options = GatewayOptions::new().with_max_upstream_connections(1).with_max_upstream_queue(1);
    let gateway = gateway_with(&format!("http://{}", serve(app).await), options, no_limits()).await;
    let first = send(gateway, "/1").await;
    let release = held_requests.recv().await.unwrap();
    // One of these two waits, and the other is refused.
    let (second, third) = (send(gateway, "/2").await, send(gateway, "/3").await);
    let (second, third) = (tokio::spawn(second.receive_to_end()), tokio::spawn(third.receive_to_end()));
    crate::gateway::until(|| second.is_finished() || third.is_finished()).await;
    assert!(held_requests.try_recv().is_err(), "only one request is at the upstream");
    release.send(()).unwrap();
    assert!(first.receive_to_end().await.ends_with("at last"));
    held_requests.recv().await.unwrap().send(()).unwrap();
    let mut responses = [second.await.unwrap(), third.await.unwrap()];
    responses.sort();
    let [served, refused] = responses;
    assert!(served.starts_with("HTTP/1.1 200 "), "{served}");
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains(r#""error":"overloaded""#), "{refused}");
    assert_eq!((field(&refused, "retry-after"), field(&refused, "retry-after-ms")), (Some("1"), Some("1000")));
}

/// hyper's pool opens a connection for each request, unless another one becomes idle first.
#[tokio::test]
async fn the_upstream_never_has_more_connections_than_the_maximum() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::TcpListener;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let peak = Arc::clone(&most);
    tokio::spawn(async move {
        loop {
            let mut connection = RawConnection::new(listener.accept().await.unwrap().0);
            peak.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let open = Arc::clone(&open);
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while connection.read_some(&mut bytes).await > 0 {
                    connection.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
                }
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    let options = GatewayOptions::new().with_max_upstream_connections(3).with_max_upstream_queue(1000);
    let gateway = gateway_with(&upstream, options, no_limits()).await;
    for _ in 0..5 {
        let clients: Vec<_> = (0..40).map(|_| tokio::spawn(get(gateway, "/", ""))).collect();
        for client in clients {
            let response = client.await.unwrap();
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        }
    }
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}

#[tokio::test]
async fn a_request_beyond_the_maximum_under_way_gets_503_and_consumes_no_limit() {
    let (app, mut held_requests) = held_upstream();
    let upstream = format!("http://{}", serve(app).await);
    let limit = Limit::token_bucket(2, Rate::per_hour(1).unwrap()).unwrap();
    let layer = limits([Rule::new("api", limit)], &ManualClock::starting_at(START));
    let limited = listener().await.with_limits(ConnectionLimits::new().with_max_requests(1));
    let gateway = gateway_at(limited, &upstream, GatewayOptions::new(), layer);
    let first = send(gateway, "/1").await;
    let release = held_requests.recv().await.unwrap();
    for _ in 0..5 {
        let refused = get(gateway, "/", "").await;
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains(r#""error":"overloaded""#), "{refused}");
        assert_eq!((field(&refused, "retry-after"), field(&refused, "retry-after-ms")), (Some("1"), Some("1000")));
    }
    release.send(()).unwrap();
    assert!(first.receive_to_end().await.ends_with("at last"));
    let last = send(gateway, "/2").await;
    held_requests.recv().await.unwrap().send(()).unwrap();
    let last = last.receive_to_end().await;
    assert!(last.starts_with("HTTP/1.1 200 ") && field(&last, "x-ratelimit-remaining") == Some("0"), "{last}");
}

/// A body that nobody reads must not make the next request on the connection fail.
#[tokio::test]
async fn a_denied_request_with_a_body_keeps_its_connection() {
    let limit = Limit::token_bucket(1, Rate::per_hour(1).unwrap()).unwrap();
    let rule = Rule::new("api", limit).with_per(["path"]);
    let upstream = format!("http://{}", serve(mirror()).await);
    let layer = limits([rule], &ManualClock::starting_at(START));
    let gateway = gateway_with(&upstream, GatewayOptions::new(), layer).await;
    let mut connection = RawConnection::connect(gateway).await;
    let body = "x".repeat(200_000);
    let post = format!("POST /limited HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\n{body}");
    connection.send(&post).await;
    connection.receive_until(&body).await;
    for _ in 0..50 {
        connection.received.clear();
        connection.send(&post).await;
        connection.receive_until("rate_limit_exceeded").await;
        assert!(connection.received.starts_with("HTTP/1.1 429 "), "{}", connection.received);
        assert_eq!(field(&connection.received, "connection"), None);
    }
    connection.send("GET /open HTTP/1.1\r\nhost: a\r\n\r\n").await;
    connection.receive_until("GET /open HTTP/1.1\n").await;
}

/// A connection that is closed while the client sends is reset, and the response is lost.
#[tokio::test]
async fn a_denied_client_that_sends_a_long_body_before_it_reads_gets_the_response() {
    let limit = Limit::token_bucket(0, Rate::per_hour(1).unwrap()).unwrap();
    let upstream = format!("http://{}", serve(mirror()).await);
    let layer = limits([Rule::new("api", limit)], &ManualClock::starting_at(START));
    let gateway = gateway_with(&upstream, GatewayOptions::new(), layer).await;
    let long = "x".repeat(5_000_000);
    for (head, body) in [
        ("content-length: 5000000", long.clone()),
        ("transfer-encoding: chunked", format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len())),
    ] {
        let mut connection = RawConnection::connect(gateway).await;
        connection.send(&format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n{body}")).await;
        let response = connection.receive_to_end().await;
        assert!(response.starts_with("HTTP/1.1 429 "), "{response}");
        assert_eq!(field(&response, "connection"), Some("close"), "{response}");
    }
    // One that never ends is cut off.
    let mut connection = RawConnection::connect(gateway).await;
    connection.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000000\r\n\r\n").await;
    while tokio::io::AsyncWriteExt::write_all(&mut connection.stream, long.as_bytes()).await.is_ok() {}
}

#[tokio::test]
async fn a_denied_request_whose_body_is_not_read_announces_the_end_of_its_connection() {
    let limit = Limit::token_bucket(0, Rate::per_hour(1).unwrap()).unwrap();
    let upstream = format!("http://{}", serve(mirror()).await);
    let layer = limits([Rule::new("api", limit)], &ManualClock::starting_at(START));
    let gateway = gateway_with(&upstream, GatewayOptions::new(), layer).await;
    for rest in ["content-length: 20000000\r\n\r\n", "content-length: 2000\r\nexpect: 100-continue\r\n\r\n"] {
        let mut connection = RawConnection::connect(gateway).await;
        connection.send(&format!("POST / HTTP/1.1\r\nhost: a\r\n{rest}")).await;
        let response = connection.receive_to_end().await;
        assert!(response.starts_with("HTTP/1.1 429 "), "{response}");
        assert_eq!(field(&response, "connection"), Some("close"), "{response}");
    }
}
