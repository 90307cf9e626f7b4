//! A server with a ledger in SQLite: start-up checks, what survives its death, usage, corrections, reconciliation.

mod administration;
mod description;
mod failed_starts;
mod nameless;
mod ownership;
mod unrecorded;

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::serve::{Running, ask_with, serve, wait_for};

pub(super) const CHANGE: &str = "change-token-0123456789";
const READ: &str = "read-token-0123456789";
const SECRET: &str = "a-secret-of-the-tests";

const RULES: &str = "
version: 1
identify:
  tenant: header:x-tenant-id
  authenticated: [x-tenant-id, x-api-key]
rules:
  - { id: keys, match: { path: /keys }, per: ['header:x-api-key'], fixed_window: { limit: 1, window: 30d }, on_failure: closed }
  - id: exports
    match: { path: /exports }
    per: [tenant]
    quota: { amount: 100, period: year, ledger: sync, keep_names: true }
  - id: calls
    match: { path: /calls }
    per: [tenant]
    quota: { amount: 1000, period: month, ledger: async }
  - id: reports
    match: { path: /reports }
    per: [tenant]
    quota: { amount: 50, period: day, ledger: sync, keep_names: true }
  - id: burst
    match: { path: /exports }
    per: [tenant]
    fixed_window: { limit: 1000, window: 30d }
    on_failure: closed
";

/// A server with a ledger, and the folder of its files.
pub(super) struct Fixture {
    server: Option<Running>,
    folder: tempfile::TempDir,
}

impl Fixture {
    pub(super) fn start() -> Self {
        let mut fixture = Self::without_server();
        fixture.server = Some(fixture.start_server());
        fixture
    }

    fn without_server() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("rules.yaml", RULES), ("change", CHANGE), ("read", READ)] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Self { server: None, folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// A server with further arguments, whose log was not read yet.
    fn spawn_server(&self, further: &[&str]) -> Running {
        let arguments = [
            ("--rules", self.path("rules.yaml")),
            ("--ledger", format!("sqlite:{}", self.path("ledger.db"))),
            // A busy machine may take its time.
            ("--ledger-budget", "60000".to_owned()),
            ("--admin-token-file", self.path("change")),
            ("--admin-read-token-file", self.path("read")),
        ];
        let mut command = serve(further);
        for (flag, value) in arguments {
            command.arg(flag).arg(value);
        }
        command.env("TIDEGATE_SECRET", SECRET);
        Running::start_command(command)
    }

    fn start_server(&self) -> Running {
        let mut server = self.spawn_server(&[]);
        // On a busy machine, it listens before that.
        server.wait_for_log("store and ledger are ready");
        server
    }

    pub(super) fn server(&self) -> &Running {
        self.server.as_ref().unwrap()
    }

    /// Kills the server, and starts another one on the same files.
    fn kill_and_restart(&mut self) {
        drop(self.server.take());
        self.server = Some(self.start_server());
    }

    pub(super) fn consume(&self, path: &str, tenant: &str, cost: u64) -> Value {
        self.server().check(&json!({ "path": path, "headers": { "x-tenant-id": tenant }, "cost": cost }).to_string())
    }

    /// What is left, without consuming anything.
    fn left(&self, path: &str, tenant: &str) -> u64 {
        let body = json!({ "path": path, "headers": { "x-tenant-id": tenant }, "peek": true }).to_string();
        let answer = self.server().check(&body);
        let check = answer["checks"].as_array().unwrap().iter().find(|check| check["algorithm"] == "quota").unwrap();
        check["remaining"].as_u64().unwrap()
    }

    fn call_text(&self, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
        let header = format!("authorization: Bearer {token}");
        ask_with(&self.server().admin, method, path, &[&header], body)
    }

    pub(super) fn call(&self, method: &str, path: &str, token: &str, body: &Value) -> (u16, Value) {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let (status, answer) = self.call_text(method, path, token, &body);
        (status, serde_json::from_str(&answer).unwrap_or(Value::String(answer)))
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.call("POST", path, CHANGE, body)
    }

    /// The rows of a rule, once `used` units are in the ledger.
    fn usage_of(&self, rule: &str, used: u64) -> Vec<Value> {
        wait_for(&format!("the ledger never has {used} units of {rule}"), || {
            let (status, answer) = self.call("GET", &format!("/v1/usage?rule={rule}"), READ, &Value::Null);
            assert_eq!(status, 200, "{answer}");
            let rows = answer["usage"].as_array().unwrap();
            (rows.iter().map(|row| row["used"].as_u64().unwrap()).sum::<u64>() == used).then(|| rows.clone())
        })
    }

    /// Exit code, output and errors of a command.
    fn run(&self, arguments: &[&str], token: &str) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(arguments).args(["--admin", &self.server().admin, "--admin-token", token]).env("USER", "eve");
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }
}

