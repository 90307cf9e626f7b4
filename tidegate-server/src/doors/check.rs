//! The check API: `/v1/check`, `/v1/check/batch`, `/v1/refund`, `/v1/leases`, `/v1/quotas` and `/v1/acquire`. A check answers 200 with
//! `allowed` in the body: the caller decides what to do with its own request.

mod acquire;
pub(crate) mod acquire_calls;
pub(crate) mod check_response;
pub(crate) mod in_process;
mod input;
mod leases;
mod quotas;
mod subject_call;
#[cfg(test)]
mod tests;

pub(crate) use acquire::PATH as ACQUIRE_PATH;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{post, put};
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate::http::{ErrorFormat, Rejection};
use tidegate::spi::{MAX_CHECKS, Origin, Plan, Role};
use tidegate::{Decision, Limiter, Request, RuleSet, StoreError};
use tidegate_rule_tools::no_rule;
use tokio::sync::watch;

use self::check_response::CheckResponse;
use super::forward_auth;
use crate::calls::browser_guard::BrowserGuard;
use crate::calls::json_body::JsonBody;
use crate::calls::unknown_calls::{answer_unknown_paths, answer_wrong_methods};
use crate::calls::{health, openapi};
use crate::engine::Engine;
use crate::engine::instrumented_store::InstrumentedStore;
use crate::tokens::GrantTokenKind;
use crate::tokens::leases::LeaseAge;
use crate::tokens::receipts::RefundOutcome;
use input::{AcquireCall, BatchCheckCall, CheckCall};
pub(crate) use input::{BadRequest, CheckBody, parse};
pub(crate) use subject_call::{SubjectCall, SubjectDescription};

/// The routes of `--http`. `guard` refuses web pages that would consume limits; forward-auth is not guarded, since a proxy sends
/// the host and the origin of its client there. Callers that wait are answered when the server is `stopping`.
pub(crate) fn router(engine: Arc<Engine>, guard: BrowserGuard, stopping: watch::Receiver<bool>) -> Router {
    let calls = Router::new()
        .route("/v1/check", post(check))
        .route("/v1/check/batch", post(batch))
        .route("/v1/refund", post(refund))
        .route("/v1/leases", post(leases::take))
        .route("/v1/leases/{id}", put(leases::renew).delete(leases::release))
        .with_state(Arc::clone(&engine))
        .merge(quotas::router(Arc::clone(&engine)))
        .merge(acquire::router(Arc::clone(&engine), stopping))
        .merge(engine.envoy().router(engine.rate_limits()));
    let rest = Router::new()
        .merge(openapi::router(openapi::CHECK_API))
        .merge(forward_auth::router(engine.handle(), engine.clients()))
        .merge(health::router())
        .with_state(engine);
    let calls = guard.guard_changes(answer_wrong_methods(calls));
    answer_unknown_paths(calls.merge(answer_wrong_methods(rest)))
}

async fn check(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let call = CheckCall::from_json(&body)?;
    require_receipts(&engine, call.receipt)?;
    Ok(into_response(check_one(&engine, &call).await?))
}

/// Decides each check by itself, in order, or all of them as one.
async fn batch(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let batch = BatchCheckCall::from_json(&body)?;
    require_receipts(&engine, batch.receipt || batch.checks.iter().any(|call| call.receipt))?;
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

/// Refuses a call that asks for a receipt where there are none.
fn require_receipts(engine: &Engine, is_requested: bool) -> Result<(), BadRequest> {
    if is_requested { engine.tokens().require(GrantTokenKind::Receipt) } else { Ok(()) }
}

/// Refunds what a check consumed.
async fn refund(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let receipt = input::receipt(&body)?;
    let limiter = engine.limiter();
    let reason = match engine.tokens().refund(&limiter, &receipt).await {
        Ok(RefundOutcome::Refunded) => return Ok(Json(json!({ "refunded": true })).into_response()),
        Ok(RefundOutcome::AlreadyRefunded) => "already refunded",
        Ok(RefundOutcome::TooOld) => "too old",
        Ok(RefundOutcome::Unknown) => return Ok(unknown_receipt()),
        Err(error) => return Ok(rejected(unavailable(limiter.rules(), &error))),
    };
    Ok(Json(json!({ "refunded": false, "reason": reason })).into_response())
}

fn unknown_receipt() -> Response {
    let body = json!({ "error": "unknown_receipt", "message": "This receipt was not issued by this service." });
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

/// One decision as JSON, or the rejection if the store fails and a rule is closed on failure. Fails if the request cannot be judged.
async fn check_one(engine: &Engine, call: &CheckCall) -> Result<Result<Value, Rejection>, BadRequest> {
    let limiter = engine.limiter();
    let plan = plan(engine, &limiter, call)?;
    let plan = if call.peek { plan.with_peek() } else { plan };
    Ok(decision_json(engine, &limiter, AnswerParts::receipt(call.receipt), limiter.plans().check(&plan).await))
}

/// The plan of a call. Fails if its request cannot be judged, or if it is strict and no rule matches.
fn plan<'l>(
    engine: &Engine,
    limiter: &'l Limiter<InstrumentedStore>,
    call: &CheckCall,
) -> Result<Plan<'l>, BadRequest> {
    engine.clients().count_check(&call.attributes.request());
    uncounted_plan(engine, limiter, call)
}

