//! `/v1/usage/entries`: the entries of the ledger. `/v1/usage/rollup`: sums up old ones.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::QueryRejection;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::json;
use tidegate_ledger::{ExportFormat, ExportQuery, LedgerEntry};

use super::calendars::Calendars;
use super::period_text::parse_time;
use super::rows::selection_of;
use super::selection::{Selection, next_start};
use super::{UsageError, accepts_csv, ledger_of, text_page};
use crate::calls::json_body::JsonBody;
use crate::doors::check::{BadRequest, parse};
use crate::engine::Engine;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RollUpBody {
    before: String,
}

pub(super) async fn export_by_query(
    State(engine): State<Arc<Engine>>,
    headers: HeaderMap,
    query: Result<axum::extract::Query<Selection>, QueryRejection>,
) -> Result<Response, UsageError> {
    answer(&engine, &headers, selection_of(query)?).await
}

pub(super) async fn export(
    State(engine): State<Arc<Engine>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, UsageError> {
    answer(&engine, &headers, parse(&body)?).await
}

async fn answer(engine: &Engine, headers: &HeaderMap, mut selection: Selection) -> Result<Response, UsageError> {
    let ledger = ledger_of(engine)?;
    if selection.current || selection.period()?.is_some() {
        return Err(BadRequest::new("entries are selected by `from` and `to`: leave `current` and `period` out").into());
    }
    let format = match selection.format.as_deref() {
        Some("csv") => ExportFormat::Csv,
        None if accepts_csv(headers) => ExportFormat::Csv,
        Some("jsonl") | None => ExportFormat::JsonLines,
        Some(_) => return Err(BadRequest::new("format: this must be csv or jsonl").into()),
    };
    let (limiter, file) = engine.rules_in_force();
    let filters = selection.filters(&limiter, &file)?;
    let calendars = Calendars::new(&file);
    let wrong =
        || BadRequest::new("to: this must be a date such as 2026-03-29, or a time such as 2026-03-29T05:00:00Z");
    let to = selection.to.as_deref().map(|text| parse_time(text).ok_or_else(wrong)).transpose()?;
    let (from, limit) = (selection.first_instant()?, selection.limit(ExportQuery::DEFAULT_LIMIT)?);
    let (mut number, mut cursor) = selection.start(filters.len())?;
    let mut text = if selection.is_first() { format.header().to_owned() } else { String::new() };
    let mut after = None;
    // A page has entries of one filter. An empty one would look like the end of a text.
    while let Some(filter) = filters.get(number) {
        let (tenant, subject) = filter.conditions();
        let (rule, after_entry) = (selection.rule.clone(), cursor.take());
        let query = ExportQuery { rule, tenant, subject, from, to, after: after_entry, limit };
        let mut found = ledger.ledger().export(&query).await?;
        for entry in &mut found {
            calendars.set_bounds_of_entry(entry);
        }
        let is_full = found.len() as u64 == u64::from(limit);
        let shown = found.iter().filter(|entry| !filter.is_repeated(entry.name.as_deref()));
        for entry in shown {
            format.write(entry, &mut text);
        }
        if is_full {
            after = Some(next_start(number, found.last().map(LedgerEntry::cursor).as_deref()));
            break;
        }
        number += 1;
        if !found.is_empty() && number < filters.len() {
            after = Some(next_start(number, None));
            break;
        }
    }
    let content_type = match format {
        ExportFormat::Csv => "text/csv; charset=utf-8",
        _ => "application/x-ndjson",
    };
    Ok(text_page(content_type, text, after.as_deref()))
}

pub(super) async fn roll_up(
    State(engine): State<Arc<Engine>>,
    JsonBody(body): JsonBody,
) -> Result<Response, UsageError> {
    let RollUpBody { before } = parse(&body)?;
    let ledger = ledger_of(&engine)?.ledger().clone();
    let wrong =
        || BadRequest::new("before: this must be a date such as 2026-01-01, or a time such as 2026-01-01T00:00:00Z");
    let until = parse_time(&before).ok_or_else(wrong)?;
    // It goes on if the caller hangs up or its call takes too long.
    let task = tokio::spawn(async move {
        let rolled_up = ledger.roll_up(until).await;
        if let Ok(done) = &rolled_up {
            let (deleted, kept) = (done.deleted, done.kept);
            tracing::info!(target: "tidegate::audit", before, deleted, kept, "ledger rolled up by an administrator");
        }
        rolled_up
    });
    let ended = |_| BadRequest::new("the server stops; call again");
    let done = task.await.map_err(ended)??;
    Ok(Json(json!({ "entries": done.deleted, "kept": done.kept })).into_response())
}