/// The error of a server that does not start, and its exit code.
fn refused(arguments: &[&str], secret: Option<&str>) -> (Option<i32>, String) {
    let mut command = serve(arguments);
    command.env_remove("TIDEGATE_SECRET");
    if let Some(secret) = secret {
        command.env("TIDEGATE_SECRET", secret);
    }
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_server_that_lacks_something_for_its_ledger_does_not_start_and_says_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    fs::write(folder.path().join("no-database"), "this is text\n".repeat(100)).unwrap();
    let (rules, sqlite) = (path("rules.yaml"), format!("sqlite:{}", path("ledger.db")));
    let damaged = format!("sqlite:{}", path("no-database"));
    let rules = ["--rules", &rules];
    // SQLite says that it does not answer; but it is a file of this machine.
    let folder_itself = format!("sqlite:{}", folder.path().display());
    let cases: [(&[&str], Option<&str>, i32, &str); 8] = [
        (&[], Some(SECRET), 2, "rule `exports` has a ledger, and the server has none: add --ledger sqlite:FILE"),
        (&["--ledger", &sqlite], None, 2, "--ledger needs TIDEGATE_SECRET"),
        (
            &["--ledger", &sqlite, "--store", "redis://127.0.0.1:1"],
            Some(SECRET),
            2,
            "each of them would write to a SQLite file of its own",
        ),
        (&["--ledger", "mysql://ann:hunter2@h/d"], Some(SECRET), 2, "--ledger: the ledger URL is neither"),
        (&["--ledger", &damaged], Some(SECRET), 2, "no SQLite database"),
        (&["--ledger", "sqlite:/no/such/l.db"], Some(SECRET), 2, "there is no directory /no/such; create it"),
        (&["--ledger", &folder_itself], Some(SECRET), 3, "check that the directory exists and is writable"),
        (&["--ledger", &sqlite, "--ledger-journal", "/no/such/folder/j"], Some(SECRET), 2, "--ledger-journal"),
    ];
    for (arguments, secret, code, reason) in cases {
        let (found, error) = refused(
            &[
                &rules[..],
                arguments,
                &["--ledger-journal", &path("j")][..usize::from(!arguments.contains(&"--ledger-journal")) * 2],
            ]
            .concat(),
            secret,
        );
        assert_eq!(found, Some(code), "{arguments:?}: {error}");
        assert!(error.contains(reason) && !error.contains("hunter2") && !error.contains(SECRET), "{error}");
    }
}

#[test]
fn what_was_allowed_is_in_the_ledger_and_in_the_gate_after_the_server_was_killed() {
    let mut fixture = Fixture::start();
    for (tenant, cost) in [("acme", 30), ("acme", 12), ("globex", 7)] {
        assert_eq!(fixture.consume("/exports", tenant, cost)["allowed"], json!(true));
    }
    // Killed before it is flushed, it is in the journal.
    assert_eq!(fixture.consume("/calls", "acme", 5)["allowed"], json!(true));
    fixture.kill_and_restart();
    let rows = fixture.usage_of("exports", 49);
    let mut used: Vec<(&str, u64)> =
        rows.iter().map(|row| (row["tenant"].as_str().unwrap_or("?"), row["used"].as_u64().unwrap())).collect();
    used.sort_unstable();
    assert_eq!(used.iter().map(|row| row.1).sum::<u64>(), 49);
    fixture.usage_of("calls", 5);
    assert_eq!((fixture.left("/exports", "acme"), fixture.left("/exports", "globex")), (58, 93));
    assert_eq!(fixture.left("/calls", "acme"), 995);
    assert_eq!(fixture.consume("/exports", "acme", 59)["allowed"], json!(false));
    assert_eq!(fixture.consume("/exports", "acme", 58)["allowed"], json!(true));
    let (status, ready) = fixture.call("GET", "/readyz", READ, &Value::Null);
    assert_eq!((status, &ready["ready"], &ready["ledger"]["state"]), (200, &json!(true), &json!("ready")));
}

