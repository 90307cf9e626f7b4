//! `/v1/quotas`: its answers. What it has in common with the library is proved on every store, with the tests of reservations.

mod bad_input;

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::{Limit, Rule};
use tidegate_rules::RuleFile;

use super::{Api, MICROSECOND, SECOND, error};

const TTL: Duration = Duration::from_mins(5);

/// A rule `tokens` of the action `complete`, by tenant.
fn tokens(limit: Limit) -> Rule {
    Rule::new("tokens", limit).with_action("complete").with_per(["tenant"])
}

/// 1,000 units in a window that does not end during a test.
fn window() -> Limit {
    Limit::fixed_window(1_000, Duration::from_secs(100_000)).unwrap()
}

fn body(key: &str, cost: u64) -> Value {
    json!({ "action": "complete", "tenant": "acme", "cost": cost, "idempotency_key": key })
}

fn id(answer: &Value) -> String {
    answer["reservation"]["id"].as_str().unwrap_or_else(|| panic!("no reservation: {answer}")).to_owned()
}

fn not_found() -> (u16, String) {
    (404, "reservation_not_found".to_owned())
}

fn invalid() -> (u16, String) {
    (400, "invalid_reservation".to_owned())
}

impl Api {
    async fn reserve(&self, key: &str, cost: u64) -> (u16, Value) {
        self.post("/v1/quotas/reserve", &body(key, cost)).await
    }

    /// Reserves what fits, and returns the id.
    async fn reserved(&self, key: &str, cost: u64) -> String {
        id(&self.reserve(key, cost).await.1)
    }

    async fn commit(&self, id: &str, cost: u64) -> (u16, Value) {
        self.post("/v1/quotas/commit", &json!({ "id": id, "cost": cost })).await
    }

    async fn release_reservation(&self, id: &str) -> (u16, Value) {
        self.post("/v1/quotas/release", &json!({ "id": id })).await
    }

    /// What the next request may cost.
    async fn left(&self) -> u64 {
        let peek = json!({ "action": "complete", "tenant": "acme", "peek": true });
        self.post("/v1/check", &peek).await.1["remaining"].as_u64().unwrap()
    }

    /// The reservations and units of the first limit.
    async fn outstanding(&self) -> (u64, u64) {
        let body = json!({ "action": "complete", "tenant": "acme" });
        let (status, answer) = self.post("/v1/quotas/outstanding", &body).await;
        assert_eq!(status, 200, "{answer}");
        let first = &answer["outstanding"][0];
        (first["reservations"].as_u64().unwrap(), first["units"].as_u64().unwrap())
    }
}

/// A limit that has lost the end of a reservation may be charged, so no message promises that nothing has changed.
#[tokio::test]
async fn a_refusal_says_what_is_unchanged_and_what_was_not_found() {
    let api = Api::new([tokens(window())]);
    let (first, second) = (api.reserved("a", 1).await, api.reserved("b", 1).await);
    assert_eq!(api.commit(&first, 1).await.0, 200);
    let (_, refusal) = api.commit(&first, 2).await;
    assert!(refusal["message"].as_str().unwrap().ends_with("What has ended is unchanged."), "{refusal}");
    api.set_rules([]);
    let (_, refusal) = api.commit(&second, 1).await;
    assert!(refusal["message"].as_str().unwrap().contains("its rule was changed or removed"), "{refusal}");
}

#[tokio::test]
async fn a_commit_may_have_a_cost_for_each_rule() {
    let requests = Rule::new("requests", Limit::fixed_window(10, Duration::from_secs(100_000)).unwrap());
    let api = Api::new([tokens(window()), requests.with_action("complete").with_cost(1)]);
    let (_, answer) = api.reserve("a", 400).await;
    let commit = |costs: Value| json!({ "id": id(&answer), "costs": costs });
    for unknown in [json!({ "tokens": 5, "other": 1 }), json!({ "": 0 })] {
        let (status, problem) = api.post("/v1/quotas/commit", &commit(unknown)).await;
        assert_eq!((status, &problem["error"]), (400, &json!("bad_request")), "{problem}");
        assert_eq!(api.outstanding().await, (1, 400), "nothing was changed");
    }
    let committed = api.post("/v1/quotas/commit", &commit(json!({ "tokens": 700 }))).await;
    assert_eq!(committed, (200, json!({ "committed": true })));
    let peek = json!({ "action": "complete", "tenant": "acme", "peek": true });
    let (_, peek) = api.post("/v1/check", &peek).await;
    let remaining = [0, 1].map(|check: usize| peek["checks"][check]["remaining"].clone());
    assert_eq!(remaining, [json!(300), json!(9)], "a rule that is not named is charged what was reserved");
}

