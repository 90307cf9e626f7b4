//! nginx, whose `auth_request` passes on only 401 and 403.

use std::path::Path;
use std::process::Command;

use crate::doors::assertions::{
    ProxyCapabilities, assert_repeated_keys_are_refused, assert_store_outage, assert_tidegate_outage, limits,
};
use crate::doors::client::request;
use crate::doors::setup::{Recipe, Setup};
use conformance::process::program;

const CAPABILITIES: ProxyCapabilities = ProxyCapabilities { fields: true, body: false, retry_after_failure: true };

const NGINX: Recipe = Recipe { folder: "nginx", files: &["nginx.conf", "tidegate.conf"], command: nginx, choices: &[] };

const NGINX_CLOSED: Recipe = Recipe { choices: &[("error_page 502 504", "# error_page 502 504")], ..NGINX };

fn nginx(directory: &Path) -> Command {
    let mut command = Command::new(program("nginx"));
    // One process, so that a kill leaves no worker behind.
    command.arg("-p").arg(directory).arg("-c").arg(directory.join("nginx.conf")).args(["-e", "stderr"]);
    command.args(["-g", "daemon off; master_process off;"]);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_limits_by_the_rule_file() {
    let setup = Setup::open(&NGINX).await;
    limits(&setup, &CAPABILITIES).await;
    assert_repeated_keys_are_refused(&setup).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_lets_the_rules_decide_while_the_store_fails() {
    assert_store_outage(&mut Setup::open(&NGINX).await, &CAPABILITIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_lets_requests_pass_while_tidegate_is_down() {
    assert_tidegate_outage(&mut Setup::open(&NGINX).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_refuses_while_tidegate_is_down_if_configured_so() {
    let mut setup = Setup::open(&NGINX_CLOSED).await;
    setup.kill_tidegate();
    let response = setup.send(&request("GET /api/rides")).await;
    assert_eq!((response.status, &response.json()["error"]), (503, &"temporarily_unavailable".into()), "{response:?}");
}
