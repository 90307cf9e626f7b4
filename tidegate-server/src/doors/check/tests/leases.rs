//! `/v1/leases`.

use serde_json::{Value, json};
use tidegate::{Limit, ManualClock, Rate, Request, Rule};
use tidegate_redis::RedisOptions;

use super::{ALMOST_LEASE, Api, LEASE, MICROSECOND, START, arguments, error, exports, lease_id};
use crate::store::{AnyStore, StoreUrl};

fn gone() -> (u16, String) {
    (410, "lease_not_held".to_owned())
}

fn invalid() -> (u16, String) {
    (400, "invalid_lease".to_owned())
}

#[tokio::test]
async fn a_slot_is_taken_renewed_and_released_by_its_id() {
    let api = Api::new([exports(1)]);
    let taken = api.take().await;
    assert_eq!((&taken["allowed"], &taken["lease"]["expires_in_ms"]), (&json!(true), &json!(30_000)));
    let denied = api.take().await;
    assert_eq!(
        (&denied["allowed"], &denied["retry_after_ms"], denied.get("lease")),
        (&json!(false), &json!(1000), None)
    );
    api.clock.advance(ALMOST_LEASE);
    let (status, renewed) = api.renew(&lease_id(&taken)).await;
    assert_eq!((status, &renewed["lease"]["expires_in_ms"]), (200, &json!(30_000)), "{renewed}");
    assert_ne!(lease_id(&renewed), lease_id(&taken), "the new id has the time of the renewal");
    api.clock.advance(ALMOST_LEASE);
    assert_eq!(api.take().await["allowed"], json!(false));
    assert_eq!(api.release(&lease_id(&taken)).await, (200, json!({ "released": true })), "old ids stay valid");
    assert_eq!(api.free().await, 1);
}

/// A worker that is killed with SIGKILL neither renews nor releases.
#[tokio::test]
async fn the_slot_of_a_dead_worker_is_free_after_its_lease_no_earlier_and_no_later() {
    let api = Api::new([exports(1)]);
    let id = api.hold().await;
    api.clock.advance(LEASE / 2);
    assert_eq!(api.renew(&id).await.0, 200);
    api.clock.advance(ALMOST_LEASE);
    assert_eq!(api.take().await["allowed"], json!(false));
    api.clock.advance(MICROSECOND);
    assert_eq!(api.take().await["allowed"], json!(true));
}

#[tokio::test]
async fn a_heartbeat_after_the_lease_has_run_out_is_gone_and_takes_nothing() {
    let api = Api::new([exports(1)]);
    let id = api.hold().await;
    api.clock.advance(LEASE);
    assert_eq!(error(api.renew(&id).await), gone());
    assert_eq!(error(api.release(&id).await), gone());
    assert_eq!(api.free().await, 1);
}

#[tokio::test]
async fn a_second_release_is_gone_and_frees_nothing() {
    let api = Api::new([exports(1)]);
    let id = api.hold().await;
    assert_eq!(api.release(&id).await.0, 200);
    assert_eq!(error(api.release(&id).await), gone());
    let _other = api.hold().await;
    assert_eq!(error(api.release(&id).await), gone());
    assert_eq!(api.free().await, 0, "the slot of the other is not released");
}

