//! The check API: `/v1/check`, `/v1/check/batch` and `/v1/refund`. Adapter in, limiter, adapter out; a check answers 200 with `allowed` in the
//! body, since it is not the door itself.

mod input;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tidegate::http::Rejection;
use tidegate::spi::{MAX_CHECKS, Origin};
use tidegate::{Decision, Limiter, Request, StoreError};

use super::engine::Engine;
use super::instrumented_store::InstrumentedStore;
use super::receipts::RefundOutcome;
use super::{forward_auth, health, openapi};
use crate::check_response::CheckResponse;
pub(crate) use input::Refusal;
use input::{Asked, Batch};

pub(crate) fn router(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/v1/check", post(check))
        .route("/v1/check/batch", post(batch))
        .route("/v1/refund", post(refund))
        .route("/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], openapi::TEXT)))
        .merge(forward_auth::router(engine.handle()))
        .merge(health::router())
        .with_state(engine)
}

async fn check(State(engine): State<Arc<Engine>>, body: Bytes) -> Result<Response, Refusal> {
    let asked = Asked::read(&body)?;
    engine.receipts().require(asked.receipt)?;
    Ok(match decide(&engine, &asked).await {
        Ok(answer) => Json(answer).into_response(),
        Err(answer) => refused(answer),
    })
}

/// Each by itself, in order; or all of them as one.
async fn batch(State(engine): State<Arc<Engine>>, body: Bytes) -> Result<Response, Refusal> {
    let batch = Batch::read(&body)?;
    engine.receipts().require(batch.receipt || batch.checks.iter().any(|asked| asked.receipt))?;
    if batch.atomic {
        return Ok(match together(&engine, &batch).await? {
            Ok(answer) => Json(answer).into_response(),
            Err(answer) => refused(answer),
        });
    }
    let mut answers = Vec::with_capacity(batch.checks.len());
    for asked in &batch.checks {
        answers.push(match decide(&engine, asked).await {
            Ok(answer) => answer,
            Err(answer) => json!({ "allowed": false, "degraded": true, "error": answer.message }),
        });
    }
    Ok(Json(json!({ "answers": answers })).into_response())
}

/// Gives back what a check consumed.
async fn refund(State(engine): State<Arc<Engine>>, body: Bytes) -> Result<Response, Refusal> {
    let receipt = input::receipt(&body)?;
    let limiter = engine.limiter();
    let reason = match engine.receipts().refund(&limiter, &receipt).await {
        Ok(RefundOutcome::Refunded) => return Ok(Json(json!({ "refunded": true })).into_response()),
        Ok(RefundOutcome::AlreadyRefunded) => "already refunded",
        Ok(RefundOutcome::TooOld) => "too old",
        Ok(RefundOutcome::Unknown) => return Ok(unknown()),
        Err(_) => return Ok(refused(limiter.rules().header_policy().reject_unavailable(None))),
    };
    Ok(Json(json!({ "refunded": false, "reason": reason })).into_response())
}

fn unknown() -> Response {
    let told = json!({ "error": "unknown_receipt", "message": "There is no such receipt: no check has answered it." });
    (StatusCode::NOT_FOUND, Json(told)).into_response()
}

/// One decision as JSON; or, while the store fails and a rule is closed then, the refusal.
async fn decide(engine: &Engine, asked: &Asked) -> Result<Value, Rejection> {
    let (limiter, request) = (engine.limiter(), asked.attributes.request());
    let decided = if asked.peek {
        limiter.peek(&request).await
    } else {
        limiter.check_plan(&limiter.plan(&request).with_origin(origin(&request))).await
    };
    said(engine, &limiter, asked.receipt, decided)
}

/// All checks as one plan, or why they are too many for one.
async fn together(engine: &Engine, batch: &Batch) -> Result<Result<Value, Rejection>, Refusal> {
    let limiter = engine.limiter();
    let requests: Vec<_> = batch.checks.iter().map(|asked| asked.attributes.request()).collect();
    let mut plans = requests.iter().map(|request| limiter.plan(request).with_origin(origin(request)));
    let Some(first) = plans.next() else { return Ok(Ok(json!({ "allowed": true, "degraded": false }))) };
    let plan = plans.fold(first, |all, plan| all.merge(&plan));
    let limits = plan.checks().len();
    if limits > MAX_CHECKS {
        return Err(Refusal::new(format!(
            "checks: together they meet {limits} limits; at most {MAX_CHECKS} if atomic"
        )));
    }
    Ok(said(engine, &limiter, batch.receipt, limiter.check_plan(&plan).await))
}

fn origin(request: &Request<'_>) -> Origin {
    let origin = Origin::new("check");
    request.attribute("method").map_or(origin, |method| origin.with_method(method))
}

fn said(
    engine: &Engine,
    limiter: &Limiter<InstrumentedStore>,
    receipt: bool,
    decided: Result<Decision, StoreError>,
) -> Result<Value, Rejection> {
    match decided {
        Ok(decision) => {
            // Numbers and texts can always be written.
            let mut answer = serde_json::to_value(CheckResponse::new(&decision)).unwrap_or(Value::Null);
            // What was counted nowhere cannot be given back.
            if receipt && decision.is_allowed() && decision.degraded().is_none() {
                answer["receipt"] = engine.receipts().write(&decision.into_receipt()).into();
            }
            Ok(answer)
        }
        Err(_) => Err(limiter.rules().header_policy().reject_unavailable(None)),
    }
}

fn refused(answer: Rejection) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let headers: http::HeaderMap = answer
        .headers
        .iter()
        .filter_map(|(name, value)| Some((http::HeaderName::from_static(name), value.parse().ok()?)))
        .collect();
    (status, headers, answer.body).into_response()
}
