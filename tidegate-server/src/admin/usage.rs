//! `/v1/usage`: what the ledger has of quotas: usage, entries, corrections, reconciliation.
//!
//! A subject is described as in `/v1/subjects`: by a request, or the part of one that identifies it.

mod accounts;
mod calendars;
mod corrections;
mod entries;
mod period_text;
mod reconcile;
mod rows;
mod selection;

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::json;
use tidegate_ledger::{LedgerError, LedgerErrorKind};

pub(super) use self::accounts::{AccountResets, reset_accounts, split_ledger_checks};
use crate::calls::retry_after::RETRY_AFTER_ONE_SECOND;
use crate::doors::check::BadRequest;
use crate::engine::Engine;
use crate::engine::ledger::ServerLedger;

/// The header with the place at which the next page of a text begins.
const AFTER_HEADER: &str = "x-tidegate-after";

/// Why a call about the ledger has no result.
pub(super) enum UsageError {
    Bad(BadRequest),
    NoLedger,
    Ledger(LedgerError),
    /// Any other response.
    Other(Box<Response>),
}

/// What a read token permits.
pub(super) fn reading_routes() -> Router<Arc<Engine>> {
    Router::new()
        .route("/v1/usage", get(rows::usage_by_query).post(rows::usage))
        .route("/v1/usage/entries", get(entries::export_by_query).post(entries::export))
        .route("/v1/usage/compare", post(reconcile::compare))
        .route("/v1/usage/reconcile", get(reconcile::status))
}

/// What needs the admin token.
pub(super) fn changing_routes() -> Router<Arc<Engine>> {
    Router::new()
        .route("/v1/usage/reconcile", post(reconcile::reconcile))
        .route("/v1/usage/corrections", post(corrections::correct))
        .route("/v1/usage/rollup", post(entries::roll_up))
}

/// The ledger of the server.
fn ledger_of(engine: &Engine) -> Result<&ServerLedger, UsageError> {
    engine.ledger().ok_or(UsageError::NoLedger)
}

/// A page of text, and where the next one begins.
fn text_page(content_type: &'static str, text: String, after: Option<&str>) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(after) = after.and_then(|after| HeaderValue::from_str(after).ok()) {
        headers.insert(AFTER_HEADER, after);
    }
    (headers, text).into_response()
}

/// Whether a caller prefers CSV.
fn accepts_csv(headers: &HeaderMap) -> bool {
    let accept = headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.split(',').any(|kind| kind.trim().starts_with("text/csv")))
}

impl From<BadRequest> for UsageError {
    fn from(error: BadRequest) -> Self {
        Self::Bad(error)
    }
}

impl From<LedgerError> for UsageError {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl From<Response> for UsageError {
    fn from(response: Response) -> Self {
        Self::Other(Box::new(response))
    }
}

impl IntoResponse for UsageError {
    fn into_response(self) -> Response {
        let answer = |status: StatusCode, error: &str, message: &str| {
            (status, Json(json!({ "error": error, "message": message }))).into_response()
        };
        match self {
            Self::Bad(error) => error.into_response(),
            Self::Other(response) => *response,
            Self::NoLedger => answer(
                StatusCode::NOT_FOUND,
                "no_ledger",
                "The server has no ledger: start it with --ledger, and give quotas `ledger: sync` or `ledger: async`.",
            ),
            Self::Ledger(error) => {
                let message = error.to_string();
                match error.kind() {
                    LedgerErrorKind::Invalid => answer(StatusCode::BAD_REQUEST, "refused_by_ledger", &message),
                    LedgerErrorKind::Busy => answer(StatusCode::CONFLICT, "busy", &message),
                    kind => {
                        let mut response = answer(StatusCode::SERVICE_UNAVAILABLE, kind.as_str(), &message);
                        if error.is_transient() {
                            response.headers_mut().extend(RETRY_AFTER_ONE_SECOND);
                        }
                        response
                    }
                }
            }
        }
    }
}
