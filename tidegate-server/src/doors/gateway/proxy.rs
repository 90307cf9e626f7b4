//! `Proxy`: forwards a request to the upstream and returns its response, both as streams. The limit layer is in front of it.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tidegate::grants::HeldLease;
use tidegate::http::ErrorFormat;
use tidegate_tower::{AssumedBodySize, BodyText};
use tokio::sync::watch;
use tower_service::Service;

use super::access_log::UpstreamTimer;
use super::hop_by_hop::remove_hop_by_hop;
use super::llm::{LlmRequest, MeteredBody};
use super::request_body::RequestBody;
use super::request_fields::FieldError;
use super::tunnel::{self, UpgradeRequest};
use super::upload::{Upload, UploadProgress, UploadStage};
use super::upload_pace::UploadPace;
use super::upstream::Upstream;
use super::upstream_body::UpstreamBody;
use super::upstream_connector::UpstreamConnector;
use super::upstream_failure_log::UpstreamFailureLog;
use super::upstream_slots::{UpstreamSlot, UpstreamSlots};
use super::{GatewayOptions, forwarded_headers, rate_limit_headers};
use crate::calls::retry_after::RETRY_AFTER_ONE_SECOND;
use crate::listen::{Bound, ListenerStats, TaskSpawner, sleep};

/// Idle timeout of pooled upstream connections. Common servers close idle connections after five seconds; a shorter timeout
/// avoids sending a request on a connection that is being closed.
const UPSTREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// The most bytes that are read at once from an HTTP/1.1 upstream, and so the longest head of its response.
const UPSTREAM_BUFFER_BYTES: usize = 32 * 1024;

/// The most bytes of one response of an HTTP/2 upstream that wait to be read.
const UPSTREAM_STREAM_WINDOW_BYTES: u32 = 64 * 1024;

/// The largest window that HTTP/2 allows.
const MAX_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// A reverse proxy. Clones share everything, since tower clones the service for each request.
#[derive(Clone)]
pub(super) struct Proxy(Arc<ProxyInner>);

struct ProxyInner {
    client: Client<UpstreamConnector, Upload>,
    upstream: Upstream,
    options: GatewayOptions,
    spawner: TaskSpawner,
    slots: UpstreamSlots,
    stats: Arc<ListenerStats>,
    failures: UpstreamFailureLog,
}

/// The upstream's body, or that of an error response.
pub(super) type ProxyBody = Either<Either<UpstreamBody, MeteredBody>, Full<Bytes>>;

/// Why the gateway answers in place of the upstream.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProxyError {
    /// The request is malformed or ambiguous.
    BadRequest(&'static str),
    /// A header field has more than one reading.
    Field(FieldError),
    ConnectMethod,
    BodyTooLong,
    /// The body is compressed, although its tokens are to be estimated.
    EncodedBody,
    /// The body has no length, and is longer than the rules assume of such bodies.
    BodyWithoutLength,
    ClientTimeout,
    UpstreamUnreachable,
    UpstreamTimeout,
    /// The upstream closed the connection after the whole request was sent to it.
    UpstreamBrokeOff,
    /// Too many requests wait for the upstream.
    Overloaded,
    /// Too many large bodies are in memory.
    BodiesInMemory,
    /// Too many large bodies of the client are.
    BodiesOfClient,
}

impl Proxy {
    pub(super) fn new(
        upstream: Upstream,
        options: GatewayOptions,
        spawner: TaskSpawner,
        stats: &Arc<ListenerStats>,
    ) -> Self {
        let max = options.max_upstream_connections;
        let connector = UpstreamConnector::new(max, options.connect_timeout, upstream.tls.clone());
        let mut client = Client::builder(TokioExecutor::new());
        client.timer(TokioTimer::new()).pool_timer(TokioTimer::new()).pool_idle_timeout(UPSTREAM_IDLE_TIMEOUT);
        client.http2_only(upstream.version == Version::HTTP_2).http1_max_buf_size(UPSTREAM_BUFFER_BYTES);
        client.http2_initial_stream_window_size(UPSTREAM_STREAM_WINDOW_BYTES);
        // Responses that clients do not read must not keep those of others from arriving.
        let streams = u32::try_from(max).unwrap_or(u32::MAX);
        let window = UPSTREAM_STREAM_WINDOW_BYTES.saturating_mul(streams).min(MAX_WINDOW_BYTES);
        client.http2_initial_connection_window_size(window);
        let client = client.build(connector);
        let slots = UpstreamSlots::new(max, options.max_upstream_queue, options.connect_timeout, Arc::clone(stats));
        let failures = UpstreamFailureLog::new(&upstream);
        Self(Arc::new(ProxyInner { client, upstream, options, spawner, slots, stats: Arc::clone(stats), failures }))
    }
}

