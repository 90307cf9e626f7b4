//! `/healthz`: the process answers. `/readyz`: the rules and the store that it decides by.
//!
//! A server is ready without its store, too: rules define what happens then, which needs requests to reach the server.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tidegate::spi::Store;
use tidegate_redis::ServerState;

use super::engine::{Engine, Part};

pub(crate) fn router() -> Router<Arc<Engine>> {
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

async fn ready(State(engine): State<Arc<Engine>>) -> Response {
    Json(readiness(&engine).await).into_response()
}

/// Whether the server decides requests, and by which rules and store.
pub(crate) async fn readiness(engine: &Engine) -> Value {
    let (status, store) = (engine.rules_status(), engine.store());
    let reached = engine.limiter().ping().await.is_ok();
    let servers = store.inner().servers();
    let servers: Vec<_> = servers.iter().map(server_json).collect();
    json!({
        "ready": true,
        "degraded": !reached,
        "store": { "kind": engine.store_name(), "reached": reached, "instances": store.instances(), "servers": servers },
        "rules": {
            "source": engine.rules_name(), "version": status.version, "rules": status.rules, "refused": status.refused,
        },
        "envoy": { "refused": engine.part_error(Part::Envoy) },
        "tls": { "refused": engine.part_error(Part::Certificates) },
    })
}

fn server_json(server: &ServerState) -> Value {
    let (address, breaker) = (&server.address, server.breaker.as_str());
    json!({ "address": address, "breaker": breaker, "waiting": server.waiting, "in_flight": server.in_flight })
}
