//! A rule file behind a real door: what a file can read, the layer brings.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::{any, post};
use http::request::Builder;
use http::{Request, StatusCode};
use tidegate::{Limiter, ManualClock, MemoryStore, RuleSet};
use tidegate_rules::RuleFile;
use tidegate_tower::{BufferBody, Handle, LimitLayer};

use crate::{START, ask};

const FILE: &str = "
version: 1
identify:
  client: [header:x-api-key, 'cookie:session', ip]
  tenant: claim:org
  authenticated: [x-api-key, authorization]
  trusted_proxies: [10.0.0.0/8]
exempt: [{ path: /healthz }]
http: { x_ratelimit: delta, ratelimit: off }
rules:
  - { id: clients, match: { path: '/api/*' }, per: [client], token_bucket: { capacity: 2, refill: 1/h } }
  - { id: tenants, match: { method: PUT, host: '*.example.com' }, per: [tenant], token_bucket: { capacity: 1, refill: 1/h } }
  - { id: accounts, match: { path: /login }, per: ['body:account'], sliding_log: { limit: 1, window: 10m }, security: true, on_failure: closed }
  - { id: pages, match: { path: /search }, per: ['query:page'], token_bucket: { capacity: 1, refill: 1/h } }
  - { id: tokens, match: { path: /chat }, per: [], cost: { default: 100, actual: x-tokens-used }, token_bucket: { capacity: 1000, refill: 1/h } }
";

fn app() -> Router {
    app_and_handle().0
}

fn app_and_handle() -> (Router, Handle<Arc<MemoryStore>>) {
    let store = Arc::new(MemoryStore::new().with_clock(ManualClock::at(START)));
    let layer = LimitLayer::new(Limiter::new(rules(FILE), store));
    let handle = layer.handle();
    let app = Router::new()
        .route("/chat", post(async || ([("x-tokens-used", "250"), ("x-units", "40")], "an answer")))
        .fallback(any(async || "hello"))
        .layer(layer)
        .layer(BufferBody::new());
    (app, handle)
}

fn rules(text: &str) -> RuleSet {
    RuleFile::parse("rules.yaml", text).unwrap().rules().clone()
}

fn from(peer: &str, request: Builder) -> Builder {
    request.extension(format!("{peer}:5000").parse::<SocketAddr>().unwrap())
}

async fn status(app: &Router, request: Builder, body: &'static str) -> StatusCode {
    ask(app, request.body(Body::from(body)).unwrap()).await.status
}

/// How many of five requests pass.
async fn passes(app: &Router, request: impl Fn() -> Builder, body: &'static str) -> usize {
    let mut passed = 0;
    for _ in 0..5 {
        passed += usize::from(status(app, request(), body).await == StatusCode::OK);
    }
    passed
}

#[tokio::test]
async fn clients_are_told_apart_as_the_file_says() {
    let app = app();
    let by = |name: &'static str, value: &'static str| move || Request::get("/api/rides").header(name, value);
    assert_eq!(passes(&app, by("x-api-key", "k1"), "").await, 2);
    assert_eq!(passes(&app, by("cookie", "theme=dark; session=s1"), "").await, 2);
    assert_eq!(passes(&app, by("cookie", "session=s1; theme=light"), "").await, 0);
    assert_eq!(passes(&app, || from("203.0.113.9", Request::get("/api//rides")), "").await, 2);
    let behind = || from("10.0.0.1", Request::get("/api/x").header("x-forwarded-for", "1.1.1.1, 203.0.113.9"));
    assert_eq!(passes(&app, behind, "").await, 0, "the same address, behind a proxy");
    let spoofed = || from("203.0.113.9", Request::get("/api/x").header("x-forwarded-for", "198.51.100.7"));
    assert_eq!(passes(&app, spoofed, "").await, 0);
    assert_eq!(passes(&app, || Request::get("/healthz"), "").await, 5);
}

