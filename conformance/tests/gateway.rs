//! Several gateways on one real store share one exact limit.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::routing::get;
use conformance::server::{KINDS, Server};
use conformance::suite::patient_options;
use tidegate::{Limit, Limiter, Rate, Rule, RuleSet};
use tidegate_server::gateway::{Gateway, GatewayOptions};
use tidegate_tower::LimitLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;

const GATEWAYS: usize = 12;
const CAPACITY: u64 = 10;
const REQUESTS: usize = 20;

/// Starts an upstream that counts its requests.
async fn upstream() -> (SocketAddr, Arc<AtomicU32>) {
    let seen = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&seen);
    let page = get(async move || {
        count.fetch_add(1, Ordering::Relaxed);
        "hello"
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, Router::new().route("/", page)).await });
    (address, seen)
}

/// Starts a gateway with its own limiter and store connection.
async fn gateway(upstream: SocketAddr, store: &Server) -> SocketAddr {
    let limit = Limit::token_bucket(CAPACITY, Rate::per_hour(1).unwrap()).unwrap();
    let rules = RuleSet::new([Rule::new("shared", limit).with_per(["header:x-key"])]).unwrap();
    let layer = LimitLayer::new(Limiter::new(rules, store.store_with(patient_options()).await));
    let gateway = Gateway::new(&format!("http://{upstream}").parse().unwrap(), GatewayOptions::new()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(gateway.serve(listener, layer, pending()));
    address
}

/// Sends a request when all others are ready, and returns the status.
async fn status(gateway: SocketAddr, all: Arc<Barrier>) -> String {
    let mut stream = TcpStream::connect(gateway).await.unwrap();
    all.wait().await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-key: k1\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_gateways_share_one_exact_limit() {
    for kind in KINDS {
        let store = Server::start(kind);
        let (upstream, seen) = upstream().await;
        let mut gateways = Vec::new();
        for _ in 0..GATEWAYS {
            gateways.push(gateway(upstream, &store).await);
        }
        let all = Arc::new(Barrier::new(REQUESTS));
        let spread = gateways.iter().cycle().take(REQUESTS);
        let clients: Vec<_> = spread.map(|gateway| tokio::spawn(status(*gateway, Arc::clone(&all)))).collect();
        let mut answers = Vec::new();
        for client in clients {
            answers.push(client.await.unwrap());
        }
        let count = |status: &str| answers.iter().filter(|answer| *answer == status).count();
        assert_eq!((count("200"), count("429")), (CAPACITY as usize, REQUESTS - CAPACITY as usize), "{kind:?}");
        assert_eq!(u64::from(seen.load(Ordering::Relaxed)), CAPACITY, "{kind:?}");
    }
}