impl ProxyInner {
    async fn forward(&self, mut request: Request<RequestBody>) -> Result<Response<ProxyBody>, ProxyError> {
        let is_http1 = self.upstream.version != Version::HTTP_2;
        let upgrade = UpgradeRequest::from_request(&mut request).filter(|_| is_http1);
        let (mut parts, body) = request.into_parts();
        self.validate(&parts, &body)?;
        let (model, body) = LlmRequest::prepare(&mut parts, body)?;
        let assumed_size = parts.extensions.remove::<AssumedBodySize>();
        let charged = assumed_size.as_ref().and_then(AssumedBodySize::max_bytes);
        let is_charged_for_less = charged.is_some_and(|charged| charged < self.options.max_body_bytes);
        // A body that was read is within its bound, and may have been made longer.
        let max_bytes = if body.is_buffered() { u64::MAX } else { self.options.max_body_bytes };
        let (body, progress) = Upload::new(body, max_bytes, assumed_size);
        self.rewrite(&mut parts, &body, upgrade.as_ref());
        let mut slot: Option<UpstreamSlot> = Some(self.slots.acquire().await.ok_or(ProxyError::Overloaded)?);
        let model = model.and_then(LlmRequest::send);
        let mut response = match self.send(Request::from_parts(parts, body), progress).await {
            Ok(response) => response,
            Err(problem) => {
                if let Some(model) = model {
                    model.fail(problem);
                }
                return Err(match problem {
                    ProxyError::BodyTooLong if is_charged_for_less => ProxyError::BodyWithoutLength,
                    problem => problem,
                });
            }
        };

        let protocol = response.headers().get(UPGRADE).cloned();
        remove_hop_by_hop(response.headers_mut());
        // The version of the client's connection may differ; hyper sets it.
        *response.version_mut() = Version::HTTP_11;
        if tunnel::is_accepted(&response) {
            let upgrade = upgrade.ok_or(ProxyError::UpstreamUnreachable)?;
            upgrade.open_tunnel(&mut response, protocol, slot.take(), self.options.client_timeout, &self.spawner);
        }
        rate_limit_headers::stash_upstream_headers(&mut response);
        let response = response.map(|body| UpstreamBody::new(body, slot));
        Ok(match model {
            None => response.map(|body| Either::Left(Either::Left(body))),
            Some(model) => model.meter(response).map(|body| Either::Left(Either::Right(body))),
        })
    }

    /// Rejects requests that are not for a gateway. Its fields have been normalized before the decision.
    fn validate(&self, parts: &Parts, body: &RequestBody) -> Result<(), ProxyError> {
        if parts.method == Method::CONNECT {
            return Err(ProxyError::ConnectMethod);
        }
        if body.size_hint().lower() > self.options.max_body_bytes {
            return Err(ProxyError::BodyTooLong);
        }
        Ok(())
    }

