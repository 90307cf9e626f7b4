//! HTTP/2 from clients and to upstreams.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::Version;
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate::ManualClock;
use tidegate_server::gateway::GatewayOptions;

use crate::gateway::{START, gateway, gateway_with, get, limits, mirror, serve};

#[tokio::test]
async fn a_client_may_speak_http_2() {
    let gateway = gateway(mirror()).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Empty<Bytes>>();
    let response = client.get(format!("http://{gateway}/page?x=1").parse().unwrap()).await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (200, Version::HTTP_2));
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text);
    assert!(text.starts_with("GET /page?x=1 HTTP/1.1\n"), "{text}");
    assert!(text.contains(&format!("\nhost: {gateway}\n")), "{text}");
}

#[tokio::test]
async fn an_upstream_may_speak_http_2() {
    let upstream = format!("h2c://{}", serve(mirror()).await);
    let gateway = gateway_with(&upstream, GatewayOptions::new(), limits([], &ManualClock::starting_at(START))).await;
    let response = get(gateway, "/page", "connection: te, x-hop\r\nte: trailers\r\nx-hop: 1\r\n").await;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert!(response.contains("/page HTTP/2.0\n") && response.contains("\nte: trailers\n"), "{response}");
    assert!(response.contains("\nx-forwarded-host: shop.example\n"), "{response}");
    assert!(!response.contains("x-hop") && !response.contains("\nhost:"), "{response}");
}

/// gRPC needs trailers.
#[tokio::test]
async fn trailers_are_forwarded_over_http_2() {
    let app = Router::new().fallback(async |request: Request| {
        let trailers = async { Some(Ok([("grpc-status", "0")].into_iter().map(pair).collect())) };
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(Body::new(Full::new(body).with_trailers(trailers)))
    });
    let upstream = format!("h2c://{}", serve(app).await);
    let gateway = gateway_with(&upstream, GatewayOptions::new(), limits([], &ManualClock::starting_at(START))).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let request = http::Request::post(format!("http://{gateway}/a.B/C")).header("te", "trailers");
    let response = client.request(request.body(Full::new(Bytes::from_static(b"message"))).unwrap()).await.unwrap();
    let whole = response.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(whole.to_bytes(), "message");
}

fn pair((name, value): (&'static str, &'static str)) -> (http::HeaderName, http::HeaderValue) {
    (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
}
