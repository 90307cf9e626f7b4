//! Tokens of language models: answers that come late, fail, or are not waited for.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use tidegate::ManualClock;
use tokio::sync::Notify;

use crate::gateway::tokens::{RULES, RawUpstream, TestGateway, USAGE, events, request, send_chunk};
use crate::gateway::{RawConnection, START, serve, until};

/// By then, what was reserved is committed. The rest is charged, and nothing is given back.
#[tokio::test]
async fn a_response_that_begins_when_its_reservation_has_run_out_is_paid_for_in_full() {
    for (status, used) in [(200, 6_000), (500, 504)] {
        let clock = ManualClock::starting_at(START);
        let (answers, may_answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (reached, answer) = (Arc::clone(&answers), Arc::clone(&may_answer));
        let app = Router::new().fallback(async move || {
            reached.notify_one();
            answer.notified().await;
            let body = r#"{"usage":{"prompt_tokens":1000,"completion_tokens":5000}}"#;
            Response::builder().status(status).body(axum::body::Body::from(body)).unwrap()
        });
        let upstream = format!("http://{}", serve(app).await);
        let gateway = TestGateway::with_clock(RULES, &clock, &upstream).await;
        let work = async {
            answers.notified().await;
            until(|| clock.pending_sleeps() == 1).await;
            clock.advance(Duration::from_mins(4));
            gateway.wait_until_committed().await;
            clock.advance(Duration::from_mins(1));
            may_answer.notify_one();
        };
        let (response, ()) = tokio::join!(gateway.post("/v1/chat/completions", "", r#"{"messages": []}"#), work);
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
        assert_eq!(gateway.used(), used, "{status}");
    }
}

#[tokio::test]
async fn a_failed_response_states_its_cost_under_other_rules() {
    let rules = format!(
        "{RULES}  - id: rows\n    per: []\n    cost: {{ actual: x-rows, default: 10 }}\n    fixed_window: {{ limit: 1000, window: 1d }}\n"
    );
    let app = Router::new().fallback(async || {
        let response = Response::builder().status(500).header("x-rows", "70");
        response.body(axum::body::Body::empty()).unwrap()
    });
    let gateway = TestGateway::new(&rules, &format!("http://{}", serve(app).await)).await;
    gateway.post("/v1/chat/completions", "", "{}").await;
    let limiter = gateway.limits.limiter();
    let request = tidegate::Request::new("").with_attribute("method", "POST");
    let peek = limiter.plans().check_now(&limiter.plan(&request).with_peek());
    let remaining: Vec<u64> = peek.checks().iter().map(|check| check.outcome().remaining).collect();
    assert_eq!(remaining, [10_000, 1000 - 70]);
}

/// Of each, the head has arrived when four fifths of the reservation have passed.
#[tokio::test]
async fn a_response_that_has_told_nothing_is_committed_as_reserved_when_its_reservation_runs_out() {
    let stated = r#"{"usage":{"prompt_tokens":30,"completion_tokens":70},"choices":["#;
    for (content_type, first, rest, committed, last) in [
        ("text/event-stream", ": wait\n\n", USAGE, 504, 504),
        ("application/json", "{", r#""usage":{"prompt_tokens":9,"completion_tokens":991}}"#, 504, 1000),
        ("application/json", stated, "]}", 100, 100),
    ] {
        let clock = ManualClock::starting_at(START);
        let (upstream, address) = RawUpstream::new().await;
        let gateway = TestGateway::with_clock(RULES, &clock, &address).await;
        let mut client = RawConnection::connect(gateway.address).await;
        client.send(&request("/v1/messages", "", r#"{"stream": true}"#)).await;
        let mut connection = upstream.begin_type(r#""stream": true}"#, content_type).await;
        send_chunk(&mut connection, first).await;
        client.receive_until(first).await;
        until(|| clock.pending_sleeps() == 1).await;
        clock.advance(Duration::from_mins(4));
        gateway.wait_until_committed().await;
        assert_eq!(gateway.used(), committed, "{first}");
        send_chunk(&mut connection, rest).await;
        connection.send("0\r\n\r\n").await;
        client.receive_until("0\r\n\r\n").await;
        assert_eq!(gateway.used(), last, "{first}");
    }
}

/// A model may reason for minutes before it streams a part of its answer. Anthropic's form states an output of 1 at the start.
#[tokio::test]
async fn a_client_that_hangs_up_before_the_first_part_of_the_answer_pays_what_was_reserved() {
    const ROLE: &str = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}"#;
    const MESSAGE: &str = r#"data: {"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":1}}}"#;
    const CREATED: &str = r#"data: {"type":"response.created","response":{"usage":null}}"#;
    const COUNTED: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0}}"#;
    for (sent, kind) in
        [("", "total"), ("", "output"), (ROLE, "total"), (MESSAGE, "total"), (CREATED, "total"), (COUNTED, "total")]
    {
        let (upstream, address) = RawUpstream::new().await;
        let gateway = TestGateway::new(&RULES.replace("total", kind), &address).await;
        let mut client = RawConnection::connect(gateway.address).await;
        client.send(&request("/v1/messages", "", r#"{"stream": true}"#)).await;
        let mut connection = upstream.begin(r#""stream": true}"#).await;
        client.receive_until("text/event-stream").await;
        if !sent.is_empty() {
            send_chunk(&mut connection, &events(&[sent])).await;
            client.receive_until(sent).await;
        }
        drop(client);
        assert_eq!(connection.receive_to_end().await.matches("POST").count(), 1);
        assert_eq!(gateway.used(), 504, "{sent} {kind}");
    }
}
