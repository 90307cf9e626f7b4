//! Tokens of language models: what a request costs, whatever its client and its upstream do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use tidegate::{Limiter, ManualClock, MemoryStore};
use tidegate_rules::RuleFile;
use tidegate_server::gateway::GatewayOptions;
use tidegate_tower::{Handle, LimitLayer};
use tokio::net::TcpListener;

use crate::gateway::{RawConnection, START, exchange, file_limits, gateway_with, serve, until};

/// 500 tokens are reserved for a request that does not say how many it wants.
pub(crate) const RULES: &str = "\
version: 1
rules:
  - id: tokens
    match: { method: POST }
    per: []
    cost: { expression: 'request.size / 4 + int(request.body.max_tokens, 500)', usage: total, default: 500, max: 4000 }
    fixed_window: { limit: 10_000, window: 1d }
";

pub(crate) const DELTA: &str = r#"data: {"choices":[{"index":0,"delta":{"content":"word"}}],"usage":null}"#;
pub(crate) const USAGE: &str =
    r#"data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":70,"total_tokens":100}}"#;

type Limits = Handle<Arc<MemoryStore>>;

/// A gateway, and what it counts.
pub(crate) struct TestGateway {
    pub(crate) address: SocketAddr,
    pub(crate) limits: Limits,
}

impl TestGateway {
    pub(crate) async fn new(rules: &str, upstream: &str) -> Self {
        Self::with_options(rules, upstream, GatewayOptions::new()).await
    }

    pub(crate) async fn with_options(rules: &str, upstream: &str, options: GatewayOptions) -> Self {
        Self::with_layer(file_limits(rules), upstream, options).await
    }

    /// One whose limits and reservations run by `clock`.
    pub(crate) async fn with_clock(rules: &str, clock: &ManualClock, upstream: &str) -> Self {
        let file = RuleFile::parse("rules.yaml", rules).unwrap_or_else(|report| panic!("{report}"));
        let store = Arc::new(MemoryStore::new().with_clock(clock.clone()));
        let layer = LimitLayer::new(Limiter::new(file.rules().clone(), store)).with_timer(clock.clone());
        Self::with_layer(layer, upstream, GatewayOptions::new()).await
    }

    pub(crate) async fn with_layer(
        layer: LimitLayer<Arc<MemoryStore>>,
        upstream: &str,
        options: GatewayOptions,
    ) -> Self {
        let limits = layer.handle();
        Self { address: gateway_with(upstream, options, layer).await, limits }
    }

    /// The tokens that are used or reserved of 10,000.
    pub(crate) fn used(&self) -> u64 {
        10_000 - self.remaining()
    }

    fn remaining(&self) -> u64 {
        let request = tidegate::Request::new("").with_attribute("method", "POST");
        let limiter = self.limits.limiter();
        let plan = limiter.plan(&request).with_peek();
        limiter.plans().check_now(&plan).remaining().unwrap()
    }

    /// Waits until nothing is reserved.
    pub(crate) async fn wait_until_committed(&self) {
        let request = tidegate::Request::new("").with_attribute("method", "POST");
        while self.limits.limiter().outstanding(&request).await.unwrap()[0].reservations > 0 {
            tokio::task::yield_now().await;
        }
    }

    pub(crate) async fn post(&self, path: &str, lines: &str, body: &str) -> String {
        exchange(self.address, &request(path, &format!("connection: close\r\n{lines}"), body)).await
    }

    /// Sends a streamed chat completion, and returns the body of the response.
    pub(crate) async fn stream(&self, body: &str) -> String {
        let response = self.post("/v1/chat/completions", "", body).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        unchunked(&response)
    }
}

pub(crate) fn request(path: &str, lines: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: a\r\n{lines}content-length: {}\r\n\r\n{body}", body.len())
}

