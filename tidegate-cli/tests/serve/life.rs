//! From start to end: rules that change, files that are wrong, signals.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::{Running, ask};

fn rules(capacity: u32) -> String {
    format!(
        "version: 1\nrules:\n- {{ id: all, per: [], token_bucket: {{ capacity: {capacity}, refill: 1/h }}, on_failure: open }}\n"
    )
}

fn ready(server: &Running) -> Value {
    let (status, body) = ask(&server.http, "GET", "/readyz", "");
    assert_eq!(status, 200);
    serde_json::from_str(&body).unwrap()
}

#[test]
fn a_changed_file_is_taken_and_a_wrong_one_is_not() {
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
    server.hear("rules: version");
    assert_eq!(
        server.check("{}")["allowed"],
        json!(true),
        "raising a limit helps at once, and what was spent stays spent"
    );
    assert_eq!(server.check("{}")["allowed"], json!(false));

    let version = ready(&server)["rules"]["version"].clone();
    fs::write(folder.path().join("new"), rules(3).replace("capacity", "capacty")).unwrap();
    fs::rename(folder.path().join("new"), &path).unwrap();
    server.hear("was not taken");
    let ready = ready(&server);
    assert_eq!(ready["rules"]["version"], version);
    assert!(ready["rules"]["refused"].as_str().unwrap().contains("did you mean `capacity`?"));
    assert_eq!(server.check("{}")["limit"], json!(2));
}

#[test]
fn a_hangup_reads_the_rules_anew() {
    let mut server = Running::start(&[]);
    server.signal("HUP");
    server.hear("rules: version 2");
    assert_eq!(ready(&server)["rules"]["version"], json!(2));
}

#[test]
fn a_signal_ends_it() {
    for name in ["TERM", "INT"] {
        let mut server = Running::start(&[]);
        assert_eq!(ask(&server.http, "GET", "/healthz", ""), (200, "ok\n".to_owned()));
        server.signal(name);
        server.hear("stopping");
        assert!(server.child.wait().unwrap().success());
    }
}

#[test]
fn what_cannot_be_served_is_said_before_anything_listens() {
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
