//! The layer as its users meet it: in axum, hyper and tonic, over real connections where connections matter. Time is a
//! clock that the tests move, or the refill is too slow to matter.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod answers;
mod attributes;
mod bodies;
mod failures;
mod grpc;
mod holding;
mod nesting;
mod reloading;
mod rule_file;
mod settling;
mod sharing;

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

/// What came back.
#[derive(Debug)]
struct Heard {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Heard {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// So many at once, and no more while a test lives.
fn at_once(amount: u64) -> Limit {
    Limit::token_bucket(amount, Rate::per_hour(1).unwrap()).unwrap()
}

/// A limiter on a clock that stands still.
fn limiter(rules: impl IntoIterator<Item = Rule>) -> Limiter<Arc<MemoryStore>> {
    limiter_on(&ManualClock::at(START), rules)
}

fn limiter_on(clock: &ManualClock, rules: impl IntoIterator<Item = Rule>) -> Limiter<Arc<MemoryStore>> {
    Limiter::new(RuleSet::new(rules).unwrap(), Arc::new(MemoryStore::new().with_clock(clock.clone())))
}

/// An application with one page behind `layer`.
fn app<S: Store + 'static>(layer: LimitLayer<S>) -> Router {
    Router::new().route("/", get(async || "hello")).layer(layer)
}

/// A request for the page, from the holder of a key.
fn from(key: &str) -> Request<Body> {
    Request::get("/").header("x-key", key).body(Body::empty()).unwrap()
}

async fn ask(app: &Router, request: Request<Body>) -> Heard {
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Heard { status: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

/// How many of so many requests for the page pass.
async fn passes(app: &Router, requests: usize) -> usize {
    let mut passed = 0;
    for _ in 0..requests {
        passed += usize::from(ask(app, from("k1")).await.status == StatusCode::OK);
    }
    passed
}

/// Lets the other tasks of this thread go on until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    for _ in 0..1_000_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("what the test waits for does not come");
}
