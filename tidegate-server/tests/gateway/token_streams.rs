//! Streams of language models in other forms and over other protocols than the plain ones.

use axum::Router;
use axum::response::Response;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tidegate_server::gateway::{Gateway, GatewayOptions, UpstreamTls};
use tokio::io::AsyncWriteExt;

use crate::gateway::tokens::{
    DELTA, RULES, RawUpstream, TestGateway, USAGE, events, request, send_chunk, unchunked, upstream,
};
use crate::gateway::upstream_tls::{Authority, accept};
use crate::gateway::{RawConnection, file_limits, listener, serve};

const RESPONSE_DELTA: &str =
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"word\"}";

/// The first and the last event of OpenAI's responses, which repeat the instructions and the answer.
fn responses_events(bytes: usize) -> [String; 2] {
    let (text, usage) = ("x".repeat(bytes), r#"{"input_tokens":30,"output_tokens":70,"total_tokens":100}"#);
    let created = format!(r#"data: {{"type":"response.created","response":{{"instructions":"{text}","usage":null}}}}"#);
    let completed = format!(
        r#"data: {{"type":"response.completed","response":{{"output":["{text}"],"usage":{usage},"user":null}}}}"#
    );
    [created, completed].map(|data| format!("event: response\n{data}"))
}

#[tokio::test]
async fn a_stream_of_responses_costs_what_its_last_event_states_however_long_that_is() {
    for bytes in [10, 1000, 70_000, 3_000_000] {
        let [created, completed] = responses_events(bytes);
        let all = events(&[&created, RESPONSE_DELTA, RESPONSE_DELTA, &completed]);
        let (upstream, requests) = upstream("text/event-stream", &all).await;
        let gateway = TestGateway::new(RULES, &upstream).await;
        let response = gateway.post("/v1/responses", "", r#"{"stream":true}"#).await;
        assert!(unchunked(&response) == all, "{bytes} bytes pass as they are");
        assert_eq!(gateway.used(), 100, "{bytes}");
        assert!(requests.lock().unwrap()[0].ends_with(r#"{"stream":true}"#), "it states its usage unasked");
    }
}

/// What the first event repeats is no part of the answer.
#[tokio::test]
async fn a_client_that_hangs_up_in_a_stream_of_responses_pays_for_the_parts_of_the_answer() {
    let (upstream, address) = RawUpstream::new().await;
    let gateway = TestGateway::new(RULES, &address).await;
    let mut client = RawConnection::connect(gateway.address).await;
    client.send(&request("/v1/responses", "", r#"{"stream": true}"#)).await;
    let mut connection = upstream.begin(r#""stream": true}"#).await;
    let [created, _] = responses_events(100_000);
    send_chunk(&mut connection, &events(&[&created, RESPONSE_DELTA, RESPONSE_DELTA])).await;
    client.receive_until(&events(&[RESPONSE_DELTA, RESPONSE_DELTA])).await;
    drop(client);
    assert_eq!(connection.receive_to_end().await.matches("POST").count(), 1);
    assert_eq!(gateway.used(), 4 + 2);
}

#[tokio::test]
async fn a_stream_may_begin_with_a_byte_order_mark_that_is_cut() {
    let (upstream, address) = RawUpstream::new().await;
    let gateway = TestGateway::new(RULES, &address).await;
    let mut client = RawConnection::connect(gateway.address).await;
    client.send(&request("/v1/chat/completions", "", r#"{"stream": true}"#)).await;
    let mut connection = upstream.begin(r#""stream": true}"#).await;
    let all = format!("\u{feff}{}", events(&[USAGE, DELTA, "data: [DONE]"])).into_bytes();
    for chunk in [&all[..2], &all[2..]] {
        let framed = [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat();
        connection.stream.write_all(&framed).await.unwrap();
    }
    client.receive_until("data: [DONE]\n\n").await;
    assert!(!client.received.contains("prompt_tokens"), "{}", client.received);
    assert_eq!(gateway.used(), 100);
}

#[tokio::test]
async fn a_stream_is_counted_although_it_is_not_declared_as_one() {
    let all = events(&[DELTA, USAGE, "data: [DONE]"]);
    for content_type in ["application/json", "text/plain", ""] {
        for begin in ["", "event: x\n", ": hello\n\n", "\n\n", "id: 7\n", "\u{feff}"] {
            let body = format!("{begin}{all}");
            let (upstream, address) = RawUpstream::new().await;
            let gateway = TestGateway::new(RULES, &address).await;
            let mut client = RawConnection::connect(gateway.address).await;
            client.send(&request("/v1/chat/completions", "", r#"{"stream": true}"#)).await;
            let mut connection = upstream.begin_type(r#""stream": true}"#, content_type).await;
            send_chunk(&mut connection, &body).await;
            client.receive_until("data: [DONE]\n\n").await;
            assert_eq!(gateway.used(), 100, "{begin:?}");
            assert!(!client.received.contains("prompt_tokens"), "{}", client.received);
        }
    }
    // With a length, all of its bytes are passed on.
    let (upstream, _) = upstream("text/plain", &all).await;
    let gateway = TestGateway::new(RULES, &upstream).await;
    assert_eq!(gateway.stream(r#"{"stream":true}"#).await, all);
    assert_eq!(gateway.used(), 100);
    let json = "\u{feff} {\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":70}}";
    let (upstream, _) = crate::gateway::tokens::upstream("application/json", json).await;
    let gateway = TestGateway::new(RULES, &upstream).await;
    assert_eq!(gateway.stream(r#"{"stream":true}"#).await, json);
    assert_eq!(gateway.used(), 100, "an answer that is no stream");
}

/// An API over HTTP/1.1, HTTP/2, TLS, and both.
#[tokio::test]
async fn tokens_are_counted_whatever_protocol_the_upstream_speaks() {
    let stream = events(&[DELTA, DELTA, USAGE, "data: [DONE]"]);
    let json = r#"{"usage":{"prompt_tokens":30,"completion_tokens":70}}"#;
    let authority = Authority::new();
    for scheme in ["http", "h2c", "https", "h2"] {
        for (content_type, body) in [("text/event-stream", stream.as_str()), ("application/json", json)] {
            let text = body.to_owned();
            let app: Router = Router::new().fallback(async move || {
                Response::builder().header("content-type", content_type).body(axum::body::Body::from(text)).unwrap()
            });
            let upstream = match scheme {
                "http" | "h2c" => serve(app).await,
                _ => {
                    let protocol: &[u8] = if scheme == "h2" { b"h2" } else { b"http/1.1" };
                    let serve = move |connection| {
                        let service = TowerToHyperService::new(app.clone());
                        async move {
                            let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                            let _ = builder.serve_connection(TokioIo::new(connection), service).await;
                        }
                    };
                    accept(authority.server("localhost", protocol, None), serve).await
                }
            };
            let address = format!("{scheme}://localhost:{}", upstream.port()).parse().unwrap();
            let server = match scheme {
                "http" | "h2c" => Gateway::new(&address, GatewayOptions::new()),
                _ => {
                    Gateway::with_tls(&address, &UpstreamTls::load(&authority.files()).unwrap(), GatewayOptions::new())
                }
            };
            let server = server.unwrap();
            let (listener, layer) = (listener().await, file_limits(RULES));
            let gateway = TestGateway { address: listener.address().unwrap(), limits: layer.handle() };
            tokio::spawn(server.serve(listener, layer, std::future::pending()));
            let response = gateway.stream(r#"{"stream":true}"#).await;
            assert_eq!(response.matches("word").count(), body.matches("word").count(), "{scheme}: {response}");
            assert_eq!(gateway.used(), 100, "{scheme} {content_type}");
        }
    }
}
