//! `/v1/acquire`: waits until a request passes. Callers of this instance that wait for the same limits are served in order of arrival.
//!
//! A caller that goes away drops the future of its call, which leaves the queue. A caller that waits when the server stops is answered
//! at once, since its turn would not come any more.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use http::header::RETRY_AFTER;
use serde_json::{Value, json};
use tidegate::{AcquireOutcome, Decision, Limiter, StoreError};
use tokio::sync::watch;

use super::{AcquireCall, AnswerParts, BadRequest, decision_json, plan, rejected};
use crate::duration_text::whole_millis;
use crate::serve::engine::Engine;
use crate::serve::instrumented_store::InstrumentedStore;
use crate::serve::json_body::JsonBody;
use crate::serve::large_bodies::Reservation;
use crate::serve::leases::LeaseAge;
use crate::serve::stopped;
use crate::serve::waiting::WaitOutcome;

/// The path of calls that may wait.
pub(crate) const PATH: &str = "/v1/acquire";

pub(super) fn router(engine: Arc<Engine>, stopping: watch::Receiver<bool>) -> Router {
    Router::new().route(PATH, post(acquire)).with_state((engine, stopping))
}

async fn acquire(
    State((engine, stopping)): State<(Arc<Engine>, watch::Receiver<bool>)>,
    reservation: Option<Extension<Arc<Reservation>>>,
    JsonBody(body): JsonBody,
) -> Result<Response, BadRequest> {
    let limiter = engine.limiter();
    let (plan, max_wait, receipt) = {
        let AcquireCall { check: call, max_wait } = AcquireCall::from_json(&body)?;
        engine.receipts().require(call.receipt)?;
        (plan(&engine, &limiter, &call.attributes.request())?, max_wait, call.receipt)
    };
    // A call that waits keeps nothing of its body.
    drop(body);
    if let Some(Extension(reservation)) = reservation {
        reservation.release();
    }
    if plan.lease_owner().is_some() {
        engine.leases().require()?;
    }
    let max_wait = max_wait.map_or(engine.max_wait(), |asked| asked.min(engine.max_wait()));
    let Ok(place) = engine.waiting().enter(&plan, limiter.rules()) else { return Ok(too_many_waiting()) };
    let (timer, begun) = (engine.timer(), engine.timer().now());
    let result = tokio::select! {
        biased;
        result = limiter.acquire_plan(plan, max_wait, timer) => Some(result),
        () = stopped(stopping) => None,
    };
    let (ended, waited) = (timer.now(), timer.now().since(begun));
    let (outcome, response) = match result {
        None => (WaitOutcome::Stopped, stopping_response()),
        Some(Ok(AcquireOutcome::TimedOut)) => {
            let answer = json!({ "allowed": false, "degraded": false, "permanent": false });
            (WaitOutcome::TimedOut, answered(answer, Wait { waited, timed_out: true }))
        }
        Some(Ok(AcquireOutcome::Granted(decision))) => {
            // During a delay, slots are renewed after each third of their lease.
            let age = decision.lease().map_or(Duration::ZERO, |lease| decision.delay().min(lease.duration() / 3));
            let parts = AnswerParts { receipt, lease: Some(LeaseAge { now: ended, age }) };
            (WaitOutcome::Granted, decided_response(&engine, &limiter, parts, Ok(decision), Wait::of(waited)))
        }
        Some(Ok(AcquireOutcome::Denied(decision))) => {
            let timed_out = waited >= max_wait && !waited.is_zero() && !decision.is_permanent();
            let outcome = if timed_out { WaitOutcome::TimedOut } else { WaitOutcome::Denied };
            let (parts, wait) = (AnswerParts::receipt(false), Wait { waited, timed_out });
            (outcome, decided_response(&engine, &limiter, parts, Ok(decision), wait))
        }
        Some(Err(error)) => {
            let parts = AnswerParts::receipt(false);
            (WaitOutcome::Failed, decided_response(&engine, &limiter, parts, Err(error), Wait::of(waited)))
        }
    };
    place.end(outcome, waited);
    Ok(response)
}

/// What an answer says about the wait.
#[derive(Clone, Copy)]
struct Wait {
    waited: Duration,
    /// Whether the time of the caller is over.
    timed_out: bool,
}

impl Wait {
    const fn of(waited: Duration) -> Self {
        Self { waited, timed_out: false }
    }
}

fn decided_response(
    engine: &Engine,
    limiter: &Limiter<InstrumentedStore>,
    parts: AnswerParts,
    result: Result<Decision, StoreError>,
    wait: Wait,
) -> Response {
    match decision_json(engine, limiter, parts, result) {
        Ok(answer) => answered(answer, wait),
        Err(rejection) => rejected(rejection),
    }
}

fn answered(mut answer: Value, wait: Wait) -> Response {
    answer["waited_ms"] = whole_millis(wait.waited).into();
    answer["timed_out"] = wait.timed_out.into();
    Json(answer).into_response()
}

fn too_many_waiting() -> Response {
    unavailable("too_many_waiting", "Too many callers wait, in all or for the limits of this subject.")
}

fn stopping_response() -> Response {
    unavailable("stopping", "The server stops. Ask another instance.")
}

fn unavailable(error: &str, message: &str) -> Response {
    let body = Json(json!({ "error": error, "message": message }));
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], body).into_response()
}
