//! The tower layer on real stores: servers that share a limit, cancelled requests, actual costs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, Request, StatusCode};
use axum::routing::get;
use conformance::server::{KINDS, Server};
use conformance::suite::{
    StoreFixture, left, long_timeout_options, on_every_store, one_limit_of_each_kind, serve, until,
};
use tidegate::limits::Algorithm;
use tidegate::spi::Store;
use tidegate::{Limit, Limiter, Rate, Rule, RuleSet};
use tidegate_tower::LimitLayer;
use tower::ServiceExt;

const LIMIT: u64 = 50;
const CONNECTIONS: usize = 200;

fn app<S: Store + 'static>(limiter: Limiter<S>) -> Router {
    Router::new().route("/", get(async || "hello")).layer(LimitLayer::new(limiter))
}

/// Opens `connections` connections to `server` and counts those that are served.
fn served(server: SocketAddr, connections: usize) -> usize {
    (0..connections).filter(|_| response(server).starts_with("HTTP/1.1 200 ")).count()
}

fn response(server: SocketAddr) -> String {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nx-key: k1\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

async fn status(app: &Router) -> StatusCode {
    app.clone().oneshot(Request::new(Body::empty())).await.unwrap().status()
}

/// Two independent servers, each with its own limiter and store connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_share_one_exact_limit() {
    for kind in KINDS {
        let store = Server::start(kind);
        // (A leaky bucket would delay its requests.)
        for limit in
            one_limit_of_each_kind(LIMIT).into_iter().filter(|limit| limit.algorithm() != Algorithm::LeakyBucket)
        {
            let mut clients = Vec::new();
            for _ in 0..2 {
                let rules = RuleSet::new([Rule::new("shared", limit).with_per(["header:x-key"])]).unwrap();
                let server = serve(app(Limiter::new(rules, store.store_with(long_timeout_options()).await))).await;
                for _ in 0..2 {
                    clients.push(tokio::task::spawn_blocking(move || served(server, CONNECTIONS / 4)));
                }
            }
            let mut passed = 0;
            for client in clients {
                passed += client.await.unwrap();
            }
            assert_eq!(passed as u64, LIMIT, "{kind:?} {limit:?}");
        }
    }
}

#[tokio::test]
async fn a_cancelled_request_frees_its_queue_slot_on_every_store() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(Limit::leaky_bucket(Rate::per_second(1).unwrap(), 1).unwrap());
        let layer = LimitLayer::new(limiter).with_timer(fixture.clock.clone());
        let handle = layer.handle();
        let app = Router::new().route("/", get(async || "hello")).layer(layer);
        assert_eq!(status(&app).await, StatusCode::OK);
        let held = hold(&app, fixture).await;
        assert_eq!(left(&handle.limiter()).await, 0);

        held.abort();
        assert!(held.await.unwrap_err().is_cancelled());
        // The refund runs in the background.
        while left(&handle.limiter()).await == 0 {
            conformance::poll::pause_task().await;
        }
        let next = hold(&app, fixture).await;
        fixture.clock.advance(Duration::from_secs(1));
        assert_eq!(next.await.unwrap(), StatusCode::OK);
    })
    .await;
}

/// Sends a request and waits until it is delayed.
async fn hold(app: &Router, fixture: &StoreFixture) -> tokio::task::JoinHandle<StatusCode> {
    let app = app.clone();
    let held = tokio::spawn(async move { status(&app).await });
    until(|| fixture.clock.pending_sleeps() == 1).await;
    held
}

#[tokio::test]
async fn the_actual_cost_is_settled_on_every_store() {
    const USED: HeaderName = HeaderName::from_static("x-used");
    on_every_store(async |fixture| {
        let limit = Limit::token_bucket(100, Rate::per_hour(1).unwrap()).unwrap();
        let limiter = fixture.limiter_of([Rule::new("tokens", limit).with_cost(10).with_cost_header("x-used")]);
        let layer = LimitLayer::new(limiter);
        let handle = layer.handle();
        let used = |used: &'static str| get(async move || ([(USED, used)], "hello"));
        let app = Router::new().route("/less", used("3")).route("/more", used("40")).layer(layer);
        for (path, remaining) in [("/less", 97), ("/more", 57)] {
            let request = Request::get(path).body(Body::empty()).unwrap();
            assert_eq!(app.clone().oneshot(request).await.unwrap().status(), StatusCode::OK);
            assert_eq!(left(&handle.limiter()).await, remaining, "{path}");
        }
    })
    .await;
}
