//! `/v1/acquire`.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::{Limit, Rate, Rule};

use super::{Api, SECOND, error, exports, lease_id};

/// One token a second for each client.
fn bucket(capacity: u64) -> Rule {
    let limit = Limit::token_bucket(capacity, Rate::per_second(1).unwrap()).unwrap();
    Rule::new("calls", limit).with_per(["client"])
}

fn call(client: &str, cost: u64, max_wait_ms: u64) -> Value {
    json!({ "attributes": { "client": client }, "cost": cost, "max_wait_ms": max_wait_ms })
}

/// A call under way.
type Waiting<'a> = Pin<Box<dyn Future<Output = (u16, Value)> + 'a>>;

/// Starts a call, which must wait.
async fn wait<'a>(api: &'a Api, body: &'a Value) -> Waiting<'a> {
    let mut waiting: Waiting<'a> = Box::pin(api.post("/v1/acquire", body));
    assert!(poll_once(&mut waiting).await.is_none(), "it does not wait");
    waiting
}

/// The answer of a call, if it is there.
async fn poll_once(waiting: &mut Waiting<'_>) -> Option<(u16, Value)> {
    poll_fn(|context| match waiting.as_mut().poll(context) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn callers_are_served_in_order_of_arrival_whatever_their_cost() {
    let api = Api::new([bucket(3)]);
    let (now, large, small) = (call("ann", 3, 0), call("ann", 3, 10_000), call("ann", 1, 10_000));
    let (_, answer) = api.post("/v1/acquire", &now).await;
    assert_eq!(
        (&answer["allowed"], &answer["waited_ms"], &answer["timed_out"]),
        (&json!(true), &json!(0), &json!(false))
    );
    let (mut first, mut second) = (wait(&api, &large).await, wait(&api, &small).await);
    api.clock.advance(2 * SECOND);
    assert!(poll_once(&mut first).await.is_none() && poll_once(&mut second).await.is_none(), "no overtaking");
    api.clock.advance(SECOND);
    let (_, answer) = poll_once(&mut first).await.unwrap();
    assert_eq!((&answer["allowed"], &answer["waited_ms"]), (&json!(true), &json!(3000)));
    assert!(poll_once(&mut second).await.is_none());
    api.clock.advance(SECOND);
    assert_eq!(poll_once(&mut second).await.unwrap().1["waited_ms"], json!(4000));
}

#[tokio::test]
async fn a_caller_waits_at_most_as_long_as_it_asks_and_the_server_allows() {
    let api = Api::start("serve --max-wait 5", [bucket(1)]);
    let first = call("ann", 1, 5000);
    let years = json!({ "attributes": { "client": "ann" }, "max_wait_ms": 9_007_199_254_740_991_u64 });
    assert_eq!(api.post("/v1/acquire", &first).await.1["allowed"], json!(true));
    let mut waiting = [wait(&api, &first).await, wait(&api, &first).await, wait(&api, &first).await];
    let mut late = [wait(&api, &first).await, wait(&api, &first).await, wait(&api, &years).await];
    for waiting in waiting.iter_mut().chain(&mut late[..2]) {
        api.clock.advance(SECOND);
        assert_eq!(poll_once(waiting).await.unwrap().1["allowed"], json!(true));
    }
    let (status, answer) = poll_once(&mut late[2]).await.unwrap();
    assert_eq!((status, &answer["allowed"], &answer["retry_after_ms"]), (200, &json!(false), &json!(1000)), "{answer}");
    assert_eq!((&answer["timed_out"], &answer["waited_ms"]), (&json!(true), &json!(5000)));
    let (hurried, patient) = (call("ann", 1, 500), call("ann", 1, 5000));
    let (mut first, mut second) = (wait(&api, &patient).await, wait(&api, &hurried).await);
    api.clock.advance(SECOND / 2);
    let expected =
        json!({ "allowed": false, "degraded": false, "permanent": false, "waited_ms": 500, "timed_out": true });
    assert_eq!(poll_once(&mut second).await, Some((200, expected)), "it was not its turn, so nothing was decided");
    api.clock.advance(SECOND / 2);
    assert_eq!(poll_once(&mut first).await.unwrap().1["allowed"], json!(true));
    api.clock.advance(SECOND);
    let peek = json!({ "attributes": { "client": "ann" }, "peek": true });
    assert_eq!(api.post("/v1/check", &peek).await.1["remaining"], json!(1), "a caller that times out consumes nothing");
}

#[tokio::test]
async fn a_request_that_cannot_pass_in_time_or_ever_is_answered_at_once() {
    let api = Api::new([bucket(2)]);
    assert_eq!(api.post("/v1/acquire", &call("ann", 2, 0)).await.1["allowed"], json!(true));
    for (cost, max_wait, permanent) in [(2, 1999, false), (1, 0, false), (3, 30_000, true), (u64::MAX >> 12, 1, true)] {
        let (status, answer) = api.post("/v1/acquire", &call("ann", cost, max_wait)).await;
        assert_eq!((status, &answer["allowed"], &answer["permanent"]), (200, &json!(false), &json!(permanent)));
        assert_eq!((&answer["timed_out"], &answer["waited_ms"]), (&json!(false), &json!(0)), "{answer}");
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_consumes_nothing_and_the_next_one_is_served() {
    let api = Api::new([bucket(1)]);
    let body = call("ann", 1, 10_000);
    assert_eq!(api.post("/v1/acquire", &body).await.1["allowed"], json!(true));
    let (gone, mut next) = (wait(&api, &body).await, wait(&api, &body).await);
    drop(gone);
    api.clock.advance(SECOND);
    assert_eq!(poll_once(&mut next).await.unwrap().1["waited_ms"], json!(1000));
    let metrics = api.engine.metrics().open_metrics();
    for line in [
        "tidegate_acquire_waiting 0",
        "tidegate_acquire_total{outcome=\"granted\"} 2",
        "tidegate_acquire_total{outcome=\"left\"} 1",
        "tidegate_acquire_wait_seconds_bucket{le=\"1.0\"} 2",
        "tidegate_acquire_wait_seconds_bucket{le=\"0.5\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(
        metrics.contains("rate_limit_checks_total{rule=\"calls\",algorithm=\"token_bucket\",outcome=\"allowed\"} 2"),
        "{metrics}"
    );
    assert!(!metrics.contains("rate_limit_rejected_total{"), "a caller that waits is not rejected: {metrics}");
}

#[tokio::test]
async fn a_request_without_a_rule_passes_at_once_and_is_counted_so() {
    let api = Api::new([exports(1)]);
    let (status, answer) = api.post("/v1/acquire", &json!({ "action": "other" })).await;
    assert_eq!((status, &answer["allowed"], &answer["rule"]), (200, &json!(true), &json!(null)));
    assert!(api.engine.metrics().open_metrics().contains("rate_limit_no_rule_total 1"));
}

#[tokio::test]
async fn a_caller_gets_the_slot_that_another_releases_at_once() {
    let api = Api::new([exports(1)]);
    let body = json!({ "action": "exports", "tenant": "acme", "max_wait_ms": 400 });
    let id = api.hold().await;
    let (mut first, mut second) = (wait(&api, &body).await, wait(&api, &body).await);
    assert_eq!(api.release(&id).await.0, 200);
    let (_, answer) = poll_once(&mut first).await.unwrap();
    assert_eq!((&answer["allowed"], &answer["waited_ms"]), (&json!(true), &json!(0)));
    assert_eq!(answer["lease"]["expires_in_ms"], json!(30_000));
    assert!(poll_once(&mut second).await.is_none());
    // It polls meanwhile, for slots that other instances release.
    for _ in 0..4 {
        api.clock.advance(Duration::from_millis(100));
        let _ = poll_once(&mut second).await.inspect(|(_, answer)| assert_eq!(answer["timed_out"], json!(true)));
        if api.clock.pending_sleeps() == 0 {
            break;
        }
    }
    assert_eq!(api.renew(&lease_id(&answer)).await.0, 200);
    assert_eq!(api.free().await, 0);
}

/// A change of rules must not change the order, nor leave those who wait without a wake-up.
#[tokio::test]
async fn a_reload_keeps_the_order_of_those_who_wait() {
    let api = Api::new([exports(1)]);
    let body = json!({ "action": "exports", "tenant": "acme", "max_wait_ms": 10_000 });
    let id = api.hold().await;
    let mut first = wait(&api, &body).await;
    api.set_rules([exports(1), bucket(2)]);
    let mut second = wait(&api, &body).await;
    assert_eq!(api.release(&id).await.0, 200);
    let (_, answer) = poll_once(&mut first).await.unwrap();
    assert!(poll_once(&mut second).await.is_none());
    assert_eq!(api.release(&lease_id(&answer)).await.0, 200);
    assert_eq!(poll_once(&mut second).await.unwrap().1["allowed"], json!(true));
}

fn export(max_wait_ms: u64) -> Value {
    json!({ "action": "exports", "tenant": "acme", "max_wait_ms": max_wait_ms })
}

#[tokio::test]
async fn a_raised_limit_serves_those_who_wait_at_once_in_order_of_arrival() {
    let api = Api::new([exports(1)]);
    let body = export(10_000);
    let held = api.hold().await;
    let (mut first, mut second) = (wait(&api, &body).await, wait(&api, &body).await);
    api.clock.advance(Duration::from_millis(10));
    api.set_rules([exports(2)]);
    let mut late = wait(&api, &body).await;
    assert!(poll_once(&mut second).await.is_none(), "no overtaking");
    let (_, answer) = poll_once(&mut first).await.unwrap();
    assert_eq!((&answer["allowed"], &answer["waited_ms"]), (&json!(true), &json!(10)), "{answer}");
    assert!(poll_once(&mut second).await.is_none() && poll_once(&mut late).await.is_none());
    assert_eq!(api.release(&held).await.0, 200);
    assert!(poll_once(&mut late).await.is_none(), "no overtaking");
    assert_eq!(poll_once(&mut second).await.unwrap().1["allowed"], json!(true));
    assert!(poll_once(&mut late).await.is_none());
}

#[tokio::test]
async fn a_lowered_limit_keeps_those_who_wait_waiting_for_the_time_they_have_left() {
    let api = Api::new([exports(2)]);
    let body = export(5000);
    let (kept, released) = (api.hold().await, api.hold().await);
    let mut waiting = wait(&api, &body).await;
    api.clock.advance(4 * SECOND);
    api.set_rules([exports(1)]);
    assert_eq!(api.release(&released).await.0, 200);
    assert!(poll_once(&mut waiting).await.is_none(), "the only slot is held");
    assert_eq!(api.renew(&kept).await.0, 200, "its holder keeps it");
    let mut answer = None;
    for _ in 0..20 {
        api.clock.advance(Duration::from_millis(50));
        answer = answer.or(poll_once(&mut waiting).await);
        if answer.is_some() {
            break;
        }
    }
    let (_, answer) = answer.unwrap();
    assert_eq!((&answer["timed_out"], &answer["waited_ms"]), (&json!(true), &json!(5000)), "{answer}");
}

#[tokio::test]
async fn those_who_wait_for_a_rule_that_is_removed_pass_at_once() {
    let api = Api::new([exports(1), bucket(1)]);
    let (slot, tokens) = (export(10_000), call("ann", 1, 10_000));
    let _held = api.hold().await;
    assert_eq!(api.post("/v1/acquire", &tokens).await.1["allowed"], json!(true));
    let mut waiting = [wait(&api, &slot).await, wait(&api, &slot).await, wait(&api, &tokens).await];
    api.set_rules([]);
    for waiting in &mut waiting {
        let (_, answer) = poll_once(waiting).await.unwrap();
        assert_eq!((&answer["allowed"], &answer["rule"]), (&json!(true), &json!(null)), "{answer}");
    }
    assert!(api.engine.metrics().open_metrics().contains("tidegate_acquire_waiting 0"));
}

/// A refund would not give the place back while others are behind it.
#[tokio::test]
async fn a_change_of_rules_leaves_the_places_in_a_leaky_bucket() {
    let leaky =
        || Rule::new("calls", Limit::leaky_bucket(Rate::per_second(1).unwrap(), 10).unwrap()).with_per(["client"]);
    let api = Api::new([leaky()]);
    let body = call("ann", 1, 10_000);
    assert_eq!(api.post("/v1/acquire", &body).await.1["allowed"], json!(true));
    let (mut first, mut second) = (wait(&api, &body).await, wait(&api, &body).await);
    api.set_rules([leaky(), exports(1)]);
    assert!(poll_once(&mut first).await.is_none() && poll_once(&mut second).await.is_none());
    api.clock.advance(SECOND);
    assert_eq!(poll_once(&mut first).await.unwrap().1["waited_ms"], json!(1000));
    api.clock.advance(SECOND);
    assert_eq!(poll_once(&mut second).await.unwrap().1["waited_ms"], json!(2000));
}

#[tokio::test]
async fn a_waiting_call_with_a_large_body_must_call_again_when_the_rules_change() {
    let api = Api::new([bucket(1)]);
    let mut body = call("ann", 1, 10_000);
    assert_eq!(api.post("/v1/acquire", &body).await.1["allowed"], json!(true));
    body["attributes"]["note"] = "x".repeat(16 * 1024).into();
    let mut waiting = wait(&api, &body).await;
    api.set_rules([bucket(2)]);
    assert_eq!(error(poll_once(&mut waiting).await.unwrap()), (503, "rules_changed".to_owned()));
}

#[tokio::test]
async fn one_subject_cannot_take_all_places_and_bystanders_keep_theirs() {
    let api = Api::start("serve --max-waiting 16", [bucket(1)]);
    let (hostile, bystander) = (call("mallory", 1, 30_000), call("ann", 1, 30_000));
    for body in [&hostile, &bystander] {
        assert_eq!(api.post("/v1/acquire", body).await.1["allowed"], json!(true));
    }
    let waiting = [wait(&api, &hostile).await, wait(&api, &hostile).await];
    for _ in 0..100 {
        assert_eq!(error(api.post("/v1/acquire", &hostile).await), (503, "too_many_waiting".to_owned()));
    }
    let mut other = wait(&api, &bystander).await;
    api.clock.advance(SECOND);
    assert_eq!(poll_once(&mut other).await.unwrap().1["allowed"], json!(true));
    drop(waiting);
    assert_eq!(api.post("/v1/acquire", &hostile).await.1["allowed"], json!(true));
}

#[tokio::test]
async fn callers_that_wait_are_answered_when_the_server_stops() {
    let api = Api::new([bucket(1)]);
    let body = call("ann", 1, 30_000);
    assert_eq!(api.post("/v1/acquire", &body).await.1["allowed"], json!(true));
    let waiting = pin!(wait(&api, &body).await);
    api.in_process.stop();
    assert_eq!(error(waiting.await), (503, "stopping".to_owned()));
}

#[tokio::test]
async fn a_wait_that_is_not_a_whole_number_or_in_another_call_is_a_bad_request() {
    let api = Api::new([bucket(1)]);
    for (path, body) in [
        ("/v1/acquire", json!({ "max_wait_ms": -1 })),
        ("/v1/acquire", json!({ "max_wait_ms": 0.5 })),
        ("/v1/acquire", json!({ "max_wait_ms": "1s" })),
        ("/v1/acquire", json!({ "peek": true })),
        ("/v1/check", json!({ "max_wait_ms": 1 })),
        ("/v1/leases", json!({ "max_wait_ms": 1 })),
        ("/v1/leases", json!({ "peek": true })),
    ] {
        assert_eq!(error(api.post(path, &body).await), (400, "bad_request".to_owned()), "{path} {body}");
    }
}
