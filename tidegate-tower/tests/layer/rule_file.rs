//! Rule files: the layer provides every attribute that a file can read.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::routing::{any, post};
use axum::{Extension, Router};
use http::request::Builder;
use http::{Request, StatusCode};
use tidegate::spi::BodyNeed;
use tidegate::{Limiter, ManualClock, MemoryStore, RuleSet};
use tidegate_rules::RuleFile;
use tidegate_tower::{AssumedBodySize, BufferBody, Handle, LimitLayer};

use crate::layer::request_bodies::Chunks;
use crate::layer::{START, send};

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
    let store = Arc::new(MemoryStore::new().with_clock(ManualClock::starting_at(START)));
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

/// A body must be read, or streamed, for the request that is decided and forwarded.
#[test]
fn whether_a_body_is_read_depends_on_the_canonical_path() {
    let body_rule = |id: &str, path: &str| {
        format!(
            " - {{ id: {id}, match: {{ path: '{path}' }}, per: ['body:account'], token_bucket: {{ capacity: 1, refill: 1/h }} }}\n"
        )
    };
    let text = format!("version: 1\nrules:\n{}{}", body_rule("files", "/files/*"), body_rule("login", "/login"));
    let layer = LimitLayer::new(Limiter::new(rules(&text), MemoryStore::new()));
    let need = |layer: &LimitLayer<_>, target: &str| {
        let (mut parts, ()) = Request::post(target).body(()).unwrap().into_parts();
        (layer.body_need(&mut parts), parts.uri.to_string())
    };
    let canonical = layer.clone().with_canonical_paths(true);
    for (target, expected) in [
        ("/files/../login?a", (BodyNeed::Enforced, "/login?a")),
        ("/files/../public", (BodyNeed::None, "/public")),
        ("/files/x%2F..", (BodyNeed::Enforced, "/files/x%2F..")),
        ("/a;b%2Fc\\login", (BodyNeed::None, "/a;b%2Fc\\login")),
    ] {
        let (body_need, uri) = need(&canonical, target);
        assert_eq!((body_need, uri.as_str()), expected, "{target}");
    }
    assert_eq!(need(&layer, "/files/../public"), (BodyNeed::Enforced, "/files/../public".to_owned()));
}

fn from_peer(peer: &str, request: Builder) -> Builder {
    request.extension(format!("{peer}:5000").parse::<SocketAddr>().unwrap())
}

async fn status(app: &Router, request: Builder, body: &'static str) -> StatusCode {
    send(app, request.body(Body::from(body)).unwrap()).await.status
}

/// Sends five requests and counts those that are allowed.
async fn count_allowed(app: &Router, request: impl Fn() -> Builder, body: &'static str) -> usize {
    let mut allowed = 0;
    for _ in 0..5 {
        allowed += usize::from(status(app, request(), body).await == StatusCode::OK);
    }
    allowed
}

#[tokio::test]
async fn clients_are_identified_as_the_rule_file_says() {
    let app = app();
    let by = |name: &'static str, value: &'static str| move || Request::get("/api/rides").header(name, value);
    assert_eq!(count_allowed(&app, by("x-api-key", "k1"), "").await, 2);
    assert_eq!(count_allowed(&app, by("cookie", "theme=dark; session=s1"), "").await, 2);
    assert_eq!(count_allowed(&app, by("cookie", "session=s1; theme=light"), "").await, 0);
    assert_eq!(count_allowed(&app, || from_peer("203.0.113.9", Request::get("/api/rides/")), "").await, 2);
    let behind = || from_peer("10.0.0.1", Request::get("/api/x").header("x-forwarded-for", "1.1.1.1, 203.0.113.9"));
    assert_eq!(count_allowed(&app, behind, "").await, 0, "the same address, behind a proxy");
    let spoofed = || from_peer("203.0.113.9", Request::get("/api/x").header("x-forwarded-for", "198.51.100.7"));
    assert_eq!(count_allowed(&app, spoofed, "").await, 0);
    assert_eq!(count_allowed(&app, || Request::get("/healthz"), "").await, 5);
}

