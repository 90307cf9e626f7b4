//! Requests to language models at the same time: what is reserved before, and what counting after the fact would let pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use tokio::sync::Semaphore;

use crate::gateway::tokens::{RULES, TestGateway, request, upstream};
use crate::gateway::{exchange, field, serve, until};

/// Sends 50 requests at a time, each of which uses 400 tokens, and returns how many reached the upstream.
async fn flood(rules: &str) -> (u64, TestGateway) {
    let (reached, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
    let (count, wait) = (Arc::clone(&reached), Arc::clone(&gate));
    let app = Router::new().fallback(async move || {
        count.fetch_add(1, Ordering::Relaxed);
        wait.acquire().await.unwrap().forget();
        r#"{"usage":{"prompt_tokens":100,"completion_tokens":300}}"#
    });
    let gateway = TestGateway::new(rules, &format!("http://{}", serve(app).await)).await;
    let refused = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let (address, refused) = (gateway.address, Arc::clone(&refused));
            let text = request("/v1/chat/completions", "connection: close\r\n", r#"{"max_tokens":496}"#);
            tokio::spawn(async move {
                let response = exchange(address, &text).await;
                if response.starts_with("HTTP/1.1 429 ") {
                    refused.fetch_add(1, Ordering::Relaxed);
                    // The SDKs of the vendors read the second one first. A reservation may end at any moment.
                    let [seconds, millis] = ["retry-after", "retry-after-ms"].map(|name| field(&response, name));
                    assert_eq!((seconds, millis), (Some("1"), Some("1000")), "{response}");
                }
            })
        })
        .collect();
    until(|| reached.load(Ordering::Relaxed) + refused.load(Ordering::Relaxed) == 50).await;
    gate.add_permits(50);
    for client in clients {
        client.await.unwrap();
    }
    (reached.load(Ordering::Relaxed), gateway)
}

/// 10,000 tokens are left. Each request may use 500, so 20 can be under way; what they did not use is there for others.
#[tokio::test]
async fn concurrent_requests_cannot_pass_the_limit_together() {
    let (reached, gateway) = flood(RULES).await;
    assert_eq!((reached, gateway.used()), (20, 8_000));
}

/// What most gateways do: nothing is reserved, and the usage is counted when it is known.
#[tokio::test]
async fn counting_after_the_fact_lets_all_of_them_pass() {
    let after_the_fact = RULES.replace("request.size / 4 + int(request.body.max_tokens, 500)", "1");
    let (reached, gateway) = flood(&after_the_fact).await;
    assert_eq!((reached, reached * 400, gateway.used()), (50, 20_000, 10_000));
}

/// Nothing is reserved then, and nothing refused before the limit is used up.
#[tokio::test]
async fn tokens_are_charged_after_an_estimate_of_zero() {
    let (upstream, _) = upstream("application/json", r#"{"usage":{"prompt_tokens":30,"completion_tokens":70}}"#).await;
    let rules = RULES.replace("'request.size / 4 + int(request.body.max_tokens, 500)'", "'0'");
    let gateway = TestGateway::new(&rules, &upstream).await;
    gateway.post("/v1/chat/completions", "", "{}").await;
    assert_eq!(gateway.used(), 100);
}

/// They are sent before the usage is known.
#[tokio::test]
async fn header_fields_show_what_is_left_while_the_whole_estimate_is_reserved() {
    let (upstream, _) = upstream("application/json", r#"{"usage":{"prompt_tokens":30,"completion_tokens":70}}"#).await;
    let gateway = TestGateway::new(RULES, &upstream).await;
    let response = gateway.post("/v1/chat/completions", "", r#"{"max_tokens":500}"#).await;
    assert!(response.contains("\r\nx-ratelimit-remaining: 9496\r\n"), "{response}");
    assert_eq!(gateway.used(), 100);
}
