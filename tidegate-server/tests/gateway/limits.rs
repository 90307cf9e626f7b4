//! Rate limits at the gateway: denials, queues, refunds, and limits of the upstream.

use std::time::Duration;

use axum::Router;
use axum::response::AppendHeaders;
use tidegate::spi::Store;
use tidegate::{Limit, ManualClock, Rate, Rule};
use tidegate_server::gateway::GatewayOptions;
use tidegate_tower::LimitLayer;

use crate::gateway::{RawConnection, START, field, gateway_with, get, limits, mirror, serve, until};

const SECOND: Duration = Duration::from_secs(1);

fn burst_limit(amount: u64) -> Limit {
    Limit::token_bucket(amount, Rate::per_hour(1).unwrap()).unwrap()
}

async fn gateway_with_limits<S: Store + 'static>(app: Router, layer: LimitLayer<S>) -> std::net::SocketAddr {
    gateway_with(&format!("http://{}", serve(app).await), GatewayOptions::new(), layer).await
}

#[tokio::test]
async fn a_denied_request_gets_429_and_does_not_reach_the_upstream() {
    let layer = limits([Rule::new("api", burst_limit(2)).with_per(["ip"])], &ManualClock::starting_at(START));
    let gateway = gateway_with_limits(mirror(), layer).await;
    for left in ["1", "0"] {
        let response = get(gateway, "/", "").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert_eq!(field(&response, "x-ratelimit-remaining"), Some(left));
        assert_eq!(field(&response, "ratelimit-policy"), Some(r#""api";q=2;w=7200"#));
    }
    let response = get(gateway, "/", "x-forwarded-for: 10.0.0.1\r\n").await;
    assert!(response.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{response}");
    assert_eq!(field(&response, "retry-after"), Some("3600"));
    assert!(response.contains(r#""error":"rate_limit_exceeded""#) && !response.contains("GET /"), "{response}");
}

#[tokio::test]
async fn a_connection_stays_open_after_a_denial() {
    let rule = Rule::new("api", burst_limit(1)).with_per(["path"]);
    let gateway = gateway_with_limits(mirror(), limits([rule], &ManualClock::starting_at(START))).await;
    let mut connection = RawConnection::connect(gateway).await;
    connection.send(&"GET /closed HTTP/1.1\r\nhost: a\r\n\r\n".repeat(2)).await;
    connection.receive_until("rate_limit_exceeded").await;
    connection.send("GET /open HTTP/1.1\r\nhost: a\r\n\r\n").await;
    connection.receive_until("GET /open HTTP/1.1\n").await;
}

fn leaky_bucket_layer(clock: &ManualClock) -> LimitLayer<std::sync::Arc<tidegate::MemoryStore>> {
    limits([Rule::new("drip", Limit::leaky_bucket(Rate::per_second(1).unwrap(), 1).unwrap())], clock)
}

#[tokio::test]
async fn a_leaky_bucket_delays_a_request() {
    let clock = ManualClock::starting_at(START);
    let gateway = gateway_with_limits(mirror(), leaky_bucket_layer(&clock)).await;
    assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 200 "));
    let queued = tokio::spawn(get(gateway, "/held", ""));
    until(|| clock.pending_sleeps() == 1).await;
    // The queue is full, and a denial is immediate.
    assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 429 "));
    assert!(!queued.is_finished());
    clock.advance(SECOND);
    assert!(queued.await.unwrap().contains("GET /held HTTP/1.1\n"));
}

#[tokio::test]
async fn a_client_that_disconnects_while_queued_is_refunded() {
    let clock = ManualClock::starting_at(START);
    let gateway = gateway_with_limits(mirror(), leaky_bucket_layer(&clock)).await;
    assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 200 "));
    let mut connection = RawConnection::connect(gateway).await;
    connection.send("GET /left HTTP/1.1\r\nhost: a\r\n\r\n").await;
    until(|| clock.pending_sleeps() == 1).await;
    drop(connection);
    until(|| clock.pending_sleeps() == 0).await;

    let next = tokio::spawn(get(gateway, "/next", ""));
    until(|| clock.pending_sleeps() == 1).await;
    clock.advance(SECOND);
    assert!(next.await.unwrap().contains("GET /next HTTP/1.1\n"));
}

#[tokio::test]
async fn rate_limit_headers_of_the_upstream_are_merged() {
    let upstream_headers = AppendHeaders([
        ("ratelimit-policy", r#""day";q=1000"#),
        ("ratelimit", r#""day";r=3"#),
        ("x-ratelimit-limit", "1000"),
        ("x-ratelimit-remaining", "3"),
        ("retry-after", "5"),
    ]);
    let app = Router::new().fallback(async move || (upstream_headers, "hello"));
    let gateway =
        gateway_with_limits(app, limits([Rule::new("api", burst_limit(5))], &ManualClock::starting_at(START))).await;
    let response = get(gateway, "/", "").await;
    assert!(response.contains("ratelimit: \"day\";r=3\r\nratelimit: \"api\";r=4;t=3600\r\n"), "{response}");
    assert!(
        response.contains("ratelimit-policy: \"day\";q=1000\r\nratelimit-policy: \"api\";q=5;w=18000\r\n"),
        "{response}"
    );
    assert_eq!(
        (field(&response, "x-ratelimit-limit"), field(&response, "x-ratelimit-remaining")),
        (Some("1000"), Some("3"))
    );
    assert_eq!((field(&response, "x-ratelimit-reset"), field(&response, "retry-after")), (None, Some("5")));
    get(gateway, "/", "").await;
    let response = get(gateway, "/", "").await;
    assert_eq!(
        (field(&response, "x-ratelimit-limit"), field(&response, "x-ratelimit-remaining")),
        (Some("5"), Some("2"))
    );
}
