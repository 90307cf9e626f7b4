//! Reservations over HTTP, of several instances on one store.

use std::path::PathBuf;

use conformance::serve_process::ServeProcess;
use conformance::server::{KINDS, Server};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::doors::client::local_request;
use crate::doors::setup::start_tidegate_with_rules;
use conformance::poll::wait_for_some;

/// Windows that do not end during a test, and two limits, so that a reservation has several parts.
const RULES: &str = "\
version: 1
rules:
  - id: tokens
    match: { action: complete }
    per: [tenant]
    fixed_window: { limit: 1000, window: 30d }
    on_failure: closed
  - id: all-tokens
    match: { action: complete }
    per: []
    quota: { amount: 100000, period: year }
    on_failure: closed
";

/// Two instances on one store.
struct Fleet {
    instances: [ServeProcess; 2],
    _store: Server,
    _directories: [TempDir; 2],
}

impl Fleet {
    fn start(store: Server, flags: &[&str]) -> Self {
        let directories = [TempDir::new().unwrap(), TempDir::new().unwrap()];
        let rules: PathBuf = directories[0].path().join("rules.yaml");
        std::fs::write(&rules, RULES).unwrap();
        let url = store.url();
        let start = |index: usize| start_tidegate_with_rules(&rules, directories[index].path(), &url, flags);
        let instances = [start(0), start(1)];
        Self { instances, _store: store, _directories: directories }
    }

    async fn post(&self, instance: usize, path: &str, body: &Value) -> (u16, Value) {
        let to = self.instances[instance].http();
        let request = local_request(&format!("POST {path}")).with("content-type", "application/json");
        let response = request.body(&body.to_string()).try_send(to).await.expect("an answer");
        (response.status, response.json())
    }

    async fn reserve(&self, instance: usize, key: &str, cost: u64) -> (u16, Value) {
        let body = json!({ "action": "complete", "tenant": "acme", "cost": cost, "idempotency_key": key });
        self.post(instance, "/v1/quotas/reserve", &body).await
    }

    /// Reserves what fits, and returns the id.
    async fn reserved(&self, instance: usize, key: &str, cost: u64) -> String {
        let (status, answer) = self.reserve(instance, key, cost).await;
        let id = answer["reservation"]["id"].as_str().unwrap_or_else(|| panic!("{status} {answer}"));
        id.to_owned()
    }

    async fn commit(&self, instance: usize, id: &str, cost: u64) -> (u16, Value) {
        result(self.post(instance, "/v1/quotas/commit", &json!({ "id": id, "cost": cost })).await)
    }

    async fn release(&self, instance: usize, id: &str) -> (u16, Value) {
        result(self.post(instance, "/v1/quotas/release", &json!({ "id": id })).await)
    }

    /// What is left of both limits.
    async fn left(&self, instance: usize) -> [u64; 2] {
        let peek = json!({ "action": "complete", "tenant": "acme", "peek": true });
        let (_, answer) = self.post(instance, "/v1/check", &peek).await;
        assert_eq!(answer["degraded"], json!(false), "{answer}");
        [0, 1].map(|check: usize| answer["checks"][check]["remaining"].as_u64().unwrap())
    }

    /// The open reservations under each limit.
    async fn outstanding(&self, instance: usize) -> Vec<u64> {
        let body = json!({ "action": "complete", "tenant": "acme" });
        let (_, answer) = self.post(instance, "/v1/quotas/outstanding", &body).await;
        let list = answer["outstanding"].as_array().unwrap_or_else(|| panic!("{answer}"));
        list.iter().map(|one| one["reservations"].as_u64().unwrap()).collect()
    }
}

/// The status, and the kind of the error or the whole answer.
fn result((status, body): (u16, Value)) -> (u16, Value) {
    (status, body.get("error").cloned().unwrap_or(body))
}

fn committed() -> (u16, Value) {
    (200, json!({ "committed": true }))
}

fn ended() -> (u16, Value) {
    (409, json!("reservation_ended"))
}

