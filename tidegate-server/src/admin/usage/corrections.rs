//! `/v1/usage/corrections`: adds or takes back units, as an entry with author and reason.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate::spi::LedgerStage;
use tidegate::{Clock, SystemClock, Timestamp};
use tidegate_ledger::{Correction, PeriodPoint, UsageQuery, period_bounds};

use super::accounts::{Account, choose, flush, repair, split_ledger_checks};
use super::period_text::{period_form, period_index};
use super::rows::row_json;
use super::{UsageError, ledger_of};
use crate::admin::subjects::SubjectPlans;
use crate::calls::json_body::JsonBody;
use crate::doors::check::{BadRequest, CheckBody, parse};
use crate::engine::Engine;
use crate::engine::ledger::ServerLedger;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CorrectionBody {
    request: Option<CheckBody>,
    tenant: Option<String>,
    rule: String,
    limit_name: Option<String>,
    amount: i64,
    reason: String,
    author: String,
    period: Option<String>,
    idempotency_key: Option<String>,
    /// Whether a subject that the ledger does not know gets an account.
    #[serde(default)]
    create: bool,
}

pub(super) async fn correct(
    State(engine): State<Arc<Engine>>,
    JsonBody(body): JsonBody,
) -> Result<Response, UsageError> {
    let CorrectionBody { request, tenant, rule, limit_name, amount, reason, author, period, idempotency_key, create } =
        parse(&body)?;
    let ledger = ledger_of(&engine)?;
    let request = match (tenant, request) {
        (Some(tenant), None) => CheckBody::for_tenant(tenant),
        (None, Some(request)) => request,
        _ => return Err(BadRequest::new("send either `tenant` or `request`, which identifies the subject").into()),
    };
    let account = {
        let (limiter, file) = engine.rules_in_force();
        let attributes = request.into_subject()?;
        let request = attributes.request();
        let subject = SubjectPlans::new(&limiter, &file, &request, Some(&rule))?;
        choose(split_ledger_checks(&subject.plans).0, limit_name.as_deref())?
    };
    let now = SystemClock::new().now();
    let index = period_of(&account, period.as_deref(), now)?;
    let correction = Correction::new(account.key.clone(), amount, &author, &reason, now);
    let mut correction = correction.with_period(index).with_hard_limit(account.hard_limit);
    correction.idempotency_key = idempotency_key;
    // Otherwise a correction of what was consumed a moment ago might be refused as below zero.
    flush(ledger.service(), std::slice::from_ref(&account.key)).await?;
    if !create && !ledger.ledger().has_subject(account.key.subject).await? {
        return Err(unknown_subject().into());
    }
    let pending = ledger.service().pending_repair(vec![account.key.clone()]);
    let repeated = ledger.ledger().correct(&correction).await?.repeated > 0;
    let repaired = repair(pending).await;
    record_name(ledger, &account).await;
    let digits = engine.refusals().digits(account.key.subject);
    tracing::info!(
        target: "tidegate::audit", rule, subject = digits, amount, author, repeated, "quota corrected by an administrator"
    );
    let usage = usage_of(ledger, &account, index).await?;
    Ok(Json(json!({ "repaired": repaired, "repeated": repeated, "usage": usage })).into_response())
}

/// The response to a correction of a subject that may be a typing error.
fn unknown_subject() -> Response {
    let message = "The ledger has no account of this subject: check the tenant. To open an account, send `create`: true (`--create`).";
    (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({ "error": "unknown_subject", "message": message }))).into_response()
}

/// The index of the period that is written, or of the one that runs now.
fn period_of(account: &Account, text: Option<&str>, now: Timestamp) -> Result<u64, BadRequest> {
    let (period, current) = (account.periods.period(), account.periods.bounds_at(now).index);
    let wrong = || {
        let (length, form) = (period.as_str(), period_form(period, current));
        BadRequest::new(format!("period: the quota counts by {length}: {form}"))
    };
    text.map_or(Ok(current), |text| period_index(period, text).ok_or_else(wrong))
}

/// Notes the name of the tenant, if the rule keeps it. An account may have no request that would do so.
async fn record_name(ledger: &ServerLedger, account: &Account) {
    let Some(name) = &account.name else { return };
    if ledger.ledger().set_names(&[(account.key.clone(), name.clone())]).await.is_err() {
        // The correction stands, and the service sends the name as soon as it can.
        ledger.service().name_account(account.key.clone(), name);
    }
}

/// What an account has consumed in a period.
async fn usage_of(ledger: &ServerLedger, account: &Account, index: u64) -> Result<Value, UsageError> {
    let query = UsageQuery {
        subject: Some(account.key.subject),
        period: Some(account.periods.period()),
        from: Some(PeriodPoint::Index(index)),
        to: Some(PeriodPoint::Index(index)),
        ..UsageQuery::default()
    };
    let rows = ledger.ledger().usage(&query).await?;
    let Some(mut row) = rows.into_iter().find(|row| row.key.stem == account.key.stem) else { return Ok(Value::Null) };
    row.bounds = period_bounds(account.periods, index);
    Ok(row_json(&row))
}
