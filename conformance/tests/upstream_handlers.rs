//! The gateway in front of real servers that read paths in their own ways: whatever handler a request reaches, the limit of that
//! handler's path has counted it.
//!
//! ```text
//! client ──▶ gateway with a used-up limit ──▶ nginx │ Flask, which name the handler and the path that they received
//! ```

mod upstream;

use std::net::SocketAddr;

use conformance::http_client::HttpClient;
use conformance::suite::start_gateway;
use tidegate::{Limiter, MemoryStore};
use tidegate_rules::RuleFile;
use tidegate_tower::LimitLayer;

use upstream::Upstream;

const RULES: &str = "
version: 1
exempt: [{ path: /healthz }]
rules:
  - { id: login, match: { path: /api/login }, per: [], fixed_window: { limit: 1, window: 365d } }
  - { id: api, match: { path: '/api/*' }, per: [], fixed_window: { limit: 1, window: 365d } }
";

/// Texts of which paths are made: names, separators, dots, and everything that servers read differently.
const PARTS: [&str; 22] = [
    "/", "/", "/", "api", "login", "healthz", "x", "%2F", "%2f", "%252F", "//", "..", ".", "%2e%2e", "%252e", ";",
    ";x=1", "\\", "%5C", "%61pi", "%25", "%",
];

/// The response to a request through the gateway.
struct GatewayResponse {
    status: u16,
    /// The handler that the request reached, and the target that it received.
    reached: Option<(String, String)>,
}

async fn gateway(upstream: SocketAddr) -> SocketAddr {
    let rules = RuleFile::parse("rules.yaml", RULES).unwrap().rules().clone();
    let layer = LimitLayer::new(Limiter::new(rules, MemoryStore::new()));
    start_gateway(upstream, layer).await.0
}

async fn send(gateway: SocketAddr, method: &str, target: &str) -> GatewayResponse {
    let text = format!("{method} {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let response = HttpClient::default().send(gateway, text.as_bytes()).await.unwrap();
    let body = response.text();
    let reached = body.strip_prefix("handler ").and_then(|reached| reached.trim().split_once(' '));
    GatewayResponse {
        status: response.status,
        reached: reached.map(|(handler, target)| (handler.to_owned(), target.to_owned())),
    }
}

/// Sends the one request that the limits admit, then every other spelling: none may reach a limited handler.
async fn assert_no_spelling_reaches_a_limited_handler(upstream: &Upstream) {
    let gateway = gateway(upstream.address).await;
    let first = send(gateway, "GET", "/api/login").await;
    assert_eq!(first.reached, Some(("login".to_owned(), "/api/login".to_owned())), "{}", first.status);
    for target in [
        "/api/login",
        "/api/login/",
        "/api%2Flogin",
        "/%61pi/login",
        "/%2Fapi/login",
        "/x%2F..%2Fapi%2Flogin",
        "/x/../api/login",
        "//api/login",
        "/api;x/login",
        "/api\\login",
        "/api%252Flogin",
        "/api%2F..%2Fx",
        "/api/x%2F..%2F..%2Fhealthz",
        "http://a/api/login",
    ] {
        assert_not_limited(target, &send(gateway, "GET", target).await);
    }
    for method in ["get", "Get", "post"] {
        assert_eq!(send(gateway, method, "/api/login").await.status, 400, "{method}");
    }
    // Dots are resolved before the decision, so every server sees the path that was exempt.
    let exempt = send(gateway, "GET", "/api/files/big/../../../healthz").await;
    assert_eq!(exempt.reached, Some(("healthz".to_owned(), "/healthz".to_owned())));
    let outside = send(gateway, "GET", "/api/../x").await;
    assert_eq!(outside.reached, Some(("other".to_owned(), "/x".to_owned())));

    let mut random = fastrand::Rng::with_seed(0x5EED);
    for _ in 0..1_500 {
        let parts = (0..random.usize(1..9)).map(|_| PARTS[random.usize(..PARTS.len())]);
        let target = format!("/{}", parts.collect::<String>());
        assert_not_limited(&target, &send(gateway, "GET", &target).await);
    }
}

fn assert_not_limited(target: &str, response: &GatewayResponse) {
    let limited = |(handler, _): &&(String, String)| handler == "login" || handler == "api";
    assert_eq!(response.reached.as_ref().filter(limited), None, "{target}: {}", response.status);
}

async fn assert_legitimate_paths_are_forwarded_as_written(upstream: &Upstream) {
    let gateway = gateway(upstream.address).await;
    for target in ["/projects/group%2Fname", "/projects/group%2fname", "/matrix;a=1/x", "/a%5Cb", "/caf%c3%a9"] {
        let response = send(gateway, "GET", target).await;
        assert_eq!(response.reached, Some(("other".to_owned(), target.to_owned())), "{}", response.status);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_is_not_reached_past_a_limit() {
    let nginx = Upstream::start_nginx();
    assert_no_spelling_reaches_a_limited_handler(&nginx).await;
    assert_legitimate_paths_are_forwarded_as_written(&nginx).await;
}

/// Flask needs packages of Python; `make prove` runs it.
mod prove {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn flask_is_not_reached_past_a_limit() {
        let flask = Upstream::start_flask();
        assert_no_spelling_reaches_a_limited_handler(&flask).await;
        assert_legitimate_paths_are_forwarded_as_written(&flask).await;
    }
}
