//! `/healthz`: the process answers. `/readyz`: it can decide, by which rules and on which store.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::json;

use super::engine::{Engine, Part};
use crate::store::answers;

pub(crate) fn router() -> Router<Arc<Engine>> {
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

async fn ready(State(engine): State<Arc<Engine>>) -> Response {
    let loaded = engine.loaded();
    let reached = answers(engine.limiter().store()).await;
    let body = json!({
        "ready": reached,
        "store": { "kind": engine.store_name(), "reached": reached },
        "rules": {
            "source": engine.rules_name(), "version": loaded.version, "rules": loaded.rules, "refused": loaded.refused,
        },
        "envoy": { "refused": engine.refused(Part::Envoy) },
        "tls": { "refused": engine.refused(Part::Certificates) },
    });
    let status = if reached { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}