#[tokio::test]
async fn tokens_queries_and_bodies_are_read() {
    let app = app();
    let token = |claims: &'static str| {
        move || Request::put("http://eu.example.com/x").header("authorization", format!("Bearer e30.{claims}."))
    };
    assert_eq!(passes(&app, token("eyJvcmciOiJhY21lIn0"), "").await, 1);
    assert_eq!(passes(&app, token("eyJvcmciOiJibHVlIn0"), "").await, 1);
    assert_eq!(passes(&app, || Request::get("/search?page=1"), "").await, 1);
    assert_eq!(passes(&app, || Request::get("/search?x=y&page=2"), "").await, 1);
    let login = || Request::post("/login").header("content-type", "application/json");
    assert_eq!(passes(&app, login, r#"{"account":"a7","password":"x"}"#).await, 1);
    assert_eq!(passes(&app, login, r#"{"account":"a8","password":"x"}"#).await, 1);
}

#[tokio::test]
async fn answers_are_those_of_the_file() {
    let app = app();
    let login = || Request::post("/login").header("content-type", "application/json").body(Body::from("{}")).unwrap();
    assert_eq!(ask(&app, login()).await.status, StatusCode::OK);
    let denied = ask(&app, login()).await;
    assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("600")));
    assert!(!denied.headers.keys().any(|name| name.as_str().contains("ratelimit")));
    assert!(!denied.body.contains("accounts"), "{}", denied.body);
    let allowed = ask(&app, Request::get("/api/x").header("x-api-key", "k9").body(Body::empty()).unwrap()).await;
    assert_eq!(
        (allowed.header("x-ratelimit-remaining"), allowed.header("x-ratelimit-reset")),
        (Some("1"), Some("3600"))
    );
    assert_eq!(allowed.header("ratelimit"), None);
}

#[tokio::test]
async fn the_response_tells_what_a_request_cost() {
    let app = app();
    let chat = || Request::post("/chat").body(Body::empty()).unwrap();
    assert_eq!(ask(&app, chat()).await.header("x-ratelimit-remaining"), Some("900"), "as it was decided");
    assert_eq!(ask(&app, chat()).await.header("x-ratelimit-remaining"), Some("650"), "250 of the first, and 100");
}

/// Trap: a layer that takes the fields and the header of the cost from the first file goes on with them after a reload, half
/// one file and half another.
#[tokio::test]
async fn a_reload_brings_the_fields_and_the_costs_of_the_new_file() {
    let (app, handle) = app_and_handle();
    let chat = || Request::post("/chat").body(Body::empty()).unwrap();
    assert_eq!(ask(&app, chat()).await.header("x-ratelimit-remaining"), Some("900"));

    let changed = FILE.replace("{ x_ratelimit: delta, ratelimit: off }", "{ x_ratelimit: off }");
    handle.replace(handle.limiter().with_rules(rules(&changed.replace("x-tokens-used", "x-units"))));
    let heard = ask(&app, chat()).await;
    assert_eq!(heard.header("x-ratelimit-remaining"), None);
    assert!(
        heard.header("ratelimit").unwrap().starts_with(r#""tokens";r=650;"#),
        "250 of the first, and 100: {heard:?}"
    );
    let heard = ask(&app, chat()).await;
    assert!(
        heard.header("ratelimit").unwrap().starts_with(r#""tokens";r=610;"#),
        "40 of the second, and 100: {heard:?}"
    );

    handle.replace(handle.limiter().with_rules(rules(&changed.replace(", actual: x-tokens-used", ""))));
    ask(&app, chat()).await;
    let heard = ask(&app, chat()).await;
    assert!(heard.header("ratelimit").unwrap().starts_with(r#""tokens";r=470;"#), "nothing is settled: {heard:?}");
}

#[tokio::test]
async fn a_host_is_the_same_in_every_spelling_and_a_wrong_port_makes_another() {
    const HOSTS: &str = "
version: 1
rules:
  - { id: shop, match: { host: shop.example }, per: [host], sliding_log: { limit: 1, window: 30d }, on_failure: open }
";
    let layer = LimitLayer::new(Limiter::new(rules(HOSTS), MemoryStore::new().with_clock(ManualClock::at(START))));
    let app = crate::app(layer);
    let header = |host: &str| Request::get("/").header("host", host);
    let target = |host: &str| Request::get(format!("http://{host}/")).header("host", "other.example");
    assert_eq!(status(&app, header("shop.example"), "").await, StatusCode::OK, "the first takes the only unit");
    for host in ["shop.example", "SHOP.Example", "shop.example:8080", "shop.example:", "shop.example."] {
        assert_eq!(status(&app, header(host), "").await, StatusCode::TOO_MANY_REQUESTS, "{host}");
        assert_eq!(status(&app, target(host), "").await, StatusCode::TOO_MANY_REQUESTS, "{host}");
    }
    for host in ["shop.example:b", "shop.example..", "a.shop.example", "[2001:db8::1]:80"] {
        assert_eq!(status(&app, header(host), "").await, StatusCode::OK, "{host}");
        assert_eq!(status(&app, target(host), "").await, StatusCode::OK, "{host}");
    }
    for host in ["shop.example:80:80", "shop.example:80, shop.example"] {
        assert_eq!(status(&app, header(host), "").await, StatusCode::OK, "{host}");
    }
}