#[tokio::test]
async fn a_reservation_is_committed_and_released_by_any_instance_and_every_step_can_be_repeated() {
    for kind in KINDS {
        let fleet = Fleet::start(Server::start(kind), &[]);
        let id = fleet.reserved(0, "a", 400).await;
        assert_eq!((fleet.left(0).await, fleet.left(1).await), ([600, 99_600], [600, 99_600]));
        assert_eq!(fleet.reserved(1, "a", 400).await, id, "the same reservation, with the same id");
        assert_eq!(result(fleet.reserve(1, "a", 401).await), (409, json!("idempotency_key_reused")));
        assert_eq!((fleet.left(0).await, fleet.outstanding(1).await), ([600, 99_600], vec![1, 1]));
        for instance in [1, 0, 1] {
            assert_eq!(fleet.commit(instance, &id, 150).await, committed());
        }
        assert_eq!((fleet.left(0).await, fleet.outstanding(0).await), ([850, 99_850], vec![0, 0]));
        assert_eq!((fleet.commit(0, &id, 151).await, fleet.release(1, &id).await), (ended(), ended()));
        assert_eq!(result(fleet.reserve(0, "a", 400).await), ended());
        let other = fleet.reserved(1, "b", 850).await;
        let denied = fleet.reserve(0, "c", 1).await.1;
        assert_eq!((&denied["allowed"], &denied["retry_after_ms"]), (&json!(false), &json!(1_000)), "{denied}");
        for instance in [0, 1] {
            assert_eq!(fleet.release(instance, &other).await, (200, json!({ "released": true })));
        }
        assert_eq!((fleet.commit(0, &other, 850).await, fleet.left(1).await), (ended(), [850, 99_850]));
    }
}

#[tokio::test]
async fn a_commit_of_a_thousand_times_the_reservation_and_forged_ids_leave_bystanders_alone() {
    for kind in KINDS {
        let fleet = Fleet::start(Server::start(kind), &[]);
        let id = fleet.reserved(0, "a", 10).await;
        let other = if &id[60..61] == "A" { "B" } else { "A" };
        let forged = format!("{}{other}{}", &id[..60], &id[61..]);
        let invalid = (400, json!("invalid_reservation"));
        for wrong in ["x.y", "", &forged, &format!("{id}A")] {
            assert_eq!(
                (fleet.commit(1, wrong, 1).await, fleet.release(1, wrong).await),
                (invalid.clone(), invalid.clone())
            );
        }
        assert_eq!(fleet.outstanding(1).await, [1, 1]);
        assert_eq!((fleet.commit(1, &id, 10_000).await, fleet.left(0).await), (committed(), [0, 90_000]));
        let bystander = json!({ "action": "complete", "tenant": "bolt", "cost": 1_000 });
        assert_eq!(fleet.post(0, "/v1/check", &bystander).await.1["allowed"], json!(true));
    }
}

#[tokio::test]
async fn a_reservation_that_has_run_out_is_not_found_at_any_instance_and_charges_nothing() {
    for kind in KINDS {
        let fleet = Fleet::start(Server::start(kind), &["--reservation-ttl", "1"]);
        let id = fleet.reserved(0, "a", 400).await;
        wait_for_some("it runs out", async || (fleet.outstanding(1).await == [0, 0]).then_some(())).await;
        let gone = (404, json!("reservation_not_found"));
        assert_eq!((fleet.commit(1, &id, 400).await, fleet.release(0, &id).await), (gone.clone(), gone));
        assert_eq!(fleet.left(0).await, [1_000, 100_000]);
    }
}

/// The limit holds for the sum of what is consumed and reserved, however many callers there are.
#[tokio::test]
async fn concurrent_reservations_at_two_instances_never_exceed_the_limit() {
    let fleet = Fleet::start(Server::start(KINDS[0]), &[]);
    let calls: Vec<_> = (0..24).map(|call| (call % 2, format!("call-{call}"))).collect();
    let answers = join_all(calls.iter().map(|(instance, key)| fleet.reserve(*instance, key, 100))).await;
    let ids: Vec<&str> = answers.iter().filter_map(|(_, answer)| answer["reservation"]["id"].as_str()).collect();
    assert_eq!((ids.len(), fleet.left(0).await[0]), (10, 0));
    for (call, id) in ids.iter().enumerate() {
        assert_eq!(fleet.commit(call % 2, id, 90).await, committed());
    }
    assert_eq!(fleet.left(1).await[0], 100);
}
