//! `/healthz`: the process answers. `/readyz`: it can decide, by which rules and on which store.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::json;
use tidegate::{Key, KeyStem, Limit, Store, Subject};

use super::engine::Engine;

pub(crate) fn router() -> Router<Arc<Engine>> {
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

async fn ready(State(engine): State<Arc<Engine>>) -> Response {
    let loaded = engine.loaded();
    let reached = reached(&engine).await;
    let body = json!({
        "ready": reached,
        "store": { "kind": engine.store_name(), "reached": reached },
        "rules": {
            "source": engine.rules_name(), "version": loaded.version, "rules": loaded.rules, "refused": loaded.refused,
        },
    });
    let status = if reached { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

/// Whether the store answers: it is asked to forget something that is not there.
async fn reached(engine: &Engine) -> bool {
    let Ok(limit) = Limit::fixed_window(1, std::time::Duration::from_secs(1)) else { return false };
    let stem = KeyStem::of_rule("readyz probe", &limit, "");
    let nobody = Subject::from_hash(0);
    engine.limiter().store().forget(&[Key::new(&stem, nobody, nobody)]).await.is_ok()
}
