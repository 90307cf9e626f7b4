//! Whom a request counts as.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::routing::get;
use tidegate::Rule;
use tidegate_tower::{Attributes, LimitLayer, Peer};

use crate::{app, ask, at_once, from, limiter};

async fn status(app: &Router, request: http::Request<Body>) -> u16 {
    ask(app, request).await.status.as_u16()
}

#[tokio::test]
async fn callers_are_told_apart_by_a_header() {
    let app = app(LimitLayer::new(limiter([Rule::new("api", at_once(1)).with_per(["header:x-key"])])));
    assert_eq!([status(&app, from("k1")).await, status(&app, from("k1")).await], [200, 429]);
    assert_eq!([status(&app, from("k2")).await, status(&app, from("k2")).await], [200, 429]);
}

#[tokio::test]
async fn a_caller_who_names_nobody_is_limited_all_the_same() {
    let app = app(LimitLayer::new(limiter([Rule::new("api", at_once(1)).with_per(["header:x-key", "user", "ip"])])));
    let nobody = || Request::get("/").body(Body::empty()).unwrap();
    assert_eq!([status(&app, nobody()).await, status(&app, nobody()).await], [200, 429]);
}

/// A caller who adds a second line to a header that the proxy sets is neither the first nor the second holder of a key.
#[tokio::test]
async fn a_spoofed_line_moves_nobody() {
    let app = app(LimitLayer::new(limiter([Rule::new("api", at_once(1)).with_per(["header:x-key"])])));
    let spoofed = || Request::get("/").header("x-key", "k1").header("x-key", "k2").body(Body::empty()).unwrap();
    assert_eq!([status(&app, spoofed()).await, status(&app, spoofed()).await], [200, 429]);
    assert_eq!([status(&app, from("k1")).await, status(&app, from("k2")).await], [200, 200]);
}

#[tokio::test]
async fn a_forwarded_header_is_not_the_peer() {
    let app = app(LimitLayer::new(limiter([Rule::new("api", at_once(1)).with_per(["ip"])])));
    let forwarded = |client: &str| {
        let peer = Peer([203, 0, 113, 9].into());
        Request::get("/").header("x-forwarded-for", client).extension(peer).body(Body::empty()).unwrap()
    };
    assert_eq!([status(&app, forwarded("1.1.1.1")).await, status(&app, forwarded("2.2.2.2")).await], [200, 429]);
}

#[tokio::test]
async fn the_user_comes_from_earlier_middleware() {
    let layer = LimitLayer::new(limiter([Rule::new("api", at_once(1)).with_per(["user"])]));
    // Stands for authentication: the user behind a key.
    let authenticate = async |mut request: Request, next: Next| {
        let user = if request.headers()["x-key"] == "k3" { "ben" } else { "ann" };
        request.extensions_mut().get_or_insert_default::<Attributes>().insert("user", user);
        next.run(request).await
    };
    let app =
        Router::new().route("/", get(async || "hello")).layer(layer).layer(axum::middleware::from_fn(authenticate));
    assert_eq!(
        [status(&app, from("k1")).await, status(&app, from("k2")).await, status(&app, from("k3")).await],
        [200, 429, 200]
    );
}

#[tokio::test]
async fn the_layer_can_be_told_who_the_user_is() {
    let layer = LimitLayer::new(limiter([Rule::new("api", at_once(1)).with_per(["user"])])).attributes(|parts| {
        let key = parts.headers["x-key"].to_str().unwrap_or_default();
        Attributes::new().with("user", key.trim_start_matches('k'))
    });
    let app = app(layer);
    assert_eq!(
        [status(&app, from("k1")).await, status(&app, from("kk1")).await, status(&app, from("k2")).await],
        [200, 429, 200]
    );
}
