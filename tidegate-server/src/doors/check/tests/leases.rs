//! `/v1/leases`: its ids and answers. What it has in common with the library is proved on every store, with the tests of leases.

use serde_json::{Value, json};
use tidegate::{Limit, Rate, Rule};

use super::{Api, error, exports, lease_id};

fn gone() -> (u16, String) {
    (410, "lease_not_held".to_owned())
}

fn invalid() -> (u16, String) {
    (400, "invalid_lease".to_owned())
}

#[tokio::test]
async fn a_forged_or_foreign_id_is_invalid() {
    let api = Api::start("serve --secret s1", [exports(2)]);
    let answer = json!({ "action": "exports", "tenant": "acme", "receipt": true });
    let (_, answer) = api.post("/v1/leases", &answer).await;
    let (id, receipt) = (lease_id(&answer), answer["receipt"].as_str().unwrap().to_owned());
    let (payload, signature) = id.split_once('.').unwrap();
    let flipped = if id.starts_with('A') { "B" } else { "A" };
    let stranger = Api::start("serve --secret s2", [exports(2)]).hold().await;
    for wrong in [
        "x",
        ".",
        "%ff",
        "%00",
        payload,
        &format!("{payload}."),
        &format!("{flipped}{}", &id[1..]),
        &format!("{payload}.{signature}A"),
        &"x".repeat(40_000),
        &receipt,
        &stranger,
    ] {
        assert_eq!(error(api.renew(wrong).await), invalid(), "{wrong}");
        assert_eq!(error(api.release(wrong).await), invalid(), "{wrong}");
    }
    assert_eq!(api.free().await, 1);
    let (_, refund) = api.post("/v1/refund", &json!({ "receipt": id })).await;
    assert_eq!(refund["error"], json!("unknown_receipt"), "an id is no receipt");
    assert_eq!(api.renew(&id).await.0, 200);
}

#[tokio::test]
async fn an_id_shows_no_subject() {
    use base64::Engine as _;
    let id = Api::new([exports(1)]).hold().await;
    let payload = id.split('.').next().unwrap();
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload).unwrap();
    assert!(!bytes.windows(4).any(|window| window == b"acme"));
    assert!(id.len() < 256, "{} characters", id.len());
}

#[tokio::test]
async fn a_receipt_returns_what_a_lease_took_and_no_renewal_takes_its_slot_again() {
    let bucket = Rule::new("bucket", Limit::token_bucket(2, Rate::per_hour(1).unwrap()).unwrap());
    let api = Api::new([exports(1), bucket.with_action("exports")]);
    let body = json!({ "action": "exports", "tenant": "acme", "receipt": true });
    let (_, answer) = api.post("/v1/leases", &body).await;
    let (_, denied) = api.post("/v1/leases", &body).await;
    assert_eq!((&denied["allowed"], &denied["rule"]), (&json!(false), &json!("exports")));
    let remaining = |answer: &Value, check: usize| answer["checks"][check]["remaining"].clone();
    assert_eq!(remaining(&denied, 1), json!(1), "a denied lease consumes nothing");
    let (_, refund) = api.post("/v1/refund", &json!({ "receipt": answer["receipt"] })).await;
    assert_eq!((&refund["refunded"], api.renew(&lease_id(&answer)).await.0), (&json!(true), 410));
    let (_, again) = api.post("/v1/leases", &body).await;
    assert_eq!((&again["allowed"], remaining(&again, 1)), (&json!(true), json!(1)));
}

#[tokio::test]
async fn a_slot_in_the_memory_of_an_instance_is_renewed_and_released_by_that_instance_alone() {
    let [one, other] = [(); 2].map(|()| Api::without_store("serve --secret s1", [exports(1)]));
    let taken = one.take().await;
    assert_eq!((&taken["allowed"], &taken["degraded"]), (&json!(true), &json!(true)));
    let id = lease_id(&taken);
    assert_eq!(one.take().await["allowed"], json!(false));
    assert_eq!(error(other.renew(&id).await), gone());
    assert_eq!(error(other.release(&id).await), gone());
    let (status, renewed) = one.renew(&id).await;
    assert_eq!(status, 200, "{renewed}");
    assert_eq!(one.release(&lease_id(&renewed)).await.0, 200);
    assert_eq!(error(one.release(&id).await), gone());
    assert_eq!(one.take().await["allowed"], json!(true));
}

#[tokio::test]
async fn on_a_shared_store_without_a_secret_there_are_no_leases() {
    let api = Api::without_store("serve", [exports(1)]);
    for path in ["/v1/leases", "/v1/acquire"] {
        let (status, answer) = api.post(path, &json!({ "action": "exports" })).await;
        assert_eq!((status, &answer["error"]), (400, &json!("bad_request")));
        assert!(answer["message"].as_str().unwrap().contains("TIDEGATE_SECRET"), "{answer}");
    }
    assert_eq!(error(api.renew("x.y").await), invalid());
}
