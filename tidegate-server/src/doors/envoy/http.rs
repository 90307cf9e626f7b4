//! The HTTP endpoints of the reference server: `/json`, `/healthcheck` and `/rlconfig`, and `/stats` for the admin port.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tidegate::spi::Store;

use super::json;
use super::messages::Code;
use super::request_plan::DecideError;
use super::service::{EnvoyService, MAX_MESSAGE_BYTES};
use crate::calls::retry_after::RETRY_AFTER_ONE_SECOND;

/// `POST /json` decides a request in JSON: 200, 429 if it is over a limit, 400 if it is malformed, 403 if it gives hits back
/// (`is_negative_hits`), 503 while the store fails (400 in strict mode). `GET /healthcheck` returns `OK`, or 500. `GET /rlconfig` lists
/// the limits.
pub fn router<S: Store + 'static>(service: EnvoyService<S>) -> Router {
    json_router(service, false)
}

/// [`router`], but `POST /json` also gives hits back. Nothing proves that they were taken: whoever reaches this address can give
/// back the hits of anybody, up to the whole limit.
pub fn router_with_refunds<S: Store + 'static>(service: EnvoyService<S>) -> Router {
    json_router(service, true)
}

fn json_router<S: Store + 'static>(service: EnvoyService<S>, accepts_refunds: bool) -> Router {
    let decide = move |State(service), body: Bytes| decide::<S>(service, body, accepts_refunds);
    Router::new()
        .route("/json", post(decide))
        .route("/healthcheck", get(health::<S>))
        .route("/rlconfig", get(limits::<S>))
        .layer(DefaultBodyLimit::max(MAX_MESSAGE_BYTES))
        .with_state(service)
}

/// The endpoints of the reference server's debug port: `GET /rlconfig`, and `GET /stats` with all counters.
pub fn admin_router<S: Store + 'static>(service: EnvoyService<S>) -> Router {
    Router::new().route("/rlconfig", get(limits::<S>)).route("/stats", get(stats::<S>)).with_state(service)
}

async fn decide<S: Store + 'static>(service: EnvoyService<S>, body: Bytes, accepts_refunds: bool) -> Response {
    let request = match json::parse_request(&body) {
        Ok(request) => request,
        Err(problem) => return (StatusCode::BAD_REQUEST, problem).into_response(),
    };
    if !accepts_refunds && request.descriptors.iter().any(|descriptor| descriptor.is_negative_hits) {
        let problem = "is_negative_hits: not accepted here; send it over gRPC, or start with --envoy-json-refunds\n";
        return (StatusCode::FORBIDDEN, problem).into_response();
    }
    match service.decide(&request, None).await {
        Ok(response) => {
            let status = match Code::try_from(response.overall_code) {
                Ok(Code::Ok) => StatusCode::OK,
                Ok(Code::OverLimit) => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (status, [(CONTENT_TYPE, "application/json")], json::format_response(&response).to_string()).into_response()
        }
        Err(error @ DecideError::Unavailable) if !service.is_strict() => {
            (StatusCode::SERVICE_UNAVAILABLE, RETRY_AFTER_ONE_SECOND, error.to_string()).into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

async fn health<S: Store + 'static>(State(service): State<EnvoyService<S>>) -> Response {
    if service.is_healthy().await {
        return "OK".into_response();
    }
    (StatusCode::INTERNAL_SERVER_ERROR, "not healthy").into_response()
}

async fn stats<S: Store + 'static>(State(service): State<EnvoyService<S>>) -> String {
    service.stats().lines()
}

async fn limits<S: Store + 'static>(State(service): State<EnvoyService<S>>) -> Response {
    match service.config_lines() {
        Some(lines) => lines.into_iter().map(|line| line + "\n").collect::<String>().into_response(),
        None => (StatusCode::NOT_FOUND, "no Envoy configuration is loaded\n").into_response(),
    }
}
