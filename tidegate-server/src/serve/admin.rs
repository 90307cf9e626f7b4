//! The admin address: metrics. It must not be reachable by clients.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;

use super::engine::Engine;

pub(crate) fn router(engine: Arc<Engine>) -> Router {
    Router::new().route("/metrics", get(metrics)).with_state(engine)
}

async fn metrics(State(engine): State<Arc<Engine>>) -> impl IntoResponse {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, OPEN_METRICS)], engine.metrics().text())
}
