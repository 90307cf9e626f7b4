//! The bounds of a call: how long its body may be, and how long it may take, whoever is slow: a client with its body, or we.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::HttpBody;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;
use tokio::time::Sleep;
use tonic::Status;

use crate::listen::sleep;

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

/// Ends a call that takes longer than `timeout`; how long a message may be, the services say.
pub(crate) const fn grpc<C>(call: C, timeout: Duration) -> Within<C> {
    Within { call, timeout, waits: None }
}

/// A call of the gRPC address, and the time that it has. Most are answered the moment they are looked at, so the time only
/// runs for those that are not.
pub(crate) struct Within<C> {
    call: C,
    timeout: Duration,
    waits: Option<Pin<Box<Sleep>>>,
}

impl<C> Future for Within<C>
where
    C: Future<Output = Result<http::Response<tonic::body::Body>, Infallible>> + Unpin,
{
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(answer) = Pin::new(&mut self.call).poll(context) {
            return Poll::Ready(answer);
        }
        let timeout = self.timeout;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(timeout)));
        let late = || Status::deadline_exceeded("the call took too long").into_http();
        waits.as_mut().poll(context).map(|()| Ok(late()))
    }
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
