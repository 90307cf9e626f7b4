//! The path that is decided is the path that the upstream receives, and no spelling of a path or method avoids a limit.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate::{Limiter, ManualClock, MemoryStore};
use tidegate_rules::RuleFile;
use tidegate_server::gateway::GatewayOptions;
use tidegate_tower::LimitLayer;

use crate::gateway::{START, exchange, gateway, gateway_with, get, mirror, serve};

const RULES: &str = "
version: 1
exempt: [{ path: /healthz }]
rules:
  - { id: login, match: { method: [GET, POST], path: /api/login }, per: [], fixed_window: { limit: 1, window: 1h } }
  - { id: api, match: { path: '/api/*' }, per: [], fixed_window: { limit: 1, window: 1h } }
";

/// A gateway with these rules in front of an upstream that returns the request it received.
async fn gateway_with_rules(rules: &str) -> SocketAddr {
    let rules = RuleFile::parse("rules.yaml", rules).unwrap().rules().clone();
    let store = Arc::new(MemoryStore::new().with_clock(ManualClock::starting_at(START)));
    let layer = LimitLayer::new(Limiter::new(rules, store));
    gateway_with(&format!("http://{}", serve(mirror()).await), GatewayOptions::new(), layer).await
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap_or_default()
}

/// The path that the upstream received; `None` if the request did not reach it.
fn received(response: &str) -> Option<&str> {
    let (_, request) = response.split_once("\r\n\r\n")?;
    request.strip_prefix("GET ")?.split(' ').next()
}

#[tokio::test]
async fn dot_segments_are_resolved_in_what_is_forwarded() {
    let gateway = gateway(mirror()).await;
    for (target, expected) in [
        ("/a/../b?c=/../d", "/b?c=/../d"),
        ("/a/%2e%2E/b", "/b"),
        ("/a/./b/.", "/a/b/"),
        ("/../../b", "/b"),
        ("/a//../b", "/a/b"),
        ("/api/files/big/../../../healthz", "/healthz"),
        ("http://shop.example/a/../b", "/b"),
    ] {
        let response = get(gateway, target, "").await;
        assert_eq!(received(&response), Some(expected), "{target}: {response}");
    }
}

#[tokio::test]
async fn legitimate_paths_are_forwarded_as_written() {
    let gateway = gateway_with_rules(RULES).await;
    for target in [
        "/projects/group%2Fname",
        "/projects/group%2fname",
        "/fetch/https://x",
        "/fetch/https%3A%2F%2Fx%2Fy",
        "/fetch/https%253A%252F%252Fx",
        "//double//slashes//",
        "/matrix;a=1;b=2/x",
        "/.well-known/x",
        "/caf%c3%a9/%7Euser/100%25",
        "/a%5Cb",
        "/a\\b",
    ] {
        let response = get(gateway, target, "").await;
        assert_eq!(received(&response), Some(target), "{response}");
    }
}

#[tokio::test]
async fn no_spelling_of_a_path_avoids_its_limit() {
    let gateway = gateway_with_rules(RULES).await;
    assert_eq!(received(&get(gateway, "/api/login", "").await), Some("/api/login"));
    for target in [
        "/api/login",
        "/api/login/",
        "/api/login?x",
        "/%61pi/login",
        "/api%2Flogin",
        "/api%2flogin",
        "/api%252Flogin",
        "/api%252flogin",
        "/%2561pi/login",
        "//api/login",
        "/api//login",
        "/%2Fapi/login",
        "/x%2F..%2Fapi%2Flogin",
        "/x/../api/login",
        "/x/%2e%2e/api/login",
        "/api/x/../login",
        "/api/login/.",
        "/api;x/login",
        "/api/login;x=1",
        "/x/..;/api/login",
        "/api\\login",
        "/api%5clogin",
        "http://shop.example/api/login",
        "http://shop.example//api/login",
        // Not the login, but below /api.
        "/api/x%2F..%2F..%2Fy",
        "/api%2F..%2Fy",
        "/api/..%2Fy",
    ] {
        let response = get(gateway, target, "").await;
        assert_eq!((status(&response), received(&response)), ("429", None), "{target}: {response}");
    }
    // What is forwarded has left /api, for every server.
    for target in ["/api/../x", "/api/%2e%2e/x", "/api/y/../../x"] {
        assert_eq!(received(&get(gateway, target, "").await), Some("/x"), "{target}");
    }
}

