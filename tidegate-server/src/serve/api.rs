//! The check API: `/v1/check`, `/v1/check/batch` and `/v1/refund`. A check answers 200 with `allowed` in the body: the caller
//! decides what to do with its own request.

mod input;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tidegate::http::Rejection;
use tidegate::spi::{MAX_CHECKS, Origin, Role};
use tidegate::{Decision, Limiter, Request, StoreError};

use super::browser_guard::BrowserGuard;
use super::engine::Engine;
use super::instrumented_store::InstrumentedStore;
use super::json_body::JsonBody;
use super::receipts::RefundOutcome;
use super::{forward_auth, health, openapi};
use crate::check_response::CheckResponse;
pub(crate) use input::{BadRequest, SubjectCall};
use input::{BatchCall, CheckCall};

/// The routes of `--http`. `guard` refuses web pages that would consume limits; forward-auth is not guarded, since a proxy sends
/// the host and the origin of its client there.
pub(crate) fn router(engine: Arc<Engine>, guard: BrowserGuard) -> Router {
    let calls = Router::new()
        .route("/v1/check", post(check))
        .route("/v1/check/batch", post(batch))
        .route("/v1/refund", post(refund))
        .with_state(Arc::clone(&engine))
        .merge(engine.envoy().router(engine.rate_limits()));
    let rest = Router::new()
        .route("/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], openapi::TEXT)))
        .merge(forward_auth::router(engine.handle(), engine.clients()))
        .merge(health::router())
        .with_state(engine);
    guard.guard_changes(calls).merge(rest)
}

async fn check(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let call = CheckCall::from_json(&body)?;
    engine.receipts().require(call.receipt)?;
    Ok(into_response(check_one(&engine, &call).await?))
}

/// Decides each check by itself, in order, or all of them as one.
async fn batch(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let batch = BatchCall::from_json(&body)?;
    engine.receipts().require(batch.receipt || batch.checks.iter().any(|call| call.receipt))?;
    if batch.atomic {
        return Ok(into_response(check_atomically(&engine, &batch).await?));
    }
    let mut answers = Vec::with_capacity(batch.checks.len());
    for call in &batch.checks {
        answers.push(match check_one(&engine, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(rejection)) => json!({ "allowed": false, "degraded": true, "error": rejection.message }),
            // Other checks of the batch may be those of other clients, which must not fail for it.
            Err(problem) => json!({ "allowed": false, "degraded": false, "error": problem.message() }),
        });
    }
    Ok(Json(json!({ "answers": answers })).into_response())
}

/// Refunds what a check consumed.
async fn refund(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let receipt = input::receipt(&body)?;
    let limiter = engine.limiter();
    let reason = match engine.receipts().refund(&limiter, &receipt).await {
        Ok(RefundOutcome::Refunded) => return Ok(Json(json!({ "refunded": true })).into_response()),
        Ok(RefundOutcome::AlreadyRefunded) => "already refunded",
        Ok(RefundOutcome::TooOld) => "too old",
        Ok(RefundOutcome::Unknown) => return Ok(unknown_receipt()),
        Err(error) => return Ok(rejected(limiter.rules().header_policy().reject_unavailable(&error, None))),
    };
    Ok(Json(json!({ "refunded": false, "reason": reason })).into_response())
}

fn unknown_receipt() -> Response {
    let body = json!({ "error": "unknown_receipt", "message": "This receipt was not issued by this service." });
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

/// One decision as JSON, or the rejection if the store fails and a rule is closed on failure. Fails if the request cannot be judged.
async fn check_one(engine: &Engine, call: &CheckCall) -> Result<Result<Value, Rejection>, BadRequest> {
    let (limiter, request) = (engine.limiter(), call.attributes.request());
    engine.clients().count_check(&request);
    let plan = limiter.plan(&request).with_origin(origin(&request));
    if let Some(problem) = plan.problem() {
        return Err(BadRequest::new(problem.to_string()));
    }
    let plan = if call.peek { plan.with_peek() } else { plan };
    Ok(decision_json(engine, &limiter, call.receipt, limiter.check_plan(&plan).await))
}

/// Decides all checks as one plan. Fails if more limits apply than a plan can have, or a request cannot be judged.
async fn check_atomically(engine: &Engine, batch: &BatchCall) -> Result<Result<Value, Rejection>, BadRequest> {
    let limiter = engine.limiter();
    let requests: Vec<_> = batch.checks.iter().map(|call| call.attributes.request()).collect();
    for request in &requests {
        engine.clients().count_check(request);
    }
    let mut plans = requests.iter().map(|request| limiter.plan(request).with_origin(origin(request)));
    let Some(first) = plans.next() else { return Ok(Ok(json!({ "allowed": true, "degraded": false }))) };
    let plan = plans.fold(first, |all, plan| all.merge(&plan));
    if let Some(problem) = plan.problem() {
        return Err(BadRequest::new(problem.to_string()));
    }
    if plan.is_too_large() {
        let limits = plan.checks().iter().filter(|check| check.gate().role() != Role::Shadow).count();
        return Err(BadRequest::new(format!(
            "checks: together they meet {limits} limits; at most {MAX_CHECKS} if atomic"
        )));
    }
    Ok(decision_json(engine, &limiter, batch.receipt, limiter.check_plan(&plan).await))
}

fn origin(request: &Request<'_>) -> Origin {
    let origin = Origin::new("check");
    request.attribute("method").map_or(origin, |method| origin.with_method(method))
}

fn decision_json(
    engine: &Engine,
    limiter: &Limiter<InstrumentedStore>,
    receipt: bool,
    result: Result<Decision, StoreError>,
) -> Result<Value, Rejection> {
    match result {
        Ok(decision) => {
            // Serializing numbers and strings cannot fail.
            let mut answer = serde_json::to_value(CheckResponse::new(&decision)).unwrap_or(Value::Null);
            // A decision without the store has nothing to refund.
            if receipt && decision.is_allowed() && decision.degraded().is_none() {
                answer["receipt"] = engine.receipts().write(&decision.into_receipt()).into();
            }
            Ok(answer)
        }
        Err(error) => Err(limiter.rules().header_policy().reject_unavailable(&error, None)),
    }
}

fn into_response(result: Result<Value, Rejection>) -> Response {
    result.map_or_else(rejected, |answer| Json(answer).into_response())
}

pub(crate) fn rejected(rejection: Rejection) -> Response {
    let status = StatusCode::from_u16(rejection.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let headers: http::HeaderMap = rejection
        .headers
        .iter()
        .filter_map(|(name, value)| Some((http::HeaderName::from_static(name), value.parse().ok()?)))
        .collect();
    (status, headers, rejection.body).into_response()
}
