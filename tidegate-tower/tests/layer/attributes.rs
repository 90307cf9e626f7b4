//! The subject that a request counts for.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::routing::get;
use tidegate::Rule;
use tidegate_tower::{Attributes, LimitLayer, Peer};

use crate::layer::{app, burst, limiter, request_with_key, send};

async fn status(app: &Router, request: http::Request<Body>) -> u16 {
    send(app, request).await.status.as_u16()
}

#[tokio::test]
async fn clients_with_different_header_values_are_counted_apart() {
    let app = app(LimitLayer::new(limiter([Rule::new("api", burst(1)).with_per(["header:x-key"])])));
    assert_eq!([status(&app, request_with_key("k1")).await, status(&app, request_with_key("k1")).await], [200, 429]);
    assert_eq!([status(&app, request_with_key("k2")).await, status(&app, request_with_key("k2")).await], [200, 429]);
}

#[tokio::test]
async fn a_client_without_any_identity_is_limited() {
    let app = app(LimitLayer::new(limiter([Rule::new("api", burst(1)).with_per(["header:x-key", "user", "ip"])])));
    let anonymous = || Request::get("/").body(Body::empty()).unwrap();
    assert_eq!([status(&app, anonymous()).await, status(&app, anonymous()).await], [200, 429]);
}

/// A client that adds a second line to a header that the proxy sets counts as neither of the two keys.
#[tokio::test]
async fn a_header_that_comes_twice_is_refused_and_counts_for_no_key() {
    let app = app(LimitLayer::new(limiter([Rule::new("api", burst(1)).with_per(["header:x-key"])])));
    let repeated = || Request::get("/").header("x-key", "k1").header("x-key", "k2").body(Body::empty()).unwrap();
    assert_eq!([status(&app, repeated()).await, status(&app, repeated()).await], [400, 400]);
    assert_eq!([status(&app, request_with_key("k1")).await, status(&app, request_with_key("k2")).await], [200, 200]);
}

#[tokio::test]
async fn a_forwarded_header_does_not_change_the_peer() {
    let app = app(LimitLayer::new(limiter([Rule::new("api", burst(1)).with_per(["ip"])])));
    let forwarded = |client: &str| {
        let peer = Peer([203, 0, 113, 9].into());
        Request::get("/").header("x-forwarded-for", client).extension(peer).body(Body::empty()).unwrap()
    };
    assert_eq!([status(&app, forwarded("1.1.1.1")).await, status(&app, forwarded("2.2.2.2")).await], [200, 429]);
}

#[tokio::test]
async fn earlier_middleware_can_set_the_user() {
    let layer = LimitLayer::new(limiter([Rule::new("api", burst(1)).with_per(["user"])]));
    // In place of authentication: maps a key to its user.
    let authenticate = async |mut request: Request, next: Next| {
        let user = if request.headers()["x-key"] == "k3" { "ben" } else { "ann" };
        request.extensions_mut().get_or_insert_default::<Attributes>().insert("user", user);
        next.run(request).await
    };
    let app =
        Router::new().route("/", get(async || "hello")).layer(layer).layer(axum::middleware::from_fn(authenticate));
    assert_eq!(
        [
            status(&app, request_with_key("k1")).await,
            status(&app, request_with_key("k2")).await,
            status(&app, request_with_key("k3")).await
        ],
        [200, 429, 200]
    );
}

#[tokio::test]
async fn the_layer_can_set_the_user() {
    let layer = LimitLayer::new(limiter([Rule::new("api", burst(1)).with_per(["user"])])).with_attributes(|parts| {
        let key = parts.headers["x-key"].to_str().unwrap_or_default();
        Attributes::new().with_attribute("user", key.trim_start_matches('k'))
    });
    let app = app(layer);
    assert_eq!(
        [
            status(&app, request_with_key("k1")).await,
            status(&app, request_with_key("kk1")).await,
            status(&app, request_with_key("k2")).await
        ],
        [200, 429, 200]
    );
}
