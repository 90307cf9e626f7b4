//! Servers of several deployments on one store.

use std::path::Path;

use conformance::poll::wait_for_some;
use conformance::process::Process;
use conformance::serve_process::ServeProcess;
use conformance::server::{Kind, Server};
use serde_json::json;
use tempfile::TempDir;
use tidegate_cli::{Exit, Output, run};

use crate::doors::client::local_request;
use crate::doors::setup::{start_tidegate, start_tidegate_with_rules};

#[tokio::test(flavor = "multi_thread")]
async fn servers_show_their_namespace_and_one_whose_name_begins_with_anothers_does_not_start() {
    let (store, directory) = (Server::start(Kind::Redis), TempDir::new().unwrap());
    let start = |flags: &[&str]| start_tidegate(directory.path(), &store.url(), flags);
    let servers = [start(&[]), start(&["--namespace", "shop"]), start(&["--namespace", "shop"])];
    for (server, namespace, instances) in [(&servers[0], "tg", 1), (&servers[1], "shop", 2), (&servers[2], "shop", 2)] {
        let get = async |path: &str| local_request(path).try_send(server.admin()).await.unwrap();
        wait_for_some("the instances count each other", async || {
            let store = &get("GET /v1/status").await.json()["store"];
            (store["instances"] == json!(instances) && store["rule_sets"] == json!(1)).then_some(())
        })
        .await;
        let status = get("GET /v1/status").await.json();
        let (store, rules) = (&status["store"], &status["rules"]);
        assert_eq!((&store["namespace"], &store["rules_differ_ms"]), (&json!(namespace), &json!(null)), "{status}");
        assert_eq!(rules["fingerprint"].as_str().map(str::len), Some(16), "{status}");
        let metrics = get("GET /metrics").await.text();
        for line in
            [format!("tidegate_namespace_info{{namespace=\"{namespace}\"}} 1\n"), "rate_limit_rule_sets 1\n".into()]
        {
            assert!(metrics.contains(&line), "{line}: {metrics}");
        }
    }
    // A second deployment by mistake: the same namespace, other rules.
    let rules = directory.path().join("other.yaml");
    std::fs::write(&rules, "version: 1\nrules: [{ id: a, per: [ip], fixed_window: { limit: 1, window: 1h } }]\n")
        .unwrap();
    let other = start_tidegate_with_rules(&rules, directory.path(), &store.url(), &["--namespace", "shop"]);
    wait_for_some("the rule sets are counted", async || {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let line = ["tidegate", "status", "--admin", &other.admin().to_string()];
        let exit = tokio::task::block_in_place(|| run(line, &mut Output::new(&mut out, &mut err)));
        assert_eq!(exit, Exit::Success, "it may be an upgrade");
        let text = String::from_utf8(out).unwrap();
        (text.contains("namespace  shop\n") && text.contains("2 different sets of rules for ")).then_some(())
    })
    .await;
    let mut command = ServeProcess::command(Path::new(env!("CARGO_BIN_EXE_tidegate-under-test")));
    command.args(["--store", &store.url(), "--secret", "s1", "--namespace", "shop-eu"]);
    let error = Process::start(&mut command).wait_for_line("rules ").expect_err("it starts");
    assert!(error.contains("the namespace `shop-eu` begins with `shop`, which another deployment"), "{error}");
}