/// The body of a response without the lines of its chunks.
pub(crate) fn unchunked(response: &str) -> String {
    let (head, mut body) = response.split_once("\r\n\r\n").unwrap();
    if !head.contains("chunked") {
        return body.to_owned();
    }
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        text.push_str(&rest[..length]);
        body = rest[length..].strip_prefix("\r\n").unwrap_or_default();
    }
    text
}

/// An upstream that gives this response, and keeps the requests that it received.
pub(crate) async fn upstream(content_type: &'static str, body: &str) -> (String, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (received, body) = (Arc::clone(&requests), body.to_owned());
    let app = Router::new().fallback(async move |request: Request| {
        let (parts, request_body) = request.into_parts();
        let text = axum::body::to_bytes(request_body, usize::MAX).await.unwrap();
        let encoding = parts.headers.get("accept-encoding").map(|value| value.to_str().unwrap().to_owned());
        received.lock().unwrap().push(format!("{encoding:?} {}", String::from_utf8_lossy(&text)));
        Response::builder().header("content-type", content_type).body(axum::body::Body::from(body)).unwrap()
    });
    (format!("http://{}", serve(app).await), requests)
}

pub(crate) fn events(events: &[&str]) -> String {
    events.join("\n\n") + "\n\n"
}

/// An upstream for one connection, which the test plays.
pub(crate) struct RawUpstream(pub(crate) TcpListener);

impl RawUpstream {
    pub(crate) async fn new() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        (Self(listener), address)
    }

    /// Receives a request that ends with `end`, and begins a stream.
    pub(crate) async fn begin(&self, end: &str) -> RawConnection {
        self.begin_type(end, "text/event-stream").await
    }

    /// The same with a response of another type.
    pub(crate) async fn begin_type(&self, end: &str, content_type: &str) -> RawConnection {
        let mut connection = RawConnection::new(self.0.accept().await.unwrap().0);
        connection.receive_until(end).await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n");
        connection.send(&head).await;
        connection
    }
}

pub(crate) async fn send_chunk(connection: &mut RawConnection, text: &str) {
    connection.send(&format!("{:x}\r\n{text}\r\n", text.len())).await;
}

