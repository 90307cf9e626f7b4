//! Forward-auth without a proxy. Real proxies are tested in the conformance crate.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use tempfile::TempDir;

use crate::serve::Running;

const RULES: &str = "\
version: 1
unknown_size: 10_240
identify: { client: [header:x-api-key, ip], trusted_proxies: [127.0.0.0/8] }
rules:
  - { id: rides, match: { method: POST, path: /rides }, per: [client], fixed_window: { limit: 1, window: 1h }, on_failure: share }
  - { id: shop, match: { host: shop.example }, per: [], fixed_window: { limit: 1, window: 1h }, on_failure: share }
  - { id: size, match: { path: /upload }, per: [], cost: 1 + request.size / 1024, token_bucket: { capacity: 25, refill: 1/h }, on_failure: share }
  - { id: queue, match: { path: /queue }, per: [], leaky_bucket: { rate: 1/h, queue: 5 }, on_failure: share }
";

/// A server with these rules, and the directory of its rule file.
fn start() -> (Running, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, RULES).unwrap();
    (Running::with_rules(&file), folder)
}

/// The whole response to a call with these header lines.
fn ask(server: &Running, target: &str, lines: &str) -> String {
    let mut stream = TcpStream::connect(&server.http).unwrap();
    write!(stream, "GET /v1/forward-auth{target} HTTP/1.1\r\nhost: tidegate\r\nconnection: close\r\n{lines}\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap()
}

#[test]
fn the_original_request_is_decided_and_not_the_call() {
    let (server, _folder) = start();
    let ride = "x-forwarded-method: POST\r\nx-forwarded-uri: /rides?from=a\r\nx-forwarded-for: 203.0.113.9\r\n";
    let first = ask(&server, "", ride);
    assert_eq!(status(&first), "200");
    assert!(first.contains("\r\nratelimit: \"rides\";r=0;t="), "{first}");
    assert!(first.ends_with("\r\n\r\n"), "nothing but a yes: {first}");
    let denied = ask(&server, "", ride);
    assert_eq!(status(&denied), "429");
    assert!(denied.contains("\r\nretry-after: ") && denied.contains("\r\nx-tidegate-denied: 429\r\n"), "{denied}");
    assert!(denied.contains(r#"{"error":"rate_limit_exceeded""#), "{denied}");
    assert_eq!(status(&ask(&server, "", &ride.replace("113.9", "113.10"))), "200", "another client");
    assert_eq!(status(&ask(&server, "", &ride.replace("POST", "GET"))), "200", "another method");
    let nginx = "x-original-method: POST\r\nx-original-uri: /rides\r\nx-forwarded-for: 203.0.113.9\r\n";
    assert_eq!(status(&ask(&server, "", nginx)), "429", "the same in other words");
    let absolute = "x-original-method: POST\r\nx-original-url: https://h/rides\r\nx-forwarded-for: 203.0.113.9\r\n";
    assert_eq!(status(&ask(&server, "", absolute)), "429");
    let host = "x-forwarded-uri: /\r\nx-forwarded-host: shop.example\r\n";
    assert_eq!([status(&ask(&server, "", host)), status(&ask(&server, "", host))], ["200", "429"]);
    assert_eq!(status(&ask(&server, "", "x-original-url: https://shop.example/\r\n")), "429", "the host of the target");
}

/// The proxy keeps the body, and the length of its call is not that of the request.
#[test]
fn the_size_of_the_original_body_is_not_known() {
    let (server, _folder) = start();
    let upload = "x-forwarded-method: POST\r\nx-forwarded-uri: /upload\r\n";
    for (lines, expected) in [("", "200"), ("content-length: 0\r\n", "200"), ("content-length: 0\r\n", "429")] {
        assert_eq!(status(&ask(&server, "", &format!("{upload}{lines}"))), expected);
    }
}

#[test]
fn the_caller_chooses_the_status_of_a_refusal() {
    let (server, _folder) = start();
    let ride = "x-forwarded-method: POST\r\nx-forwarded-uri: /rides\r\ncontent-type: application/grpc\r\n";
    assert_eq!(status(&ask(&server, "?deny=403", ride)), "200");
    for (target, expected) in [("?deny=403", "403"), ("?deny=401", "401"), ("?deny=429", "429"), ("?x=y", "429")] {
        let denied = ask(&server, target, ride);
        assert_eq!(status(&denied), expected);
        assert!(denied.contains("\r\nx-tidegate-denied: 429\r\n") && denied.contains("\r\nretry-after: "), "{denied}");
    }
    for target in ["?deny=500", "?deny=", "?deny=200", "?deny=403&deny=429"] {
        assert_eq!(status(&ask(&server, target, ride)), "400", "{target}");
    }
}

/// Trap: nginx set one of the headers, and clients sent the other, so they chose the path that was limited.
#[test]
fn contradicting_headers_are_refused() {
    let (server, _folder) = start();
    for lines in [
        "",
        "x-forwarded-uri: /rides\r\nx-original-uri: /free\r\n",
        "x-forwarded-uri: /rides\r\nx-forwarded-uri: /free\r\n",
        "x-forwarded-uri: /rides\r\nx-forwarded-method: POST\r\nx-original-method: GET\r\n",
        "x-forwarded-uri: /rides\r\nx-forwarded-host: a\r\nx-forwarded-host: b\r\n",
        "x-forwarded-uri: rides\r\n",
        "x-forwarded-uri: http://evil.example/rides\r\nx-forwarded-host: shop.example\r\n",
        "x-forwarded-uri: \r\n",
        "x-forwarded-uri: /rides\r\nx-forwarded-method: PO ST\r\n",
    ] {
        let answer = ask(&server, "", lines);
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("\"message\":\""), "{lines:?}: {answer}");
    }
    let twice = "x-forwarded-uri: /free\r\nx-original-uri: /free\r\n";
    assert_eq!(status(&ask(&server, "", twice)), "200", "in two ways, but the same");
}

#[test]
fn a_request_that_would_be_delayed_is_refused() {
    let (server, _folder) = start();
    let queue = "x-forwarded-uri: /queue\r\n";
    assert_eq!([status(&ask(&server, "", queue)), status(&ask(&server, "", queue))], ["200", "429"]);
}

#[test]
fn a_path_counts_under_every_reading() {
    let (server, _folder) = start();
    let ask = |method: &str, target: &str| {
        let lines = format!("x-forwarded-method: {method}\r\nx-forwarded-uri: {target}\r\n");
        ask(&server, "?deny=403", &lines)
    };
    assert_eq!(status(&ask("POST", "/rides")), "200");
    for target in [
        "/%2Frides",
        "/x%2F..%2Frides",
        "/x/../rides",
        "//rides",
        "/rides;x",
        "/%72ides",
        "/x\\..\\rides",
        "/%252Frides",
    ] {
        assert_eq!(status(&ask("POST", target)), "403", "{target}");
    }
    // Neither is a denial, and the proxy must not let them pass.
    for (method, target) in [("post", "/free"), ("POST", "/a;b%2Fc\\d"), ("POST", "*")] {
        let refused = ask(method, target);
        assert_eq!(status(&refused), "400", "{method} {target}");
        assert!(refused.contains(r#"{"error":"bad_request""#) && !refused.contains("x-tidegate-denied"), "{refused}");
    }
}

/// For nginx, too: 403 would be a denial, which the client could wait out.
#[test]
fn a_key_that_comes_twice_gets_400_whatever_the_status_of_denials() {
    let (server, _folder) = start();
    let keys = "x-forwarded-method: POST\r\nx-forwarded-uri: /rides\r\nx-api-key: a\r\nx-api-key: b\r\n";
    for target in ["", "?deny=403"] {
        let refused = ask(&server, target, keys);
        assert_eq!(status(&refused), "400", "{refused}");
        assert!(refused.contains("header:x-api-key") && !refused.contains("x-tidegate-denied"), "{refused}");
    }
}