#[test]
fn usage_is_shown_as_json_and_csv_and_by_page() {
    let fixture = Fixture::start();
    for (tenant, cost) in [("acme", 90), ("a,b", 1), ("globex", 2)] {
        fixture.consume("/exports", tenant, cost);
    }
    fixture.consume("/calls", "acme", 4);
    fixture.usage_of("calls", 4);
    fixture.usage_of("exports", 93);
    let (_, answer) = fixture.call("GET", "/v1/usage?tenant=acme", READ, &Value::Null);
    let mut rows: Vec<(&Value, &Value)> =
        answer["usage"].as_array().unwrap().iter().map(|row| (&row["rule"], &row["used"])).collect();
    rows.sort_by_key(|row| row.0.to_string());
    assert_eq!(rows, [(&json!("calls"), &json!(4)), (&json!("exports"), &json!(90))], "by name and by hash: {answer}");

    let (status, csv) = fixture.call_text("GET", "/v1/usage?rule=exports&format=csv", READ, "");
    assert!(status == 200 && csv.starts_with("tenant,subject,rule,"), "{csv}");
    assert_eq!(csv.lines().count(), 4, "{csv}");
    let (mut seen, mut after) = (0, Value::Null);
    loop {
        let body = json!({ "rule": "exports", "limit": 1, "after": after });
        let (_, page) = fixture.call("POST", "/v1/usage", READ, &body);
        seen += page["usage"].as_array().unwrap().len();
        after = page["after"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(seen, 3);
    let (_, entries) = fixture.call_text("GET", "/v1/usage/entries?rule=calls", READ, "");
    let entry: Value = serde_json::from_str(&entries).unwrap();
    assert_eq!((&entry["kind"], &entry["amount"], &entry["tenant"]), (&json!("consume"), &json!(4), &json!(null)));
    for query in ["period=fortnight", "from=yesterday", "limit=0", "after=x", "format=xml", "colour=red", "to=2026-13"]
    {
        let (status, answer) = fixture.call("GET", &format!("/v1/usage?{query}"), READ, &Value::Null);
        assert_eq!(status, 400, "{query}: {answer}");
    }
}

#[test]
fn a_correction_changes_gate_and_ledger_and_one_below_zero_changes_nothing() {
    let mut fixture = Fixture::start();
    fixture.consume("/exports", "acme", 60);
    let correct = |fixture: &Fixture, amount: i64, key: &str| {
        let body = json!({
            "tenant": "acme", "rule": "exports", "amount": amount, "reason": "ticket 4711", "author": "eve",
            "idempotency_key": key,
        });
        fixture.post("/v1/usage/corrections", &body)
    };
    let (status, answer) = correct(&fixture, -25, "a");
    assert_eq!((status, &answer["usage"]["used"], &answer["repaired"]), (200, &json!(35), &json!(true)), "{answer}");
    assert_eq!(fixture.left("/exports", "acme"), 65);
    let (status, answer) = correct(&fixture, -25, "a");
    assert_eq!((status, &answer["usage"]["used"]), (200, &json!(35)), "it counts once: {answer}");
    let (status, answer) = correct(&fixture, -36, "b");
    assert_eq!((status, &answer["error"]), (400, &json!("refused_by_ledger")), "{answer}");
    assert_eq!(fixture.left("/exports", "acme"), 65);
    for (field, value) in
        [("reason", json!("")), ("author", json!("x".repeat(2000))), ("rule", json!("burst")), ("amount", json!(0))]
    {
        let mut body = json!({ "tenant": "acme", "rule": "exports", "amount": 1, "reason": "r", "author": "eve" });
        body[field] = value;
        let (status, answer) = fixture.post("/v1/usage/corrections", &body);
        assert_eq!(status, 400, "{field}: {answer}");
    }
    fixture.kill_and_restart();
    fixture.usage_of("exports", 35);
    assert_eq!(fixture.left("/exports", "acme"), 65);
    let (_, entries) = fixture.call_text("GET", "/v1/usage/entries?rule=exports", READ, "");
    assert!(entries.contains("\"author\":\"eve\"") && entries.contains("ticket 4711"), "{entries}");
}

#[test]
fn a_reset_of_a_quota_with_a_ledger_is_an_entry_with_author_and_reason() {
    let fixture = Fixture::start();
    fixture.consume("/exports", "acme", 60);
    let mut body = json!({ "request": { "tenant": "acme" }, "rule": "exports" });
    let (status, answer) = fixture.post("/v1/subjects/reset", &body);
    assert!(status == 400 && answer["message"].as_str().unwrap().contains("author"), "{answer}");
    assert_eq!(fixture.left("/exports", "acme"), 40);
    (body["author"], body["reason"]) = ("eve".into(), "a new trial".into());
    let (status, answer) = fixture.post("/v1/subjects/reset", &body);
    assert_eq!((status, &answer["reset"]), (200, &json!(["exports"])), "{answer}");
    assert_eq!(fixture.left("/exports", "acme"), 100);
    fixture.usage_of("exports", 0);
    let (_, entries) = fixture.call_text("GET", "/v1/usage/entries?rule=exports", READ, "");
    assert!(entries.contains("\"kind\":\"reset\"") && entries.contains("a new trial"), "{entries}");
}

#[test]
fn reading_the_ledger_needs_a_token_and_changing_it_the_admin_token() {
    let fixture = Fixture::start();
    let mut correction = json!({ "tenant": "acme", "rule": "exports", "amount": 1, "reason": "r", "author": "eve" });
    correction["create"] = true.into();
    let calls = [
        ("GET", "/v1/usage", json!(null), 200),
        ("POST", "/v1/usage", json!({}), 200),
        ("GET", "/v1/usage/entries", json!(null), 200),
        ("POST", "/v1/usage/compare", json!({}), 200),
        ("GET", "/v1/usage/reconcile", json!(null), 200),
        ("POST", "/v1/usage/reconcile", json!({ "apply": true }), 403),
        ("POST", "/v1/usage/corrections", correction, 403),
        ("POST", "/v1/usage/rollup", json!({ "before": "2020-01-01" }), 403),
    ];
    for (method, path, body, reading) in calls {
        let status = |token: &str| match fixture.call(method, path, token, &body).0 {
            // A reconcile that takes more than a second.
            202 => {
                while fixture.call("GET", "/v1/usage/reconcile", READ, &Value::Null).1["running"] == json!(true) {}
                200
            }
            status => status,
        };
        assert_eq!(status(READ), reading, "{method} {path}");
        assert_eq!(ask_with(&fixture.server().admin, method, path, &[], &body.to_string()).0, 401, "{method} {path}");
        assert_eq!(status(CHANGE), 200, "{method} {path}");
    }
}

#[test]
fn the_quota_commands_show_correct_compare_and_export() {
    let fixture = Fixture::start();
    fixture.consume("/exports", "acme", 85);
    let (code, shown, error) = fixture.run(&["quota", "show"], READ);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{shown}");
    assert!(shown.contains("exports") && shown.contains("█████████████████░░░  85 %  near"), "{shown}");
    let correct =
        ["quota", "correct", "--tenant", "acme", "--rule", "exports", "--amount", "-5", "--reason", "why not"];
    let (code, _, error) = fixture.run(&correct, READ);
    assert!(code == Some(2) && error.contains("for reading only"), "{error}");
    let (code, shown, error) = fixture.run(&correct, CHANGE);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{shown}");
    assert!(shown.starts_with("corrected by -5: 80 of 100 used in 20"), "{shown}");
    let (code, shown, _) = fixture.run(&["quota", "show", "--tenant", "acme", "--json"], READ);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((code, &shown["usage"][0]["used"]), (Some(0), &json!(80)));
    let (code, shown, error) = fixture.run(&["quota", "reconcile"], READ);
    assert_eq!((code, shown.as_str(), error.as_str()), (Some(0), "store and ledger agree, 1 account compared\n", ""));
    let file = fixture.path("entries.csv");
    let (code, _, error) = fixture.run(&["quota", "export", "--csv", "--out", &file], READ);
    assert_eq!((code, error.as_str()), (Some(0), "2 entries written\n"));
    assert!(fs::read_to_string(&file).unwrap().contains(",eve,why not"));
    let (code, _, error) = fixture.run(&["quota", "export", "--out", &file], READ);
    assert!(code == Some(2) && error.contains("exists"), "an export overwrites nothing: {error}");
    let (code, shown, _) = fixture.run(&["quota", "rollup", "--before", "2020-01-01"], CHANGE);
    assert_eq!((code, shown.as_str()), (Some(0), "0 entries before 2020-01-01 are summed up and deleted\n"));
    let (code, shown, _) = fixture.run(&["status"], READ);
    assert!(code == Some(0) && shown.contains("ledger     sqlite:") && shown.contains("lag "), "{shown}");
}

#[test]
fn metrics_and_log_show_the_ledger_and_no_secret() {
    let mut fixture = Fixture::start();
    fixture.consume("/exports", "tenant-hunter2", 3);
    let (_, page) = fixture.call_text("GET", "/metrics", READ, "");
    for line in [
        "rate_limit_ledger_entries_total{outcome=\"posted\"} 1",
        "rate_limit_ledger_rebuilds_total 1024",
        "rate_limit_ledger_up 1",
        "rate_limit_ledger_differences 0",
        "rate_limit_ledger_confirm_seconds_count{outcome=\"ok\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is missing:\n{page}");
    }
    let mut server = fixture.server.take().unwrap();
    let log = server.stop_and_read_log().join("\n");
    for hidden in ["hunter2", SECRET, CHANGE, READ] {
        assert!(!log.contains(hidden) && !page.contains(hidden), "{hidden}: {log}");
    }
}
