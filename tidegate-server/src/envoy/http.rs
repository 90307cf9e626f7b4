//! The HTTP side of the reference server: `/json`, `/healthcheck` and `/rlconfig`. The same service behind it.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tidegate::spi::Store;

use super::json;
use super::pb::Code;
use super::prepared::Refusal;
use super::service::{LARGEST_MESSAGE, RateLimits};

/// `POST /json` decides a request in JSON: 200, 429 if it is over a limit, 400 if it makes no sense, 503 while the store
/// fails (400, too, in strict mode). `GET /healthcheck` says `OK`, or 500. `GET /rlconfig` lists the limits.
pub fn router<S: Store + 'static>(service: RateLimits<S>) -> Router {
    Router::new()
        .route("/json", post(decide::<S>))
        .route("/healthcheck", get(health::<S>))
        .route("/rlconfig", get(limits::<S>))
        .layer(DefaultBodyLimit::max(LARGEST_MESSAGE))
        .with_state(service)
}

/// What the reference server has at its port for debugging: `GET /rlconfig` again, and `GET /stats`, the counters by name.
pub fn admin_router<S: Store + 'static>(service: RateLimits<S>) -> Router {
    Router::new().route("/rlconfig", get(limits::<S>)).route("/stats", get(stats::<S>)).with_state(service)
}

async fn decide<S: Store + 'static>(State(service): State<RateLimits<S>>, body: Bytes) -> Response {
    let request = match json::request(&body) {
        Ok(request) => request,
        Err(problem) => return (StatusCode::BAD_REQUEST, problem).into_response(),
    };
    match service.answer(&request, None).await {
        Ok(answer) => {
            let status = match Code::try_from(answer.overall_code) {
                Ok(Code::Ok) => StatusCode::OK,
                Ok(Code::OverLimit) => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (status, [(CONTENT_TYPE, "application/json")], json::response(&answer).to_string()).into_response()
        }
        Err(refusal @ (Refusal::Unavailable | Refusal::Degraded(_))) if !service.is_strict() => {
            (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], refusal.to_string()).into_response()
        }
        Err(refusal) => (StatusCode::BAD_REQUEST, refusal.to_string()).into_response(),
    }
}

async fn health<S: Store + 'static>(State(service): State<RateLimits<S>>) -> Response {
    if service.is_healthy().await {
        return "OK".into_response();
    }
    (StatusCode::INTERNAL_SERVER_ERROR, "not healthy").into_response()
}

async fn stats<S: Store + 'static>(State(service): State<RateLimits<S>>) -> String {
    service.counted().lines()
}

async fn limits<S: Store + 'static>(State(service): State<RateLimits<S>>) -> Response {
    match service.lines() {
        Some(lines) => lines.into_iter().map(|line| line + "\n").collect::<String>().into_response(),
        None => (StatusCode::NOT_FOUND, "no Envoy configuration is loaded\n").into_response(),
    }
}
