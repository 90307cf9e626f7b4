//! Rules that read what a front end never has, and forwarded headers of senders that are not trusted.

use std::fs;

use crate::serve::logging::upstream;
use crate::serve::{Running, ask, ask_with, refused};

const RULES: &str = "
version: 1
identify: { authenticated: [x-api-key] }
rules:
  - { id: login, match: { path: /login }, per: ['body:email'], sliding_log: { limit: 1, window: 15m }, on_failure: share }
  - { id: account, match: { path: /account }, per: ['attr:account'], fixed_window: { limit: 1, window: 1h }, on_failure: share }
  - { id: keys, match: { path: /keys }, per: ['header:x-api-key'], fixed_window: { limit: 1, window: 1h }, on_failure: share }
  - { id: job, match: { action: job }, per: ['attr:queue'], fixed_window: { limit: 1, window: 1h }, on_failure: share }
";

/// The log lines of this level that contain a text.
fn lines<'l>(log: &'l [String], level: &str, text: &str) -> Vec<&'l String> {
    log.iter().filter(|line| line.contains(level) && line.contains(text)).collect()
}

fn forward_auth(server: &Running, path: &str, lines: &[&str]) -> u16 {
    let uri = format!("x-forwarded-uri: {path}");
    ask_with(&server.http, "GET", "/v1/forward-auth", &[&[uri.as_str()], lines].concat(), "").0
}

#[test]
fn a_rule_that_a_front_door_cannot_serve_is_logged_at_the_start_and_its_requests_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, RULES).unwrap();
    let upstream = upstream();
    let gateway = ["--gateway", "127.0.0.1:0", "--upstream", &upstream];
    let mut server = Running::start(&[&["--rules", file.to_str().unwrap()], &gateway[..]].concat());
    let count = |rule: &str, door: &str| {
        server.metric(&format!("rate_limit_unavailable_source_total{{rule=\"{rule}\",door=\"{door}\"}} "))
    };
    assert_eq!([forward_auth(&server, "/login", &[]), forward_auth(&server, "/login", &[])], [200, 429]);
    assert_eq!(forward_auth(&server, "/keys", &["x-api-key: k1"]), 200);
    assert_eq!(ask(&server.gateway, "GET", "/account", "").0, 200);
    server.check(r#"{"path":"/login","body":"{\"email\":\"a@example.com\"}"}"#);
    assert_eq!((count("login", "forward-auth"), count("account", "gateway")), (2, 1));
    let (_, page) = ask(&server.admin, "GET", "/metrics", "");
    assert_eq!(page.matches("\nrate_limit_unavailable_source_total{").count(), 2, "{page}");

    let log = server.stop_and_read_log();
    let login = "rule `login` counts by `body:email`, which forward-auth never has: all requests there share one count";
    let account = "rule `account` counts by `attr:account`, which the gateway never has";
    assert_eq!(lines(&log, "INFO", login).len(), 1, "at the start: {log:?}");
    assert_eq!(lines(&log, "WARN", login).len(), 1, "at the first request: {log:?}");
    assert_eq!(lines(&log, "WARN", account).len(), 2, "at the start and at the first request: {log:?}");
    assert!(lines(&log, "", "`keys`").is_empty(), "{log:?}");
    let job = "rule `job` matches by `action`, which the gateway never has: it never applies there";
    let job = lines(&log, "WARN", job);
    assert!(job.len() == 1 && job[0].contains("rule=\"job\"") && job[0].contains("front_ends: [check]"), "{log:?}");
    assert_eq!(lines(&log, "INFO", "rules that never apply at this front end: job;").len(), 1, "forward-auth: {log:?}");
    let job = "a request came in: rule `job` matches by `action`, which forward-auth never has";
    assert_eq!(lines(&log, "WARN", job).len(), 1, "{log:?}");
}

/// Trap: behind the gateway nobody sends actions, so every login passed, and nothing failed.
const LOGINS: &str = "version: 1\nrules:\n\
    - { id: login, match: { action: login }, per: ['attr:account'], sliding_log: { limit: 5, window: 10m }, security: true, on_failure: share }\n";