/// Otherwise the tokens of one answer would count as so many requests.
#[tokio::test]
async fn a_commit_of_one_cost_leaves_rules_with_a_cost_of_their_own_as_reserved() {
    let file = "
version: 1
rules:
  - { id: tokens, per: [tenant], fixed_window: { limit: 1000, window: 30d } }
  - { id: usage, per: [tenant], fixed_window: { limit: 2000, window: 30d }, cost: { default: 500, usage: total } }
  - { id: requests, per: [tenant], fixed_window: { limit: 10, window: 30d }, cost: 1 }
  - { id: bytes, per: [tenant], fixed_window: { limit: 100, window: 30d }, cost: 1 + request.size / 1024 }
";
    let file = RuleFile::parse("rules.yaml", file).unwrap();
    let api = Api::new([]);
    api.engine.replace_limiter(api.engine.limiter().with_rules(file.rules().clone()));
    let mut request = body("a", 400);
    request["size"] = json!(5_000);
    let (_, answer) = api.post("/v1/quotas/reserve", &request).await;
    let remaining = |answer: &Value| -> Vec<u64> {
        answer["checks"].as_array().unwrap().iter().map(|check| check["remaining"].as_u64().unwrap()).collect()
    };
    assert_eq!(remaining(&answer), [600, 1_500, 9, 95], "{answer}");
    assert_eq!(api.commit(&id(&answer), 150).await.0, 200);
    let peek = json!({ "action": "complete", "tenant": "acme", "peek": true, "size": 0 });
    assert_eq!(remaining(&api.post("/v1/check", &peek).await.1), [850, 1_850, 9, 95]);
}

#[tokio::test]
async fn outstanding_lists_each_limit_and_when_the_oldest_runs_out() {
    let per_day = Limit::fixed_window(5_000, Duration::from_secs(100_000)).unwrap();
    let api = Api::new([tokens(window()).with_limit("day", per_day)]);
    let _first = api.reserved("a", 100).await;
    api.clock.advance(SECOND);
    let _second = api.reserved("b", 200).await;
    let body = json!({ "action": "complete", "tenant": "acme" });
    let of = |name| json!({ "rule": "tokens", "name": name, "reservations": 2, "units": 300, "oldest_expires_in_ms": 299_000 });
    assert_eq!(api.post("/v1/quotas/outstanding", &body).await.1, json!({ "outstanding": [of(""), of("day")] }));
    // Rounded down as `expires_in_ms` is, so that a caller does not rely on more time than there is.
    api.clock.advance(MICROSECOND);
    let (_, answer) = api.post("/v1/quotas/outstanding", &body).await;
    assert_eq!(answer["outstanding"][0]["oldest_expires_in_ms"], json!(298_999));
    api.clock.advance(TTL);
    let (_, answer) = api.post("/v1/quotas/outstanding", &body).await;
    assert_eq!(
        (&answer["outstanding"][0]["units"], &answer["outstanding"][0]["oldest_expires_in_ms"]),
        (&json!(0), &json!(null))
    );
}

#[tokio::test]
async fn calls_are_counted_by_outcome() {
    let api = Api::new([tokens(window())]);
    let first = api.reserved("a", 400).await;
    api.reserve("b", 601).await;
    api.reserve("a", 1).await;
    api.commit(&first, 1).await;
    api.release_reservation(&first).await;
    api.commit("x", 1).await;
    let second = api.reserved("c", 1).await;
    api.release_reservation(&second).await;
    let third = api.reserved("d", 1).await;
    api.clock.advance(TTL);
    api.commit(&third, 1).await;
    let metrics = api.engine.metrics().open_metrics();
    for (outcome, count) in [
        ("reserved", 3),
        ("denied", 1),
        ("key_reused", 1),
        ("committed", 1),
        ("ended", 1),
        ("invalid", 1),
        ("released", 1),
        ("not_found", 1),
        ("failed", 0),
    ] {
        let line = format!("tidegate_reservations_total{{outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

#[tokio::test]
async fn while_the_store_fails_the_instance_that_reserved_commits_and_a_closed_rule_refuses() {
    let rule = || tokens(window());
    let [one, other] = [(); 2].map(|()| Api::without_store("serve --secret s1", [rule()]));
    let (status, answer) = one.reserve("a", 400).await;
    assert_eq!((status, &answer["allowed"], &answer["degraded"]), (200, &json!(true), &json!(true)), "{answer}");
    assert_eq!(error(other.commit(&id(&answer), 1).await), not_found());
    assert_eq!(one.commit(&id(&answer), 400).await.0, 200);
    assert_eq!(one.reserve("b", 601).await.1["allowed"], json!(false));
    let closed = Api::without_store("serve --secret s1", [rule().with_on_failure(tidegate::OnFailure::Closed)]);
    assert_eq!(error(closed.reserve("a", 1).await), (503, "temporarily_unavailable".to_owned()));
    let outstanding = one.post("/v1/quotas/outstanding", &json!({ "action": "complete", "tenant": "acme" })).await;
    assert_eq!(error(outstanding), (503, "temporarily_unavailable".to_owned()));
}

#[tokio::test]
async fn on_a_shared_store_without_a_secret_there_are_no_reservations() {
    let api = Api::without_store("serve", [tokens(window())]);
    assert_eq!(error(api.reserve("a", 1).await), (400, "bad_request".to_owned()));
    assert_eq!(error(api.commit("x.y", 1).await), invalid());
}

#[tokio::test]
async fn an_id_shows_neither_the_subject_nor_the_key() {
    use base64::Engine as _;
    let id = Api::new([tokens(window())]).reserved("order-17", 400).await;
    let payload = id.split('.').next().unwrap();
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload).unwrap();
    assert!(!bytes.windows(4).any(|window| window == b"acme" || window == b"orde"));
    assert!(id.len() < 256, "{} characters", id.len());
}