    /// Turns the client's request into the one for the upstream.
    fn rewrite(&self, parts: &mut Parts, body: &Upload, upgrade: Option<&UpgradeRequest>) {
        remove_hop_by_hop(&mut parts.headers);
        let peer = parts.extensions.get::<SocketAddr>().map(SocketAddr::ip);
        forwarded_headers::append_peer(parts, peer);
        // It shares the memory of the body.
        parts.extensions.remove::<BodyText>();
        // The response body and a tunnel hold it; the connection to the upstream must not.
        parts.extensions.remove::<HeldLease>();
        parts.uri = self.upstream.rewrite(&parts.uri);
        parts.version = self.upstream.version;
        if parts.version == Version::HTTP_2 {
            // HTTP/2 has the host in `:authority`; a `Host` that differs would make the request malformed.
            parts.headers.remove(HOST);
        } else {
            if self.upstream.is_secure() {
                // The client sets the name that the upstream's certificate is for; many servers answer 421 to any other. The name
                // that the client asked for is in `X-Forwarded-Host`.
                parts.headers.remove(HOST);
            }
            if parts.headers.contains_key(TE) {
                parts.headers.insert(CONNECTION, HeaderValue::from_static("te"));
            }
            if !body.is_end_stream() && !parts.headers.contains_key(CONTENT_LENGTH) {
                // Without it, hyper drops the body of a GET.
                parts.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            if let Some(upgrade) = upgrade {
                upgrade.add_headers(parts);
            }
        }
    }

    /// Sends the request and waits until the response begins. The timeout restarts with each progress of the upload, whose client
    /// must keep the pace.
    async fn send(
        &self,
        request: Request<Upload>,
        mut progress: watch::Receiver<UploadProgress>,
    ) -> Result<Response<Incoming>, ProxyError> {
        let mut response = std::pin::pin!(self.client.request(request));
        let mut silence = std::pin::pin!(sleep(self.options.response_timeout));
        let mut pace = UploadPace::new(&self.options, *progress.borrow());
        let mut is_uploading = true;
        loop {
            tokio::select! {
                response = &mut response => {
                    return response.map_err(|error| self.failure(&error, progress.borrow().stage));
                }
                changed = progress.changed(), if is_uploading => {
                    is_uploading = changed.is_ok();
                    silence.set(sleep(self.options.response_timeout));
                }
                () = pace.tick(), if is_uploading => {
                    if !pace.allows(*progress.borrow()) {
                        self.stats.count(Bound::Upload);
                        return Err(ProxyError::ClientTimeout);
                    }
                }
                () = &mut silence => {
                    if progress.borrow().stage == UploadStage::WaitingForClient {
                        self.stats.count(Bound::Upload);
                        return Err(ProxyError::ClientTimeout);
                    }
                    return Err(ProxyError::UpstreamTimeout);
                }
            }
        }
    }

    /// Why a request got no response. The reason of an upstream is logged, since its client learns only that there is one.
    fn failure(&self, error: &ClientError, stage: UploadStage) -> ProxyError {
        match ProxyError::from_stage(stage) {
            ProxyError::UpstreamUnreachable => {
                self.failures.log(error);
                let is_sent = stage == UploadStage::Complete && !error.is_connect();
                if is_sent { ProxyError::UpstreamBrokeOff } else { ProxyError::UpstreamUnreachable }
            }
            problem => problem,
        }
    }
}

impl Service<Request<RequestBody>> for Proxy {
    type Response = Response<ProxyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ProxyBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let proxy = Arc::clone(&self.0);
        let timer = request.extensions().get::<UpstreamTimer>().cloned();
        // That of the rules that apply.
        let format = request.extensions().get::<ErrorFormat>().copied().unwrap_or_default();
        Box::pin(async move {
            let response = UpstreamTimer::measure(timer, proxy.forward(request)).await;
            Ok(response.unwrap_or_else(|error| error.into_response(format)))
        })
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("upstream", &self.0.upstream).finish_non_exhaustive()
    }
}

// === impl ProxyError ===

impl ProxyError {
    /// The reason of a failed request, by the progress of its body.
    pub(super) const fn from_stage(stage: UploadStage) -> Self {
        match stage {
            UploadStage::TooLong => Self::BodyTooLong,
            UploadStage::Malformed => Self::BadRequest("The request body ended early or is malformed."),
            UploadStage::WaitingForClient | UploadStage::WaitingForUpstream | UploadStage::Complete => {
                Self::UpstreamUnreachable
            }
        }
    }

    pub(super) fn into_response(self, format: ErrorFormat) -> Response<ProxyBody> {
        let (status, error, message) = match self {
            Self::Field(problem) => problem.response(),
            Self::BadRequest(message) => (StatusCode::BAD_REQUEST, "bad_request", message),
            Self::ConnectMethod => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "This gateway does not support CONNECT.")
            }
            Self::BodyTooLong => {
                (StatusCode::PAYLOAD_TOO_LARGE, "body_too_long", "The request body exceeds the maximum length.")
            }
            Self::EncodedBody => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "body_encoded",
                "The request body is compressed, so its tokens cannot be estimated. Send it without Content-Encoding.",
            ),
            Self::BodyWithoutLength => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "body_too_long",
                "The request body is too long to be sent without its length. Send a Content-Length.",
            ),
            Self::ClientTimeout => {
                (StatusCode::REQUEST_TIMEOUT, "request_timeout", "The rest of the request did not arrive in time.")
            }
            Self::UpstreamUnreachable | Self::UpstreamBrokeOff => {
                (StatusCode::BAD_GATEWAY, "upstream_unreachable", "The service behind this gateway cannot be reached.")
            }
            Self::UpstreamTimeout => (
                StatusCode::GATEWAY_TIMEOUT,
                "upstream_timeout",
                "The service behind this gateway did not answer in time.",
            ),
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "Too many requests wait for the service behind this gateway.",
            ),
            Self::BodiesInMemory => {
                (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Too many requests with large bodies are under way.")
            }
            Self::BodiesOfClient => (
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_requests",
                "Too many requests of this client with large bodies are under way.",
            ),
        };
        let body = format.error_body(status.as_u16(), error, message);
        let mut response = Response::new(Either::Right(Full::from(body)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            headers.extend(RETRY_AFTER_ONE_SECOND);
        }
        if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED {
            // Unread bytes on this connection may still belong to the rejected request.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
