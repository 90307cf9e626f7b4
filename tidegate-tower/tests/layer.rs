//! The layer in axum, hyper and tonic, over real connections where connections matter. Tests advance a manual clock, or the
//! refill is too slow to matter.

mod actual_cost;
mod attributes;
mod delays;
mod error_formats;
mod failures;
mod grpc;
mod leases;
mod nested_layers;
mod paths;
mod reload;
mod request_bodies;
mod reservations;
mod responses;
mod rule_file;
mod shared_limiter;
mod usage;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use tidegate::spi::Store;
use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Rule, RuleSet, Timestamp};
use tidegate_tower::LimitLayer;
use tower::ServiceExt;

/// A midnight in September 2026.
const START: Timestamp = Timestamp::from_micros(20_717 * 86_400_000_000);

/// A response with its body read.
#[derive(Debug)]
struct TestResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl TestResponse {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A token bucket that does not refill during a test.
fn burst(capacity: u64) -> Limit {
    Limit::token_bucket(capacity, Rate::per_hour(1).unwrap()).unwrap()
}

/// A limiter on a clock that does not advance.
fn limiter(rules: impl IntoIterator<Item = Rule>) -> Limiter<Arc<MemoryStore>> {
    limiter_on(&ManualClock::starting_at(START), rules)
}

fn limiter_on(clock: &ManualClock, rules: impl IntoIterator<Item = Rule>) -> Limiter<Arc<MemoryStore>> {
    Limiter::new(RuleSet::new(rules).unwrap(), Arc::new(MemoryStore::new().with_clock(clock.clone())))
}

/// An application with one page behind `layer`.
fn app<S: Store + 'static>(layer: LimitLayer<S>) -> Router {
    Router::new().route("/", get(async || "hello")).layer(layer)
}

/// A request for the page with this key.
fn request_with_key(key: &str) -> Request<Body> {
    Request::get("/").header("x-key", key).body(Body::empty()).unwrap()
}

async fn send(app: &Router, request: Request<Body>) -> TestResponse {
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    TestResponse { status: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

/// Sends `requests` requests for the page and counts those that are allowed.
async fn count_allowed(app: &Router, requests: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..requests {
        allowed += usize::from(send(app, request_with_key("k1")).await.status == StatusCode::OK);
    }
    allowed
}

/// Yields to the other tasks of this thread until `condition` holds.
async fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..1_000_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the condition did not become true");
}
