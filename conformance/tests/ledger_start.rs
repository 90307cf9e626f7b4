//! A server whose PostgreSQL is down when it starts: what its rules do meanwhile, what is checked when it answers, and that each unit is
//! billed once.

mod answers;
mod checks;
mod instances;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use conformance::http_client::{HttpClient, json_request};
use conformance::poll;
use conformance::postgres::PostgresServer;
use conformance::process::Process;
use conformance::serve_process::ServeProcess;
use conformance::server::{Kind, Server};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_cli::{Exit, Output};
use tokio::task::block_in_place;

const SECRET: &str = "a-secret-of-the-tests";

/// What is used of `local` is small, so that one request more is denied.
const RULES: &str = "
version: 1
identify: { tenant: header:x-tenant-id, authenticated: [x-tenant-id] }
rules:
  - { id: pages, match: { path: /pages }, per: [tenant], fixed_window: { limit: 2, window: 30d }, on_failure: closed }
  - { id: closed, match: { path: /closed }, per: [tenant], quota: { amount: 1000, period: year, ledger: sync } }
  - { id: calls, match: { path: /calls }, per: [tenant], quota: { amount: 1000, period: year, ledger: async } }
  - { id: open, match: { path: /open }, per: [tenant], quota: { amount: 1000, period: year, ledger: async }, on_failure: open }
  - { id: local, match: { path: /local }, per: [tenant], quota: { amount: 10, period: year, ledger: sync }, on_failure: local }
";

/// A PostgreSQL, and the files of servers.
struct Fixture {
    postgres: PostgresServer,
    folder: TempDir,
}

impl Fixture {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        Self { postgres: PostgresServer::start(), folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// A server on its own memory.
    fn command(&self) -> Command {
        self.command_with("memory:", &self.postgres.url(), SECRET, "journal")
    }

    fn command_with(&self, store: &str, ledger: &str, secret: &str, journal: &str) -> Command {
        let mut command = ServeProcess::command(Path::new(env!("CARGO_BIN_EXE_tidegate-under-test")));
        command.args(["--rules", &self.path("rules.yaml"), "--store", store, "--ledger", ledger]);
        // A busy machine may take its time.
        command.args(["--ledger-journal", &self.path(journal), "--ledger-budget", "60s", "--store-budget", "5s"]);
        command.env("TIDEGATE_SECRET", secret).env_remove("RUST_LOG").env("NO_COLOR", "1");
        command
    }

    /// The units of each rule in the ledger, by name, in order.
    fn billed(&self) -> Vec<(String, i64)> {
        let sql = "SELECT rule, sum(amount) FROM entries e JOIN accounts a ON a.id = e.account JOIN limits l ON l.id = a.limit_id \
                   GROUP BY rule ORDER BY rule";
        let pair = |row: &str| row.split_once('|').map(|(rule, units)| (rule.to_owned(), units.parse().unwrap()));
        self.postgres.execute(sql).lines().filter_map(pair).collect()
    }