#[tokio::test]
async fn a_target_that_cannot_be_judged_is_refused() {
    let gateway = gateway_with_rules(RULES).await;
    for target in ["/a;b%2Fc\\d", "/a%2525252Fb", "*", "/a%2F..%2F%2Fb"] {
        let response = get(gateway, target, "").await;
        assert_eq!(status(&response), "400", "{target}: {response}");
        assert!(response.ends_with("\"}") && response.contains(r#"{"error":"bad_request","message":""#), "{response}");
    }
    // Without a rule that reads paths there is nothing to avoid.
    let gateway = crate::gateway::gateway(mirror()).await;
    assert_eq!(received(&get(gateway, "/a;b%2Fc\\d", "").await), Some("/a;b%2Fc\\d"));
}

#[tokio::test]
async fn no_malformed_target_reaches_the_upstream_as_another_path() {
    let gateway = gateway_with_rules(RULES).await;
    assert_eq!(status(&get(gateway, "/api/login", "").await), "200");
    for target in
        ["api/login", "/api/login#top", "/api/log\u{7f}in", "/api/login\u{0}", "?/api/login", "/api/%6cogin#/x"]
    {
        let response = get(gateway, target, "").await;
        let path = received(&response).map(|target| target.split('?').next().unwrap_or_default());
        assert!(path.is_none_or(|path| !path.starts_with("/api")), "{target}: {response}");
    }
    for target in ["/100%", "/%zz", "/a%ff"] {
        assert_eq!(received(&get(gateway, target, "").await), Some(target));
    }
}

#[tokio::test]
async fn escaped_slashes_are_refused_or_decoded_if_the_rules_say_so() {
    let reject = gateway_with_rules(&RULES.replace("exempt:", "identify: { escaped_slashes: reject }\nexempt:")).await;
    for target in ["/projects/group%2Fname", "/a%252fb"] {
        let response = get(reject, target, "").await;
        assert_eq!(status(&response), "400", "{target}: {response}");
    }
    assert_eq!(received(&get(reject, "/a%20b", "").await), Some("/a%20b"));

    let decode = gateway_with_rules(&RULES.replace("exempt:", "identify: { escaped_slashes: decode }\nexempt:")).await;
    for (target, expected) in [
        ("/projects/group%2Fname?a%2Fb", "/projects/group/name?a%2Fb"),
        ("/a%252fb", "/a/b"),
        ("/a%2F..%2Fb", "/b"),
        ("/healthz%2F", "/healthz/"),
    ] {
        assert_eq!(received(&get(decode, target, "").await), Some(expected), "{target}");
    }
    assert_eq!(received(&get(decode, "/api%2Flogin", "").await), Some("/api/login"));
    assert_eq!(status(&get(decode, "/api%2Flogin", "").await), "429");
}

#[tokio::test]
async fn a_known_method_in_other_letters_is_refused() {
    let gateway = gateway_with_rules(RULES).await;
    let send = async |method: &str| {
        exchange(
            gateway,
            &format!("{method} /free HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"),
        )
        .await
    };
    for method in ["post", "Get", "oPTIONS", "delete", "connect"] {
        let response = send(method).await;
        assert_eq!(status(&response), "400", "{method}: {response}");
    }
    for method in ["POST", "PURGE", "FOO", "foo"] {
        let response = send(method).await;
        assert!(response.contains(&format!("{method} /free HTTP/1.1\n")), "{method}: {response}");
    }
}

#[tokio::test]
async fn http_2_paths_are_canonical_too() {
    let gateway = gateway_with_rules(RULES).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Empty<Bytes>>();
    let send = async |path: &str| {
        let response = client.get(format!("http://{gateway}{path}").parse().unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).lines().next().unwrap_or_default().to_owned())
    };
    assert_eq!(send("/x/../free").await, (200, "GET /free HTTP/1.1".to_owned()));
    assert_eq!(send("/api/login").await.0, 200);
    for path in ["/api%2Flogin", "/x/../api/login", "//api/login", "/api;x/login", "/api\\login"] {
        assert_eq!(send(path).await.0, 429, "{path}");
    }
    assert_eq!(send("/a;b%2Fc\\d").await.0, 400);
}
