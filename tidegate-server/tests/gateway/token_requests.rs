//! Requests to language models that are not plain: which are refused, which cost nothing, and what is changed in them.

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use tidegate_server::gateway::GatewayOptions;

use crate::gateway::tokens::{DELTA, RULES, RawUpstream, TestGateway, USAGE, events, request, send_chunk, upstream};
use crate::gateway::{RawConnection, exchange, serve, until};

/// The upstream may have worked on it.
#[tokio::test]
async fn an_upstream_that_breaks_off_before_it_answers_is_paid_what_was_reserved() {
    let (upstream, address) = RawUpstream::new().await;
    let gateway = TestGateway::new(RULES, &address).await;
    let mut client = RawConnection::connect(gateway.address).await;
    client.send(&request("/v1/chat/completions", "connection: close\r\n", r#"{"max_tokens":96}"#)).await;
    let mut connection = RawConnection::new(upstream.0.accept().await.unwrap().0);
    connection.receive_until("96}").await;
    drop(connection);
    assert!(client.receive_to_end().await.starts_with("HTTP/1.1 502 "));
    until(|| gateway.used() == 96 + 4).await;
}

#[tokio::test]
async fn a_request_that_no_model_answers_costs_nothing() {
    let app = Router::new().fallback(async |request: Request| {
        let status = request.uri().path().trim_start_matches('/').parse::<u16>().unwrap();
        Response::builder().status(status).body(axum::body::Body::from("allowed")).unwrap()
    });
    let rules = RULES.replace("    match: { method: POST }\n", "");
    let gateway = TestGateway::new(&rules, &format!("http://{}", serve(app).await)).await;
    for (method, status) in [("HEAD", 200), ("OPTIONS", 200), ("POST", 204), ("POST", 205), ("GET", 204)] {
        let text = format!("{method} /{status} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        let response = exchange(gateway.address, &text).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
        until(|| gateway.used() == 0).await;
    }
    // A server may take any method for a request to its model.
    exchange(gateway.address, &request("/200", "connection: close\r\n", "{}").replace("POST", "OPTIONS")).await;
    assert_eq!(gateway.used(), 500);
}

/// The tokens of an image have nothing to do with its length.
#[tokio::test]
async fn a_prompt_without_usage_costs_at_most_what_was_reserved() {
    let (upstream, _) = upstream("text/event-stream", &events(&[DELTA, DELTA, DELTA, "data: [DONE]"])).await;
    let body = format!(r#"{{"stream":true,"image":"{}"}}"#, "x".repeat(900_000));
    for (kind, expected) in [("total", 4_000 + 3), ("input", 4_000), ("output", 3)] {
        let gateway = TestGateway::new(&RULES.replace("total", kind), &upstream).await;
        gateway.stream(&body).await;
        assert_eq!(gateway.used(), expected, "{kind}");
    }
}

#[tokio::test]
async fn an_event_without_an_end_is_passed_on_before_trailers() {
    let (upstream, address) = RawUpstream::new().await;
    let gateway = TestGateway::new(RULES, &address).await;
    let mut client = RawConnection::connect(gateway.address).await;
    client.send(&request("/v1/chat/completions", "connection: close\r\n", r#"{"stream": true}"#)).await;
    let mut connection = upstream.begin(r#""stream": true}"#).await;
    send_chunk(&mut connection, &format!("{DELTA}\n\n{}", DELTA.replace("word", "last"))).await;
    client.receive_until(DELTA).await;
    connection.send("0\r\nx-sum: 7\r\n\r\n").await;
    let response = client.receive_to_end().await;
    assert!(response.contains("last") && response.ends_with("0\r\n\r\n"), "{response}");
    assert_eq!(gateway.used(), 4 + 2);
}

#[tokio::test]
async fn a_body_that_is_changed_has_no_checksum_and_may_exceed_the_bound_of_the_client() {
    let app = Router::new().fallback(async |request: Request| {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let names = ["content-md5", "digest", "content-digest", "repr-digest"];
        let names: Vec<_> = names.into_iter().filter(|name| parts.headers.contains_key(*name)).collect();
        format!("{names:?} {}", String::from_utf8_lossy(&body))
    });
    let (body, plain) = (r#"{"stream":true}"#, r#"{"stream":null}"#);
    let options = GatewayOptions::new().with_max_body_bytes(body.len() as u64);
    let gateway = TestGateway::with_options(RULES, &format!("http://{}", serve(app).await), options).await;
    let lines = "content-md5: a\r\ndigest: a\r\ncontent-digest: a\r\nrepr-digest: a\r\n";
    let response = gateway.post("/v1/chat/completions", lines, body).await;
    let expected = r#"[] {"stream_options":{"include_usage":true},"stream":true}"#;
    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with(expected), "{response}");
    let response = gateway.post("/v1/chat/completions", lines, plain).await;
    assert!(response.contains("repr-digest") && response.ends_with(plain), "{response}");
    let response = gateway.post("/v1/chat/completions", lines, r#"{"stream": true}"#).await;
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
}

/// Otherwise a client could choose a spelling that the rule counts, and get a stream without usage.
#[tokio::test]
async fn a_path_that_servers_read_as_a_completion_is_asked_for_usage() {
    let (upstream, requests) = upstream("text/event-stream", &events(&[DELTA, USAGE, "data: [DONE]"])).await;
    let rules = RULES.replace("method: POST", "method: POST, path: /v1/chat/completions");
    let gateway = TestGateway::new(&rules, &upstream).await;
    for path in ["/v1/chat%2Fcompletions", "/v1/chat/completions;x", "/v1/chat//completions", "/v1/chat/%63ompletions"]
    {
        requests.lock().unwrap().clear();
        let response = gateway.post(path, "", r#"{"stream":true}"#).await;
        assert!(response.starts_with("HTTP/1.1 200 ") && !response.contains("prompt_tokens"), "{path}: {response}");
        assert!(requests.lock().unwrap()[0].contains("include_usage"), "{path}");
    }
}

#[tokio::test]
async fn requests_that_cannot_be_read_are_refused() {
    let (upstream, requests) = upstream("text/event-stream", &events(&[DELTA, "data: [DONE]"])).await;
    let gateway = TestGateway::new(RULES, &upstream).await;
    let path = "/v1/chat/completions";
    for (lines, body, status) in [
        ("content-encoding: gzip\r\n", "\u{1f}\u{8b}", "415"),
        ("content-encoding: br\r\ncontent-type: application/json\r\n", "{}", "415"),
        ("", r#"{"stream":true,"stream":false}"#, "400"),
        ("", r#"{"stream":true,"stream_options":{},"stream_options":{"include_usage":false}}"#, "400"),
        ("", r#"{"max_tokens":1,"max_tokens":4000}"#, "400"),
        ("", r#"{"Stream":true}"#, "400"),
        ("", r#"{"stream":false,"STREAM":true}"#, "400"),
        // Some servers read these.
        ("", "\u{feff}{\"max_tokens\":4000}", "400"),
        ("", r#"{"max_tokens":4000,"x":NaN}"#, "400"),
        ("", r#"{"max_tokens":4000,"\ud800":1}"#, "400"),
        ("", "not JSON", "400"),
        ("", "[]", "400"),
        ("", r#"{"stream":true"#, "400"),
        ("content-type: application/grpc\r\n", r#"{"stream":true,"stream":false}"#, "400"),
    ] {
        let response = gateway.post(path, lines, body).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{body}: {response}");
        until(|| gateway.used() == 0).await;
    }
    assert!(requests.lock().unwrap().is_empty());
    let long = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(1 << 20));
    assert!(gateway.post(path, "", &long).await.starts_with("HTTP/1.1 413 "));
    assert!(gateway.post("/v1/messages", "", "\u{feff}{}").await.starts_with("HTTP/1.1 400 "), "on every path");
    gateway.post(path, "", "").await;
    assert_eq!(gateway.used(), 1, "without a body there is nothing to read");
    let shadow = TestGateway::new(&RULES.replace("    per: []\n", "    per: []\n    mode: shadow\n"), &upstream).await;
    for body in ["not JSON", "[]", "\u{feff}{}", r#"{"stream":true,"stream":false}"#] {
        assert!(shadow.post(path, "", body).await.starts_with("HTTP/1.1 200 "), "{body}");
    }
    assert!(requests.lock().unwrap().iter().all(|request| !request.contains("stream_options")));
    shadow.post(path, "", r#"{"stream":true}"#).await;
    assert!(requests.lock().unwrap().last().unwrap().contains("stream_options"), "it counts as if it were enforced");
}
