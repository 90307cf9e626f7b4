//! `/v1/usage`: what was consumed, by account and period.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::QueryRejection;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use serde_json::{Value, json};
use tidegate::limits::{Period, Periods};
use tidegate::{Clock, SystemClock, Timestamp};
use tidegate_ledger::{PeriodPoint, UsageQuery, UsageRow, time_text};
use tidegate_rules::RuleFile;

use super::calendars::Calendars;
use super::period_text::period_text;
use super::selection::{Selection, next_start};
use super::{UsageError, accepts_csv, ledger_of, text_page};
use crate::calls::json_body::JsonBody;
use crate::doors::check::{BadRequest, parse};
use crate::engine::Engine;

/// Local dates are at most so far from those in UTC.
const MAX_ZONE_MICROS: u64 = 26 * 3_600_000_000;

const CSV_HEADER: &str = "tenant,subject,rule,limit_name,period_length,period,period_begin,period_end,consumed,carried,used,limit,debt,\
                          reserved\r\n";

type Query<T> = Result<axum::extract::Query<T>, QueryRejection>;

/// The periods that run now, by rule, limit and length.
struct RunningPeriods {
    calendars: Calendars,
    now: Timestamp,
}

pub(super) async fn usage_by_query(
    State(engine): State<Arc<Engine>>,
    headers: HeaderMap,
    query: Query<Selection>,
) -> Result<Response, UsageError> {
    answer(&engine, &headers, selection_of(query)?).await
}