/// A heartbeat may arrive after the release of the same worker. By the store alone, the slot could have been lost.
#[tokio::test]
async fn a_heartbeat_after_the_release_takes_no_slot_again() {
    let api = Api::new([exports(1)]);
    let id = api.hold().await;
    let (_, renewed) = api.renew(&id).await;
    assert_eq!(api.release(&id).await.0, 200);
    for id in [id, lease_id(&renewed)] {
        assert_eq!(error(api.renew(&id).await), gone());
        assert_eq!(api.free().await, 1);
    }
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
async fn the_release_of_one_lease_leaves_those_of_other_actions_and_subjects() {
    let other = Rule::new("reports", Limit::concurrency(1, LEASE).unwrap()).with_action("reports");
    let api = Api::new([exports(1), other]);
    let exports = api.hold().await;
    for body in [json!({ "action": "reports" }), json!({ "action": "exports", "tenant": "bolt" })] {
        let (_, answer) = api.post("/v1/leases", &body).await;
        assert_eq!(api.release(&lease_id(&answer)).await.0, 200);
        assert_eq!((api.free().await, api.renew(&exports).await.0), (0, 200), "{body}");
    }
}

#[tokio::test]
async fn the_holder_above_a_lowered_limit_is_told_so_and_the_others_go_on() {
    let api = Api::new([exports(3)]);
    let ids = [api.hold().await, api.hold().await, api.hold().await];
    api.set_rules([exports(2)]);
    assert_eq!(error(api.renew(&ids[1]).await), gone());
    assert_eq!((api.renew(&ids[0]).await.0, api.renew(&ids[2]).await.0), (200, 200));
    assert_eq!(error(api.renew(&ids[1]).await), gone());
    assert_eq!(api.take().await["allowed"], json!(false));
}

#[tokio::test]
async fn a_lease_survives_a_reload_and_the_removal_of_its_rule() {
    let api = Api::new([exports(1)]);
    let id = api.hold().await;
    api.set_rules([]);
    let (status, renewed) = api.renew(&id).await;
    assert_eq!((status, &renewed["lease"]["expires_in_ms"]), (200, &json!(30_000)));
    api.set_rules([exports(1)]);
    assert_eq!((api.renew(&lease_id(&renewed)).await.0, api.free().await), (200, 0));
    let longer = Rule::new("exports", Limit::concurrency(1, 2 * LEASE).unwrap()).with_action("exports");
    api.set_rules([longer.with_per(["tenant"])]);
    let (status, renewed) = api.renew(&id).await;
    assert_eq!((status, &renewed["lease"]["expires_in_ms"]), (200, &json!(60_000)), "{renewed}");
    assert_eq!((api.free().await, api.release(&id).await.0, api.free().await), (0, 200, 1));
}

async fn empty_the_store(api: &Api) {
    let request = Request::new("exports").with_attribute("tenant", "acme");
    api.engine.limiter().forget(&request).await.unwrap();
}

#[tokio::test]
async fn holders_go_on_after_the_store_was_emptied_and_count_again() {
    let api = Api::new([exports(2)]);
    let ids = [api.hold().await, api.hold().await];
    api.clock.advance(LEASE / 3);
    empty_the_store(&api).await;
    let (status, renewed) = api.renew(&ids[0]).await;
    assert_eq!((status, api.free().await), (200, 1));
    let _new = api.hold().await;
    assert_eq!(error(api.renew(&ids[1]).await), gone(), "a new one was let in, by what was known");
    assert_eq!((api.renew(&lease_id(&renewed)).await.0, api.take().await["allowed"].clone()), (200, json!(false)));
}

/// Its lease would have run out, so others may have worked in its place.
#[tokio::test]
async fn a_holder_that_is_late_does_not_get_a_lost_slot_again() {
    let api = Api::new([exports(1)]);
    let first = api.hold().await;
    api.clock.advance(LEASE / 2);
    let (_, renewed) = api.renew(&first).await;
    api.clock.advance(LEASE / 2);
    empty_the_store(&api).await;
    assert_eq!(error(api.renew(&first).await), gone(), "by the time in this id");
    assert_eq!(api.free().await, 1);
    assert_eq!(api.renew(&lease_id(&renewed)).await.0, 200);
    assert_eq!(api.free().await, 0);
}

/// The slots of one lease are lost together: what is left of it is released.
#[tokio::test]
async fn a_lease_of_two_limits_that_loses_one_slot_releases_the_other() {
    let all = |max| Rule::new("all", Limit::concurrency(max, LEASE).unwrap()).with_action("exports");
    let api = Api::new([exports(2), all(2)]);
    let ids = [api.hold().await, api.hold().await];
    api.set_rules([exports(2), all(1)]);
    assert_eq!(error(api.renew(&ids[0]).await), gone());
    api.set_rules([exports(2)]);
    assert_eq!((api.free().await, api.renew(&ids[1]).await.0), (1, 200));
}

#[tokio::test]
async fn the_answer_has_no_lease_if_nothing_is_held() {
    let bucket = Rule::new("bucket", Limit::token_bucket(1, Rate::per_hour(1).unwrap()).unwrap());
    let api = Api::new([exports(1), bucket.with_action("other")]);
    for (body, allowed) in [
        (json!({ "action": "other" }), true),
        (json!({ "action": "none" }), true),
        (json!({ "action": "exports", "tenant": "acme", "cost": 0 }), true),
        (json!({ "action": "exports", "tenant": "acme", "cost": 2 }), false),
    ] {
        let (status, answer) = api.post("/v1/leases", &body).await;
        assert_eq!((status, &answer["allowed"], answer.get("lease")), (200, &json!(allowed), None), "{body}");
    }
    let (status, answer) = api.post("/v1/leases", &json!({ "action": "exports", "peek": true })).await;
    assert_eq!((status, &answer["error"]), (400, &json!("bad_request")));
}

#[tokio::test]
async fn a_lease_takes_all_limits_or_none_and_its_receipt_returns_all() {
    let bucket = Rule::new("bucket", Limit::token_bucket(2, Rate::per_hour(1).unwrap()).unwrap());
    let api = Api::new([exports(1), bucket.with_action("exports")]);
    let body = json!({ "action": "exports", "tenant": "acme", "receipt": true });
    let (_, answer) = api.post("/v1/leases", &body).await;
    let (_, denied) = api.post("/v1/leases", &body).await;
    assert_eq!((&denied["allowed"], &denied["rule"]), (&json!(false), &json!("exports")));
    let remaining = |answer: &Value, check: usize| answer["checks"][check]["remaining"].clone();
    assert_eq!(remaining(&denied, 1), json!(1), "a denied lease consumes nothing");
    let (status, _) = api.post("/v1/refund", &json!({ "receipt": answer["receipt"] })).await;
    let (_, again) = api.post("/v1/leases", &body).await;
    assert_eq!((status, &again["allowed"], remaining(&again, 1)), (200, &json!(true), json!(1)));
}

/// An instance with a store that nothing listens at.
fn without_store(line: &str) -> Api {
    let url = StoreUrl::parse("redis://127.0.0.1:1").unwrap();
    let store = AnyStore::from_url(&url, RedisOptions::new(), arguments(line).store.memory_keys, None).unwrap();
    Api::on_store(line, [exports(1)], store, ManualClock::starting_at(START))
}

#[tokio::test]
async fn a_slot_in_the_memory_of_an_instance_is_renewed_and_released_by_that_instance_alone() {
    let (one, other) = (without_store("serve --secret s1"), without_store("serve --secret s1"));
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
    let api = without_store("serve");
    for path in ["/v1/leases", "/v1/acquire"] {
        let (status, answer) = api.post(path, &json!({ "action": "exports" })).await;
        assert_eq!((status, &answer["error"]), (400, &json!("bad_request")));
        assert!(answer["message"].as_str().unwrap().contains("TIDEGATE_SECRET"), "{answer}");
    }
    assert_eq!(error(api.renew("x.y").await), invalid());
}

#[tokio::test]
async fn a_renewal_after_a_refund_does_not_take_the_slot_again() {
    let api = Api::new([exports(1)]);
    let body = json!({ "action": "exports", "tenant": "acme", "receipt": true });
    let (_, answer) = api.post("/v1/leases", &body).await;
    let (_, refund) = api.post("/v1/refund", &json!({ "receipt": answer["receipt"] })).await;
    assert_eq!(refund["refunded"], json!(true));
    assert_eq!(api.renew(&lease_id(&answer)).await.0, 410);
    assert_eq!(api.free().await, 1);
}
