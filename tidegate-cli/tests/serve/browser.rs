//! What a web page can do with the addresses of a server, through the browser of somebody on the same machine.

use serde_json::json;

use crate::serve::{Running, ask, ask_with};

const HELLO: &str = r#"{"path":"/hello","ip":"203.0.113.9"}"#;

/// Calls of a page: across origins, from a sandbox, and after its name was changed to the address of the server (DNS rebinding).
const PAGES: [&[&str]; 4] = [
    &["origin: https://evil.example"],
    &["origin: null"],
    &["host: evil.example:8080", "origin: http://evil.example:8080"],
    &["host: evil.example"],
];

/// Trap: `fetch("http://127.0.0.1:8080/v1/check", {method: "POST", body: …})` on any page spent the limits of any subject.
#[test]
fn a_web_page_cannot_spend_limits() {
    let server = Running::start(&[]);
    let edge = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"path","value":"/hello"}]}]}"#;
    for page in PAGES {
        for path in ["/v1/check", "/v1/check/batch", "/v1/refund"] {
            let (status, answer) = ask_with(&server.http, "POST", path, page, HELLO);
            assert!(status == 403 && answer.contains("foreign_"), "{page:?} {path}: {status} {answer}");
        }
        assert_eq!(ask_with(&server.http, "POST", "/json", page, edge).0, 403, "{page:?}");
    }
    // A browser sends these without asking the server first.
    for simple in ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        for path in ["/v1/check", "/v1/check/batch", "/v1/refund"] {
            let (status, _) = ask_with(&server.http, "POST", path, &[&format!("content-type: {simple}")], HELLO);
            assert_eq!(status, 415, "{simple} {path}");
        }
    }
    let preflight = ["origin: https://evil.example", "access-control-request-method: POST"];
    assert_eq!(ask_with(&server.http, "OPTIONS", "/v1/check", &preflight, "").0, 403, "no page is permitted more");
    assert_eq!(server.check(HELLO)["remaining"], json!(2), "nothing was spent");
}

#[test]
fn a_call_may_use_every_name_of_loopback_and_parameters_of_the_content_type() {
    let server = Running::start(&[]);
    for line in
        ["host: 127.0.0.1:8080", "host: LOCALHOST", "host: [::1]:80", "content-type: Application/JSON; charset=utf-8"]
    {
        assert_eq!(ask_with(&server.http, "POST", "/v1/check", &[line], "{}").0, 200, "{line}");
    }
    let own = ["host: localhost:8080", "origin: http://localhost:8080"];
    assert_eq!(ask_with(&server.http, "POST", "/v1/check", &own, "{}").0, 200, "a page of the server itself");
    // Proxies and probes use names of their own.
    let foreign = ["host: api.example.com", "x-forwarded-uri: /other"];
    assert_eq!(ask_with(&server.http, "GET", "/v1/forward-auth", &foreign, "").0, 200);
    assert_eq!(ask_with(&server.http, "GET", "/readyz", &foreign[..1], "").0, 200);
}

#[test]
fn a_web_page_cannot_read_the_admin_address() {
    let server = Running::start(&[]);
    for page in PAGES {
        for path in ["/metrics", "/v1/status", "/stats"] {
            let (status, answer) = ask_with(&server.admin, "GET", path, page, "");
            assert!(status == 403 && answer.contains("foreign_"), "{page:?} {path}: {status} {answer}");
        }
        assert_eq!(ask_with(&server.admin, "POST", "/v1/subjects/reset", page, "{}").0, 403, "{page:?}");
    }
    assert_eq!(ask(&server.admin, "GET", "/metrics", "").0, 200);
}