#[tokio::test]
async fn a_request_costs_what_its_response_says_it_used() {
    for (path, body, tokens) in [
        ("/v1/chat/completions", r#"{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":70}}"#, (30, 70)),
        (
            "/v1/embeddings",
            r#"{"data":[{"embedding":[0.1,0.2]}],"usage":{"prompt_tokens":8,"total_tokens":8}}"#,
            (8, 0),
        ),
        ("/v1/responses", r#"{"output":[{"usage":"no"}],"usage":{"input_tokens":31,"output_tokens":9}}"#, (31, 9)),
        ("/v1/messages", r#"{"usage":{"input_tokens":4,"cache_read_input_tokens":96,"output_tokens":10}}"#, (100, 10)),
    ] {
        let (upstream, _) = upstream("application/json", body).await;
        for (kind, expected) in [("total", tokens.0 + tokens.1), ("input", tokens.0), ("output", tokens.1)] {
            let gateway = TestGateway::new(&RULES.replace("total", kind), &upstream).await;
            let response = gateway.post(path, "", r#"{"model":"m"}"#).await;
            assert!(response.ends_with(body), "{response}");
            assert_eq!(gateway.used(), expected, "{path} {kind}");
        }
    }
}

#[tokio::test]
async fn usage_is_asked_for_and_its_event_withheld_unless_the_client_asks() {
    let all = events(&[DELTA, DELTA, USAGE, "data: [DONE]"]);
    let (upstream, requests) = upstream("text/event-stream; charset=utf-8", &all).await;
    let gateway = TestGateway::new(RULES, &upstream).await;
    let body = r#"{"model":"m","stream":true}"#;
    assert_eq!(gateway.stream(body).await, events(&[DELTA, DELTA, "data: [DONE]"]));
    assert_eq!(gateway.used(), 100);
    let asked = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
    assert_eq!(gateway.stream(asked).await, all);
    assert_eq!(gateway.used(), 200);
    let response = gateway.post("/v1/messages", "accept-encoding: gzip, br\r\n", body).await;
    assert!(unchunked(&response).contains("prompt_tokens"), "other APIs state usage unasked: {response}");
    let expected = [r#"{"stream_options":{"include_usage":true},"model":"m","stream":true}"#, asked, body];
    assert_eq!(*requests.lock().unwrap(), expected.map(|body| format!("Some(\"identity\") {body}")));
}

#[tokio::test]
async fn each_event_passes_as_soon_as_it_is_complete() {
    let (upstream, address) = RawUpstream::new().await;
    let gateway = TestGateway::new(RULES, &address).await;
    let mut client = RawConnection::connect(gateway.address).await;
    client.send(&request("/v1/chat/completions", "", r#"{"stream":true}"#)).await;
    let mut connection = upstream.begin(r#""stream":true}"#).await;
    for number in 1..=3 {
        let event = DELTA.replace("word", &format!("word {number}"));
        send_chunk(&mut connection, &format!("{event}\n\n")).await;
        client.receive_until(&format!("{event}\n\n")).await;
    }
    assert!(gateway.used() >= 500, "the reservation is held");
    send_chunk(&mut connection, &format!("{USAGE}\n\ndata: [DONE]\n\n")).await;
    client.receive_until("data: [DONE]\n\n").await;
    assert_eq!(gateway.used(), 100, "committed before the client learns of the end");
    assert!(!client.received.contains("prompt_tokens"), "{}", client.received);
}

#[tokio::test]
async fn a_stream_without_usage_costs_what_was_streamed_and_the_prompt() {
    let (upstream, _) = upstream("text/event-stream", &events(&[DELTA, DELTA, DELTA, "data: [DONE]"])).await;
    let gateway = TestGateway::new(RULES, &upstream).await;
    let body = format!(r#"{{"stream":true,"prompt":"{}"}}"#, "x".repeat(373));
    assert_eq!(body.len(), 400);
    gateway.stream(&body).await;
    assert_eq!(gateway.used(), 100 + 3);
}

#[tokio::test]
async fn usage_that_lies_or_comes_twice_is_bounded_by_what_was_seen() {
    let prompt = 4; // of the 16 bytes of the request
    for (usage, expected) in [
        (r#"{"prompt_tokens":-5,"completion_tokens":-1}"#, prompt + 2),
        (r#"{"prompt_tokens":0,"completion_tokens":0}"#, prompt + 2),
        (r#"{"prompt_tokens":"many","completion_tokens":1.5}"#, prompt + 2),
        (r#"{"prompt_tokens":1e300,"completion_tokens":99999999999999999999}"#, prompt + 2),
        ("null", prompt + 2),
        (r#"{"prompt_tokens":10,"completion_tokens":1}"#, 10 + 2),
    ] {
        let usage = format!(r#"data: {{"choices":[],"usage":{usage}}}"#);
        let (upstream, _) = upstream("text/event-stream", &events(&[DELTA, DELTA, &usage, "data: [DONE]"])).await;
        let gateway = TestGateway::new(RULES, &upstream).await;
        gateway.stream(r#"{"stream": true}"#).await;
        assert_eq!(gateway.used(), expected, "{usage}");
    }
    let larger = USAGE.replace("70", "170");
    for twice in [events(&[DELTA, USAGE, &larger, "data: [DONE]"]), events(&[DELTA, &larger, USAGE, "data: [DONE]"])] {
        let (upstream, _) = upstream("text/event-stream", &twice).await;
        let gateway = TestGateway::new(RULES, &upstream).await;
        gateway.stream(r#"{"stream": true}"#).await;
        assert_eq!(gateway.used(), 30 + 170);
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_pays_for_what_was_streamed() {
    let (upstream, address) = RawUpstream::new().await;
    let gateway = TestGateway::new(RULES, &address).await;
    let mut client = RawConnection::connect(gateway.address).await;
    client.send(&request("/v1/chat/completions", "", r#"{"stream": true}"#)).await;
    let mut connection = upstream.begin(r#""stream": true}"#).await;
    send_chunk(&mut connection, &events(&[DELTA, DELTA, DELTA])).await;
    client.receive_until(DELTA).await;
    assert_eq!(gateway.used(), 504);
    drop(client);
    until(|| gateway.used() != 504).await;
    assert_eq!(gateway.used(), 4 + 3);
}

/// Otherwise a client could have answers made, and leave just before they begin.
#[tokio::test]
async fn a_client_that_hangs_up_before_the_response_pays_what_was_reserved() {
    let (upstream, address) = RawUpstream::new().await;
    let gateway = TestGateway::new(RULES, &address).await;
    let mut client = RawConnection::connect(gateway.address).await;
    client.send(&request("/v1/chat/completions", "", r#"{"max_tokens":96}"#)).await;
    let mut connection = RawConnection::new(upstream.0.accept().await.unwrap().0);
    connection.receive_until("96}").await;
    drop(client);
    assert_eq!(connection.receive_to_end().await.matches("POST").count(), 1);
    assert_eq!(gateway.used(), 96 + 4);
}

#[tokio::test]
async fn an_upstream_that_breaks_off_within_an_event_is_paid_for_what_it_streamed() {
    let (upstream, address) = RawUpstream::new().await;
    let gateway = TestGateway::new(RULES, &address).await;
    let mut client = RawConnection::connect(gateway.address).await;
    client.send(&request("/v1/chat/completions", "", r#"{"stream": true}"#)).await;
    let mut connection = upstream.begin(r#""stream": true}"#).await;
    send_chunk(&mut connection, &format!("{DELTA}\n\n{}", &DELTA[..20])).await;
    drop(connection);
    let response = client.receive_to_end().await;
    assert!(response.contains(DELTA) && response.contains(&DELTA[..20]), "{response}");
    assert!(!response.ends_with("0\r\n\r\n"), "the client learns that it broke off: {response}");
    // The rest of an event counts by its length.
    assert!((4 + 1..=4 + 7).contains(&gateway.used()), "{}", gateway.used());
}

/// A reservation lasts for five minutes. What is not committed by then would be free.
#[tokio::test]
async fn a_stream_that_outlasts_its_reservation_is_paid_for_in_full() {
    for limit in ["fixed_window: { limit: 10_000, window: 1d }", "quota: { amount: 10_000, period: month }"] {
        let clock = ManualClock::starting_at(START);
        let rules = RULES.replace("fixed_window: { limit: 10_000, window: 1d }", limit);
        let (upstream, address) = RawUpstream::new().await;
        let gateway = TestGateway::with_clock(&rules, &clock, &address).await;
        let mut client = RawConnection::connect(gateway.address).await;
        client.send(&request("/v1/chat/completions", "", r#"{"stream": true}"#)).await;
        let mut connection = upstream.begin(r#""stream": true}"#).await;
        send_chunk(&mut connection, &events(&[DELTA, DELTA, &DELTA.replace("word", "then")])).await;
        client.receive_until("then").await;
        assert_eq!(gateway.used(), 504);
        clock.advance(Duration::from_mins(4));
        until(|| gateway.used() != 504).await;
        assert_eq!(gateway.used(), 4 + 3, "{limit}: what was streamed is committed before the reservation runs out");
        send_chunk(&mut connection, &events(&[DELTA, &DELTA.replace("word", "last")])).await;
        client.receive_until("last").await;
        until(|| clock.pending_sleeps() == 1).await;
        clock.advance(Duration::from_mins(4));
        until(|| gateway.used() != 4 + 3).await;
        assert_eq!(gateway.used(), 4 + 5, "{limit}: what was streamed since is charged, although the stream goes on");
        clock.advance(Duration::from_hours(1));
        send_chunk(&mut connection, &events(&[DELTA, DELTA, "data: [DONE]"])).await;
        client.receive_until("data: [DONE]\n\n").await;
        assert_eq!(gateway.used(), 4 + 7, "{limit}");
    }
}

#[tokio::test]
async fn an_event_of_10_mb_passes_and_counts_by_its_length() {
    let long = format!(r#"data: {{"choices":[{{"delta":{{"content":"{}"}}}}]}}"#, "x".repeat(10_000_000));
    let (upstream, _) = upstream("text/event-stream", &events(&[&long, DELTA, "data: [DONE]"])).await;
    let rules = RULES.replace("10_000", "10_000_000");
    let gateway = TestGateway::new(&rules, &upstream).await;
    let body = gateway.stream(r#"{"stream": true}"#).await;
    assert_eq!(body, events(&[&long, DELTA, "data: [DONE]"]));
    let used = 10_000_000 - gateway.remaining();
    assert!((2_500_000..2_500_100).contains(&used), "{used}");
}

#[tokio::test]
async fn a_compressed_response_costs_what_was_reserved() {
    let app = Router::new().fallback(async || {
        let head = Response::builder().header("content-encoding", "gzip").header("content-type", "text/event-stream");
        head.body(axum::body::Body::from(events(&[USAGE, "data: [DONE]"]))).unwrap()
    });
    let gateway = TestGateway::new(RULES, &format!("http://{}", serve(app).await)).await;
    let response = gateway.post("/v1/chat/completions", "", r#"{"max_tokens":96}"#).await;
    assert!(response.contains("prompt_tokens"), "it passes as it is: {response}");
    assert_eq!(gateway.used(), 96 + 4);
}

#[tokio::test]
async fn a_response_without_usage_costs_what_was_reserved() {
    let unreadable = r#"{"usage":{"prompt_tokens":7,"completion_tokens":-1}}"#;
    for body in ["", "{}", "<html>", r#"{"usage":null}"#, r#"{"usage":{"prompt_tokens":9"#, unreadable] {
        let (upstream, _) = upstream("application/json", body).await;
        let gateway = TestGateway::new(RULES, &upstream).await;
        gateway.post("/v1/chat/completions", "", r#"{"max_tokens":96}"#).await;
        assert_eq!(gateway.used(), 96 + 4, "{body}");
    }
}

#[tokio::test]
async fn a_request_that_fails_costs_nothing() {
    let app = Router::new().fallback(async |request: Request| {
        let status = request.uri().path().trim_start_matches('/').parse::<u16>().unwrap();
        let body = r#"{"error":{},"usage":{"prompt_tokens":9,"completion_tokens":9}}"#;
        Response::builder().status(status).body(axum::body::Body::from(body)).unwrap()
    });
    let gateway = TestGateway::new(RULES, &format!("http://{}", serve(app).await)).await;
    for status in [302, 400, 401, 429, 500, 503, 529] {
        gateway.post(&format!("/{status}"), "", "{}").await;
        assert_eq!(gateway.used(), 0, "{status}");
    }
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gateway = TestGateway::new(RULES, &format!("http://{free}")).await;
    assert!(gateway.post("/v1/chat/completions", "", "{}").await.starts_with("HTTP/1.1 502 "));
    until(|| gateway.used() == 0).await;
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_in_time_is_paid_what_was_reserved() {
    let app = Router::new().fallback(async || std::future::pending::<&str>().await);
    let options = GatewayOptions::new().with_response_timeout(Duration::from_millis(50));
    let gateway = TestGateway::with_options(RULES, &format!("http://{}", serve(app).await), options).await;
    let response = gateway.post("/v1/chat/completions", "", r#"{"max_tokens":96}"#).await;
    assert!(response.starts_with("HTTP/1.1 504 "), "{response}");
    until(|| gateway.used() == 96 + 4).await;
}
