//! A subject that is reset at one instance is admitted by all of them.

use std::net::SocketAddr;

use conformance::server::{KINDS, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::doors::client::local_request;
use crate::doors::setup::start_tidegate;
use conformance::http_client::HttpResponse;
use conformance::poll::wait_for_some;

const TOKEN: &str = "change-token-0123456789";

/// A customer that spends all that there is.
const RIDES: &str = r#"{"method":"GET","path":"/api/rides","ip":"127.0.0.9","cost":5}"#;

async fn post(to: SocketAddr, path: &str, body: &str) -> HttpResponse {
    let request = local_request(&format!("POST {path}")).with("content-type", "application/json");
    let request = request.with("authorization", &format!("Bearer {TOKEN}"));
    request.body(body).try_send(to).await.expect("an answer")
}

async fn is_allowed(to: SocketAddr) -> bool {
    let decision: Value = post(to, "/v1/check", RIDES).await.json();
    decision["allowed"] == json!(true)
}

/// The other instance knows the denial, and repeats it without the store for at most a second.
#[tokio::test]
async fn a_subject_that_is_reset_at_one_instance_is_admitted_by_all() {
    for kind in KINDS {
        let (store, one, other) = (Server::start(kind), TempDir::new().unwrap(), TempDir::new().unwrap());
        let flags = ["--admin-token", TOKEN];
        let one = start_tidegate(one.path(), &store.url(), &flags);
        let other = start_tidegate(other.path(), &store.url(), &flags);
        assert!(is_allowed(one.http()).await);
        assert!(!is_allowed(other.http()).await && !is_allowed(one.http()).await, "they share the store");
        let body = format!(r#"{{"request":{RIDES}}}"#);
        let shown = post(other.admin(), "/v1/subjects/show", &body).await.json();
        assert_eq!(shown["next"]["allowed"], json!(false), "{shown}");
        let reset = post(one.admin(), "/v1/subjects/reset", &body).await;
        assert_eq!(reset.status, 200, "{reset:?}");
        wait_for_some("the other instance admits it", async || is_allowed(other.http()).await.then_some(())).await;
        assert!(!is_allowed(one.http()).await, "once");
    }
}

/// The digits of a log line lead to the state on the server, in its partition.
#[tokio::test]
async fn the_digits_of_a_line_of_the_log_reset_its_subject() {
    for kind in KINDS {
        let (store, directory) = (Server::start(kind), TempDir::new().unwrap());
        let tidegate = start_tidegate(directory.path(), &store.url(), &["--admin-token", TOKEN]);
        assert!(is_allowed(tidegate.http()).await && !is_allowed(tidegate.http()).await);
        let line = wait_for_some("the refusal is logged", async || {
            tidegate.output().lines().find(|line| line.contains("refused rule=")).map(str::to_owned)
        })
        .await;
        let digits = line.split("subject=\"").nth(1).unwrap().split('"').next().unwrap();
        let body = json!({ "hash": digits }).to_string();
        let reset = post(tidegate.admin(), "/v1/subjects/reset", &body).await;
        assert_eq!(reset.status, 200, "{reset:?}");
        assert!(is_allowed(tidegate.http()).await, "{line}");
        let again = post(tidegate.admin(), "/v1/subjects/reset", &json!({ "hash": "00000000" }).to_string()).await;
        assert_eq!(again.status, 422, "{again:?}");
    }
}

/// A decision of the instance alone would say nothing about the subject.
#[tokio::test]
async fn without_a_store_a_subject_is_neither_shown_nor_reset() {
    let (mut store, directory) = (Server::start(KINDS[0]), TempDir::new().unwrap());
    let tidegate = start_tidegate(directory.path(), &store.url(), &["--admin-token", TOKEN]);
    store.kill();
    for path in ["/v1/subjects/show", "/v1/subjects/reset"] {
        let answer = post(tidegate.admin(), path, &format!(r#"{{"request":{RIDES}}}"#)).await;
        assert_eq!((answer.status, answer.retry_after().is_some()), (503, true), "{path}: {answer:?}");
    }
    wait_for_some("the failure is logged", async || tidegate.output().contains("subject not reset").then_some(()))
        .await;
}
