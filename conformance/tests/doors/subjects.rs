//! A subject that is reset at one instance is admitted by all of them.

use std::net::SocketAddr;

use conformance::server::{KINDS, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::doors::client::{HttpResponse, local_request};
use crate::doors::setup::Tidegate;
use conformance::process::until;

const TOKEN: &str = "change-token-0123456789";

/// A customer that spends all that there is.
const RIDES: &str = r#"{"method":"GET","path":"/api/rides","ip":"127.0.0.9","cost":5}"#;

async fn post(port: u16, path: &str, body: &str) -> HttpResponse {
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    let request = local_request(&format!("POST {path}")).with("content-type", "application/json");
    let request = request.with("authorization", &format!("Bearer {TOKEN}"));
    request.body(body).try_send(to).await.expect("an answer")
}

async fn is_allowed(port: u16) -> bool {
    let decision: Value = post(port, "/v1/check", RIDES).await.json();
    decision["allowed"] == json!(true)
}

/// The other instance knows the denial, and repeats it without the store for at most a second.
#[tokio::test]
async fn a_subject_that_is_reset_at_one_instance_is_admitted_by_all() {
    for kind in KINDS {
        let (store, one, other) = (Server::start(kind), TempDir::new().unwrap(), TempDir::new().unwrap());
        let flags = ["--admin-token", TOKEN];
        let one = Tidegate::start(one.path(), &store.url(), &flags).await;
        let other = Tidegate::start(other.path(), &store.url(), &flags).await;
        assert!(is_allowed(one.http).await);
        assert!(!is_allowed(other.http).await && !is_allowed(one.http).await, "they share the store");
        let body = format!(r#"{{"request":{RIDES}}}"#);
        let shown = post(other.admin, "/v1/subjects/show", &body).await.json();
        assert_eq!(shown["next"]["allowed"], json!(false), "{shown}");
        let reset = post(one.admin, "/v1/subjects/reset", &body).await;
        assert_eq!(reset.status, 200, "{reset:?}");
        until("the other instance admits it", async || is_allowed(other.http).await.then_some(())).await;
        assert!(!is_allowed(one.http).await, "once");
    }
}

/// A decision of the instance alone would say nothing about the subject.
#[tokio::test]
async fn without_a_store_a_subject_is_neither_shown_nor_reset() {
    let (mut store, directory) = (Server::start(KINDS[0]), TempDir::new().unwrap());
    let tidegate = Tidegate::start(directory.path(), &store.url(), &["--admin-token", TOKEN]).await;
    store.kill();
    for path in ["/v1/subjects/show", "/v1/subjects/reset"] {
        let answer = post(tidegate.admin, path, &format!(r#"{{"request":{RIDES}}}"#)).await;
        assert_eq!((answer.status, answer.retry_after().is_some()), (503, true), "{path}: {answer:?}");
    }
    until("the failure is logged", async || tidegate.output().contains("subject not reset").then_some(())).await;
}
