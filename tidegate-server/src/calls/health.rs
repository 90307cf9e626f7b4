//! `/healthz`: the process answers. `/readyz`: the rules and the store that it decides by.
//!
//! A server is ready without its store or its ledger, too: rules define what happens then, which needs requests to reach the server. It is not
//! ready while it rebuilds, at its start, what the store has lost of quotas with a ledger.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate::spi::Store;
use tidegate_ledger::LedgerErrorKind;
use tidegate_redis::{RedisStore, ServerState};
use tidegate_rules::RuleFile;

use crate::command::duration_text::whole_millis;
use crate::engine::Engine;
use crate::engine::ledger::{LedgerCheck, PreparationState, ServerLedger};
use crate::lifecycle::config_part::ConfigPart;

pub(crate) fn router() -> Router<Arc<Engine>> {
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

async fn ready(State(engine): State<Arc<Engine>>) -> Response {
    let readiness = readiness(&engine).await;
    let status = if readiness["ready"] == true { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

/// Whether the server decides requests, and by which rules and store.
pub(crate) async fn readiness(engine: &Engine) -> Value {
    let (status, store) = (engine.rules_status(), engine.store());
    let reached = engine.limiter().ping().await.is_ok();
    let servers = store.inner().servers();
    let servers: Vec<_> = servers.iter().map(server_json).collect();
    let redis = store.inner().redis();
    json!({
        "ready": engine.ledger().is_none_or(|ledger| ledger.preparation() != PreparationState::Rebuilding),
        "degraded": !reached || engine.ledger().is_some_and(ServerLedger::is_degraded),
        "store": {
            "kind": engine.store_name(), "namespace": engine.namespace().as_str(), "reached": reached, "instances": store.instances(),
            "rule_sets": redis.and_then(RedisStore::rule_sets),
            "rules_differ_ms": redis.and_then(RedisStore::rules_differ_for).map(whole_millis),
            "servers": servers,
        },
        "rules": {
            "source": engine.rules_name(), "version": status.version, "rules": status.rules,
            "fingerprint": format!("{:016x}", engine.rules_fingerprint()), "refused": engine.part_errors().get(ConfigPart::Rules),
        },
        "ledger": engine.ledger().map(|ledger| ledger_json(ledger, &engine.rules_in_force().1)),
        "envoy": { "refused": engine.part_errors().get(ConfigPart::Envoy) },
        "tls": { "refused": engine.part_errors().get(ConfigPart::Certificates) },
        "tokens": { "refused": engine.part_errors().get(ConfigPart::Tokens) },
    })
}

fn ledger_json(ledger: &ServerLedger, file: &RuleFile) -> Value {
    let (stats, preparation) = (ledger.stats(), ledger.preparation());
    json!({
        "url": ledger.url().to_string(),
        "state": preparation.as_str(),
        "failed_check": preparation.failed_check().map(LedgerCheck::as_str),
        "problem": preparation.problem(),
        "reached": stats.ledger_error.is_none(),
        "error": stats.ledger_error.map(LedgerErrorKind::as_str),
        "lag_ms": whole_millis(stats.lag),
        "waiting": stats.waiting,
        "journal": stats.journal_waiting,
        "posted": stats.entries_posted,
        "rebuilds": stats.rebuilds,
        "repairs_waiting": stats.repairs_waiting,
        "unrecorded": file.unrecorded_quotas().collect::<Vec<_>>(),
    })
}

fn server_json(server: &ServerState) -> Value {
    let (address, breaker) = (&server.address, server.breaker.as_str());
    json!({ "address": address, "breaker": breaker, "waiting": server.waiting, "in_flight": server.in_flight })
}
