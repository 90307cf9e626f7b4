//! Limits on a call to the server's own addresses: the size of its body and of all large bodies together, and its total time.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;
use tokio::time::Sleep;
use tonic::Status;

use super::large_bodies::LargeBodies;
use super::retry_after::RETRY_AFTER_ONE_SECOND;
use crate::listen::{Bound, ListenerStats, sleep};

/// Largest body of a call.
pub(crate) const MAX_BODY_BYTES: usize = 1024 * 1024;

/// How long a call to an address may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTimeouts {
    pub(crate) call: Duration,
    /// The path of calls that may wait, and for how long.
    pub(crate) waiting: Option<(&'static str, Duration)>,
}

impl CallTimeouts {
    /// The time for a call of this path.
    fn timeout(self, path: &str) -> Duration {
        let wait = self.waiting.filter(|(waiting, _)| *waiting == path).map_or(Duration::ZERO, |(_, wait)| wait);
        self.call.saturating_add(wait)
    }
}

/// Answers 413 to a body that is too long, 503 to a large one while too many others are in memory, and 408 to a call that takes
/// too long.
pub(crate) fn http(router: Router, timeouts: CallTimeouts, stats: &Arc<ListenerStats>) -> Router {
    let (large_bodies, stats) = (LargeBodies::new(), Arc::clone(stats));
    let limit = from_fn(move |mut request: Request, next: Next| {
        let (large_bodies, stats) = (large_bodies.clone(), Arc::clone(&stats));
        let timeout = timeouts.timeout(request.uri().path());
        async move {
            if request.body().size_hint().lower() > MAX_BODY_BYTES as u64 {
                return too_long();
            }
            let reservation = LargeBodies::reservation(request.body());
            let request = match &reservation {
                None => request,
                Some(reservation) => {
                    // For calls that wait.
                    request.extensions_mut().insert(Arc::clone(reservation));
                    request.map(|body| Body::new(large_bodies.watch(body, Some(Arc::clone(reservation)))))
                }
            };
            let response = tokio::time::timeout(timeout, next.run(request)).await;
            if reservation.is_some_and(|reservation| reservation.is_refused()) {
                stats.count(Bound::LargeBodies);
                return too_many();
            }
            match response {
                // The length was not declared, and the body turned out to be too long.
                Ok(response) if response.status() == StatusCode::PAYLOAD_TOO_LARGE => too_long(),
                Ok(response) => response,
                Err(_) => too_slow(),
            }
        }
    });
    router.layer(DefaultBodyLimit::max(MAX_BODY_BYTES)).layer(limit)
}

/// Answers `DEADLINE_EXCEEDED` to a call that takes longer than `timeout`. The services limit the size of messages.
pub(crate) const fn grpc<C>(call: C, timeout: Duration) -> TimedCall<C> {
    TimedCall { call, timeout, timer: None }
}

/// A gRPC call with a timeout. Most calls are ready at the first poll, so the timer starts only after that.
pub(crate) struct TimedCall<C> {
    call: C,
    timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<C> Future for TimedCall<C>
where
    C: Future<Output = Result<http::Response<tonic::body::Body>, Infallible>> + Unpin,
{
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(answer) = Pin::new(&mut self.call).poll(context) {
            return Poll::Ready(answer);
        }
        let timeout = self.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        let timed_out = || Status::deadline_exceeded("the call took too long").into_http();
        timer.as_mut().poll(context).map(|()| Ok(timed_out()))
    }
}

fn too_long() -> Response {
    refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_long", "The body of the request has more than 1 MiB.")
}

fn too_slow() -> Response {
    refused(StatusCode::REQUEST_TIMEOUT, "request_timeout", "The call took too long. It may have been counted.")
}

fn too_many() -> Response {
    let message = "Too many calls with large bodies are under way.";
    (RETRY_AFTER_ONE_SECOND, refused(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)).into_response()
}

fn refused(status: StatusCode, error: &str, message: &str) -> Response {
    (status, Json(json!({ "error": error, "message": message }))).into_response()
}