#[test]
fn a_gateway_does_not_start_with_a_security_rule_that_never_applies_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let path = file.to_str().unwrap();
    fs::write(&file, LOGINS).unwrap();
    let upstream = upstream();
    let gateway = ["--rules", path, "--gateway", "127.0.0.1:0", "--upstream", &upstream];
    let error = refused(&gateway);
    for text in ["error[never-applies]", "rule `login`", "rules.yaml:3:", "path: /login", "`front_ends: [check]`"] {
        assert!(error.contains(text), "{text}: {error}");
    }
    // Without a gateway nothing is wrong, and a rule can say that it is meant for others.
    let mut server = Running::start(&["--rules", path]);
    assert_eq!(server.check(r#"{"action":"login","attributes":{"account":"a7"}}"#)["limit"], 5);
    let log = server.stop_and_read_log();
    assert!(lines(&log, "WARN", "never applies").is_empty(), "nobody has asked forward-auth: {log:?}");
    fs::write(&file, LOGINS.replace("security:", "front_ends: [check], security:")).unwrap();
    let log = Running::start(&gateway).stop_and_read_log();
    assert!(lines(&log, "", "never appl").is_empty(), "{log:?}");
}

#[test]
fn a_gateway_does_not_reload_a_file_with_a_security_rule_that_never_applies_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let good = LOGINS.replace("action: login", "path: /login").replace("attr:account", "query:account");
    let good = good.replace("version: 1", "version: 1\nidentify: { authenticated: [query:account] }");
    fs::write(&file, &good).unwrap();
    let upstream = upstream();
    let gateway = ["--gateway", "127.0.0.1:0", "--upstream", &upstream];
    let mut server = Running::start(&[&["--rules", file.to_str().unwrap()], &gateway[..]].concat());
    let replace = |text: &str| {
        fs::write(folder.path().join("new"), text).unwrap();
        fs::rename(folder.path().join("new"), &file).unwrap();
    };
    replace(LOGINS);
    server.wait_for_log("rules not reloaded");
    let (_, ready) = ask(&server.http, "GET", "/readyz", "");
    assert!(ready.contains("never-applies") && ready.contains("`login`"), "{ready}");
    let statuses = (0..6).map(|_| ask(&server.gateway, "GET", "/login?account=a7", "").0);
    assert_eq!(statuses.collect::<Vec<_>>(), [200, 200, 200, 200, 200, 429], "the old rules stay");
}

#[test]
fn forwarded_headers_of_an_untrusted_sender_are_logged_once_and_counted() {
    let upstream = upstream();
    let mut server = Running::start(&["--gateway", "127.0.0.1:0", "--upstream", &upstream]);
    let count = |door: &str| server.metric(&format!("tidegate_untrusted_forwarded_total{{door=\"{door}\"}} "));
    assert_eq!([count("gateway"), count("forward-auth"), count("check")], [0; 3]);
    let forged = |last: u8| format!("x-forwarded-for: 203.0.113.{last}");
    let statuses: Vec<u16> = (0..4).map(|last| forward_auth(&server, "/hello", &[&forged(last)])).collect();
    assert_eq!(statuses, [200, 200, 200, 429], "the sender is the client");
    forward_auth(&server, "/hello", &[]);
    for last in 0..2 {
        ask_with(&server.gateway, "GET", "/other", &[&forged(last)], "");
    }
    server.check(r#"{"path":"/hello","ip":"192.0.2.1","headers":{"x-forwarded-for":"203.0.113.9"}}"#);
    assert_eq!([count("gateway"), count("forward-auth"), count("check")], [2, 4, 1]);
    let log = server.stop_and_read_log();
    let found = lines(&log, "WARN", "a sender that is not trusted sends x-forwarded-for");
    assert_eq!(found.len(), 3, "one for each front end: {log:?}");
    assert!(found.iter().all(|line| line.contains("trusted_proxies") && !line.contains("203.0.113")), "{log:?}");
}

#[test]
fn forwarded_headers_of_a_trusted_proxy_are_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let rules = "version: 1\nidentify: { trusted_proxies: 127.0.0.0/8 }\nrules:\n\
                 - { id: hello, match: { path: /hello }, per: [client], fixed_window: { limit: 1, window: 1h } }\n";
    fs::write(&file, rules).unwrap();
    let server = Running::with_rules(&file);
    for last in 0..3 {
        let header = format!("x-forwarded-for: 203.0.113.{last}");
        assert_eq!(forward_auth(&server, "/hello", &[&header]), 200);
    }
    assert_eq!(server.metric("tidegate_untrusted_forwarded_total{door=\"forward-auth\"} "), 0);
}
