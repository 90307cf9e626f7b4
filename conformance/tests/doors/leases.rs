//! Leases over HTTP, of several instances on one store.

use std::path::PathBuf;

use conformance::serve_process::ServeProcess;
use conformance::server::{KINDS, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::doors::client::local_request;
use crate::doors::setup::start_tidegate_with_rules;
use conformance::http_client::HttpResponse;

/// A lease that does not run out, however busy the machine is.
const RULES: &str = "\
version: 1
rules:
  - { id: exports, match: { action: export }, per: [], concurrency: { max: 2, lease: 1h }, on_failure: share }
";

/// Two instances on one store.
struct Fleet {
    store: Server,
    instances: [ServeProcess; 2],
    _directories: [TempDir; 2],
}

impl Fleet {
    fn start(store: Server) -> Self {
        let directories = [TempDir::new().unwrap(), TempDir::new().unwrap()];
        let rules: PathBuf = directories[0].path().join("rules.yaml");
        std::fs::write(&rules, RULES).unwrap();
        let url = store.url();
        let start = |index: usize| start_tidegate_with_rules(&rules, directories[index].path(), &url, &[]);
        let instances = [start(0), start(1)];
        Self { store, instances, _directories: directories }
    }

    async fn call(&self, instance: usize, line: &str, body: &str) -> HttpResponse {
        let to = self.instances[instance].http();
        let request = local_request(line).with("content-type", "application/json").body(body);
        request.try_send(to).await.expect("an answer")
    }

    /// Takes a slot at an instance, and returns the id of its lease if there was one.
    async fn take(&self, instance: usize) -> Option<String> {
        let answer = self.call(instance, "POST /v1/leases", r#"{"action":"export"}"#).await.json();
        assert_eq!(answer["degraded"], json!(false), "{answer}");
        answer["lease"]["id"].as_str().map(str::to_owned)
    }

    async fn renew(&self, instance: usize, id: &str) -> (u16, Value) {
        let response = self.call(instance, &format!("PUT /v1/leases/{id}"), "").await;
        (response.status, response.json())
    }

    async fn release(&self, instance: usize, id: &str) -> u16 {
        self.call(instance, &format!("DELETE /v1/leases/{id}"), "").await.status
    }
}

fn renewed((status, body): (u16, Value)) -> String {
    assert_eq!(status, 200, "{body}");
    body["lease"]["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_lease_is_renewed_and_released_by_any_instance() {
    for kind in KINDS {
        let fleet = Fleet::start(Server::start(kind));
        let (first, second) = (fleet.take(0).await.unwrap(), fleet.take(1).await.unwrap());
        assert_eq!((fleet.take(0).await, fleet.take(1).await), (None, None));
        let first = renewed(fleet.renew(1, &first).await);
        let first = renewed(fleet.renew(0, &first).await);
        assert_eq!(fleet.release(1, &first).await, 200);
        assert_eq!([fleet.release(0, &first).await, fleet.release(1, &first).await], [410, 410]);
        assert_eq!(fleet.renew(0, &first).await.0, 410, "a heartbeat after the release takes nothing again");
        assert!(fleet.take(0).await.is_some());
        assert_eq!((fleet.take(1).await, fleet.renew(0, &second).await.0), (None, 200));
    }
}

#[tokio::test]
async fn holders_go_on_after_redis_was_emptied_and_new_ones_are_judged_by_what_is_known() {
    for kind in KINDS {
        let fleet = Fleet::start(Server::start(kind));
        let (first, second) = (fleet.take(0).await.unwrap(), fleet.take(1).await.unwrap());
        let first = renewed(fleet.renew(0, &first).await);
        let _: () = redis::cmd("FLUSHALL").query(&mut fleet.store.connection()).unwrap();
        let first = renewed(fleet.renew(1, &first).await);
        let new = fleet.take(0).await.expect("the store knows one holder of two");
        assert_eq!(fleet.renew(0, &second).await.0, 410, "never more than two");
        assert_eq!(
            (fleet.take(1).await, fleet.renew(0, &first).await.0, fleet.renew(1, &new).await.0),
            (None, 200, 200)
        );
    }
}

/// Its memory has no room for a new key, but a release needs none.
#[tokio::test]
async fn slots_are_released_while_redis_is_out_of_memory() {
    let fleet = Fleet::start(Server::start(KINDS[0]));
    let (first, second) = (fleet.take(0).await.unwrap(), fleet.take(1).await.unwrap());
    let mut connection = fleet.store.connection();
    let mut set_memory = |bytes: &str| {
        let _: () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).query(&mut connection).unwrap();
    };
    set_memory("1");
    assert_eq!([fleet.release(1, &first).await, fleet.release(0, &first).await], [200, 410]);
    set_memory("0");
    assert!(fleet.take(0).await.is_some());
    assert_eq!((fleet.take(0).await, fleet.renew(0, &second).await.0), (None, 200));
}
