//! `/v1/quotas`: reserves the estimated cost of a request, commits the actual one or releases it by its id, and lists what is reserved.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate::grants::{Costs, GrantError, GrantKind, OutstandingReservations};
use tidegate::{Ending, Limiter};

use super::check_response::CheckResponse;
use super::input::{ActualCost, CheckCall, CommitCall, ReserveCall};
use super::{BadRequest, plan, rejected, unavailable, uncounted_plan};
use crate::calls::json_body::JsonBody;
use crate::engine::Engine;
use crate::engine::instrumented_store::InstrumentedStore;
use crate::tokens::GrantTokenKind;
use crate::tokens::reservations::{ReservationOutcome, ReservationProblem};

pub(super) fn router(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/v1/quotas/reserve", post(reserve))
        .route("/v1/quotas/commit", post(commit))
        .route("/v1/quotas/release", post(release))
        .route("/v1/quotas/outstanding", post(outstanding))
        .with_state(engine)
}

/// Decides one request, and holds its cost until it is committed, released or has run out.
async fn reserve(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let ReserveCall { check, idempotency_key } = ReserveCall::from_json(&body)?;
    engine.tokens().require(GrantTokenKind::Reservation)?;
    let limiter = engine.limiter();
    let plan = plan(&engine, &limiter, &check)?;
    let mut decision = match limiter.plans().reserve(plan, Some(&idempotency_key)).await {
        Ok(decision) => decision,
        Err(error) => return Ok(refused(&engine, &limiter, &error.into())),
    };
    let outcome = if decision.is_allowed() { ReservationOutcome::Reserved } else { ReservationOutcome::Denied };
    engine.metrics().reservations().count(outcome);
    // Serializing numbers and strings cannot fail.
    let mut answer = serde_json::to_value(CheckResponse::new(&decision)).unwrap_or(Value::Null);
    let reserved = decision.take_grant().split_off(|part| part.kind() != GrantKind::Taken);
    if let Some(duration) = reserved.duration() {
        let id = engine.tokens().reservation(&reserved);
        answer["reservation"] = json!({ "id": id, "expires_in_ms": millis_rounded_down(duration) });
    }
    Ok(Json(answer).into_response())
}

/// Charges the actual cost of a reservation, and ends it.
async fn commit(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let CommitCall { id, actual } = CommitCall::from_json(&body)?;
    let limiter = engine.limiter();
    let mut reserved = match engine.tokens().read_reservation(&id) {
        Ok(reserved) => reserved,
        Err(problem) => return Ok(refused(&engine, &limiter, &problem)),
    };
    let costs = match actual {
        ActualCost::Each(costs) => {
            let is_reserved = |rule: &String| reserved.rules().any(|reserved| reserved == rule);
            if !costs.keys().all(is_reserved) {
                return Err(BadRequest::new("costs: nothing is reserved under one of these rules"));
            }
            Costs::of(&reserved, |rule| costs.get(rule).copied())
        }
        ActualCost::Same(cost) => Costs::from(cost),
    };
    let committed = limiter.end(&mut reserved, &Ending::Commit(costs)).await;
    Ok(ended(&engine, &limiter, committed, ReservationOutcome::Committed, json!({ "committed": true })))
}

/// Ends a reservation without any charge.
async fn release(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let id = super::input::reservation_id(&body)?;
    let limiter = engine.limiter();
    let released = match engine.tokens().read_reservation(&id) {
        Ok(mut reserved) => limiter.end(&mut reserved, &Ending::Release).await,
        Err(problem) => return Ok(refused(&engine, &limiter, &problem)),
    };
    Ok(ended(&engine, &limiter, released, ReservationOutcome::Released, json!({ "released": true })))
}

/// Lists what is reserved under the limits of a request.
async fn outstanding(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let call = CheckCall::for_listing(&body)?;
    let limiter = engine.limiter();
    let plan = uncounted_plan(&engine, &limiter, &call)?;
    Ok(match limiter.plans().outstanding(&plan).await {
        Ok(list) => {
            Json(json!({ "outstanding": list.iter().map(outstanding_json).collect::<Vec<_>>() })).into_response()
        }
        Err(error) => rejected(unavailable(limiter.rules(), &error)),
    })
}

fn outstanding_json(one: &OutstandingReservations) -> Value {
    json!({
        "rule": one.rule.as_str(),
        "name": one.limit_name.as_str(),
        "reservations": one.reservations,
        "units": one.units,
        "oldest_expires_in_ms": one.oldest_ends_after.map(millis_rounded_down),
    })
}

/// A caller must not rely on more time than there is.
fn millis_rounded_down(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn ended(
    engine: &Engine,
    limiter: &Limiter<InstrumentedStore>,
    result: Result<(), GrantError>,
    outcome: ReservationOutcome,
    answer: Value,
) -> Response {
    match result {
        Ok(()) => {
            engine.metrics().reservations().count(outcome);
            Json(answer).into_response()
        }
        Err(error) => refused(engine, limiter, &error.into()),
    }
}

fn refused(engine: &Engine, limiter: &Limiter<InstrumentedStore>, problem: &ReservationProblem) -> Response {
    let (outcome, status, error, message) = match problem {
        ReservationProblem::Invalid => (
            ReservationOutcome::Invalid,
            StatusCode::BAD_REQUEST,
            "invalid_reservation",
            "This id was not issued by this service.",
        ),
        ReservationProblem::Refused(GrantError::AlreadyEnded) => (
            ReservationOutcome::Ended,
            StatusCode::CONFLICT,
            "reservation_ended",
            "The reservation was committed with another cost or released before. What has ended is unchanged.",
        ),
        ReservationProblem::Refused(GrantError::KeyReused) => (
            ReservationOutcome::KeyReused,
            StatusCode::CONFLICT,
            "idempotency_key_reused",
            "A reservation with this idempotency key is open, and has another cost. Nothing was changed.",
        ),
        ReservationProblem::Refused(GrantError::Store(error)) => {
            engine.metrics().reservations().count(ReservationOutcome::Failed);
            return rejected(unavailable(limiter.rules(), error));
        }
        ReservationProblem::Refused(_) => (
            ReservationOutcome::NotFound,
            StatusCode::NOT_FOUND,
            "reservation_not_found",
            "There is no such reservation: it has run out, another instance holds it in its memory, or its rule was changed or removed. \
             Nothing was charged.",
        ),
    };
    engine.metrics().reservations().count(outcome);
    (status, Json(json!({ "error": error, "message": message }))).into_response()
}
