//! The start and the end of a server.

use std::fs;
use std::process::Command;

use crate::serve::{Running, ask};

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
