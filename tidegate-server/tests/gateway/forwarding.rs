//! What the gateway forwards of requests and responses, adds, and removes.

use axum::Router;
use axum::response::AppendHeaders;
use tidegate::ManualClock;
use tidegate_server::gateway::GatewayOptions;

use crate::gateway::{RawConnection, START, exchange, field, gateway, gateway_with, get, limits, mirror, serve};

#[tokio::test]
async fn a_request_is_forwarded_unchanged() {
    let gateway = gateway(mirror()).await;
    let response = get(gateway, "/a%20b//c;d%2Fe?x=1&y", "accept: text/plain\r\nx-two: 1\r\nx-two: 2\r\n").await;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    for line in
        ["GET /a%20b//c;d%2Fe?x=1&y HTTP/1.1\n", "host: shop.example\n", "accept: text/plain\n", "x-two: 1\nx-two: 2\n"]
    {
        assert!(response.contains(line), "{line}: {response}");
    }
    assert!(response.ends_with("body: "), "{response}");
}

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let gateway = gateway(mirror()).await;
    let mut connection = RawConnection::connect(gateway).await;
    for path in ["/one", "/two", "/three"] {
        connection.send(&format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\n<{path:.4}>")).await;
        connection.receive_until(&format!("body: <{path:.4}>")).await;
    }
}

#[tokio::test]
async fn a_spoofed_forwarded_header_does_not_reach_the_upstream() {
    let gateway = gateway(mirror()).await;
    let claims = "x-forwarded-for: 10.0.0.1\r\nx-forwarded-for: 10.0.0.2\r\nx-forwarded-proto: https\r\n\
                  x-forwarded-host: claimed.example\r\nx-tidegate-degraded: store\r\n";
    let response = get(gateway, "/", claims).await;
    assert!(response.contains("\nx-forwarded-for: 10.0.0.1, 10.0.0.2, 127.0.0.1\n"), "{response}");
    assert!(
        response.contains("\nx-forwarded-proto: http\n") && response.contains("\nx-forwarded-host: shop.example\n")
    );
    assert!(!response.contains("claimed") && !response.contains("x-tidegate-degraded"), "{response}");
}

#[tokio::test]
async fn forwarded_headers_of_a_trusted_proxy_are_kept() {
    let upstream = format!("http://{}", serve(mirror()).await);
    let options = GatewayOptions::new().with_trust_forwarded(true);
    let gateway = gateway_with(&upstream, options, limits([], &ManualClock::starting_at(START))).await;
    let response = get(gateway, "/", "x-forwarded-proto: https\r\n").await;
    assert!(response.contains("\nx-forwarded-proto: https\n"), "{response}");
    assert!(response.contains("\nx-forwarded-host: shop.example\n"), "{response}");
}

#[tokio::test]
async fn hop_by_hop_headers_are_not_forwarded() {
    let app = mirror().layer(axum::middleware::map_response(async |mut response: axum::response::Response| {
        let fields = [("connection", "x-hop"), ("x-hop", "1"), ("keep-alive", "timeout=5"), ("x-kept", "1")];
        for (name, value) in fields {
            response.headers_mut().append(name, value.parse().unwrap());
        }
        response
    }));
    let gateway = gateway(app).await;
    let lines = "connection: x-mine, keep-alive\r\nx-mine: 1\r\nkeep-alive: 5\r\nproxy-authorization: Basic x\r\n\
                 te: gzip\r\nupgrade: h2c\r\nhttp2-settings: x\r\nx-kept: 1\r\n";
    let response = get(gateway, "/", lines).await;
    let (head, request) = response.split_once("\r\n\r\n").unwrap();
    assert!(request.contains("\nx-kept: 1\n") && head.contains("\nx-kept: 1"), "{response}");
    for removed in
        ["x-mine", "keep-alive", "proxy-authorization", "te:", "upgrade", "http2-settings", "connection", "x-hop"]
    {
        assert!(!request.contains(&format!("\n{removed}")), "{removed}: {response}");
    }
    assert!(!head.contains("x-hop") && !head.contains("keep-alive"), "{response}");
}

#[tokio::test]
async fn the_host_of_an_absolute_target_takes_precedence() {
    let gateway = gateway(mirror()).await;
    let text = "GET http://target.example/page HTTP/1.1\r\nhost: field.example\r\nconnection: close\r\n\r\n";
    let response = exchange(gateway, text).await;
    assert!(response.contains("GET /page HTTP/1.1\n"), "{response}");
    assert!(response.contains("\nhost: target.example\n") && !response.contains("field.example"), "{response}");
}

#[tokio::test]
async fn an_http_1_0_request_is_served() {
    let gateway = gateway(mirror()).await;
    let response = exchange(gateway, "GET /old HTTP/1.0\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.0 200 OK\r\n"), "{response}");
    assert!(response.contains("GET /old HTTP/1.1\n"), "{response}");
}

#[tokio::test]
async fn an_options_request_for_the_whole_server_is_forwarded() {
    let gateway = gateway(mirror()).await;
    let response = exchange(gateway, "OPTIONS * HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(response.contains("OPTIONS * HTTP/1.1\n"), "{response}");
}

#[tokio::test]
async fn a_response_keeps_its_status_and_headers() {
    let cookies = AppendHeaders([("set-cookie", "a=1"), ("set-cookie", "b=2")]);
    let app = Router::new().fallback(async move || (axum::http::StatusCode::IM_A_TEAPOT, cookies, "short"));
    let gateway = gateway(app).await;
    let response = get(gateway, "/", "").await;
    assert!(response.starts_with("HTTP/1.1 418 I'm a teapot\r\n"), "{response}");
    assert!(response.contains("set-cookie: a=1\r\nset-cookie: b=2\r\n"), "{response}");
    assert_eq!(field(&response, "content-length"), Some("5"));
    let head = exchange(gateway, "HEAD / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert_eq!(field(&head, "content-length"), Some("5"));
    assert!(head.ends_with("\r\n\r\n"), "{head}");
}