    /// Waits until the ledger has these units, and then has no more.
    async fn wait_until_billed(&self, server: &ServeProcess, expected: &[(&str, i64)]) {
        wait_until_journal_is_empty(server).await;
        let expected: Vec<(String, i64)> = expected.iter().map(|(rule, units)| ((*rule).to_owned(), *units)).collect();
        poll::wait_for(&format!("the ledger never has {expected:?}"), || self.billed() == expected);
    }
}

/// What a server says that does not start.
fn refusal(command: &mut Command) -> String {
    let mut process = Process::start(command);
    process.wait_for_line("rules ").expect_err("the server does not start")
}

/// The status and the body of a response.
async fn call(address: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let response = HttpClient::default().send(address, json_request(method, path, &body).as_bytes()).await.unwrap();
    (response.status, response.json())
}

/// Checks a request of the tenant `acme`.
async fn check(server: &ServeProcess, path: &str, cost: u64) -> (u16, Value) {
    let body = json!({ "path": path, "headers": { "x-tenant-id": "acme" }, "cost": cost });
    call(server.http(), "POST", "/v1/check", &body).await
}

/// Whether a request passes; `None` if it is refused with 503.
async fn passes(server: &ServeProcess, path: &str, cost: u64) -> Option<bool> {
    let (status, answer) = check(server, path, cost).await;
    assert!(status == 200 || status == 503, "{status} {answer}");
    (status == 200).then(|| answer["allowed"].as_bool().unwrap())
}

/// `/readyz`, which must be 200.
async fn readiness(server: &ServeProcess) -> Value {
    let (status, answer) = call(server.http(), "GET", "/readyz", &Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The exit code and the text of `tidegate status`.
fn status(server: &ServeProcess) -> (Exit, String) {
    let (mut out, mut error) = (Vec::new(), Vec::new());
    let line = ["tidegate", "status", "--admin", &format!("http://{}", server.admin())].map(str::to_owned);
    // It has a runtime of its own.
    let exit = block_in_place(|| tidegate_cli::run(line, &mut Output::new(&mut out, &mut error)));
    (exit, String::from_utf8(out).unwrap())
}

fn wait_for_log(server: &ServeProcess, text: &str) {
    poll::wait_for(&format!("the server never logs {text:?}"), || server.output().contains(text));
}

async fn wait_until_ready(server: &ServeProcess) {
    poll::wait_for_some("the server is never ready", async || {
        let (_, answer) = call(server.http(), "GET", "/readyz", &Value::Null).await;
        (answer["degraded"] == json!(false) && answer["ledger"]["state"] == json!("ready")).then_some(())
    })
    .await;
}

async fn wait_until_journal_is_empty(server: &ServeProcess) {
    poll::wait_for_some("entries stay in the journal", async || {
        let (_, answer) = call(server.http(), "GET", "/readyz", &Value::Null).await;
        let waiting = ["journal", "waiting", "repairs_waiting"].map(|name| answer["ledger"][name].as_u64().unwrap());
        (waiting == [0; 3]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_starts_while_postgresql_is_down_and_its_rules_do_what_on_failure_says() {
    let mut fixture = Fixture::start();
    fixture.postgres.kill();
    let server = ServeProcess::start(&mut fixture.command());
    let pages = [passes(&server, "/pages", 1).await, passes(&server, "/pages", 2).await];
    assert_eq!(pages, [Some(true), Some(false)], "a rule without a ledger works");
    assert_eq!([passes(&server, "/closed", 1).await, passes(&server, "/calls", 1).await], [None, None]);
    let (status_code, open) = check(&server, "/open", 2000).await;
    assert_eq!((status_code, &open["allowed"], &open["degraded"]), (200, &json!(true), &json!(true)), "{open}");
    assert_eq!([passes(&server, "/local", 8).await, passes(&server, "/local", 3).await], [Some(true), Some(false)]);
    let ready = readiness(&server).await;
    assert_eq!((&ready["degraded"], &ready["ledger"]["state"]), (&json!(true), &json!("waiting")), "{ready}");
    let (exit, shown) = status(&server);
    assert!(exit == Exit::Negative && shown.contains("does not take entries (unavailable)"), "{shown}");
    assert!(shown.contains("the ledger's database is not reachable"), "{shown}");
    assert!(server.output().contains("Until it answers, each rule with a ledger does what its on_failure says"));

    fixture.postgres.restart();
    wait_until_ready(&server).await;
    fixture.wait_until_billed(&server, &[("local", 8), ("open", 2000)]).await;
    assert_eq!([passes(&server, "/closed", 1).await, passes(&server, "/calls", 2).await], [Some(true); 2]);
    // The store has what was admitted without it.
    let rest =
        [passes(&server, "/open", 1).await, passes(&server, "/local", 3).await, passes(&server, "/local", 2).await];
    assert_eq!(rest, [Some(false), Some(false), Some(true)]);
    fixture.wait_until_billed(&server, &[("calls", 2), ("closed", 1), ("local", 10), ("open", 2000)]).await;
    let (exit, shown) = status(&server);
    assert!(exit == Exit::Success && shown.contains(", answers\n"), "{shown}");
}

/// Sends requests until `is_over`, and returns how many were admitted.
async fn admit_until(server: &ServeProcess, path: &str, is_over: impl AsyncFn() -> bool) -> i64 {
    let mut admitted = 0;
    while !is_over().await {
        admitted += i64::from(passes(server, path, 1).await == Some(true));
        poll::pause_task().await;
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_admitted_before_postgresql_answered_is_billed_once_whatever_was_killed() {
    let redis = Server::start(Kind::Redis);
    for store in ["memory:".to_owned(), redis.url()] {
        let mut fixture = Fixture::start();
        fixture.postgres.kill();
        let start = |fixture: &Fixture| {
            ServeProcess::start(&mut fixture.command_with(&store, &fixture.postgres.url(), SECRET, "journal"))
        };
        let mut server = start(&fixture);
        assert_eq!([passes(&server, "/open", 5).await, passes(&server, "/local", 7).await], [Some(true); 2], "{store}");
        server.kill();
        let server = start(&fixture);
        assert_eq!(passes(&server, "/open", 6).await, Some(true));
        fixture.postgres.restart();
        // Requests go on while the ledger is opened and the store is rebuilt.
        let is_ready =
            async || call(server.http(), "GET", "/readyz", &Value::Null).await.1["ledger"]["state"] == json!("ready");
        let open = admit_until(&server, "/open", is_ready).await;
        assert!(open > 0, "none came in between");
        assert_eq!(passes(&server, "/local", 4).await, Some(false), "7 of 10 are used");
        fixture.wait_until_billed(&server, &[("local", 7), ("open", 11 + open)]).await;
        // Another start posts nothing twice.
        let mut server = server;
        server.end_with(Signal::TERM);
        let server = start(&fixture);
        wait_until_ready(&server).await;
        assert_eq!(passes(&server, "/closed", 1).await, Some(true));
        fixture.wait_until_billed(&server, &[("closed", 1), ("local", 7), ("open", 11 + open)]).await;
    }
}
