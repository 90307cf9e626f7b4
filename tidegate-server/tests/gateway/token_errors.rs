//! What the client library of a language model finds in a response that the gateway writes itself.

use serde_json::Value;
use tidegate_server::gateway::GatewayOptions;

use crate::gateway::RawConnection;
use crate::gateway::tokens::{DELTA, RawUpstream, TestGateway, events, request, upstream};

/// Tokens under `/v1/`, and 3 requests of a client under every path.
const RULES: &str = "\
version: 1
rules:
  - id: tokens
    match: { path: /v1/* }
    per: []
    cost: { expression: 'int(request.body.max_tokens, 500)', usage: total, default: 500, max: 4000 }
    fixed_window: { limit: 1000, window: 1d }
  - { id: requests, per: [ip], fixed_window: { limit: 3, window: 1d } }
";

const CHAT: &str = "/v1/chat/completions";

/// The status, the type, the code and the message of an error in the form of language models.
fn error(response: &str) -> (String, String, String, String) {
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.to_ascii_lowercase().contains("content-type: application/json"), "{response}");
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{response}"));
    assert_eq!(body["type"], "error", "{response}");
    let text = |name: &str| body["error"][name].as_str().unwrap_or_else(|| panic!("{response}")).to_owned();
    (head[9..12].to_owned(), text("type"), text("code"), text("message"))
}

fn expected(status: &str, kind: &str, code: &str, message: &str) -> (String, String, String, String) {
    (status.into(), kind.into(), code.into(), message.into())
}

/// The name of an error in the stable JSON.
fn json_error(response: &str) -> String {
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{response}"));
    body["error"].as_str().unwrap_or_else(|| panic!("{response}")).to_owned()
}

#[tokio::test]
async fn a_denial_has_the_format_of_the_rule_that_it_names() {
    let (upstream, _) = upstream("text/event-stream", &events(&[DELTA, "data: [DONE]"])).await;
    let gateway = TestGateway::new(RULES, &upstream).await;
    let too_many = gateway.post(CHAT, "", r#"{"max_tokens":2000}"#).await;
    assert_eq!(
        error(&too_many),
        expected(
            "429",
            "rate_limit_error",
            "rate_limit_exceeded",
            "The request costs more than the limit ever allows at once. Waiting does not help."
        )
    );
    assert!(!too_many.contains("\r\nretry-after"), "{too_many}");
    for _ in 0..3 {
        assert!(gateway.post("/other", "", "").await.starts_with("HTTP/1.1 200 "));
    }
    // The rule that counts requests has no format of its own.
    for path in ["/other", CHAT] {
        let denied = gateway.post(path, "", r#"{"max_tokens":1}"#).await;
        assert!(denied.starts_with("HTTP/1.1 429 ") && denied.contains("\r\nretry-after-ms: "), "{denied}");
        assert_eq!(json_error(&denied), "rate_limit_exceeded", "{denied}");
    }
}

/// The library of OpenAI shows nothing but the status of an error in another form.
#[tokio::test]
async fn a_request_for_tokens_that_is_refused_before_the_model_says_why_in_the_same_form() {
    let (upstream, _) = upstream("application/json", "{}").await;
    let options = GatewayOptions::new().with_max_body_bytes(2 << 20);
    let gateway = TestGateway::with_options(RULES, &upstream, options).await;
    let invalid = |status, code, message| expected(status, "invalid_request_error", code, message);
    let long = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(1 << 20));
    let no_object = "The request body is no JSON object.";
    for (path, lines, body, expected) in [
        (CHAT, "", &*long, invalid("413", "body_too_long", "The request body exceeds the maximum length.")),
        (CHAT, "", "[]", invalid("400", "bad_request", no_object)),
        ("/v1%2Fchat/completions", "", "[]", invalid("400", "bad_request", no_object)),
        (
            CHAT,
            "",
            r#"{"max_tokens":1,"max_tokens":4000}"#,
            invalid("400", "bad_request", "The request has more than one `body:max_tokens`. Send it once."),
        ),
        (
            CHAT,
            "content-encoding: gzip\r\n",
            "{}",
            invalid(
                "415",
                "body_encoded",
                "The request body is compressed, so its tokens cannot be estimated. Send it without Content-Encoding.",
            ),
        ),
    ] {
        let response = gateway.post(path, lines, body).await;
        assert_eq!(error(&response), expected, "{lines}{path}");
    }
    let other = gateway.post("/other", "connection: x-forwarded-for\r\n", "").await;
    assert_eq!((&other[9..12], &*json_error(&other)), ("400", "bad_request"));
    let on_path = gateway.post(CHAT, "connection: x-forwarded-for\r\n", "{}").await;
    assert_eq!(error(&on_path).2, "bad_request");
}

#[tokio::test]
async fn an_upstream_that_fails_is_reported_in_the_format_of_the_rules() {
    let (upstream, address) = RawUpstream::new().await;
    let gateway = TestGateway::new(RULES, &address).await;
    for path in [CHAT, "/other"] {
        let mut client = RawConnection::connect(gateway.address).await;
        client.send(&request(path, "connection: close\r\n", r#"{"max_tokens":1}"#)).await;
        let mut connection = RawConnection::new(upstream.0.accept().await.unwrap().0);
        connection.receive_until("1}").await;
        drop(connection);
        let response = client.receive_to_end().await;
        if path == CHAT {
            let message = "The service behind this gateway cannot be reached.";
            assert_eq!(error(&response), expected("502", "api_error", "upstream_unreachable", message));
        } else {
            assert_eq!(json_error(&response), "upstream_unreachable");
        }
    }
}
