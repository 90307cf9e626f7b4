//! The life of a server: changed rules, wrong files, signals.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::serve::{Running, ask};

fn rules(capacity: u32) -> String {
    format!(
        "version: 1\nrules:\n- {{ id: all, per: [], token_bucket: {{ capacity: {capacity}, refill: 1/h }}, on_failure: share }}\n"
    )
}

fn ready(server: &Running) -> Value {
    let (status, body) = ask(&server.http, "GET", "/readyz", "");
    assert_eq!(status, 200);
    serde_json::from_str(&body).unwrap()
}

#[test]
fn a_changed_rule_file_is_loaded_and_one_with_errors_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    fs::write(&path, rules(1)).unwrap();
    let mut server = Running::with_rules(&path);
    assert_eq!(
        (server.check("{}")["allowed"].clone(), server.check("{}")["allowed"].clone()),
        (json!(true), json!(false))
    );

    fs::write(folder.path().join("new"), rules(2)).unwrap();
    fs::rename(folder.path().join("new"), &path).unwrap();
    server.wait_for_log("rules reloaded");
    assert_eq!(
        server.check("{}")["allowed"],
        json!(true),
        "raising a limit helps at once, and what was spent stays spent"
    );
    assert_eq!(server.check("{}")["allowed"], json!(false));

    let version = ready(&server)["rules"]["version"].clone();
    fs::write(folder.path().join("new"), rules(3).replace("capacity", "capacty")).unwrap();
    fs::rename(folder.path().join("new"), &path).unwrap();
    server.wait_for_log("rules not reloaded");
    let ready = ready(&server);
    assert_eq!(ready["rules"]["version"], version);
    assert!(ready["rules"]["refused"].as_str().unwrap().contains("did you mean `capacity`?"));
    assert_eq!(server.check("{}")["limit"], json!(2));
}

#[test]
fn a_hangup_signal_reloads_the_rules() {
    let mut server = Running::start(&[]);
    server.signal("HUP");
    server.wait_for_log("rules reloaded version=2");
    assert_eq!(ready(&server)["rules"]["version"], json!(2));
}

#[test]
fn a_signal_stops_the_server() {
    for name in ["TERM", "INT"] {
        let mut server = Running::start(&[]);
        assert_eq!(ask(&server.http, "GET", "/healthz", ""), (200, "ok\n".to_owned()));
        server.signal(name);
        server.wait_for_log("stopping");
        assert!(server.child.wait().unwrap().success());
    }
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    fs::write(&path, "version: 1\nrules: [{ id: a }]\n").unwrap();
    let serve = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("serve").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = serve(&["--rules", path.to_str().unwrap()]);
    assert!(code == Some(2) && said.contains("the field `per` is missing"), "{said}");
    let (code, said) = serve(&["--store", "postgres://x"]);
    assert!(code == Some(2) && said.contains("--store: there is no such store"), "{said}");
    let (code, said) = serve(&["--gateway", "127.0.0.1:0"]);
    assert!(code == Some(2) && said.contains("--upstream"), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, said) = serve(&["--http", &taken.local_addr().unwrap().to_string()]);
    assert!(code == Some(2) && said.contains("choose another address"), "{said}");
}
