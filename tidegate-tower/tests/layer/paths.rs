//! Paths that the application may read in several ways, and methods in other letters.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request as AxumRequest;
use axum::routing::any;
use http::{Request, StatusCode};
use tidegate::{Limiter, ManualClock, MemoryStore};
use tidegate_rules::RuleFile;
use tidegate_tower::LimitLayer;

use crate::layer::{START, TestResponse, send};

const RULES: &str = "
version: 1
exempt: [{ path: /healthz }]
rules:
  - { id: login, match: { path: /api/login }, per: [], fixed_window: { limit: 1, window: 1h } }
  - { id: files, match: { path: '/files/*' }, per: [], fixed_window: { limit: 1, window: 1h } }
";

fn layer(rules: &str) -> LimitLayer<Arc<MemoryStore>> {
    let rules = RuleFile::parse("rules.yaml", rules).unwrap().rules().clone();
    LimitLayer::new(Limiter::new(rules, Arc::new(MemoryStore::new().with_clock(ManualClock::starting_at(START)))))
}

/// An application whose handler returns the path that it receives.
fn app(layer: LimitLayer<Arc<MemoryStore>>) -> Router {
    Router::new()
        .route("/files/{*rest}", any(async |request: AxumRequest| format!("file {}", request.uri())))
        .fallback(any(async |request: AxumRequest| request.uri().to_string()))
        .layer(layer)
}

async fn get(app: &Router, path: &str) -> TestResponse {
    send(app, Request::get(path).body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn no_spelling_of_a_path_avoids_its_limit() {
    let app = app(layer(RULES));
    assert_eq!(get(&app, "/api/login").await.status, StatusCode::OK);
    for path in [
        "/%61pi/login",
        "/api%2Flogin",
        "/api%252Flogin",
        "//api/login",
        "/x%2F..%2Fapi%2Flogin",
        "/x/../api/login",
        "/api;x/login",
        "/api\\login",
        "http://host/api/login",
    ] {
        assert_eq!(get(&app, path).await.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
}

/// axum routes the path as it is, before the layer sees it: `/files/../x` reaches the handler of files.
#[tokio::test]
async fn a_path_with_dots_counts_before_and_after_they_are_resolved() {
    let app = app(layer(RULES));
    let first = get(&app, "/files/../x").await;
    assert_eq!((first.status, first.body.as_str()), (StatusCode::OK, "file /files/../x"));
    for path in ["/files/../x", "/files/a", "/files/../../healthz", "/x/../files/a"] {
        assert_eq!(get(&app, path).await.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    assert_eq!(get(&app, "/healthz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_inner_service_receives_the_canonical_path_if_the_layer_says_so() {
    let app = |rules: &str| app(layer(rules).with_canonical_paths(true));
    assert_eq!(get(&app(RULES), "/a/../b%2Fc?d=/../e").await.body, "/b%2Fc?d=/../e");
    let decode = RULES.replace("exempt:", "identify: { escaped_slashes: decode }\nexempt:");
    assert_eq!(get(&app(&decode), "/a/../b%2Fc?d=%2F").await.body, "/b/c?d=%2F");
    let as_it_is = crate::layer::paths::app(layer(&decode));
    assert_eq!(get(&as_it_is, "/a/../b%2Fc").await.body, "/a/../b%2Fc");
}

#[tokio::test]
async fn a_request_that_cannot_be_judged_is_refused() {
    let app = app(layer(RULES));
    let reject =
        crate::layer::paths::app(layer(&RULES.replace("exempt:", "identify: { escaped_slashes: reject }\nexempt:")));
    let refused = [
        send(&app, Request::builder().method("post").uri("/free").body(Body::empty()).unwrap()).await,
        get(&app, "*").await,
        get(&app, "/a;b%2Fc\\d").await,
        get(&reject, "/a%2Fb").await,
    ];
    for response in refused {
        assert_eq!((response.status, &response.json()["error"]), (StatusCode::BAD_REQUEST, &"bad_request".into()));
        assert!(response.json()["message"].as_str().is_some_and(|message| message.ends_with('.')), "{response:?}");
    }
    let unknown = Request::builder().method("foo").uri("/free").body(Body::empty()).unwrap();
    assert_eq!(send(&app, unknown).await.status, StatusCode::OK);
}
