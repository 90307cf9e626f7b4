//! The admin address: metrics, status, health, subjects, and the debug pages of Envoy's reference server. Clients must not reach it.
//! `admin/openapi.json` describes every call.

mod access;
pub(crate) use access::AdminAccess;
mod guess_limiter;
mod status;
pub(crate) use status::DoorAddresses;
mod subjects;
mod tokens;
mod usage;
pub(crate) use tokens::AdminTokenArgs;
use tokens::Permission;
pub use tokens::read_token;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::calls::browser_guard::BrowserGuard;
use crate::calls::unknown_calls::{answer_unlisted_paths, answer_wrong_methods};
use crate::calls::{health, openapi};
use crate::engine::Engine;
use crate::observe::metrics::metrics_format::MetricsFormat;
use crate::observe::metrics::scrape::Scrape;

/// The index page.
const INDEX_PAGE: &str = "\
/openapi.json        describes these calls: parameters, bodies, responses, tokens (OpenAPI 3.1)
/metrics             for Prometheus: text 0.0.4, or OpenMetrics by Accept
/v1/status           front ends, store, rules and instances; `tidegate status` shows it
/v1/subjects/show    POST: the buckets of a subject; `tidegate subject show`
/v1/subjects/reset   POST: deletes them; `tidegate subject reset`
/v1/usage            what was consumed of quotas with a ledger; `tidegate quota show`
/v1/usage/entries    the entries of the ledger; `tidegate quota export`
/v1/usage/compare    POST: compares store and ledger; /v1/usage/reconcile repairs the store, too: `tidegate quota reconcile`
/v1/usage/corrections  POST: adds or takes back units; `tidegate quota correct`
/v1/usage/rollup     POST: sums up old entries; `tidegate quota rollup`
/healthz             the process answers; /readyz: the rules and the store that it decides by
/rlconfig            the limits of --envoy-config
/stats               their counters by the names that Envoy's own server has
";

/// The routes at `address`. Everybody who reaches the address may call the index page, the description, and the health pages, which probes read.
pub(crate) fn router(
    engine: Arc<Engine>,
    address: SocketAddr,
    doors: DoorAddresses,
    access: &Arc<AdminAccess>,
) -> Router {
    let guard = BrowserGuard::new(address);
    let envoy = crate::doors::envoy::admin_router(engine.rate_limits());
    let status = Router::new().route("/v1/status", get(status::status)).with_state((Arc::clone(&engine), doors));
    let reading = Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/subjects/show", post(subjects::show))
        .merge(usage::reading_routes())
        .with_state(Arc::clone(&engine))
        .merge(envoy)
        .merge(status);
    let changing = Router::new().route("/v1/subjects/reset", post(subjects::reset)).merge(usage::changing_routes());
    let changing = changing.with_state(Arc::clone(&engine));
    let open = Router::new().route("/", get(async || INDEX_PAGE)).merge(openapi::router(openapi::ADMIN));
    let open = open.merge(health::router()).with_state(engine);
    let protected = access.require(Permission::Read, reading).merge(access.require(Permission::Change, changing));
    // The guard is outermost: a web page must not learn whether a token is right.
    let protected = guard.guard(answer_wrong_methods(protected));
    answer_unlisted_paths(protected.merge(answer_wrong_methods(open)))
}

async fn metrics(State(engine): State<Arc<Engine>>, headers: HeaderMap) -> impl IntoResponse {
    let format = MetricsFormat::from_headers(&headers);
    let read = Scrape::new(&engine).open_metrics();
    let pages = [&*engine.metrics().open_metrics(), &read, &engine.envoy().stats().open_metrics()];
    let page = format.page(&pages);
    ([(CONTENT_TYPE, format.content_type())], page)
}
