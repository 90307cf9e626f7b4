//! Leases, reservations and waiting over HTTP, in virtual time.

mod acquire;
mod leases;
mod quotas;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::http::{ErrorFormat, HeaderPolicy};
use tidegate::rules::UsageKind;
use tidegate::{Limit, ManualClock, MemoryStore, OnFailure, Rule, RuleSet, Timestamp};
use tidegate_redis::{RedisOptions, RedisStore};

use super::in_process::CheckApi;
use crate::engine::Engine;
use crate::store::AnyStore;

const LEASE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
const MICROSECOND: Duration = Duration::from_micros(1);
const START: Timestamp = Timestamp::from_micros(1_790_000_400_000_000);

/// The check API of one instance.
struct Api {
    engine: Arc<Engine>,
    clock: ManualClock,
    in_process: CheckApi,
}

/// A rule `exports` for the action of the same name.
fn exports(max: u64) -> Rule {
    Rule::new("exports", Limit::concurrency(max, LEASE).unwrap()).with_action("exports").with_per(["tenant"])
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

    /// An instance with a store that nothing listens at.
    fn without_store(line: &str, rules: impl IntoIterator<Item = Rule>) -> Self {
        let store = AnyStore::Redis(RedisStore::open("redis://127.0.0.1:1", RedisOptions::new()).unwrap());
        Self::on_store(line, rules, store, ManualClock::starting_at(START))
    }

    fn on_store(line: &str, rules: impl IntoIterator<Item = Rule>, store: AnyStore, clock: ManualClock) -> Self {
        let api = CheckApi::start(line, store, Arc::new(clock.clone())).unwrap();
        let api = Self { engine: Arc::clone(&api.engine), clock, in_process: api };
        api.set_rules(rules);
        api
    }

    /// Replaces the rules, as a reload does.
    fn set_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        self.in_process.set_rules(RuleSet::new(rules).unwrap());
    }

    async fn call(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let answer = self.in_process.call(method, path, body).await.unwrap();
        assert_ne!(answer.0, 500, "{path}");
        answer
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.call("POST", path, &body.to_string()).await
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
        self.call("PUT", &format!("/v1/leases/{id}"), "").await
    }

    async fn release(&self, id: &str) -> (u16, Value) {
        self.call("DELETE", &format!("/v1/leases/{id}"), "").await
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
    let failing = Api::without_store("serve", [rule().with_on_failure(OnFailure::Closed)]);
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
