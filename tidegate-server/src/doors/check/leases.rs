//! `/v1/leases`: takes slots of concurrency limits, and renews and releases them by their id.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    AnswerParts, BadRequest, CheckCall, decision_json, into_response, plan, rejected, require_receipts, unavailable,
};
use crate::calls::json_body::JsonBody;
use crate::engine::Engine;
use crate::tokens::GrantTokenKind;
use crate::tokens::leases::{IssuedLease, LeaseAge, LeaseProblem};

/// An id in a path, unless it is not text.
type LeaseIdPath = Result<Path<String>, PathRejection>;

/// Decides one request. The answer has a lease if it takes slots.
pub(super) async fn take(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let call = CheckCall::for_lease(&body)?;
    require_receipts(&engine, call.receipt)?;
    engine.tokens().require(GrantTokenKind::Lease)?;
    let limiter = engine.limiter();
    let plan = plan(&engine, &limiter, &call)?;
    let parts =
        AnswerParts { receipt: call.receipt, lease: Some(LeaseAge { now: engine.timer().now(), waited: false }) };
    Ok(into_response(decision_json(&engine, &limiter, parts, limiter.plans().check(&plan).await)))
}

/// Holds the slots for another lease, from now on.
pub(super) async fn renew(State(engine): State<Arc<Engine>>, id: LeaseIdPath) -> Response {
    let (limiter, now) = (engine.limiter(), engine.timer().now());
    let renewed = match &id {
        Ok(Path(id)) => engine.tokens().renew_lease(&limiter, id, now).await,
        Err(_) => Err(LeaseProblem::Invalid),
    };
    match renewed {
        Ok(lease) => Json(json!({ "lease": lease_json(&lease) })).into_response(),
        Err(problem) => refused(&engine, &problem),
    }
}

/// Releases the slots.
pub(super) async fn release(State(engine): State<Arc<Engine>>, id: LeaseIdPath) -> Response {
    let released = match &id {
        Ok(Path(id)) => engine.tokens().release_lease(&engine.limiter(), id).await,
        Err(_) => Err(LeaseProblem::Invalid),
    };
    match released {
        Ok(()) => Json(json!({ "released": true })).into_response(),
        Err(problem) => refused(&engine, &problem),
    }
}

/// The time is rounded down: a caller must not rely on more than there is.
pub(super) fn lease_json(lease: &IssuedLease) -> Value {
    json!({ "id": lease.id, "expires_in_ms": u64::try_from(lease.expires_in.as_millis()).unwrap_or(u64::MAX) })
}

fn refused(engine: &Engine, problem: &LeaseProblem) -> Response {
    let (status, error, message) = match problem {
        LeaseProblem::Invalid => (StatusCode::BAD_REQUEST, "invalid_lease", "This id was not issued by this service."),
        LeaseProblem::NotHeld => (
            StatusCode::GONE,
            "lease_not_held",
            "The slot is not held any more: it has run out, was released, its limit was lowered, the store lost it and others took it, \
             or another instance holds it in its memory. Stop the work, or take a new one.",
        ),
        LeaseProblem::Store(error) => {
            return rejected(unavailable(engine.limiter().rules(), error));
        }
    };
    (status, Json(json!({ "error": error, "message": message }))).into_response()
}
