//! Traefik, whose forwardAuth passes rejections on but adds no headers to responses of the backend.

use std::path::Path;
use std::process::Command;

use crate::doors::assertions::{ProxyCapabilities, assert_repeated_keys_are_refused, assert_store_outage, limits};
use crate::doors::client::request;
use crate::doors::setup::{Recipe, Setup};
use conformance::process::program;

const CAPABILITIES: ProxyCapabilities = ProxyCapabilities { fields: false, body: true, retry_after_failure: true };

const TRAEFIK: Recipe =
    Recipe { folder: "traefik", files: &["traefik.yaml", "dynamic.yaml"], command: traefik, choices: &[] };

fn traefik(_: &Path) -> Command {
    let mut command = Command::new(program("traefik"));
    command.arg("--configFile=traefik.yaml");
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traefik_limits_by_the_rule_file() {
    let setup = Setup::open(&TRAEFIK).await;
    limits(&setup, &CAPABILITIES).await;
    assert_repeated_keys_are_refused(&setup).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traefik_lets_the_rules_decide_while_the_store_fails() {
    assert_store_outage(&mut Setup::open(&TRAEFIK).await, &CAPABILITIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traefik_refuses_while_tidegate_is_down() {
    let mut setup = Setup::open(&TRAEFIK).await;
    setup.kill_tidegate();
    let response = setup.send(&request("GET /api/rides")).await;
    assert_eq!(response.status, 500, "{response:?}");
}
