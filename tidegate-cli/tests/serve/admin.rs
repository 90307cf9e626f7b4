//! The admin address: who may do what, looking up and resetting a subject, and the commands that call it.

mod subjects;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::serve::{Running, ask, ask_with};

const CHANGE: &str = "change-token-0123456789";
const READ: &str = "read-token-0123456789";

const RULES: &str = "
version: 1
identify:
  client: [header:x-api-key, ip]
  user: header:x-user-id
  authenticated: [x-api-key, x-user-id]
rules:
  - { id: search, match: { path: /search }, per: [client], fixed_window: { limit: 2, window: 30d }, on_failure: share }
  - { id: export, match: { path: /export }, per: [client], fixed_window: { limit: 5, window: 30d }, on_failure: share }
  - { id: profile, match: { path: /me }, per: [user], fixed_window: { limit: 5, window: 30d }, on_failure: share }
  - { id: all, match: { path: /search }, per: [], fixed_window: { limit: 100, window: 30d }, on_failure: share }
";

/// The customer of these tests, whose key must appear in no log.
const SEARCH: &str = r#"{"path":"/search","headers":{"x-api-key":"hunter2"}}"#;

/// A server with both tokens, its files, and the flags with which commands reach it.
struct Fixture {
    server: Running,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn start() -> Self {
        Self::with_rules(RULES)
    }

