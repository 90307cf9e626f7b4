//! What a request and its answer keep on their way, and what they lose.

use axum::Router;
use axum::response::AppendHeaders;
use tidegate::ManualClock;
use tidegate_server::gateway::GatewayOptions;

use crate::{START, Wire, exchange, field, gateway, gateway_with, get, limits, mirror, serve};

#[tokio::test]
async fn a_request_arrives_as_it_was_sent() {
    let gateway = gateway(mirror()).await;
    let heard = get(gateway, "/a%20b/../c?x=1&y", "accept: text/plain\r\nx-two: 1\r\nx-two: 2\r\n").await;
    assert!(heard.starts_with("HTTP/1.1 200 OK\r\n"), "{heard}");
    for line in
        ["GET /a%20b/../c?x=1&y HTTP/1.1\n", "host: shop.example\n", "accept: text/plain\n", "x-two: 1\nx-two: 2\n"]
    {
        assert!(heard.contains(line), "{line}: {heard}");
    }
    assert!(heard.ends_with("body: "), "{heard}");
}

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let gateway = gateway(mirror()).await;
    let mut wire = Wire::to(gateway).await;
    for path in ["/one", "/two", "/three"] {
        wire.say(&format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\n<{path:.4}>")).await;
        wire.hear(&format!("body: <{path:.4}>")).await;
    }
}

#[tokio::test]
async fn the_upstream_learns_whom_a_request_came_from() {
    let gateway = gateway(mirror()).await;
    let claims = "x-forwarded-for: 10.0.0.1\r\nx-forwarded-for: 10.0.0.2\r\nx-forwarded-proto: https\r\n\
                  x-forwarded-host: claimed.example\r\nx-tidegate-degraded: store\r\n";
    let heard = get(gateway, "/", claims).await;
    assert!(heard.contains("\nx-forwarded-for: 10.0.0.1, 10.0.0.2, 127.0.0.1\n"), "{heard}");
    assert!(heard.contains("\nx-forwarded-proto: http\n") && heard.contains("\nx-forwarded-host: shop.example\n"));
    assert!(!heard.contains("claimed") && !heard.contains("x-tidegate-degraded"), "{heard}");
}

#[tokio::test]
async fn a_proxy_in_front_that_is_trusted_keeps_its_word() {
    let upstream = format!("http://{}", serve(mirror()).await);
    let options = GatewayOptions::new().trust_forwarded(true);
    let gateway = gateway_with(&upstream, options, limits([], &ManualClock::at(START))).await;
    let heard = get(gateway, "/", "x-forwarded-proto: https\r\n").await;
    assert!(heard.contains("\nx-forwarded-proto: https\n"), "{heard}");
    assert!(heard.contains("\nx-forwarded-host: shop.example\n"), "{heard}");
}

#[tokio::test]
async fn what_is_between_neighbours_is_not_passed_on() {
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
    let heard = get(gateway, "/", lines).await;
    let (head, asked) = heard.split_once("\r\n\r\n").unwrap();
    assert!(asked.contains("\nx-kept: 1\n") && head.contains("\nx-kept: 1"), "{heard}");
    for gone in
        ["x-mine", "keep-alive", "proxy-authorization", "te:", "upgrade", "http2-settings", "connection", "x-hop"]
    {
        assert!(!asked.contains(&format!("\n{gone}")), "{gone}: {heard}");
    }
    assert!(!head.contains("x-hop") && !head.contains("keep-alive"), "{heard}");
}

#[tokio::test]
async fn the_host_of_the_target_is_the_host() {
    let gateway = gateway(mirror()).await;
    let text = "GET http://target.example/page HTTP/1.1\r\nhost: field.example\r\nconnection: close\r\n\r\n";
    let heard = exchange(gateway, text).await;
    assert!(heard.contains("GET /page HTTP/1.1\n"), "{heard}");
    assert!(heard.contains("\nhost: target.example\n") && !heard.contains("field.example"), "{heard}");
}

#[tokio::test]
async fn a_request_by_an_old_protocol_is_served() {
    let gateway = gateway(mirror()).await;
    let heard = exchange(gateway, "GET /old HTTP/1.0\r\n\r\n").await;
    assert!(heard.starts_with("HTTP/1.0 200 OK\r\n"), "{heard}");
    assert!(heard.contains("GET /old HTTP/1.1\n"), "{heard}");
}

#[tokio::test]
async fn options_for_the_whole_server_are_for_the_whole_server() {
    let gateway = gateway(mirror()).await;
    let heard = exchange(gateway, "OPTIONS * HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(heard.contains("OPTIONS * HTTP/1.1\n"), "{heard}");
}

#[tokio::test]
async fn an_answer_keeps_its_status_and_fields() {
    let cookies = AppendHeaders([("set-cookie", "a=1"), ("set-cookie", "b=2")]);
    let app = Router::new().fallback(async move || (axum::http::StatusCode::IM_A_TEAPOT, cookies, "short"));
    let gateway = gateway(app).await;
    let heard = get(gateway, "/", "").await;
    assert!(heard.starts_with("HTTP/1.1 418 I'm a teapot\r\n"), "{heard}");
    assert!(heard.contains("set-cookie: a=1\r\nset-cookie: b=2\r\n"), "{heard}");
    assert_eq!(field(&heard, "content-length"), Some("5"));
    let head = exchange(gateway, "HEAD / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert_eq!(field(&head, "content-length"), Some("5"));
    assert!(head.ends_with("\r\n\r\n"), "{head}");
}
