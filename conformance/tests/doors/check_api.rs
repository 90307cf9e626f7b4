//! The check API of several instances on one store: refunds across instances, and behaviour without a store.

use std::net::SocketAddr;

use conformance::server::{KINDS, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::doors::client::local_request;
use crate::doors::setup::start_tidegate;
use conformance::http_client::HttpResponse;
use conformance::poll::wait_for_some;

/// Consumes the whole limit of a client.
const RIDES: &str = r#"{"method":"GET","path":"/api/rides","ip":"127.0.0.9","cost":5,"receipt":true}"#;

async fn post(to: SocketAddr, path: &str, body: &str) -> HttpResponse {
    let request = local_request(&format!("POST {path}")).with("content-type", "application/json");
    request.body(body).try_send(to).await.expect("an answer")
}

async fn check(to: SocketAddr) -> Value {
    post(to, "/v1/check", RIDES).await.json()
}

#[tokio::test]
async fn a_receipt_is_refunded_once_by_any_instance() {
    for kind in KINDS {
        let (store, one, other) = (Server::start(kind), TempDir::new().unwrap(), TempDir::new().unwrap());
        let (one, other) =
            (start_tidegate(one.path(), &store.url(), &[]), start_tidegate(other.path(), &store.url(), &[]));
        let decided = check(one.http()).await;
        assert_eq!(decided["allowed"], json!(true), "{decided}");
        assert_eq!(check(other.http()).await["allowed"], json!(false), "they share the store");
        let returned = json!({ "receipt": decided["receipt"] }).to_string();
        let (first, second) =
            tokio::join!(post(one.http(), "/v1/refund", &returned), post(other.http(), "/v1/refund", &returned));
        let done = [first.json()["refunded"].clone(), second.json()["refunded"].clone()];
        assert_eq!(done.iter().filter(|done| **done == json!(true)).count(), 1, "{done:?}");
        // A refund by the other instance is seen within a second.
        let allowed = async || (check(other.http()).await["allowed"] == json!(true)).then_some(());
        wait_for_some("the refund is seen", allowed).await;
        assert_eq!(check(one.http()).await["allowed"], json!(false), "it was given back once");
    }
}

#[tokio::test]
async fn a_known_denial_is_answered_counted_and_logged_like_any_other() {
    let (store, directory) = (Server::start(KINDS[0]), TempDir::new().unwrap());
    let tidegate = start_tidegate(directory.path(), &store.url(), &["--log-format", "json"]);
    assert_eq!(check(tidegate.http()).await["allowed"], json!(true));
    let denied = check(tidegate.http()).await;
    let rule = denied["rule"].as_str().unwrap().to_owned();
    let admin = tidegate.admin();
    let count = async |name: &str| {
        let metrics = local_request("GET /metrics").try_send(admin).await.unwrap().text();
        let line =
            metrics.lines().find_map(|line| line.strip_prefix(name)?.split(' ').next_back()?.parse::<f64>().ok());
        line.unwrap_or(0.0)
    };
    let hits = format!("rate_limit_denial_cache_hits_total{{rule=\"{rule}\"}}");
    // On a busy machine, a second may pass between two checks.
    wait_for_some("the cache answers", async || {
        let known = check(tidegate.http()).await;
        assert_eq!(
            [&known["allowed"], &known["rule"], &known["degraded"]],
            [&json!(false), &json!(rule), &json!(false)]
        );
        (count(&hits).await > 0.0).then_some(())
    })
    .await;
    let (hits, rejected) = (count(&hits).await, count(&format!("rate_limit_rejected_total{{rule=\"{rule}\"")).await);
    assert!(rejected > hits, "{rejected} denied in all, {hits} of them without the store");
    let is_refusal = |line: &&str| line.contains("\"reason\":\"limit\"");
    wait_for_some("both are logged", async || (tidegate.output().lines().filter(is_refusal).count() > 1).then_some(()))
        .await;
    wait_for_some("the entry ends", async || (count("rate_limit_denial_cache_entries").await == 0.0).then_some(()))
        .await;
}

#[tokio::test]
async fn without_a_store_the_failure_policies_decide_and_the_metrics_count_it() {
    let (mut store, directory) = (Server::start(KINDS[0]), TempDir::new().unwrap());
    let tidegate = start_tidegate(directory.path(), &store.url(), &[]);
    store.kill();
    let ride = check(tidegate.http()).await;
    assert_eq!((&ride["allowed"], &ride["degraded"]), (&json!(true), &json!(true)));
    let login = post(tidegate.http(), "/v1/check", r#"{"method":"POST","path":"/login","ip":"127.0.0.9"}"#).await;
    assert_eq!((login.status, login.retry_after().is_some()), (503, true), "{login:?}");
    let refund = post(tidegate.http(), "/v1/refund", r#"{"receipt":"x.y"}"#).await;
    assert_eq!(refund.status, 404, "what is no receipt needs no store");
    let admin = tidegate.admin();
    let metrics = local_request("GET /metrics").try_send(admin).await.unwrap().text();
    for policy in ["local", "closed"] {
        let line = metrics.lines().find(|line| line.contains(&format!("policy=\"{policy}\"")));
        assert!(line.is_some_and(|line| line.starts_with("rate_limit_fallback_total{rule=\"")), "{metrics}");
    }
    assert!(metrics.contains("rate_limit_script_errors_total{script=\"decide\","), "{metrics}");
}

#[tokio::test]
async fn a_server_starts_without_its_store_and_uses_it_once_it_is_up() {
    let (mut store, directory) = (Server::start(KINDS[0]), TempDir::new().unwrap());
    store.kill();
    let tidegate = start_tidegate(directory.path(), &store.url(), &[]);
    assert!(tidegate.output().contains("nothing listens at the address of the store"), "{}", tidegate.output());
    let http = tidegate.http();
    let ready = || async { local_request("GET /readyz").try_send(http).await.expect("an answer") };
    let without = ready().await;
    assert_eq!((without.status, &without.json()["degraded"]), (200, &json!(true)), "{without:?}");
    let ride = check(tidegate.http()).await;
    assert_eq!(ride["degraded_reason"], json!("unavailable"));
    assert!(ride.get("receipt").is_none(), "what was counted nowhere cannot be given back: {ride}");

    store.restart_with(&["--maxmemory-policy", "allkeys-lru"]);
    wait_for_some("the store decides", async || {
        (check(tidegate.http()).await["degraded"] == json!(false)).then_some(())
    })
    .await;
    assert_eq!(check(tidegate.http()).await["allowed"], json!(false), "it has spent all that there is");
    let with = ready().await.json();
    assert_eq!(
        (&with["degraded"], &with["store"]["servers"][0]["breaker"]),
        (&json!(false), &json!("closed")),
        "{with}"
    );
    let queue = |field: &str| with["store"]["servers"][0][field].clone();
    assert_eq!((queue("waiting"), queue("in_flight")), (json!(0), json!(0)), "{with}");
    // The startup warnings appear now.
    wait_for_some("the warnings", async || tidegate.output().contains("allkeys-lru").then_some(())).await;
    let counted = async || (ready().await.json()["store"]["instances"] == json!(1)).then_some(());
    wait_for_some("it counts itself", counted).await;
    let admin = tidegate.admin();
    let metrics = local_request("GET /metrics").try_send(admin).await.unwrap().text();
    for line in [
        "rate_limit_instances 1",
        "rate_limit_store_up{server=\"127.0.0.1:",
        "rate_limit_degraded_total{outcome=\"allowed\"",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}
