//! The check API: `/v1/check` and `/v1/check/batch`. Adapter in, limiter, adapter out; a check answers 200 with `allowed` in the
//! body, since it is not the door itself.

mod input;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tidegate::{Answer, Decision, Limiter, Plan, StoreError};
use tidegate_rules::SampleAttributes;

use super::engine::Engine;
use super::watched::Watched;
use super::{forward_auth, health, openapi};
use crate::check::CheckAnswer;
pub(crate) use input::Refusal;
use input::{Asked, Batch};

/// The largest body of a call.
const LARGEST_BODY: usize = 1024 * 1024;

pub(crate) fn router(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/v1/check", post(check))
        .route("/v1/check/batch", post(batch))
        .route("/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], openapi::TEXT)))
        .merge(forward_auth::router(engine.handle()))
        .merge(health::router())
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(engine)
}

async fn check(State(engine): State<Arc<Engine>>, body: Bytes) -> Result<Response, Refusal> {
    let asked = Asked::read(&body)?;
    let limiter = engine.limiter();
    Ok(match decide(&limiter, &asked.attributes, asked.peek).await {
        Ok(answer) => Json(answer).into_response(),
        Err(answer) => refused(answer),
    })
}

/// Each by itself, in order; or all of them as one.
async fn batch(State(engine): State<Arc<Engine>>, body: Bytes) -> Result<Response, Refusal> {
    let batch = Batch::read(&body)?;
    let limiter = engine.limiter();
    if batch.atomic {
        return Ok(match together(&limiter, &batch.checks).await {
            Ok(answer) => Json(answer).into_response(),
            Err(answer) => refused(answer),
        });
    }
    let mut answers = Vec::with_capacity(batch.checks.len());
    for asked in &batch.checks {
        answers.push(match decide(&limiter, &asked.attributes, asked.peek).await {
            Ok(answer) => answer,
            Err(answer) => json!({ "allowed": false, "degraded": true, "error": answer.message }),
        });
    }
    Ok(Json(json!({ "answers": answers })).into_response())
}

/// One decision as JSON; or, while the store fails and a rule is closed then, the refusal.
async fn decide(limiter: &Limiter<Watched>, asked: &SampleAttributes, peek: bool) -> Result<Value, Answer> {
    let request = asked.request();
    let decided = if peek { limiter.peek(&request).await } else { limiter.check(&request).await };
    said(limiter, &limiter.plan(&request), decided)
}

async fn together(limiter: &Limiter<Watched>, checks: &[Asked]) -> Result<Value, Answer> {
    let requests: Vec<_> = checks.iter().map(|asked| asked.attributes.request()).collect();
    let mut plans = requests.iter().map(|request| limiter.plan(request));
    let Some(first) = plans.next() else { return Ok(json!({ "answers": [] })) };
    let plan = plans.fold(first, |all, plan| all.and(&plan));
    said(limiter, &plan, limiter.decide(&plan).await)
}

fn said(limiter: &Limiter<Watched>, plan: &Plan<'_>, decided: Result<Decision, StoreError>) -> Result<Value, Answer> {
    match decided {
        Ok(decision) => Ok(serde_json::to_value(CheckAnswer::new(&decision)).unwrap_or(Value::Null)),
        Err(_) if plan.fails_closed() => Err(limiter.rules().contract().failed(None)),
        // The rules let it pass, and nothing more is known.
        Err(_) => Ok(json!({ "allowed": true, "degraded": true })),
    }
}

fn refused(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let headers: http::HeaderMap = answer
        .headers
        .iter()
        .filter_map(|(name, value)| Some((http::HeaderName::from_static(name), value.parse().ok()?)))
        .collect();
    (status, headers, answer.body).into_response()
}
