//! Leases, reservations and waiting over HTTP, in virtual time.

mod acquire;
mod leases;
mod quotas;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use clap::Parser;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tidegate::http::{ErrorFormat, HeaderPolicy};
use tidegate::{Limit, ManualClock, MemoryStore, OnFailure, Rule, RuleSet, Timestamp, UsageKind};
use tidegate_redis::RedisOptions;
use tidegate_rules::RuleFile;
use tokio::sync::watch;
use tower::ServiceExt as _;

use crate::args::serve_args::ServeArgs;
use crate::calls::browser_guard::BrowserGuard;
use crate::engine::Engine;
use crate::store::{AnyStore, StoreProbe, StoreUrl};

const LEASE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
const MICROSECOND: Duration = Duration::from_micros(1);
/// A microsecond less than the lease.
const ALMOST_LEASE: Duration = Duration::from_micros(29_999_999);
const START: Timestamp = Timestamp::from_micros(1_790_000_400_000_000);

#[derive(Parser)]
struct Serve {
    #[command(flatten)]
    arguments: ServeArgs,
}

/// The check API of one instance.
struct Api {
    engine: Arc<Engine>,
    clock: ManualClock,
    router: Router,
    stop: watch::Sender<bool>,
}

/// A rule `exports` for the action of the same name.
fn exports(max: u64) -> Rule {
    Rule::new("exports", Limit::concurrency(max, LEASE).unwrap()).with_action("exports").with_per(["tenant"])
}

fn arguments(line: &str) -> ServeArgs {
    Serve::try_parse_from(line.split_whitespace()).map_or_else(|error| panic!("{error}"), |serve| serve.arguments)
}

impl Api {
    /// An instance with these rules on a memory store of its own.
    fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self::start("serve", rules)
    }

    fn start(line: &str, rules: impl IntoIterator<Item = Rule>) -> Self {
        let clock = ManualClock::starting_at(START);
        let store = AnyStore::Memory(Arc::new(MemoryStore::new().with_clock(clock.clone())));
        Self::on_store(line, rules, store, clock)
    }

    fn on_store(line: &str, rules: impl IntoIterator<Item = Rule>, store: AnyStore, clock: ManualClock) -> Self {
        let file = RuleFile::parse("rules.yaml", "version: 1\nrules: []\n").unwrap();
        let timer = Arc::new(clock.clone());
        let engine = Engine::from_parts(&arguments(line), file, store, StoreProbe::default(), None, timer);
        let engine = Arc::new(engine.unwrap_or_else(|_| panic!("{line}: the engine does not open")));
        let (stop, stopping) = watch::channel(false);
        let guard = BrowserGuard::new(SocketAddr::from(([127, 0, 0, 1], 8080)));
        let router = super::router(Arc::clone(&engine), guard, stopping);
        let api = Self { engine, clock, router, stop };
        api.set_rules(rules);
        api
    }

    /// Replaces the rules, as a reload does.
    fn set_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        let limiter = self.engine.limiter().with_rules(RuleSet::new(rules).unwrap());
        self.engine.replace_limiter(limiter);
    }

    async fn call(&self, method: Method, path: &str, body: &str) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = request.header("content-type", "application/json").body(Body::from(body.to_owned()));
        let response = self.router.clone().oneshot(request.unwrap()).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        assert!(status != StatusCode::INTERNAL_SERVER_ERROR, "{path}");
        (status.as_u16(), serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.call(Method::POST, path, &body.to_string()).await
    }

    /// Takes a slot, and returns the answer.
    async fn take(&self) -> Value {
        let (status, answer) = self.post("/v1/leases", &json!({ "action": "exports", "tenant": "acme" })).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Takes a slot that is free, and returns the id of its lease.
    async fn hold(&self) -> String {
        lease_id(&self.take().await)
    }

    async fn renew(&self, id: &str) -> (u16, Value) {
        self.call(Method::PUT, &format!("/v1/leases/{id}"), "").await
    }

    async fn release(&self, id: &str) -> (u16, Value) {
        self.call(Method::DELETE, &format!("/v1/leases/{id}"), "").await
    }

    /// How many slots are free.
    async fn free(&self) -> u64 {
        let peek = json!({ "action": "exports", "tenant": "acme", "peek": true });
        self.post("/v1/check", &peek).await.1["remaining"].as_u64().unwrap()
    }
}

fn lease_id(answer: &Value) -> String {
    answer["lease"]["id"].as_str().unwrap_or_else(|| panic!("no lease: {answer}")).to_owned()
}

/// The status and the kind of an error.
fn error((status, body): (u16, Value)) -> (u16, String) {
    (status, body["error"].as_str().unwrap_or_else(|| panic!("no error: {body}")).to_owned())
}

/// They are for the caller, and the document of the API describes them.
#[tokio::test]
async fn the_answers_of_the_check_api_are_stable_json_whatever_the_rules_say() {
    let limit = Limit::fixed_window(1, Duration::from_mins(1)).unwrap();
    let rule = || Rule::new("tokens", limit).with_usage(UsageKind::Total).with_action("complete");
    let url = StoreUrl::parse("redis://127.0.0.1:1").unwrap();
    let store = AnyStore::from_url(&url, RedisOptions::new(), arguments("serve").store.memory_keys, None).unwrap();
    let closed = rule().with_on_failure(OnFailure::Closed);
    let failing = Api::on_store("serve", [closed], store, ManualClock::starting_at(START));
    let policy = HeaderPolicy::new().with_error_format(ErrorFormat::Problem);
    let call = json!({ "action": "complete" });
    let rules = failing.engine.limiter().rules().clone().with_header_policy(policy);
    failing.engine.replace_limiter(failing.engine.limiter().with_rules(rules));
    for path in ["/v1/check", "/v1/quotas/outstanding"] {
        assert_eq!(error(failing.post(path, &call).await), (503, "temporarily_unavailable".to_owned()), "{path}");
    }
    let working = Api::new([rule()]);
    assert_eq!(working.post("/v1/check", &call).await.1["allowed"], json!(true));
    let (status, denied) = working.post("/v1/check", &call).await;
    assert_eq!((status, &denied["allowed"], &denied["rule"]), (200, &json!(false), &json!("tokens")), "{denied}");
    assert!(denied.get("error").is_none() && denied.get("type").is_none(), "{denied}");
}
