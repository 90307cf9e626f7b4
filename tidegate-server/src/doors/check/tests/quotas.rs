//! `/v1/quotas`.

mod bad_input;

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::{Limit, ManualClock, Period, Periods, Rate, Rule};
use tidegate_redis::RedisOptions;
use tidegate_rules::RuleFile;

use super::{Api, MICROSECOND, SECOND, START, arguments, error, exports};
use crate::store::{AnyStore, StoreUrl};

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

fn ended() -> (u16, String) {
    (409, "reservation_ended".to_owned())
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

#[tokio::test]
async fn what_is_reserved_is_missing_for_others_until_the_actual_cost_is_committed() {
    let api = Api::new([tokens(window())]);
    let (status, answer) = api.reserve("a", 400).await;
    assert_eq!((status, &answer["allowed"], &answer["remaining"]), (200, &json!(true), &json!(600)), "{answer}");
    assert_eq!(answer["reservation"]["expires_in_ms"], json!(300_000));
    assert_eq!((api.left().await, api.outstanding().await), (600, (1, 400)));
    let (status, denied) = api.reserve("b", 601).await;
    assert_eq!((status, &denied["allowed"], denied.get("reservation")), (200, &json!(false), None));
    assert_eq!(denied["retry_after_ms"], json!(1_000), "a reservation may end at any moment");
    assert_eq!(api.commit(&id(&answer), 150).await, (200, json!({ "committed": true })));
    assert_eq!((api.left().await, api.outstanding().await), (850, (0, 0)));
    let second = api.reserved("c", 850).await;
    assert_eq!(api.left().await, 0);
    assert_eq!(api.release_reservation(&second).await, (200, json!({ "released": true })));
    assert_eq!(api.left().await, 850);
}

#[tokio::test]
async fn every_step_can_be_repeated_and_counts_once() {
    let api = Api::new([tokens(window())]);
    let first = api.reserve("a", 400).await;
    assert_eq!(api.reserve("a", 400).await, first, "with the same id");
    let first = id(&first.1);
    for _ in 0..3 {
        assert_eq!(api.commit(&first, 150).await, (200, json!({ "committed": true })));
        assert_eq!(api.left().await, 850);
    }
    // Another end, or a new beginning, is refused, and the end stays as it was. A limit that has lost its end may be charged now, so the
    // message does not promise that nothing has changed.
    let (status, refusal) = api.commit(&first, 151).await;
    assert!(refusal["message"].as_str().unwrap().ends_with("What has ended is unchanged."), "{refusal}");
    assert_eq!(error((status, refusal)), ended());
    assert_eq!(error(api.release_reservation(&first).await), ended());
    assert_eq!(error(api.reserve("a", 400).await), ended());
    let second = api.reserved("b", 10).await;
    for _ in 0..3 {
        assert_eq!(api.release_reservation(&second).await, (200, json!({ "released": true })));
    }
    assert_eq!(error(api.commit(&second, 10).await), ended());
    assert_eq!((api.left().await, api.outstanding().await), (850, (0, 0)));
}

#[tokio::test]
async fn a_key_with_another_cost_is_refused_and_keys_of_other_subjects_are_others() {
    let api = Api::new([tokens(window())]);
    let first = api.reserved("a", 400).await;
    let reused = (409, "idempotency_key_reused".to_owned());
    assert_eq!(error(api.reserve("a", 401).await), reused);
    let other = json!({ "action": "complete", "tenant": "bolt", "cost": 900, "idempotency_key": "a" });
    let (_, other) = api.post("/v1/quotas/reserve", &other).await;
    assert!(other["allowed"] == json!(true) && id(&other) != first);
    assert_eq!((api.left().await, api.commit(&first, 400).await.0, api.left().await), (600, 200, 600));
}

#[tokio::test]
async fn a_reservation_that_has_run_out_is_not_found_and_charges_nothing() {
    let api = Api::start("serve --reservation-ttl 60", [tokens(window())]);
    let first = api.reserved("a", 400).await;
    api.clock.advance((60 * SECOND).saturating_sub(MICROSECOND));
    assert_eq!(api.left().await, 600);
    api.clock.advance(MICROSECOND);
    assert_eq!(api.left().await, 1_000);
    assert_eq!(error(api.commit(&first, 400).await), not_found());
    assert_eq!(error(api.release_reservation(&first).await), not_found());
    // The key may be used again.
    let again = api.reserved("a", 500).await;
    assert_eq!((api.commit(&again, 500).await.0, api.left().await), (200, 500));
    api.clock.advance(60 * SECOND);
    assert_eq!(error(api.commit(&again, 500).await), not_found(), "the end is remembered as long");
    assert_eq!(api.left().await, 500);
}

#[tokio::test]
async fn a_commit_of_a_thousand_times_the_reservation_uses_up_what_is_left_and_leaves_others_alone() {
    let bucket = Limit::token_bucket(1_000, Rate::per_hour(1).unwrap()).unwrap();
    for limit in [window(), bucket] {
        let api = Api::new([tokens(limit)]);
        let (first, other) = (api.reserved("a", 1).await, api.reserved("b", 300).await);
        assert_eq!((api.commit(&first, 1_000).await.0, api.left().await), (200, 0), "{limit:?}");
        assert_eq!(api.commit(&other, 0).await.0, 200);
        let bystander = json!({ "action": "complete", "tenant": "bolt", "cost": 1_000 });
        assert_eq!(api.post("/v1/check", &bystander).await.1["allowed"], json!(true));
    }
}

#[tokio::test]
async fn a_commit_above_a_quota_is_debt_that_the_next_period_pays() {
    let api = Api::new([tokens(Limit::quota(1_000, Periods::utc(Period::Hour)).unwrap())]);
    let first = api.reserved("a", 1).await;
    assert_eq!(api.commit(&first, 1_700).await.0, 200);
    let free = json!({ "action": "complete", "tenant": "acme", "cost": 0 });
    assert_eq!(api.post("/v1/check", &free).await.1["allowed"], json!(false), "in debt");
    // The hour of the start has 3,200 seconds left.
    api.clock.advance(Duration::from_hours(1));
    assert_eq!((api.left().await, api.post("/v1/check", &free).await.1["allowed"].clone()), (300, json!(true)));
}

#[tokio::test]
async fn a_reservation_across_a_boundary_is_charged_to_the_period_it_was_made_in() {
    let api =
        Api::start("serve --reservation-ttl 86400", [tokens(Limit::quota(1_000, Periods::utc(Period::Hour)).unwrap())]);
    let (small, large) = (api.reserved("a", 400).await, api.reserved("b", 500).await);
    api.clock.advance(Duration::from_hours(1));
    assert_eq!(api.left().await, 1_000, "a hold counts in its own period");
    assert_eq!((api.commit(&small, 400).await.0, api.left().await), (200, 1_000));
    assert_eq!((api.commit(&large, 700).await.0, api.left().await), (200, 900), "what was too much there is debt");
}

/// Otherwise the answer would be `{"committed":true}`, and the work would be counted nowhere.
#[tokio::test]
async fn a_reservation_whose_rule_was_changed_or_removed_is_not_found_and_can_be_made_anew() {
    let quota = |period: Period| tokens(Limit::quota(1_000, Periods::utc(period)).unwrap());
    for rules in [vec![], vec![quota(Period::Year)]] {
        let is_removed = rules.is_empty();
        let api = Api::new([quota(Period::Month)]);
        let first = api.reserved("a", 400).await;
        api.set_rules(rules);
        let (status, answer) = api.commit(&first, 400).await;
        assert!(answer["message"].as_str().unwrap().contains("its rule was changed or removed"), "{answer}");
        assert_eq!(error((status, answer)), not_found());
        assert_eq!(error(api.release_reservation(&first).await), not_found());
        if !is_removed {
            // A cost of 0 is reserved however little is left.
            let second = api.reserved("a", 0).await;
            assert_eq!(api.commit(&second, 400).await, (200, json!({ "committed": true })));
            assert_eq!(api.left().await, 600);
        }
    }
    let other = Limit::token_bucket(1_000, Rate::per_hour(1).unwrap()).unwrap();
    let other = Rule::new("other", other).with_action("complete").with_per(["tenant"]);
    let api = Api::new([quota(Period::Month), other.clone()]);
    let first = api.reserved("a", 400).await;
    api.set_rules([quota(Period::Year), other]);
    for _ in 0..2 {
        assert_eq!(api.commit(&first, 300).await, (200, json!({ "committed": true })));
        assert_eq!(api.left().await, 700, "in the new period, too");
    }
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
async fn a_request_that_one_limit_denies_reserves_nothing_under_the_others() {
    let small = Rule::new("small", Limit::fixed_window(100, Duration::from_secs(100_000)).unwrap());
    let api = Api::new([tokens(window()), small.with_action("complete"), exports(1).with_action("complete")]);
    let (_, denied) = api.reserve("a", 101).await;
    assert_eq!((&denied["allowed"], denied.get("reservation")), (&json!(false), None));
    assert_eq!(api.outstanding().await, (0, 0));
    // A slot of a concurrency limit is part of the reservation.
    let held = api.reserved("b", 1).await;
    assert_eq!(api.reserve("c", 1).await.1["rule"], json!("exports"));
    assert_eq!(api.commit(&held, 1).await.0, 200);
    assert_eq!(api.reserve("c", 1).await.1["allowed"], json!(true));
}

#[tokio::test]
async fn a_request_without_limits_is_allowed_and_has_no_reservation() {
    let api = Api::new([tokens(window())]);
    let (status, answer) = api.post("/v1/quotas/reserve", &json!({ "action": "x", "idempotency_key": "k" })).await;
    assert_eq!((status, &answer["allowed"], answer.get("reservation")), (200, &json!(true), None), "{answer}");
    let (_, answer) = api.post("/v1/quotas/outstanding", &json!({ "action": "x" })).await;
    assert_eq!(answer, json!({ "outstanding": [] }));
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

/// An instance with a store that nothing listens at.
fn without_store(line: &str, rule: Rule) -> Api {
    let url = StoreUrl::parse("redis://127.0.0.1:1").unwrap();
    let store = AnyStore::from_url(&url, RedisOptions::new(), arguments(line).store.memory_keys, None).unwrap();
    Api::on_store(line, [rule], store, ManualClock::starting_at(START))
}

#[tokio::test]
async fn while_the_store_fails_the_instance_that_reserved_commits_and_a_closed_rule_refuses() {
    let rule = || tokens(window());
    let (one, other) = (without_store("serve --secret s1", rule()), without_store("serve --secret s1", rule()));
    let (status, answer) = one.reserve("a", 400).await;
    assert_eq!((status, &answer["allowed"], &answer["degraded"]), (200, &json!(true), &json!(true)), "{answer}");
    assert_eq!(error(other.commit(&id(&answer), 1).await), not_found());
    assert_eq!(one.commit(&id(&answer), 400).await.0, 200);
    assert_eq!(one.reserve("b", 601).await.1["allowed"], json!(false));
    let closed = without_store("serve --secret s1", rule().with_on_failure(tidegate::OnFailure::Closed));
    assert_eq!(error(closed.reserve("a", 1).await), (503, "temporarily_unavailable".to_owned()));
    let outstanding = one.post("/v1/quotas/outstanding", &json!({ "action": "complete", "tenant": "acme" })).await;
    assert_eq!(error(outstanding), (503, "temporarily_unavailable".to_owned()));
}

#[tokio::test]
async fn on_a_shared_store_without_a_secret_there_are_no_reservations() {
    let api = without_store("serve", tokens(window()));
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
