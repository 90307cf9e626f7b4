//! One limiter for all clones, connections and routes.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tidegate::Rule;
use tidegate_tower::{LimitLayer, Peer};
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt, service_fn};

use crate::layer::{app, burst, count_allowed, limiter, request_with_key, send};

/// Sends each request over a connection of its own, a few concurrently; counts the allowed ones.
async fn count_allowed_connections(server: SocketAddr, connections: usize) -> usize {
    const CLIENTS: usize = 4;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| tokio::task::spawn_blocking(move || (0..connections / CLIENTS).filter(|_| is_allowed(server)).count()))
        .collect();
    let mut allowed = 0;
    for client in clients {
        allowed += client.await.unwrap();
    }
    allowed
}

fn is_allowed(server: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 ") || response.starts_with("HTTP/1.1 429 "), "{response}");
    response.starts_with("HTTP/1.1 200 ")
}

/// Regression (tokio-rs/axum#2634): a limit whose state is in the service is cloned for every connection, so that a cap of
/// 5 allowed 1,500 requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cap_of_five_holds_over_a_thousand_connections_to_axum() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let layer = LimitLayer::new(limiter([Rule::new("cap", burst(5)).with_per(["ip"])]))
        .with_peer(|parts| Some(parts.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()));
    let app = app(layer).into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, app).await });
    assert_eq!(count_allowed_connections(server, 1000).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cap_of_five_holds_over_a_thousand_connections_to_hyper() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let hello = service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new(Full::from("hello"))));
    let limited = LimitLayer::new(limiter([Rule::new("cap", burst(5)).with_per(["ip"])])).layer(hello);
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let service = limited.clone().map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(Peer(peer.ip()));
                request
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            tokio::spawn(connection);
        }
    });
    assert_eq!(count_allowed_connections(server, 1000).await, 5);
}

#[tokio::test]
async fn clones_share_one_limit() {
    let layer = LimitLayer::new(limiter([Rule::new("cap", burst(3))]));
    let one = app(layer.clone());
    let other = app(layer);
    assert_eq!(count_allowed(&one, 2).await, 2);
    assert_eq!(count_allowed(&other, 2).await, 1);
    assert_eq!(count_allowed(&one.clone(), 2).await, 0);
}

#[tokio::test]
async fn each_route_can_have_its_own_action_and_cost() {
    let rules = [
        Rule::new("exports", burst(1)).with_action("export").with_per(["header:x-key"]),
        Rule::new("units", burst(10)).with_action("search").with_per(["header:x-key"]),
    ];
    let layer = LimitLayer::new(limiter(rules));
    let app = Router::new()
        .route("/", get(async || "free").layer(layer.clone()))
        .route("/exports", get(async || "an export").layer(layer.clone().with_action("export")))
        .route(
            "/search",
            get(async || "found").layer(layer.with_action("search").with_cost(|parts| {
                parts.uri.query().and_then(|query| query.strip_prefix("pages=")?.parse().ok()).unwrap_or(1)
            })),
        );
    let status = async |path: &str| {
        let mut request = request_with_key("k1");
        *request.uri_mut() = path.parse().unwrap();
        send(&app, request).await.status.as_u16()
    };
    assert_eq!([status("/exports").await, status("/exports").await], [200, 429]);
    assert_eq!([status("/search?pages=8").await, status("/search?pages=3").await], [200, 429]);
    assert_eq!([status("/search").await, status("/search").await, status("/search").await], [200, 200, 429]);
    assert_eq!(count_allowed(&app, 100).await, 100);
}
