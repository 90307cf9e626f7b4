//! HAProxy, with a Lua action.

use std::path::Path;
use std::process::Command;

use crate::doors::assertions::{
    ProxyCapabilities, assert_repeated_keys_are_refused, assert_store_outage, assert_tidegate_outage, limits,
};
use crate::doors::client::request;
use crate::doors::setup::{Recipe, Setup};
use conformance::process::program;

const CAPABILITIES: ProxyCapabilities = ProxyCapabilities { fields: true, body: true, retry_after_failure: true };

const HAPROXY: Recipe =
    Recipe { folder: "haproxy", files: &["haproxy.cfg", "tidegate.lua"], command: haproxy, choices: &[] };

const HAPROXY_CLOSED: Recipe = Recipe { choices: &[("local OPEN = true", "local OPEN = false")], ..HAPROXY };

fn haproxy(_: &Path) -> Command {
    let mut command = Command::new(program("haproxy"));
    command.args(["-f", "haproxy.cfg", "-db"]);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn haproxy_limits_by_the_rule_file() {
    let setup = Setup::open(&HAPROXY).await;
    limits(&setup, &CAPABILITIES).await;
    assert_repeated_keys_are_refused(&setup).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn haproxy_lets_the_rules_decide_while_the_store_fails() {
    assert_store_outage(&mut Setup::open(&HAPROXY).await, &CAPABILITIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn haproxy_lets_requests_pass_while_tidegate_is_down() {
    assert_tidegate_outage(&mut Setup::open(&HAPROXY).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn haproxy_refuses_while_tidegate_is_down_if_configured_so() {
    let mut setup = Setup::open(&HAPROXY_CLOSED).await;
    setup.kill_tidegate();
    let response = setup.send(&request("GET /api/rides")).await;
    assert_eq!((response.status, response.retry_after()), (503, Some(1)), "{response:?}");
}
