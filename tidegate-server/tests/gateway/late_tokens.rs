//! Tokens of language models: answers that come late, or fail.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use tidegate::{Limiter, ManualClock, MemoryStore};
use tidegate_rules::RuleFile;
use tidegate_server::gateway::GatewayOptions;
use tidegate_tower::LimitLayer;
use tokio::sync::Notify;

use crate::tokens::{RULES, TestGateway};
use crate::{START, serve, until};

/// By then, what was reserved is committed. The rest is charged, and nothing is given back.
#[tokio::test]
async fn a_response_that_begins_when_its_reservation_has_run_out_is_paid_for_in_full() {
    for (status, used) in [(200, 6_000), (500, 504)] {
        let clock = ManualClock::starting_at(START);
        let file = RuleFile::parse("rules.yaml", RULES).unwrap_or_else(|report| panic!("{report}"));
        let limiter = Limiter::new(file.rules().clone(), Arc::new(MemoryStore::new().with_clock(clock.clone())));
        let (answers, may_answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (reached, answer) = (Arc::clone(&answers), Arc::clone(&may_answer));
        let app = Router::new().fallback(async move || {
            reached.notify_one();
            answer.notified().await;
            let body = r#"{"usage":{"prompt_tokens":1000,"completion_tokens":5000}}"#;
            Response::builder().status(status).body(axum::body::Body::from(body)).unwrap()
        });
        let layer = LimitLayer::new(limiter).with_timer(clock.clone());
        let upstream = format!("http://{}", serve(app).await);
        let gateway = TestGateway::with_layer(layer, &upstream, GatewayOptions::new()).await;
        let work = async {
            answers.notified().await;
            until(|| clock.pending_sleeps() == 1).await;
            clock.advance(Duration::from_secs(240));
            let request = tidegate::Request::new("").with_attribute("method", "POST");
            while gateway.limits.limiter().outstanding(&request).await.unwrap()[0].reservations > 0 {
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_secs(60));
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
    let peek = limiter.check_plan_now(&limiter.plan(&request).with_peek());
    let remaining: Vec<u64> = peek.checks().iter().map(|check| check.outcome().remaining).collect();
    assert_eq!(remaining, [10_000, 1000 - 70]);
}
