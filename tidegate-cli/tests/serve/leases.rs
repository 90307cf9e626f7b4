//! Leases and waiting, with callers that hang up and a server that stops.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::serve::{Running, ask};

/// Leases that do not run out during a test.
const RULES: &str = "\
version: 1
rules:
  - { id: exports, match: { action: export }, per: [], concurrency: { max: 1, lease: 1h }, on_failure: share }
  - { id: calls, match: { action: call }, per: [], token_bucket: { capacity: 1, refill: 1/h }, on_failure: share }
";

const ACQUIRE: &str = r#"{"action":"export","max_wait_ms":30000}"#;
const WAITING: &str = "tidegate_acquire_waiting ";

/// A server with the rules, in a directory that lasts as long.
fn start(flags: &[&str]) -> (Running, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path: &Path = &folder.path().join("rules.yaml");
    std::fs::write(path, RULES).unwrap();
    let server = Running::start(&[&["--rules", path.to_str().unwrap()], flags].concat());
    (server, folder)
}

/// Takes the only slot, and returns the path of its lease.
fn hold(server: &Running) -> String {
    let (status, answer) = server.post("/v1/leases", r#"{"action":"export"}"#);
    let id = answer["lease"]["id"].as_str().unwrap_or_else(|| panic!("{status}: {answer}"));
    format!("/v1/leases/{id}")
}

/// Sends a call, and waits until `waiting` calls wait.
fn wait(server: &Running, body: &str, waiting: u64) -> TcpStream {
    let mut stream = TcpStream::connect(&server.http).unwrap();
    let head = "host: localhost\r\ncontent-type: application/json\r\nconnection: close";
    let length = body.len();
    write!(stream, "POST /v1/acquire HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    while server.metric(WAITING) != waiting {}
    stream
}

fn answer(mut stream: TcpStream) -> (u16, Value) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn a_caller_that_hangs_up_leaves_the_queue_at_once_and_the_next_one_is_served() {
    let (server, _folder) = start(&[]);
    let lease = hold(&server);
    let (gone, next) = (wait(&server, ACQUIRE, 1), wait(&server, ACQUIRE, 2));
    drop(gone);
    while server.metric(WAITING) != 1 {}
    assert_eq!(server.metric("tidegate_acquire_total{outcome=\"left\"} "), 1);
    assert_eq!(ask(&server.http, "DELETE", &lease, ""), (200, r#"{"released":true}"#.to_owned()));
    let (status, answer) = answer(next);
    assert_eq!((status, &answer["allowed"], &answer["lease"]["expires_in_ms"]), (200, &json!(true), &json!(3_600_000)));
    assert_eq!(server.metric(WAITING), 0);
    assert_eq!(ask(&server.http, "DELETE", &lease, "").0, 410);
}

#[test]
fn callers_that_wait_are_answered_before_the_server_ends() {
    let (mut server, _folder) = start(&[]);
    let _lease = hold(&server);
    let waiting = [wait(&server, ACQUIRE, 1), wait(&server, ACQUIRE, 2)];
    server.signal("TERM");
    for waiting in waiting {
        let (status, answer) = answer(waiting);
        assert_eq!((status, &answer["error"]), (503, &json!("stopping")));
    }
    let log = server.stop_and_read_log();
    assert!(!log.iter().any(|line| line.contains("did not end in time")), "{log:?}");
}

/// The time of a call that waits is not that of other calls.
#[test]
fn a_caller_may_wait_for_longer_than_the_request_timeout() {
    let (server, _folder) = start(&["--request-timeout", "1", "--max-wait", "2"]);
    let _lease = hold(&server);
    let (status, answer) = server.post("/v1/acquire", r#"{"action":"export","max_wait_ms":86400000}"#);
    assert_eq!((status, &answer["timed_out"]), (200, &json!(true)), "{answer}");
    assert!(answer["waited_ms"].as_u64().is_some_and(|waited| waited >= 2000), "{answer}");
}

#[test]
fn too_many_callers_get_503_with_retry_after_and_others_keep_their_places() {
    let (server, _folder) = start(&["--max-waiting", "16"]);
    let _lease = hold(&server);
    let _waiting = [wait(&server, ACQUIRE, 1), wait(&server, ACQUIRE, 2)];
    let mut refused = TcpStream::connect(&server.http).unwrap();
    let head = "host: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 19";
    write!(refused, "POST /v1/acquire HTTP/1.1\r\n{head}\r\n\r\n{{\"action\":\"export\"}}").unwrap();
    let mut text = String::new();
    refused.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("\r\nretry-after: 1\r\n"), "{text}");
    assert!(text.contains("too_many_waiting"), "{text}");
    let (status, answer) = server.post("/v1/acquire", r#"{"action":"call"}"#);
    assert_eq!((status, &answer["allowed"]), (200, &json!(true)));
    assert_eq!(server.check(r#"{"action":"other"}"#)["allowed"], json!(true));
}

/// A page of another origin cannot send these methods without asking, but it may reach the server by its own name.
#[test]
fn a_web_page_cannot_renew_or_release() {
    let (server, _folder) = start(&[]);
    let lease = hold(&server);
    for method in ["PUT", "DELETE"] {
        let headers = ["origin: https://evil.example"];
        assert_eq!(crate::serve::ask_with(&server.http, method, &lease, &headers, "").0, 403, "{method}");
    }
    assert_eq!(ask(&server.http, "PUT", &lease, "").0, 200);
}

/// The memory for large bodies is enough for 64 of them.
#[test]
fn callers_that_wait_keep_no_memory_for_their_bodies() {
    let (server, _folder) = start(&["--max-waiting-per-subject", "100"]);
    let _lease = hold(&server);
    let large = |action: &str| json!({ "action": action, "body": "x".repeat(20_000) }).to_string();
    let _waiting: Vec<TcpStream> = (1..=70).map(|waiting| wait(&server, &large("export"), waiting)).collect();
    let (status, answer) = server.post("/v1/check", &large("call"));
    assert_eq!((status, &answer["allowed"]), (200, &json!(true)), "{answer}");
}
