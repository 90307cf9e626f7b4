//! A host gets the same decision through every front end, however it is written. (The tower layer alone is tested in its
//! own crate; the gateway and forward-auth use it.)

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tidegate::{Limiter, MemoryStore, Request};
use tidegate_rules::RuleFile;

use crate::serve::Running;

const RULES: &str = "\
version: 1
rules:
  - { id: shop, match: { host: shop.example }, per: [host], sliding_log: { limit: 1, window: 30d }, on_failure: share }
";

/// Spellings of `shop.example`.
const SAME_HOST: [&str; 6] =
    ["shop.example", "SHOP.Example", "shop.example:8080", "shop.example:", "shop.example.", "Shop.Example.:80"];

/// Other hosts, and what is no host.
const OTHER_HOST: [&str; 8] = [
    "shop.example:b",
    "shop.example:-1",
    "shop.example:80:80",
    "shop.example:80.",
    "shop.example..",
    "a.shop.example",
    "[2001:db8::1]:80",
    "shop.example:80, shop.example",
];

/// The status of the response to a request with these lines.
fn status(address: &str, target: &str, lines: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nconnection: close\r\n{lines}\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Asserts that exactly the spellings of `shop.example` are denied.
fn assert_denies_one_host(front_door: &str, is_denied: impl Fn(&str) -> bool) {
    for host in SAME_HOST {
        assert!(is_denied(host), "{front_door}: {host}");
    }
    for host in OTHER_HOST {
        assert!(!is_denied(host), "{front_door}: {host}");
    }
}

/// The output of a command, which is JSON.
fn run(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

fn rule_file(folder: &Path) -> String {
    let file = folder.join("rules.yaml");
    fs::write(&file, RULES).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn every_front_door_of_the_server_takes_the_same_spellings_for_one_host() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = ["--gateway", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1"];
    let server = Running::start(&[&["--rules", &rule_file(folder.path())], &gateway[..]].concat());
    let check = |host: &str| server.check(&json!({ "host": host }).to_string())["allowed"] == json!(false);
    assert!(!check("shop.example"), "the first request takes the only unit");

    assert_denies_one_host("check API", check);
    assert_denies_one_host("check API, header", |host| {
        server.check(&json!({ "headers": { "Host": host } }).to_string())["allowed"] == json!(false)
    });
    assert_denies_one_host("forward-auth", |host| {
        let lines = format!("host: tidegate\r\nx-forwarded-uri: /\r\nx-forwarded-host: {host}\r\n");
        status(&server.http, "/v1/forward-auth", &lines) == 429
    });
    assert_denies_one_host("gateway", |host| status(&server.gateway, "/", &format!("host: {host}\r\n")) == 429);
    assert_denies_one_host("gateway, absolute target", |host| {
        status(&server.gateway, &format!("http://{host}/"), "host: other.example\r\n") == 429
    });
    for key in ["host", ":authority"] {
        assert_denies_one_host("Envoy adapter", |host| {
            let entries = json!([{ "key": key, "value": host }]);
            let call = json!({ "domain": "edge", "descriptors": [{ "entries": entries }] });
            server.post("/json", &call.to_string()).0 == 429
        });
    }
}

#[test]
fn the_command_line_takes_the_same_spellings_for_one_host() {
    let folder = tempfile::tempdir().unwrap();
    let file = rule_file(folder.path());
    assert_denies_one_host("tidegate check", |host| {
        run(&["check", "--rules", &file, "--cost", "2", "--json", "--host", host])["allowed"] == json!(false)
    });
    assert_denies_one_host("tidegate rules explain", |host| {
        let explained = run(&["rules", "explain", &file, "--json", "--host", host]);
        explained["rules"][0]["applies"] == json!(true)
    });
}

#[test]
fn the_library_takes_the_same_spellings_for_one_host() {
    let file = RuleFile::parse("rules.yaml", RULES).unwrap();
    let limiter = Limiter::new(file.rules().clone(), MemoryStore::new());
    let check = |host: &str| !limiter.check_now(&Request::new("").with_attribute("host", host)).is_allowed();
    assert!(!check("shop.example"), "the first request takes the only unit");
    assert_denies_one_host("library", check);
}
