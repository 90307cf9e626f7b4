//! `/v1/usage/compare` and `/v1/usage/reconcile`: compare store and ledger, and repair the store.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate::spi::PARTITIONS;
use tidegate_ledger::{AccountUnits, Difference, ReconcileReport};

use super::period_text::period_text;
use super::{UsageError, ledger_of};
use crate::calls::json_body::JsonBody;
use crate::doors::check::{BadRequest, parse};
use crate::engine::Engine;
use crate::engine::ledger::{ReconcileStatus, ServerLedger, unrepaired};

/// The most differences of an answer. Beyond, they are counted.
const MAX_LISTED: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReconcileBody {
    #[serde(default)]
    apply: bool,
}

/// Compares only.
pub(super) async fn compare(
    State(engine): State<Arc<Engine>>,
    JsonBody(body): JsonBody,
) -> Result<Response, UsageError> {
    if parse::<ReconcileBody>(&body)?.apply {
        return Err(BadRequest::new("apply: only /v1/usage/reconcile repairs the store").into());
    }
    start(&engine, false).await
}

/// Compares, and with `apply` repairs the store.
pub(super) async fn reconcile(
    State(engine): State<Arc<Engine>>,
    JsonBody(body): JsonBody,
) -> Result<Response, UsageError> {
    let ReconcileBody { apply } = parse(&body)?;
    start(&engine, apply).await
}

/// The state of the last one: at its end, or after a second.
pub(super) async fn status(State(engine): State<Arc<Engine>>) -> Result<Response, UsageError> {
    let ledger = ledger_of(&engine)?;
    let status = ledger.reconcile().wait().await;
    Ok(answer(ledger, &status, StatusCode::OK))
}

async fn start(engine: &Engine, apply: bool) -> Result<Response, UsageError> {
    let ledger = ledger_of(engine)?;
    if ledger.reconcile().start(ledger.service(), apply).is_err() {
        return Err(conflict("A reconcile runs already: wait for its end, then repeat.").into());
    }
    if apply {
        tracing::info!(target: "tidegate::audit", "reconcile started by an administrator");
    }
    let status = ledger.reconcile().wait().await;
    match &status.result {
        Some(Err(failure)) if !status.running && failure.is_busy => Err(conflict(&failure.message).into()),
        _ => Ok(answer(ledger, &status, StatusCode::ACCEPTED)),
    }
}

fn conflict(message: &str) -> Response {
    (StatusCode::CONFLICT, Json(json!({ "error": "busy", "message": message }))).into_response()
}

/// The state; with `while_running` as the status of the response while it runs.
fn answer(ledger: &ServerLedger, status: &ReconcileStatus, while_running: StatusCode) -> Response {
    if status.running {
        let compared = ledger.stats().reconciled_partitions;
        let progress = json!({ "partitions_compared": compared, "partitions": PARTITIONS });
        let answer = json!({ "running": true, "apply": status.apply, "progress": progress });
        return (while_running, Json(answer)).into_response();
    }
    let mut answer = json!({ "running": false, "apply": status.apply, "error": null });
    match &status.result {
        None => {}
        Some(Ok(report)) => add_report(&mut answer, report),
        Some(Err(failure)) => answer["error"] = failure.message.as_str().into(),
    }
    Json(answer).into_response()
}

fn add_report(answer: &mut Value, report: &ReconcileReport) {
    answer["accounts"] = report.accounts.into();
    answer["differences"] = report.differences.into();
    answer["lost_partitions"] = report.lost.len().into();
    answer["repaired"] = report.repaired.into();
    answer["unrepaired"] = unrepaired(report).into();
    answer["busy"] = report.busy.len().into();
    answer["list"] = report.listed.iter().take(MAX_LISTED).map(difference_json).collect();
}

fn difference_json(difference: &Difference) -> Value {
    let units = |units: AccountUnits| json!({ "used": units.total, "debt": units.debt });
    let parts = difference.key.parse();
    json!({
        "rule": difference.rule,
        "limit_name": parts.as_ref().map(|(_, _, name)| name.as_str()),
        "subject": difference.key.subject.to_string(),
        "period_length": parts.as_ref().map(|(_, period, _)| period.as_str()),
        "period": parts.as_ref().map(|(_, period, _)| period_text(*period, difference.period)),
        "store": difference.gate.map(units),
        "ledger": units(difference.ledger),
    })
}
