//! The log: its formats, its levels, refused requests over every front end, and what never appears in it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::serve::{Running, ask_with, refused, serve};

const RULES: &str = "
version: 1
rules:
  - id: keys
    match: { path: '/v1/{item}' }
    per: [header:x-api-key]
    fixed_window: { limit: 1, window: 1h }
    on_failure: share
  - id: edge
    match: { action: edge }
    per: [attr:user]
    fixed_window: { limit: 1, window: 1h }
    on_failure: share
";

/// What must appear in no line: subjects, secrets, and queries.
const HIDDEN: [&str; 3] = ["hunter2", "fleet-secret-9", "token-77"];

/// A server with refused requests over every front end, stopped; its log lines.
fn log_of_refusals(format: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    fs::write(&path, RULES).unwrap();
    let upstream = upstream();
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
        "--access-log",
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

/// A service that answers every request with five bytes.
pub(crate) fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            // The gateway has closed the connection.
            if stream.read(&mut head).is_ok_and(|bytes| bytes > 0) {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello");
            }
        }
    });
    url
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
        let refusals = lines.lines().filter(|line| line.contains("tidegate::refusals"));
        assert!(
            refusals.into_iter().all(|line| !line.contains("item-55")),
            "the pattern of a rule, not the path: {lines}"
        );
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
    assert!(refused(&["--log-format", "xml"]).contains("write pretty or json"));
    assert!(refused(&["--log-level", "loud"]).contains("write error, warn, info, debug or trace"));
    let output = serve(&[]).env("RUST_LOG", "tidegate=loud").output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && errors.contains("RUST_LOG: ") && errors.contains("refusals=off"),
        "{errors}"
    );
}

#[test]
fn the_access_log_has_one_line_for_each_request_through_the_gateway() {
    let url = upstream();
    let arguments = ["--gateway", "127.0.0.1:0", "--upstream", &url, "--log-format", "json"];
    let ask = |server: &Running, path| crate::serve::ask(&server.gateway, "POST", path, "hi");
    let mut server = Running::start(&[&arguments[..], &["--access-log"]].concat());
    assert_eq!(ask(&server, "/other?key=token-77"), (200, "hello".to_owned()));
    let statuses: Vec<u16> = (0..4).map(|_| ask(&server, "/hello?key=token-77").0).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    let lines = server.stop_and_read_log();
    assert!(!lines.join("\n").contains("token-77"), "{lines:?}");
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines: Vec<&Value> = lines.iter().filter(|line| line["target"] == json!("tidegate::access")).collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    let [unlimited, allowed, .., refused] = lines.as_slice() else { panic!("{lines:?}") };
    for (line, path, status, bytes, decision, rule) in [
        (unlimited, "/other", 200, Some(5), "unlimited", Value::Null),
        (allowed, "/hello", 200, Some(5), "allowed", json!("hello")),
        (refused, "/hello", 429, None, "refused", json!("hello")),
    ] {
        assert_eq!((&line["method"], &line["path"]), (&json!("POST"), &json!(path)), "{line}");
        assert_eq!(
            (&line["status"], &line["decision"], &line["rule"]),
            (&json!(status), &json!(decision), &rule),
            "{line}"
        );
        let durations = (line["duration_ms"].as_f64(), line["upstream_ms"].as_f64());
        assert!(durations.0.is_some_and(|duration| duration >= durations.1.unwrap_or_default()), "{line}");
        assert_eq!(durations.1.is_some(), status == 200, "{line}");
        assert!(bytes.is_none_or(|bytes| line["bytes"] == json!(bytes)), "{line}");
    }

    let mut without = Running::start(&arguments);
    ask(&without, "/other");
    assert!(!without.stop_and_read_log().join("\n").contains("tidegate::access"), "it is off by default");
}