/// The plan of a call that was counted before.
fn uncounted_plan<'l>(
    engine: &Engine,
    limiter: &'l Limiter<InstrumentedStore>,
    call: &CheckCall,
) -> Result<Plan<'l>, BadRequest> {
    let request = call.attributes.request();
    let plan = limiter.plan(&request).with_origin(origin(&request));
    match plan.problem() {
        Some(problem) => Err(BadRequest::new(problem.to_string())),
        None if plan.checks().is_empty() => require_rule(engine, call, &request).map(|()| plan),
        None => Ok(plan),
    }
}

/// Fails if the call is strict and no rule matches its request. A request that is exempt passes.
fn require_rule(engine: &Engine, call: &CheckCall, request: &Request<'_>) -> Result<(), BadRequest> {
    if !call.strict.unwrap_or(engine.has_strict_checks()) {
        return Ok(());
    }
    let (_, file) = engine.rules_in_force();
    no_rule(&file, request).map_or(Ok(()), |message| Err(BadRequest::no_rule(message)))
}

/// Decides all checks as one plan. Fails if more limits apply than a plan can have, a request cannot be judged, or no rule matches a strict
/// one.
async fn check_atomically(engine: &Engine, batch: &BatchCheckCall) -> Result<Result<Value, Rejection>, BadRequest> {
    let limiter = engine.limiter();
    let mut plans = Vec::with_capacity(batch.checks.len());
    for (index, call) in batch.checks.iter().enumerate() {
        plans.push(plan(engine, &limiter, call).map_err(|problem| problem.in_check(index))?);
    }
    let mut plans = plans.into_iter();
    let Some(first) = plans.next() else { return Ok(Ok(json!({ "allowed": true, "degraded": false }))) };
    let plan = plans.fold(first, |all, plan| all.merge(&plan));
    if plan.is_too_large() {
        let limits = plan.checks().iter().filter(|check| check.gate().role() != Role::Shadow).count();
        return Err(BadRequest::new(format!(
            "checks: together they meet {limits} limits; at most {MAX_CHECKS} if atomic"
        )));
    }
    Ok(decision_json(engine, &limiter, AnswerParts::receipt(batch.receipt), limiter.plans().check(&plan).await))
}

fn origin(request: &Request<'_>) -> Origin {
    let origin = Origin::new("check");
    request.attribute("method").map_or(origin, |method| origin.with_method(method))
}

/// What an answer has beside the decision.
#[derive(Clone, Copy)]
struct AnswerParts {
    receipt: bool,
    /// When the slots of its lease were taken, for an answer with a lease.
    lease: Option<LeaseAge>,
}

impl AnswerParts {
    const fn receipt(receipt: bool) -> Self {
        Self { receipt, lease: None }
    }
}

fn decision_json(
    engine: &Engine,
    limiter: &Limiter<InstrumentedStore>,
    parts: AnswerParts,
    result: Result<Decision, StoreError>,
) -> Result<Value, Rejection> {
    match result {
        Ok(mut decision) => {
            // Serializing numbers and strings cannot fail.
            let mut answer = serde_json::to_value(CheckResponse::new(&decision)).unwrap_or(Value::Null);
            if !decision.is_allowed() || !parts.receipt && parts.lease.is_none() {
                return Ok(answer);
            }
            let (tokens, mut grant) = (engine.tokens(), decision.take_grant());
            // The receipt has the identity of the lease: a refund ends that, too.
            let identity = tokens.next_identity();
            // A decision without the store has nothing to refund.
            if parts.receipt && decision.degraded().is_none() {
                answer["receipt"] = tokens.receipt(&grant, identity).into();
            }
            let slots = grant.split_slots();
            let lease = parts.lease.and_then(|age| tokens.lease(&slots, identity, age, decision.delay()));
            if let Some(lease) = &lease {
                answer["lease"] = leases::lease_json(lease);
            }
            Ok(answer)
        }
        Err(error) => Err(unavailable(limiter.rules(), &error)),
    }
}

/// The answer while the store fails, in JSON whatever the rules say: it is for the caller, whose client gets another.
pub(crate) fn unavailable(rules: &RuleSet, error: &StoreError) -> Rejection {
    rules.header_policy().reject_unavailable(error, Some(ErrorFormat::Json), None)
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