#[tokio::test]
async fn rules_read_claims_query_parameters_and_bodies() {
    let app = app();
    let token = |claims: &'static str| {
        move || Request::put("http://eu.example.com/x").header("authorization", format!("Bearer e30.{claims}."))
    };
    assert_eq!(count_allowed(&app, token("eyJvcmciOiJhY21lIn0"), "").await, 1);
    assert_eq!(count_allowed(&app, token("eyJvcmciOiJibHVlIn0"), "").await, 1);
    assert_eq!(count_allowed(&app, || Request::get("/search?page=1"), "").await, 1);
    assert_eq!(count_allowed(&app, || Request::get("/search?x=y&page=2"), "").await, 1);
    let login = || Request::post("/login").header("content-type", "application/json");
    assert_eq!(count_allowed(&app, login, r#"{"account":"a7","password":"x"}"#).await, 1);
    assert_eq!(count_allowed(&app, login, r#"{"account":"a8","password":"x"}"#).await, 1);
}

#[tokio::test]
async fn responses_have_the_headers_and_bodies_of_the_rule_file() {
    let app = app();
    let login = || Request::post("/login").header("content-type", "application/json").body(Body::from("{}")).unwrap();
    assert_eq!(send(&app, login()).await.status, StatusCode::OK);
    let denied = send(&app, login()).await;
    assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("600")));
    assert!(!denied.headers.keys().any(|name| name.as_str().contains("ratelimit")));
    assert!(!denied.body.contains("accounts"), "{}", denied.body);
    let allowed = send(&app, Request::get("/api/x").header("x-api-key", "k9").body(Body::empty()).unwrap()).await;
    assert_eq!(
        (allowed.header("x-ratelimit-remaining"), allowed.header("x-ratelimit-reset")),
        (Some("1"), Some("3600"))
    );
    assert_eq!(allowed.header("ratelimit"), None);
}

#[tokio::test]
async fn the_response_header_that_a_rule_names_corrects_the_cost() {
    let app = app();
    let chat = || Request::post("/chat").body(Body::empty()).unwrap();
    assert_eq!(send(&app, chat()).await.header("x-ratelimit-remaining"), Some("900"), "at the time of the decision");
    assert_eq!(send(&app, chat()).await.header("x-ratelimit-remaining"), Some("650"), "250 of the first, and 100");
}

/// Regression: a layer that kept headers and cost header of the first file would mix two files after a reload.
#[tokio::test]
async fn a_reload_applies_the_headers_and_costs_of_the_new_file() {
    let (app, handle) = app_and_handle();
    let chat = || Request::post("/chat").body(Body::empty()).unwrap();
    assert_eq!(send(&app, chat()).await.header("x-ratelimit-remaining"), Some("900"));

    let changed = FILE.replace("{ x_ratelimit: delta, ratelimit: off }", "{ x_ratelimit: off }");
    handle.replace(handle.limiter().with_rules(rules(&changed.replace("x-tokens-used", "x-units"))));
    let response = send(&app, chat()).await;
    assert_eq!(response.header("x-ratelimit-remaining"), None);
    assert!(
        response.header("ratelimit").unwrap().starts_with(r#""tokens";r=650;"#),
        "250 of the first, and 100: {response:?}"
    );
    let response = send(&app, chat()).await;
    assert!(
        response.header("ratelimit").unwrap().starts_with(r#""tokens";r=610;"#),
        "40 of the second, and 100: {response:?}"
    );

    handle.replace(handle.limiter().with_rules(rules(&changed.replace(", actual: x-tokens-used", ""))));
    send(&app, chat()).await;
    let response = send(&app, chat()).await;
    assert!(
        response.header("ratelimit").unwrap().starts_with(r#""tokens";r=470;"#),
        "no cost is corrected: {response:?}"
    );
}

#[tokio::test]
async fn a_host_is_the_same_in_every_spelling_but_not_with_an_invalid_port() {
    const HOSTS: &str = "
version: 1
rules:
  - { id: shop, match: { host: shop.example }, per: [host], sliding_log: { limit: 1, window: 30d }, on_failure: open }
";
    let layer =
        LimitLayer::new(Limiter::new(rules(HOSTS), MemoryStore::new().with_clock(ManualClock::starting_at(START))));
    let app = crate::layer::app(layer);
    let header = |host: &str| Request::get("/").header("host", host);
    let target = |host: &str| Request::get(format!("http://{host}/")).header("host", "other.example");
    assert_eq!(status(&app, header("shop.example"), "").await, StatusCode::OK, "the first request takes the only unit");
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

/// Which of the values the application reads, the rules cannot know.
#[tokio::test]
async fn a_value_that_comes_twice_gets_400_and_consumes_nothing() {
    let app = app();
    let keys = || Request::get("/api/a").header("x-api-key", "a").header("x-api-key", "b");
    let response = send(&app, keys().body(Body::empty()).unwrap()).await;
    assert_eq!(response.status, StatusCode::BAD_REQUEST);
    assert_eq!(response.json()["error"], "bad_request");
    assert!(response.body.contains("header:x-api-key") && response.header("ratelimit").is_none(), "{response:?}");
    let problem = keys().header("accept", "application/problem+json").body(Body::empty()).unwrap();
    assert_eq!(send(&app, problem).await.json()["status"], 400);
    let grpc = send(&app, keys().header("content-type", "application/grpc").body(Body::empty()).unwrap()).await;
    assert_eq!((grpc.status, grpc.header("grpc-status")), (StatusCode::OK, Some("3")));
    assert_eq!(status(&app, Request::get("/search?page=1&page=2"), "").await, StatusCode::BAD_REQUEST);
    for key in ["a", "b"] {
        for expected in [StatusCode::OK, StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            assert_eq!(status(&app, Request::get("/api/a").header("x-api-key", key), "").await, expected);
        }
    }
}

#[tokio::test]
async fn each_of_two_cookies_of_one_name_is_counted() {
    let app = app();
    let request = |cookie: &'static str| Request::get("/api/a").header("cookie", cookie);
    assert_eq!(status(&app, request("session=a"), "").await, StatusCode::OK);
    assert_eq!(status(&app, request("session=a; session=b"), "").await, StatusCode::OK);
    assert_eq!(status(&app, request("session=b; session=a"), "").await, StatusCode::TOO_MANY_REQUESTS, "a is used up");
    assert_eq!(status(&app, request("session=b"), "").await, StatusCode::OK, "a denied request counts for neither");
    assert_eq!(status(&app, request("session=b"), "").await, StatusCode::TOO_MANY_REQUESTS);
}

const SIZES: &str = "
version: 1
http: { x_ratelimit: delta }
unknown_size: 40
rules:
  - { id: upload, per: [], cost: 1 + request.size / 10, token_bucket: { capacity: 100, refill: 1/h } }
";

/// A body of twenty bytes that does not say so.
fn stream() -> Body {
    Chunks::new_body(&[Ok("0123456789"), Ok("0123456789")])
}

/// An application that reads the whole body, and states its size if it was assumed.
fn upload_app(file: &str) -> Router {
    let store = Arc::new(MemoryStore::new().with_clock(ManualClock::starting_at(START)));
    let page = any(async |assumed: Option<Extension<AssumedBodySize>>, body: Bytes| match assumed {
        Some(Extension(assumed)) => {
            assumed.set_actual(body.len() as u64);
            ([("x-used", "4")], format!("at most {:?}", assumed.max_bytes()))
        }
        None => ([("x-used", "")], "known".into()),
    });
    let silent = any(async |_body: Bytes| "read");
    Router::new().route("/", page).route("/silent", silent).layer(LimitLayer::new(Limiter::new(rules(file), store)))
}

#[tokio::test]
async fn a_body_costs_by_its_size_and_one_without_a_length_by_the_size_that_is_assumed() {
    let app = upload_app(SIZES);
    let remaining = async |request: Request<Body>| {
        let response = send(&app, request).await;
        (response.header("x-ratelimit-remaining").unwrap().parse::<u64>().unwrap(), response.body)
    };
    let post = |body: Body| Request::post("/").body(body).unwrap();
    assert_eq!(remaining(Request::get("/").body(Body::empty()).unwrap()).await, (99, "known".into()));
    assert_eq!(remaining(post(Body::empty())).await, (98, "known".into()));
    assert_eq!(remaining(post(Body::from("x".repeat(20)))).await, (95, "known".into()));
    assert_eq!(remaining(post(stream())).await, (90, "at most Some(40)".into()));
    assert_eq!(remaining(post(Body::empty())).await.0, 91, "two were given back");
    let silent = Request::post("/silent").body(stream()).unwrap();
    assert_eq!((remaining(silent).await.0, remaining(post(Body::empty())).await.0), (86, 85), "nothing was given back");
}

#[tokio::test]
async fn an_assumed_size_is_corrected_for_each_rule_of_a_budget_and_a_stated_cost_comes_first() {
    let bucket = "token_bucket: { capacity: 100, refill: 1/h }";
    let file = format!(
        "version: 1
http: {{ x_ratelimit: delta }}
unknown_size: 40
rules:
  - {{ id: requests, per: [], budget: units, cost: 2, {bucket} }}
  - {{ id: bytes, per: [], budget: units, cost: 1 + request.size / 10, {bucket} }}
"
    );
    let stated = "expression: 1 + request.size / 10, actual: x-used";
    let stated = SIZES.replace("cost: 1 + request.size / 10", &format!("cost: {{ {stated} }}"));
    for (file, expected) in [(file, ["93", "92"]), (stated, ["95", "95"])] {
        let app = upload_app(&file);
        for (body, expected) in [stream(), Body::empty()].into_iter().zip(expected) {
            let response = send(&app, Request::post("/").body(body).unwrap()).await;
            assert_eq!(response.header("x-ratelimit-remaining"), Some(expected), "{file}");
        }
    }
}
