//! Traefik, whose forwardAuth hands refusals on, and nothing to the answers of the service.

use std::path::Path;
use std::process::Command;

use crate::assertions::{ProxyCapabilities, assert_store_outage, limits};
use crate::client::ask;
use crate::process::program;
use crate::setup::{Door, Recipe};

const CAN: ProxyCapabilities = ProxyCapabilities { fields: false, body: true, retry_after_failure: true };

const TRAEFIK: Recipe =
    Recipe { folder: "traefik", files: &["traefik.yaml", "dynamic.yaml"], command: traefik, choices: &[] };

fn traefik(_: &Path) -> Command {
    let mut command = Command::new(program("traefik"));
    command.arg("--configFile=traefik.yaml");
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traefik_limits_by_the_rule_file() {
    limits(&Door::open(&TRAEFIK).await, &CAN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traefik_lets_the_rules_decide_while_the_store_fails() {
    assert_store_outage(&mut Door::open(&TRAEFIK).await, &CAN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traefik_refuses_while_tidegate_is_down() {
    let mut door = Door::open(&TRAEFIK).await;
    door.lose_tidegate();
    let response = door.send(&ask("GET /api/rides")).await;
    assert_eq!(response.status, 500, "{response:?}");
}