pub(super) async fn usage(
    State(engine): State<Arc<Engine>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, UsageError> {
    answer(&engine, &headers, parse(&body)?).await
}

/// The selection in an address. The error quotes no value.
pub(super) fn selection_of(query: Query<Selection>) -> Result<Selection, BadRequest> {
    let wrong = |_| BadRequest::new("the query has an unknown field, or one of the wrong type");
    query.map(|query| query.0).map_err(wrong)
}

async fn answer(engine: &Engine, headers: &HeaderMap, mut selection: Selection) -> Result<Response, UsageError> {
    let ledger = ledger_of(engine)?;
    let is_csv = match selection.format.as_deref() {
        None => accepts_csv(headers),
        Some("csv") => true,
        Some("json") => false,
        Some(_) => return Err(BadRequest::new("format: this must be json or csv").into()),
    };
    let (limiter, file) = engine.rules_in_force();
    let filters = selection.filters(&limiter, &file)?;
    let running = RunningPeriods::new(&file);
    let (from, to) = match selection.current {
        true if selection.from.is_some() || selection.to.is_some() => {
            return Err(BadRequest::new("`current` selects the periods that run now: leave `from` and `to` out").into());
        }
        true => (Some(running.earliest()), Some(running.latest())),
        false => (selection.first_instant()?, selection.end()?),
    };
    let limit = selection.limit(UsageQuery::DEFAULT_LIMIT)?;
    let period = selection.period()?;
    let (mut number, mut cursor) = selection.start(filters.len())?;
    let (mut rows, mut after) = (Vec::new(), None);
    while let Some(filter) = filters.get(number) {
        let (tenant, subject) = filter.conditions();
        let room = limit - u32::try_from(rows.len()).unwrap_or(limit).min(limit);
        if room == 0 {
            after = Some(next_start(number, cursor.as_deref()));
            break;
        }
        let query = UsageQuery {
            rule: selection.rule.clone(),
            tenant,
            subject,
            period,
            from: from.map(PeriodPoint::Time),
            to: to.map(PeriodPoint::Time),
            after: cursor.take(),
            limit: room,
        };
        let found = ledger.ledger().usage(&query).await?;
        if found.len() as u64 == u64::from(room) {
            cursor = found.last().map(UsageRow::cursor);
        } else {
            number += 1;
        }
        let is_shown =
            |row: &UsageRow| !filter.is_repeated(row.name.as_deref()) && (!selection.current || running.contains(row));
        rows.extend(found.into_iter().filter(is_shown));
    }
    for row in &mut rows {
        running.calendars.set_bounds_of_row(row);
    }
    if is_csv {
        let mut text = if selection.is_first() { CSV_HEADER.to_owned() } else { String::new() };
        for row in &rows {
            push_csv(&mut text, row);
        }
        return Ok(text_page("text/csv; charset=utf-8", text, after.as_deref()));
    }
    let rows: Vec<Value> = rows.iter().map(row_json).collect();
    let is_selected = |rule: &&str| selection.rule.as_deref().is_none_or(|only| only == *rule);
    let unrecorded: Vec<&str> = file.unrecorded_quotas().filter(is_selected).collect();
    Ok(Json(json!({ "usage": rows, "after": after, "unrecorded": unrecorded })).into_response())
}

impl RunningPeriods {
    fn new(file: &RuleFile) -> Self {
        Self { calendars: Calendars::new(file), now: SystemClock::new().now() }
    }

    /// Whether the period of a row runs now, in a time zone of its rule.
    fn contains(&self, row: &UsageRow) -> bool {
        let Some(period) = row.period else { return false };
        let runs = |periods: Periods| periods.bounds_at(self.now).index == row.index;
        let mut calendars = self.calendars.of(&row.rule, &row.limit, period).peekable();
        if calendars.peek().is_none() { runs(Periods::utc(period)) } else { calendars.any(runs) }
    }

    const fn earliest(&self) -> Timestamp {
        Timestamp::from_micros(self.now.as_micros().saturating_sub(MAX_ZONE_MICROS))
    }

    const fn latest(&self) -> Timestamp {
        Timestamp::from_micros(self.now.as_micros().saturating_add(MAX_ZONE_MICROS))
    }
}

/// A row as JSON.
pub(super) fn row_json(row: &UsageRow) -> Value {
    json!({
        "tenant": row.name,
        "subject": row.key.subject.to_string(),
        "rule": row.rule,
        "limit_name": row.limit,
        "period_length": row.period.map(Period::as_str),
        "period": label(row),
        "period_begin": row.bounds.map(|(begin, _)| time_text(begin)),
        "period_end": row.bounds.map(|(_, end)| time_text(end)),
        "consumed": row.consumed,
        "carried": row.carried,
        "used": row.total(),
        "limit": row.hard_limit,
        "debt": row.debt(),
        "reserved": row.reserved,
    })
}

fn label(row: &UsageRow) -> String {
    row.period.map_or_else(|| row.index.to_string(), |period| period_text(period, row.index))
}

fn push_csv(text: &mut String, row: &UsageRow) {
    let fields = [
        csv_text(row.name.as_deref().unwrap_or_default()),
        row.key.subject.to_string(),
        csv_text(&row.rule),
        csv_text(&row.limit),
        row.period.map_or("", Period::as_str).to_owned(),
        label(row),
        row.bounds.map(|(begin, _)| time_text(begin)).unwrap_or_default(),
        row.bounds.map(|(_, end)| time_text(end)).unwrap_or_default(),
        row.consumed.to_string(),
        row.carried.to_string(),
        row.total().to_string(),
        row.hard_limit.to_string(),
        row.debt().to_string(),
        row.reserved.to_string(),
    ];
    text.push_str(&fields.join(","));
    text.push_str("\r\n");
}

/// A text as a field of CSV (RFC 4180), which no spreadsheet takes for a formula.
fn csv_text(text: &str) -> String {
    let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{guard}{}\"", text.replace('"', "\"\""))
    } else {
        format!("{guard}{text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_neither_two_fields_nor_a_formula() {
        assert_eq!(csv_text("acme"), "acme");
        assert_eq!(csv_text("acme, \"Inc\""), "\"acme, \"\"Inc\"\"\"");
        assert_eq!(csv_text("=1+1"), "'=1+1");
        assert_eq!(csv_text("-a,b"), "\"'-a,b\"");
    }

    #[test]
    fn a_period_runs_now_by_the_time_zone_of_its_rule() {
        let rules = "version: 1\nidentify: { tenant: header:t, authenticated: [t] }\nrules:\n  - { id: r, match: { path: /r }, per: [tenant], \
                     quota: { amount: 5, period: day, timezone: Pacific/Auckland }, on_failure: closed }\n";
        let file = RuleFile::parse("rules", rules).unwrap();
        let mut running = RunningPeriods::new(&file);
        running.now = super::super::period_text::parse_time("2026-03-29T20:00:00Z").unwrap();
        let zone = running.calendars.of("r", "", Period::Day).next().unwrap();
        assert_eq!(period_text(Period::Day, zone.bounds_at(running.now).index), "2026-03-30");
        assert!(running.earliest() < running.now && running.now < running.latest());
    }
}
