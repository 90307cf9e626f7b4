//! The bounds of a call: how long its body may be, and how long it may take, whoever is slow: a client with its body, or we.

use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::HttpBody;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;
use tonic::Status;

/// The largest body of a call.
const LARGEST_BODY: usize = 1024 * 1024;

/// Answers 413 in place of a body that is too long, and 408 in place of what takes longer than `timeout`.
pub(crate) fn http(router: Router, timeout: Duration) -> Router {
    let within = from_fn(move |request: Request, next: Next| async move {
        if request.body().size_hint().lower() > LARGEST_BODY as u64 {
            return too_long();
        }
        match tokio::time::timeout(timeout, next.run(request)).await {
            // The body had not told its length, and turned out to be longer.
            Ok(response) if response.status() == StatusCode::PAYLOAD_TOO_LARGE => too_long(),
            Ok(response) => response,
            Err(_) => too_slow(),
        }
    });
    router.layer(DefaultBodyLimit::max(LARGEST_BODY)).layer(within)
}

/// Ends what takes longer than `timeout`; how long a message may be, the services say.
pub(crate) fn grpc(router: Router, timeout: Duration) -> Router {
    router.layer(from_fn(move |request: Request, next: Next| async move {
        let late = |_| Status::deadline_exceeded("the call took too long").into_http();
        tokio::time::timeout(timeout, next.run(request)).await.unwrap_or_else(late)
    }))
}

fn too_long() -> Response {
    refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_long", "The body of the request has more than 1 MiB.")
}

fn too_slow() -> Response {
    refused(StatusCode::REQUEST_TIMEOUT, "request_timeout", "The call took too long. It may have been counted.")
}

fn refused(status: StatusCode, error: &str, message: &str) -> Response {
    (status, Json(json!({ "error": error, "message": message }))).into_response()
}
