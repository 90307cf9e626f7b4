//! The log: its formats, its levels, refused requests over every front door, and what never appears in it.

use std::fs;

use serde_json::{Value, json};

use crate::{Running, ask_with, refused, serve};

const RULES: &str = "
version: 1
rules:
  - id: keys
    match: { path: '/v1/{item}' }
    per: [header:x-api-key]
    fixed_window: { limit: 1, window: 1h }
    on_failure: open
  - id: edge
    match: { action: edge }
    per: [attr:user]
    fixed_window: { limit: 1, window: 1h }
    on_failure: open
";

/// What must appear in no line: subjects, secrets, raw paths and queries.
const HIDDEN: [&str; 5] = ["hunter2", "fleet-secret-9", "token-77", "pw4711", "item-55"];

/// A server with refused requests over every front door, stopped; its log lines.
fn log_of_refusals(format: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    fs::write(&path, RULES).unwrap();
    let upstream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("http://{}", upstream.local_addr().unwrap());
    let mut server = Running::start(&[
        "--rules",
        path.to_str().unwrap(),
        "--secret",
        "fleet-secret-9",
        "--log-format",
        format,
        "--gateway",
        "127.0.0.1:0",
        "--upstream",
        &upstream,
        "--upstream-timeout",
        "1",
    ]);
    for _ in 0..2 {
        let body = r#"{"method":"POST","path":"/v1/item-55?key=token-77","headers":{"x-api-key":"hunter2"}}"#;
        server.check(body);
        let key = ["x-api-key: hunter2", "x-forwarded-uri: /v1/item-55?key=token-77", "x-forwarded-method: PUT"];
        ask_with(&server.http, "GET", "/v1/forward-auth?token-77", &key, "");
        ask_with(&server.gateway, "DELETE", "/v1/item-55?key=token-77", &key[..1], "");
        let hit = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"hunter2"}]}]}"#;
        server.post("/json", hit);
    }
    server.stop_and_read_log()
}

fn refusals(lines: &[String]) -> Vec<Value> {
    let parsed = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}")));
    parsed.filter(|line| line["target"] == json!("tidegate::refusals")).collect()
}

#[test]
fn every_front_door_logs_its_refusals_as_json() {
    let refusals = refusals(&log_of_refusals("json"));
    let find = |door: &str| {
        refusals.iter().find(|line| line["door"] == json!(door)).unwrap_or_else(|| panic!("{door}: {refusals:?}"))
    };
    for (door, method) in [("check", "POST"), ("forward-auth", "PUT"), ("gateway", "DELETE")] {
        let line = find(door);
        assert_eq!(
            (&line["rule"], &line["method"], &line["route"]),
            (&json!("keys"), &json!(method), &json!("/v1/{item}"))
        );
        assert_eq!((&line["subject_type"], &line["limit"]), (&json!("header:x-api-key"), &json!(1)));
        assert!(line["retry_after_ms"].as_u64().is_some_and(|wait| wait <= 3_600_000), "{line}");
    }
    assert_eq!(find("envoy")["rule"], json!("edge"));
}

#[test]
fn no_subject_secret_path_or_query_appears_in_the_log() {
    for format in ["pretty", "json"] {
        let lines = log_of_refusals(format).join("\n");
        assert!(lines.contains("refused"), "{lines}");
        for hidden in HIDDEN {
            assert!(!lines.contains(hidden), "{format}: {hidden} in\n{lines}");
        }
        assert!(!lines.contains('\x1b'), "no colour without a terminal: {lines}");
    }
}

#[test]
fn the_password_of_a_store_that_does_not_answer_stays_out_of_the_log() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    drop(taken);
    for format in ["pretty", "json"] {
        let store = format!("redis://user:pw4711@127.0.0.1:{port}");
        let mut server = Running::start(&["--store", &store, "--log-format", format]);
        server.check(r#"{"path":"/hello","ip":"203.0.113.9"}"#);
        let lines = server.stop_and_read_log().join("\n");
        assert!(lines.contains("TIDEGATE_SECRET") && lines.contains("on_failure"), "{lines}");
        assert!(!lines.contains("pw4711") && !lines.contains("203.0.113.9"), "{lines}");
    }
}

#[test]
fn four_hundred_refusals_add_up_in_the_log() {
    let mut server = Running::start(&["--log-format", "json"]);
    for _ in 0..403 {
        server.check(r#"{"path":"/hello","ip":"203.0.113.9"}"#);
    }
    let refusals = refusals(&server.stop_and_read_log());
    let suppressed: u64 = refusals.iter().filter_map(|line| line["suppressed"].as_u64()).sum();
    let lines = refusals.iter().filter(|line| line["message"] == json!("refused")).count() as u64;
    assert_eq!(lines + suppressed, 400);
    assert!(lines <= 100, "{lines} lines for one subject");
}

#[test]
fn levels_and_targets_choose_what_is_written() {
    let log = |arguments: &[&str], rust_log: &str| {
        let mut server = Running::start_with_rust_log(arguments, rust_log);
        for _ in 0..4 {
            server.check(r#"{"path":"/hello","ip":"203.0.113.9"}"#);
        }
        server.stop_and_read_log().join("\n")
    };
    assert!(log(&[], "").contains("stopping"));
    assert_eq!(log(&["--log-level", "error"], ""), "");
    let without_refusals = log(&[], "tidegate::refusals=off");
    assert!(without_refusals.contains("stopping") && !without_refusals.contains("refused"), "{without_refusals}");
    assert!(log(&["--log-level", "error"], "info").contains("refused"), "RUST_LOG goes before the flag");
}

#[test]
fn a_wrong_format_level_or_directive_is_refused_with_what_to_write() {
    assert!(refused(&["--log-format", "xml"]).contains("[possible values: pretty, json]"));
    assert!(refused(&["--log-level", "loud"]).contains("[possible values: error, warn, info, debug, trace]"));
    let output = serve(&[]).env("RUST_LOG", "tidegate=loud").output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && errors.contains("RUST_LOG: ") && errors.contains("refusals=off"),
        "{errors}"
    );
}
