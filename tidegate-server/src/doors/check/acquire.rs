//! `/v1/acquire`: waits until a request passes. Callers of this instance that wait for the same limits are served in order of arrival.
//!
//! A caller that goes away drops the future of its call, which leaves the queue. A caller that waits when the server stops is answered
//! at once, since its turn would not come any more. When the rules change, every caller that waits comes again under the new ones, with
//! the time that it has left and in the order of arrival.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tidegate::spi::Plan;
use tidegate::{AcquireOutcome, Decision, Limiter, StoreError, Timer, Timestamp};
use tokio::sync::watch;

use super::acquire_calls::WaitOutcome;
use super::{AcquireCall, AnswerParts, BadRequest, decision_json, plan, rejected, require_receipts, uncounted_plan};
use crate::calls::json_body::JsonBody;
use crate::calls::large_bodies::{MAX_SMALL_BODY_BYTES, Reservation};
use crate::calls::retry_after::RETRY_AFTER_ONE_SECOND;
use crate::command::duration_text::whole_millis;
use crate::engine::Engine;
use crate::engine::instrumented_store::InstrumentedStore;
use crate::serve::stopped;
use crate::tokens::GrantTokenKind;
use crate::tokens::leases::LeaseAge;

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
    // Before the limiter is read, so that no change is missed.
    let changes = engine.rule_changes();
    let mut limiter = engine.limiter();
    let (plan, max_wait, receipt) = {
        let AcquireCall { check: call, max_wait } = AcquireCall::from_json(&body)?;
        require_receipts(&engine, call.receipt)?;
        (plan(&engine, &limiter, &call)?, max_wait, call.receipt)
    };
    // A call that waits keeps nothing of a large body, for which there is little memory.
    let small_body = (body.len() as u64 <= MAX_SMALL_BODY_BYTES).then(|| Bytes::copy_from_slice(&body));
    drop(body);
    if let Some(Extension(reservation)) = reservation {
        reservation.release();
    }
    if plan.lease_owner().is_some() {
        engine.tokens().require(GrantTokenKind::Lease)?;
    }
    let max_wait =
        max_wait.map_or(engine.acquire_calls().max_wait(), |asked| asked.min(engine.acquire_calls().max_wait()));
    let Ok(place) = engine.acquire_calls().enter(&plan, limiter.rules()) else { return Ok(too_many_waiting()) };
    let (timer, begun) = (engine.timer(), engine.timer().now());
    let mut caller = Caller { timer, arrival: limiter.plans().arrive(), begun, max_wait, changes, stopping };
    let mut end = caller.wait(&limiter, plan).await;
    while let (WaitEnd::RulesChanged, Some(body)) = (&end, &small_body) {
        limiter = engine.limiter();
        end = match plan_again(&engine, &limiter, body) {
            Ok(plan) => caller.wait(&limiter, plan).await,
            Err(problem) => {
                place.end(WaitOutcome::Failed, timer.now().since(begun));
                return Err(problem);
            }
        };
    }
    let (ended, waited) = (timer.now(), timer.now().since(begun));
    let (outcome, response) = match end {
        WaitEnd::Stopped => (WaitOutcome::Stopped, stopping_response()),
        WaitEnd::RulesChanged => (WaitOutcome::Refused, rules_changed_response()),
        WaitEnd::Decided(Ok(AcquireOutcome::TimedOut)) => {
            let answer = json!({ "allowed": false, "degraded": false, "permanent": false });
            (WaitOutcome::TimedOut, answered(answer, Wait { waited, timed_out: true }))
        }
        WaitEnd::Decided(Ok(AcquireOutcome::Granted(decision))) => {
            let parts = AnswerParts { receipt, lease: Some(LeaseAge { now: ended, waited: true }) };
            (WaitOutcome::Granted, decided_response(&engine, &limiter, parts, Ok(decision), Wait::of(waited)))
        }
        WaitEnd::Decided(Ok(AcquireOutcome::Denied(decision))) => {
            let timed_out = waited >= max_wait && !waited.is_zero() && !decision.is_permanent();
            let outcome = if timed_out { WaitOutcome::TimedOut } else { WaitOutcome::Denied };
            let (parts, wait) = (AnswerParts::receipt(false), Wait { waited, timed_out });
            (outcome, decided_response(&engine, &limiter, parts, Ok(decision), wait))
        }
        WaitEnd::Decided(Err(error)) => {
            let parts = AnswerParts::receipt(false);
            (WaitOutcome::Failed, decided_response(&engine, &limiter, parts, Err(error), Wait::of(waited)))
        }
    };
    place.end(outcome, waited);
    Ok(response)
}

/// The plan of a call that was accepted under other rules.
fn plan_again<'l>(
    engine: &Engine,
    limiter: &'l Limiter<InstrumentedStore>,
    body: &Bytes,
) -> Result<Plan<'l>, BadRequest> {
    let call = AcquireCall::from_json(body)?;
    let plan = uncounted_plan(engine, limiter, &call.check)?;
    if plan.lease_owner().is_some() {
        engine.tokens().require(GrantTokenKind::Lease)?;
    }
    Ok(plan)
}

/// A caller that waits, under whatever rules.
struct Caller<'e> {
    timer: &'e dyn Timer,
    arrival: u64,
    begun: Timestamp,
    max_wait: Duration,
    /// Subscribed before the limiter is read.
    changes: watch::Receiver<()>,
    stopping: watch::Receiver<bool>,
}

/// How the wait under one set of rules ended.
#[allow(clippy::large_enum_variant, reason = "one for each call, on the stack")]
enum WaitEnd {
    Decided(Result<AcquireOutcome, StoreError>),
    RulesChanged,
    Stopped,
}

impl Caller<'_> {
    /// Waits for the time that is left, until the rules change.
    async fn wait(&mut self, limiter: &Limiter<InstrumentedStore>, plan: Plan<'_>) -> WaitEnd {
        let left = self.max_wait.saturating_sub(self.timer.now().since(self.begun));
        let changed = async {
            // An error means that the engine is gone, and with it the rules.
            let _ = self.changes.changed().await;
        };
        tokio::select! {
            biased;
            result = limiter.plans().acquire(plan, self.arrival, left, self.timer, changed) => {
                result.transpose().map_or(WaitEnd::RulesChanged, WaitEnd::Decided)
            }
            () = stopped(self.stopping.clone()) => WaitEnd::Stopped,
        }
    }
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

fn rules_changed_response() -> Response {
    unavailable(
        "rules_changed",
        "The rules changed while this call waited, and its body was too large to keep. Call again.",
    )
}

fn unavailable(error: &str, message: &str) -> Response {
    let body = Json(json!({ "error": error, "message": message }));
    (StatusCode::SERVICE_UNAVAILABLE, RETRY_AFTER_ONE_SECOND, body).into_response()
}
