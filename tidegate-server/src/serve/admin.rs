//! The admin address: metrics, and what the reference server of Envoy has for debugging. It must not be reachable by clients.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;

use super::engine::Engine;
use super::health;

/// What there is, for people who come by.
const PATHS: &str = "\
/metrics   counters for Prometheus
/healthz   the process answers; /readyz: it can decide
/rlconfig  the limits of --envoy-config
/stats     their counters by the names that Envoy's own server has
";

pub(crate) fn router(engine: Arc<Engine>) -> Router {
    let envoy = crate::envoy::admin_router(engine.rate_limits());
    let own = Router::new().route("/", get(async || PATHS)).route("/metrics", get(metrics)).merge(health::router());
    own.with_state(engine).merge(envoy)
}

async fn metrics(State(engine): State<Arc<Engine>>) -> impl IntoResponse {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    const END: &str = "# EOF\n";
    let ours = engine.metrics().text();
    let both = [ours.strip_suffix(END).unwrap_or(&ours), &engine.envoy().stats().open_metrics(), END].concat();
    ([(CONTENT_TYPE, OPEN_METRICS)], both)
}
