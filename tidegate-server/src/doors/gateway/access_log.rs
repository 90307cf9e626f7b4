//! `AccessLog`: one event for each finished request through the gateway. It has the path without its query, and no header
//! value and no subject.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate::spi::Origin;
use tidegate::{Clock, StoreErrorKind, SystemClock, Timestamp};
use tidegate_tower::{DecisionSlot, DecisionSummary};

/// Longest path that is written; the rest is cut off.
const MAX_PATH_CHARS: usize = 1024;

/// Begins an entry for each request.
#[derive(Clone, Debug)]
pub(super) struct AccessLog {
    clock: SystemClock,
}

/// Measures the time until the upstream's response begins: an extension of the request.
#[derive(Clone, Debug)]
pub(super) struct UpstreamTimer {
    clock: SystemClock,
    duration: Arc<OnceLock<Duration>>,
}

/// The event of one request, written when it is dropped: after the last byte of the response, or when the client is gone.
#[derive(Debug)]
struct AccessLogEntry {
    method: &'static str,
    path: String,
    started: Timestamp,
    status: Option<StatusCode>,
    bytes: u64,
    decision: DecisionSlot,
    upstream: UpstreamTimer,
}

pin_project! {
    /// A body that counts its bytes for the log.
    pub(super) struct LoggedBody<B> {
        #[pin]
        body: B,
        entry: Option<AccessLogEntry>,
    }
}

impl AccessLog {
    pub(super) fn new() -> Self {
        Self { clock: SystemClock::new() }
    }

    fn begin<A>(&self, request: &mut Request<A>) -> AccessLogEntry {
        let (decision, clock) = (DecisionSlot::default(), self.clock.clone());
        let upstream = UpstreamTimer { clock, duration: Arc::default() };
        request.extensions_mut().insert(decision.clone());
        request.extensions_mut().insert(upstream.clone());
        AccessLogEntry {
            method: Origin::default().with_method(request.method().as_str()).method(),
            path: request.uri().path().chars().take(MAX_PATH_CHARS).collect(),
            started: self.clock.now(),
            status: None,
            bytes: 0,
            decision,
            upstream,
        }
    }
}

/// Handles a request, and logs it if there is a log.
pub(super) async fn handle_logged<A, B, F>(
    log: Option<AccessLog>,
    mut request: Request<A>,
    handle: impl FnOnce(Request<A>) -> F,
) -> Result<Response<LoggedBody<B>>, Infallible>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    let mut entry = log.map(|log| log.begin(&mut request));
    let response = handle(request).await?;
    if let Some(entry) = &mut entry {
        entry.status = Some(response.status());
    }
    Ok(response.map(|body| LoggedBody { body, entry }))
}

impl UpstreamTimer {
    /// Awaits a response of the upstream, and keeps the time that it took.
    pub(super) async fn measure<T>(timer: Option<Self>, response: impl Future<Output = T>) -> T {
        let Some(Self { clock, duration }) = timer else { return response.await };
        let started = clock.now();
        let response = response.await;
        let _ = duration.set(clock.now().since(started));
        response
    }
}

impl Drop for AccessLogEntry {
    fn drop(&mut self) {
        let millis = |duration: Duration| duration.as_micros() as f64 / 1e3;
        let decision = self.decision.get();
        tracing::info!(
            target: "tidegate::access",
            method = self.method,
            path = self.path,
            status = self.status.map(|status| status.as_u16()),
            bytes = self.bytes,
            duration_ms = millis(self.upstream.clock.now().since(self.started)),
            upstream_ms = self.upstream.duration.get().copied().map(millis),
            decision = decision.map(describe),
            rule = decision.and_then(|decision| decision.rule.as_deref()),
            degraded = decision.and_then(|decision| decision.degraded).map(StoreErrorKind::as_str),
            "request"
        );
    }
}

fn describe(decision: &DecisionSummary) -> &'static str {
    match (decision.allowed, &decision.rule) {
        (true, None) => "unlimited",
        (true, Some(_)) => "allowed",
        (false, _) => "refused",
    }
}

impl<B: Body<Data = Bytes>> Body for LoggedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = this.body.poll_frame(context);
        if let (Some(entry), Poll::Ready(Some(Ok(frame)))) = (this.entry, &frame) {
            entry.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
