//! No call takes longer than it may, whoever is slow: a client with its body, or we. What the limit is, the options say.

use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;
use tonic::Status;

/// Answers 408 in place of what takes longer than `timeout`.
pub(crate) fn http(router: Router, timeout: Duration) -> Router {
    router.layer(from_fn(move |request: Request, next: Next| within(timeout, request, next, too_slow)))
}

/// The same, in the words of gRPC.
pub(crate) fn grpc(router: Router, timeout: Duration) -> Router {
    let late = || Status::deadline_exceeded("the call took too long").into_http::<axum::body::Body>();
    router.layer(from_fn(move |request: Request, next: Next| within(timeout, request, next, late)))
}

async fn within(timeout: Duration, request: Request, next: Next, late: impl Fn() -> Response) -> Response {
    tokio::time::timeout(timeout, next.run(request)).await.unwrap_or_else(|_| late())
}

fn too_slow() -> Response {
    let told = json!({ "error": "request_timeout", "message": "The rest of the request did not arrive in time." });
    (StatusCode::REQUEST_TIMEOUT, Json(told)).into_response()
}
