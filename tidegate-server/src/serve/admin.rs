//! The admin address: metrics, health, and the debug pages of Envoy's reference server. Clients must not reach it.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::engine::Engine;
use super::health;
use super::metrics_format::MetricsFormat;

/// The index page.
const INDEX_PAGE: &str = "\
/metrics   for Prometheus: text 0.0.4, or OpenMetrics by Accept
/healthz   the process answers; /readyz: the rules and the store that it decides by
/rlconfig  the limits of --envoy-config
/stats     their counters by the names that Envoy's own server has
";

pub(crate) fn router(engine: Arc<Engine>) -> Router {
    let envoy = crate::envoy::admin_router(engine.rate_limits());
    let own =
        Router::new().route("/", get(async || INDEX_PAGE)).route("/metrics", get(metrics)).merge(health::router());
    own.with_state(engine).merge(envoy)
}

async fn metrics(State(engine): State<Arc<Engine>>, headers: HeaderMap) -> impl IntoResponse {
    let format = MetricsFormat::from_headers(&headers);
    let page = format.page(&[&engine.metrics().open_metrics(), &engine.envoy().stats().open_metrics()]);
    ([(CONTENT_TYPE, format.content_type())], page)
}
