//! `/healthz`: the process answers. `/readyz`: it can decide, by which rules and on which store.
//!
//! It is ready without its store, too: then its rules say what to do, which they could not if nobody sent it requests any more.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tidegate::spi::Store;

use super::engine::{Engine, Part};
use crate::store::answers;

pub(crate) fn router() -> Router<Arc<Engine>> {
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

async fn ready(State(engine): State<Arc<Engine>>) -> Response {
    let loaded = engine.loaded();
    let limiter = engine.limiter();
    let reached = answers(limiter.store()).await;
    let servers = limiter.store().store().servers();
    let servers: Vec<_> =
        servers.iter().map(|server| json!({ "address": server.address, "breaker": server.breaker.as_str() })).collect();
    let body = json!({
        "ready": true,
        "degraded": !reached,
        "store": { "kind": engine.store_name(), "reached": reached, "instances": limiter.store().instances(), "servers": servers },
        "rules": {
            "source": engine.rules_name(), "version": loaded.version, "rules": loaded.rules, "refused": loaded.refused,
        },
        "envoy": { "refused": engine.refused(Part::Envoy) },
        "tls": { "refused": engine.refused(Part::Certificates) },
    });
    Json(body).into_response()
}