    fn with_rules(rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("rules.yaml", rules), ("change", CHANGE), ("read", READ)] {
            fs::write(folder.path().join(name), format!("{text}\n")).unwrap();
        }
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let server = Running::start(&[
            "--rules",
            &path("rules.yaml"),
            "--secret",
            "s1",
            "--admin-token-file",
            &path("change"),
            "--admin-read-token-file",
            &path("read"),
        ]);
        Self { server, folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Calls the admin address with a token.
    fn call(&self, path: &str, token: &str, body: &str) -> (u16, Value) {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let header = format!("authorization: Bearer {token}");
        let (status, answer) = ask_with(&self.server.admin, method, path, &[&header], body);
        (status, serde_json::from_str(&answer).unwrap_or(Value::String(answer)))
    }

    /// Runs a command with the token in this file.
    fn run(&self, arguments: &[&str], token_file: &str) -> (Option<i32>, String, String) {
        run(&[arguments, &["--admin", &self.server.admin]].concat(), Some(&self.file(token_file)))
    }

    /// Whether the next search of the customer is allowed.
    fn is_allowed(&self) -> bool {
        self.server.check(SEARCH)["allowed"] == json!(true)
    }
}

/// Exit code, output and errors of a command.
fn run(arguments: &[&str], token_file: Option<&Path>) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments);
    if let Some(file) = token_file {
        command.arg("--admin-token-file").arg(file);
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_public_admin_address_without_a_token_is_refused() {
    let start = |more: &[&str]| {
        let addresses = ["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "0.0.0.0:0"];
        run(&[&addresses[..], more].concat(), None)
    };
    let (code, _, error) = start(&[]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("there is no token") && error.contains("--admin-token-file"), "{error}");
    // With a token, the next problem is reported.
    let (_, _, error) = start(&["--admin-token", CHANGE, "--store", "no:store"]);
    assert!(error.contains("--store: ") && !error.contains(CHANGE), "{error}");
    let (code, _, error) = start(&["--admin-token", "hunter2"]);
    assert!(code == Some(2) && error.contains("openssl rand") && !error.contains("hunter2"), "{error}");
}

#[test]
fn without_a_token_the_loopback_address_can_be_read_and_nothing_changed() {
    let server = Running::start(&[]);
    assert_eq!(ask(&server.admin, "GET", "/metrics", "").0, 200);
    let body = json!({ "request": { "path": "/hello", "ip": "203.0.113.9" } }).to_string();
    assert_eq!(ask(&server.admin, "POST", "/v1/subjects/show", &body).0, 200);
    let (status, answer) = ask(&server.admin, "POST", "/v1/subjects/reset", &body);
    assert!(status == 403 && answer.contains("--admin-token-file"), "{status} {answer}");
}

#[test]
fn a_subject_shows_what_is_reserved_of_its_buckets() {
    let fixture = Fixture::start();
    let reserve = r#"{"path":"/search","headers":{"x-api-key":"hunter2"},"idempotency_key":"job-1"}"#;
    let (status, answer) = fixture.server.post("/v1/quotas/reserve", reserve);
    let id = answer["reservation"]["id"].as_str().unwrap_or_else(|| panic!("{status} {answer}"));
    let show = || fixture.run(&["subject", "show", "-H", "x-api-key: hunter2"], "read").1;
    assert!(show().contains("search  fixed_window  1 of 2 (1 reserved)"), "{}", show());
    let body = format!(r#"{{"request":{SEARCH}}}"#);
    let (_, answer) = fixture.call("/v1/subjects/show", READ, &body);
    let bucket =
        |rule: &str| answer["buckets"].as_array().unwrap().iter().find(|one| one["rule"] == rule).unwrap().clone();
    assert_eq!(bucket("search")["reserved"], json!({ "reservations": 1, "units": 1 }));
    assert_eq!(bucket("export").get("reserved"), None);
    let (status, _) = fixture.server.post("/v1/quotas/commit", &json!({ "id": id, "cost": 1 }).to_string());
    assert!(status == 200 && show().contains("search  fixed_window  1 of 2  "), "{}", show());
}

#[test]
fn each_token_permits_what_it_is_for() {
    let fixture = Fixture::start();
    assert!(fixture.is_allowed(), "there is something to reset");
    let body = format!(r#"{{"request":{SEARCH}}}"#);
    let statuses = |token: &str| {
        [
            ("/metrics", ""),
            ("/v1/status", ""),
            ("/stats", ""),
            ("/v1/subjects/show", &*body),
            ("/v1/subjects/reset", &body),
        ]
        .map(|(path, body)| fixture.call(path, token, body).0)
    };
    assert_eq!(statuses(CHANGE), [200; 5]);
    assert_eq!(statuses(READ), [200, 200, 200, 200, 403]);
    assert_eq!(statuses("wrong-token-0123456789"), [401; 5]);
    let (status, answer) = ask(&fixture.server.admin, "GET", "/metrics", "");
    assert!(status == 401 && answer.contains("unauthenticated"), "{answer}");
    for path in ["/", "/healthz", "/readyz"] {
        assert_eq!(ask(&fixture.server.admin, "GET", path, "").0, 200, "{path}: probes have no token");
    }
    // The other addresses know nothing of it.
    assert_eq!(ask(&fixture.server.http, "POST", "/v1/subjects/reset", &body).0, 404);
}

#[test]
fn wrong_tokens_of_one_address_are_limited() {
    let fixture = Fixture::start();
    let guess = |number: u32| fixture.call("/v1/status", &format!("wrong-token-0123456789{number}"), "");
    let (status, answer) = (0..1000).map(guess).find(|(status, _)| *status != 401).expect("guesses are limited");
    assert_eq!((status, &answer["error"]), (429, &json!("too_many_guesses")), "{answer}");
    assert_eq!(ask(&fixture.server.admin, "GET", "/healthz", "").0, 200, "health answers everybody");
}

#[test]
fn a_reset_unblocks_one_customer_and_is_logged_without_its_key() {
    let mut fixture = Fixture::start();
    let other = r#"{"path":"/search","headers":{"x-api-key":"another"}}"#;
    assert_eq!([fixture.is_allowed(), fixture.is_allowed(), fixture.is_allowed()], [true, true, false]);
    for _ in 0..2 {
        fixture.server.check(other);
    }
    let customer = r#"{"request":{"headers":{"x-api-key":"hunter2"}}}"#;
    let (status, shown) = fixture.call("/v1/subjects/show", READ, customer);
    assert_eq!(status, 200, "{shown}");
    let buckets: Vec<_> = shown["buckets"].as_array().unwrap().iter().map(|b| (&b["rule"], &b["remaining"])).collect();
    assert_eq!(buckets, [(&json!("search"), &json!(0)), (&json!("export"), &json!(5))]);
    assert_eq!(shown["incomplete"], json!([{ "rule": "profile", "missing": ["user"] }]));
    assert_eq!(shown["shared"], json!(["all"]));
    assert_eq!(shown["next"], json!(null), "which rules a request without a path matches is not known");
    let next = fixture.call("/v1/subjects/show", READ, &format!(r#"{{"request":{SEARCH}}}"#)).1;
    assert_eq!((&next["next"]["allowed"], &next["next"]["rule"]), (&json!(false), &json!("search")), "{next}");
    assert_eq!(next["buckets"][0]["matches"], json!(true));

    let (status, reset) = fixture.call("/v1/subjects/reset", CHANGE, customer);
    assert_eq!((status, &reset["reset"], &reset["full"]), (200, &json!(["search"]), &json!(["export"])), "{reset}");
    assert!(fixture.is_allowed());
    assert_eq!(fixture.server.check(other)["allowed"], json!(false), "another customer");
    let shared = fixture.server.check(r#"{"path":"/search","ip":"192.0.2.1"}"#);
    let all = shared["checks"].as_array().unwrap().iter().find(|check| check["rule"] == json!("all")).unwrap();
    assert_eq!(all["remaining"], json!(94), "what all senders share is not reset: {shared}");

    let log = fixture.server.stop_and_read_log();
    let audit: Vec<&String> = log.iter().filter(|line| line.contains("subject reset by an administrator")).collect();
    assert!(audit.len() == 1 && audit[0].contains("search") && audit[0].contains("subjects"), "{log:?}");
    for hidden in ["hunter2", CHANGE, READ] {
        assert!(!log.iter().any(|line| line.contains(hidden)), "{hidden}: {log:?}");
    }
}

#[test]
fn a_reset_of_one_rule_leaves_the_others_and_of_nobody_is_an_error() {
    let fixture = Fixture::start();
    let export = r#"{"path":"/export","headers":{"x-api-key":"hunter2"},"cost":5}"#;
    fixture.server.check(export);
    fixture.is_allowed();
    let reset = |body: &str| fixture.call("/v1/subjects/reset", CHANGE, body);
    let (status, answer) = reset(r#"{"request":{"headers":{"x-api-key":"hunter2"}},"rule":"search"}"#);
    assert_eq!((status, &answer["reset"]), (200, &json!(["search"])));
    assert_eq!(fixture.server.check(export)["allowed"], json!(false));
    let (status, answer) = reset(r#"{"request":{"path":"/search"}}"#);
    assert_eq!((status, &answer["error"]), (422, &json!("nothing_to_reset")), "{answer}");
    assert_eq!(answer["shared"], json!(["all"]));
    for body in [
        r#"{"request":{"ip":"192.0.2.1"},"rule":"none"}"#,
        r#"{"request":{"ip":"hunter2"}}"#,
        r#"{"request":{"peek":true}}"#,
        r#"{"headers":{}}"#,
        "{}",
        "[",
    ] {
        let (status, answer) = reset(body);
        assert!(status == 400 && !answer.to_string().contains("hunter2"), "{body}: {status} {answer}");
    }
}

#[test]
fn the_commands_show_and_reset_a_subject() {
    let fixture = Fixture::start();
    while fixture.is_allowed() {}
    let subject = |command: &'static str, more: &[&'static str]| {
        [&["subject", command, "-H", "x-api-key: hunter2", "--path", "/search"][..], more].concat()
    };
    let (code, shown, error) = fixture.run(&subject("show", &[]), "read");
    assert_eq!((code, error.as_str()), (Some(1), ""), "{shown}");
    for text in [
        "its next request is denied by search, retry after ",
        "0 of 2",
        "5 of 5",
        "profile: needs user",
        "all: all senders",
    ] {
        assert!(shown.contains(text), "{text}:\n{shown}");
    }
    let (code, _, error) = fixture.run(&subject("reset", &[]), "read");
    assert!(code == Some(2) && error.contains("for reading only"), "{error}");
    let (code, _, error) = run(&[&subject("reset", &[])[..], &["--admin", &fixture.server.admin]].concat(), None);
    assert!(code == Some(2) && error.contains("TIDEGATE_ADMIN_TOKEN"), "{error}");
    let (code, reset, error) = fixture.run(&subject("reset", &[]), "change");
    assert_eq!((code, error.as_str()), (Some(0), ""), "{reset}");
    assert!(reset.starts_with("reset under 1 rule: search\n"), "{reset}");
    let (code, shown, _) = fixture.run(&subject("show", &["--json"]), "read");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (code, &shown["next"]["allowed"], &shown["buckets"][0]["remaining"]),
        (Some(0), &json!(true), &json!(2))
    );
    let (code, reset, _) = fixture.run(&["subject", "reset", "--path", "/search"], "change");
    assert!(code == Some(1) && reset.contains("profile: needs user"), "{reset}");
}

#[test]
fn the_command_status_shows_doors_store_rules_and_instances() {
    let fixture = Fixture::start();
    let (code, shown, error) = fixture.run(&["status"], "read");
    assert_eq!((code, error.as_str()), (Some(0), ""), "{shown}");
    for text in [
        &*fixture.server.http,
        &fixture.server.grpc,
        &fixture.server.admin,
        "memory, answers",
        "version 1, 4 rules",
        "namespace  tg\n",
    ] {
        assert!(shown.contains(text), "{text}:\n{shown}");
    }
    let (_, json, _) = fixture.run(&["status", "--json"], "change");
    let status: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&status["doors"]["http"], &status["doors"]["gateway"]), (&json!(fixture.server.http), &json!(null)));
    assert_eq!((&status["store"]["reached"], &status["rules"]["version"]), (&json!(true), &json!(1)));
    assert!(!json.contains(CHANGE) && !json.contains(READ));

    fs::write(fixture.file("rules.yaml"), "version: 2\n").unwrap();
    let mut fixture = fixture;
    fixture.server.wait_for_log("rules not reloaded");
    let (code, shown, _) = fixture.run(&["status"], "read");
    assert!(code == Some(1) && shown.contains("rules not reloaded"), "{shown}");

    let (code, _, error) = run(&["status", "--admin", "127.0.0.1:1"], None);
    assert!(code == Some(3) && error.contains("127.0.0.1:1 cannot be reached"), "{error}");
}
