//! Ids that this service did not issue, and calls that it cannot understand.

use serde_json::{Value, json};

use super::super::{Api, error, exports};
use super::{body, invalid, not_found, tokens, window};

#[tokio::test]
async fn a_forged_foreign_or_malformed_id_is_invalid() {
    let api = Api::start("serve --secret s1", [tokens(window()), exports(2)]);
    let first = api.reserved("a", 400).await;
    let lease = api.hold().await;
    let receipt = json!({ "action": "complete", "tenant": "acme", "receipt": true });
    let receipt = api.post("/v1/check", &receipt).await.1["receipt"].as_str().unwrap().to_owned();
    let stranger = Api::start("serve --secret s2", [tokens(window())]).reserved("a", 400).await;
    let (payload, signature) = first.split_once('.').unwrap();
    for wrong in
        ["", ".", "x", payload, &format!("{payload}.{signature}A"), &"x".repeat(100_000), &receipt, &lease, &stranger]
    {
        assert_eq!(error(api.commit(wrong, 1).await), invalid(), "{wrong}");
        assert_eq!(error(api.release_reservation(wrong).await), invalid(), "{wrong}");
    }
    assert_eq!(error(api.renew(&first).await), (400, "invalid_lease".to_owned()));
    assert_eq!(api.outstanding().await, (1, 400));
    let twin = Api::start("serve --secret s1", [tokens(window())]);
    assert_eq!(error(twin.commit(&first, 1).await), not_found(), "its own memory has no such reservation");
}

#[tokio::test]
async fn calls_that_cannot_be_understood_are_refused_and_change_nothing() {
    let api = Api::new([tokens(window())]);
    let held = api.reserved("a", 400).await;
    let with = |name: &str, value: Value| {
        let mut body = body("k", 1);
        body[name] = value;
        body
    };
    let reserve = "/v1/quotas/reserve";
    let commit = "/v1/quotas/commit";
    for (path, body) in [
        (reserve, json!({ "action": "complete" })),
        (reserve, with("idempotency_key", json!(""))),
        (reserve, with("idempotency_key", json!("k".repeat(256)))),
        (reserve, with("idempotency_key", json!("line\nbreak"))),
        (reserve, with("idempotency_key", json!("schl\u{fc}ssel"))),
        (reserve, with("idempotency_key", json!(7))),
        (reserve, with("idempotency_key", json!(null))),
        (reserve, with("cost", json!(-1))),
        (reserve, with("cost", json!(1.5))),
        (reserve, with("peek", json!(true))),
        (reserve, with("receipt", json!(true))),
        (reserve, with("max_wait_ms", json!(1))),
        ("/v1/check", body("k", 1)),
        ("/v1/leases", body("k", 1)),
        ("/v1/quotas/outstanding", body("k", 1)),
        ("/v1/quotas/outstanding", json!({ "action": "complete", "peek": true })),
        (commit, json!({ "id": held })),
        (commit, json!({ "id": held, "cost": 1, "costs": {} })),
        (commit, json!({ "id": held, "cost": -1 })),
        (commit, json!({ "id": held, "cost": 9_007_199_254_740_992_u64 })),
        (commit, json!({ "id": held, "cost": "1" })),
        (commit, json!({ "id": held, "costs": { "tokens": null } })),
        (commit, json!({ "id": held, "costs": { "tokens": -1 } })),
        (commit, json!({ "cost": 1 })),
        ("/v1/quotas/release", json!({ "id": held, "cost": 1 })),
        ("/v1/quotas/release", json!({ "id": 7 })),
    ] {
        assert_eq!(error(api.post(path, &body).await), (400, "bad_request".to_owned()), "{path} {body}");
    }
    assert_eq!((api.left().await, api.outstanding().await), (600, (1, 400)));
    let longest = with("idempotency_key", json!("~".repeat(255)));
    assert_eq!(api.post(reserve, &longest).await.1["allowed"], json!(true));
    assert_eq!(api.commit(&held, 9_007_199_254_740_991).await.0, 200, "the largest cost");
}
