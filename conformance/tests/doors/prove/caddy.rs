//! Caddy, with `forward_auth`.

use std::path::Path;
use std::process::Command;

use crate::doors::assertions::{
    ProxyCapabilities, assert_repeated_keys_are_refused, assert_store_outage, assert_tidegate_outage, limits,
};
use crate::doors::client::request;
use crate::doors::setup::{Recipe, Setup};
use conformance::process::program;

const CAPABILITIES: ProxyCapabilities = ProxyCapabilities { fields: true, body: true, retry_after_failure: true };

const CADDY: Recipe = Recipe { folder: "caddy", files: &["Caddyfile"], command: caddy, choices: &[] };

const CADDY_CLOSED: Recipe = Recipe { choices: &[("handle_errors 502 504", "handle_errors 599")], ..CADDY };

fn caddy(directory: &Path) -> Command {
    let mut command = Command::new(program("caddy"));
    command.args(["run", "--config", "Caddyfile"]).env("HOME", directory);
    // The admin endpoint has one fixed port, which parallel tests would share.
    command.env("CADDY_ADMIN", format!("unix/{}", directory.join("admin").display()));
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caddy_limits_by_the_rule_file() {
    let setup = Setup::open(&CADDY).await;
    limits(&setup, &CAPABILITIES).await;
    assert_repeated_keys_are_refused(&setup).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caddy_lets_the_rules_decide_while_the_store_fails() {
    assert_store_outage(&mut Setup::open(&CADDY).await, &CAPABILITIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caddy_lets_requests_pass_while_tidegate_is_down() {
    assert_tidegate_outage(&mut Setup::open(&CADDY).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caddy_refuses_while_tidegate_is_down_if_configured_so() {
    let mut setup = Setup::open(&CADDY_CLOSED).await;
    setup.kill_tidegate();
    let response = setup.send(&request("GET /api/rides")).await;
    assert_eq!(response.status, 502, "{response:?}");
}
