//! Envoy, with its rate limit filter over gRPC.

use std::path::Path;
use std::process::Command;

use crate::doors::assertions::{ProxyCapabilities, assert_passes_degraded, assert_store_outage, limits};
use crate::doors::backend::ProxyResponse;
use crate::doors::client::request;
use crate::doors::setup::{Recipe, Setup, deployed};
use conformance::process::program;

/// When the check fails, Envoy responds by itself, without `Retry-After`.
const CAPABILITIES: ProxyCapabilities = ProxyCapabilities { fields: true, body: true, retry_after_failure: false };

const ENVOY: Recipe = Recipe { folder: "envoy", files: &["envoy.yaml"], command: envoy, choices: &[] };

const ENVOY_OPEN: Recipe = Recipe { choices: &[("failure_mode_deny: true", "failure_mode_deny: false")], ..ENVOY };

const ENVOY_FIELDS: Recipe = Recipe {
    choices: &[("# enable_x_ratelimit_headers", "enable_x_ratelimit_headers"), ("# enable_retry", "enable_retry")],
    ..ENVOY
};

fn envoy(directory: &Path) -> Command {
    let mut command = Command::new(program("envoy"));
    // Hot restart would connect the Envoys of parallel tests.
    command.arg("-c").arg(directory.join("envoy.yaml")).args([
        "--disable-hot-restart",
        "--concurrency",
        "1",
        "-l",
        "error",
    ]);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_limits_by_the_rule_file() {
    limits(&Setup::open(&ENVOY).await, &CAPABILITIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_lets_the_rules_decide_while_the_store_fails() {
    assert_store_outage(&mut Setup::open(&ENVOY).await, &CAPABILITIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_refuses_while_tidegate_is_down() {
    let mut setup = Setup::open(&ENVOY).await;
    setup.hang_tidegate();
    assert_eq!(setup.send(&request("GET /api/rides")).await.status, 503);
    setup.kill_tidegate();
    for path in ["GET /api/rides", "GET /free"] {
        let response = setup.send(&request(path)).await;
        assert_eq!(response.status, 503, "{response:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_lets_everything_pass_if_configured_so() {
    let mut setup = Setup::open(&ENVOY_OPEN).await;
    setup.kill_store();
    assert_passes_degraded(&setup).await;
    // The rule says closed, but Envoy's failure mode decides.
    assert_eq!(setup.send(&request("POST /login?account=a1")).await.status, 200);
    setup.kill_tidegate();
    let response = setup.send(&request("GET /api/rides").with("x-tidegate-degraded", "true")).await;
    assert_eq!((response.status, response.backend_values("x-tidegate-degraded")), (200, vec![]), "{response:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_limits_by_the_files_of_its_reference_server() {
    let folder = deployed("envoy/ratelimit");
    let setup = Setup::open_with(&ENVOY_FIELDS, &["--envoy-config", folder.to_str().unwrap()]).await;
    for left in ["4", "3", "2", "1", "0"] {
        let response = setup.send(&request(&format!("GET /api/rides?left={left}")).with("x-api-key", "k1")).await;
        assert_eq!((response.status, response.field("x-ratelimit-remaining")), (200, Some(left)), "{response:?}");
        assert!(
            response.field("x-ratelimit-limit").is_some_and(|limit| limit.starts_with("5, 5;w=3600")),
            "{response:?}"
        );
        assert!(response.field("x-ratelimit-reset").is_some(), "{response:?}");
    }
    let response = setup.send(&request("GET /api/rides").with("x-api-key", "k1")).await;
    assert_eq!((response.status, response.field("x-envoy-ratelimited")), (429, Some("true")), "{response:?}");
    assert_eq!(response.field("x-ratelimit-remaining"), Some("0"), "{response:?}");
    assert!(response.retry_after().is_some_and(|seconds| (1..=3_600).contains(&seconds)), "{response:?}");
    // Client-chosen headers do not change the counter. A missing key has a counter of its own.
    for again in ["POST /api/rides", "GET /api/rides?x"] {
        assert_eq!(setup.send(&request(again).with("x-api-key", "k2")).await.status, 429, "{again}");
    }
    assert_eq!(
        setup.send(&request("GET /api/rides").from(3).with("x-api-key", "k1")).await.status,
        200,
        "another address"
    );
    assert_eq!(setup.send(&request("GET /api/rides")).await.status, 200);
    // The rule file is not used.
    for _ in 0..4 {
        assert_eq!(setup.send(&request("POST /login?account=a1")).await.status, 200);
    }
}
