//! `Proxy`: sends one request on to the upstream and brings its answer back, both as they come. Limits stand in front of it;
//! it knows nothing of them.

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
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use tokio::sync::watch;
use tower_service::Service;

use super::tunnel::{self, Wish};
use super::upload::{Stage, Upload};
use super::upstream::Upstream;
use super::{GatewayOptions, forwarded, headers, merge};
use crate::listen::Starter;

/// How long a connection to the upstream waits for its next request. Less than the five seconds after which common servers
/// close it, so that no request meets a connection that is just being closed.
const LONGEST_IDLE: Duration = Duration::from_secs(4);

/// A reverse proxy. Clones share everything: there is one for each request.
#[derive(Clone)]
pub(super) struct Proxy(Arc<Shared>);

struct Shared {
    client: Client<HttpConnector, Upload>,
    upstream: Upstream,
    options: GatewayOptions,
    tasks: Starter,
}

/// What the upstream said, or why there is nothing.
pub(super) type ProxyBody = Either<Incoming, Full<Bytes>>;

/// Why there is no answer of the upstream.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// The request makes no sense, or several.
    BadRequest(&'static str),
    NoTunnels,
    TooLong,
    ClientTooSlow,
    Unreachable,
    UpstreamTooSlow,
}

/// Trouble as it is told.
#[derive(Serialize)]
struct Told {
    error: &'static str,
    message: &'static str,
}

impl Proxy {
    pub(super) fn new(upstream: Upstream, options: GatewayOptions, tasks: Starter) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(options.connect_timeout));
        connector.set_nodelay(true);
        let mut client = Client::builder(TokioExecutor::new());
        client.timer(TokioTimer::new()).pool_timer(TokioTimer::new()).pool_idle_timeout(LONGEST_IDLE);
        client.http2_only(upstream.version == Version::HTTP_2);
        Self(Arc::new(Shared { client: client.build(connector), upstream, options, tasks }))
    }
}

impl Shared {
    async fn go(&self, mut request: Request<Incoming>) -> Result<Response<ProxyBody>, Trouble> {
        let speaks_http1 = self.upstream.version != Version::HTTP_2;
        let wish = Wish::of(&mut request).filter(|_| speaks_http1);
        let (mut parts, body) = request.into_parts();
        self.check(&parts, &body)?;
        let (body, progress) = Upload::new(body, self.options.max_body_bytes);
        self.prepare(&mut parts, &body, wish.as_ref());
        let mut response = self.ask(Request::from_parts(parts, body), progress).await?;

        let protocol = response.headers().get(UPGRADE).cloned();
        headers::strip(response.headers_mut());
        // Between us and the client another version may be spoken; the server knows which.
        *response.version_mut() = Version::HTTP_11;
        if tunnel::agrees(&response) {
            wish.ok_or(Trouble::Unreachable)?.open(&mut response, protocol, &self.tasks);
        }
        merge::set_aside(&mut response);
        Ok(response.map(Either::Left))
    }

    /// Refuses what another server could understand in another way.
    fn check(&self, parts: &Parts, body: &Incoming) -> Result<(), Trouble> {
        if let Some(problem) = forwarded::ambiguous_host(parts) {
            return Err(Trouble::BadRequest(problem));
        }
        if parts.method == Method::CONNECT {
            return Err(Trouble::NoTunnels);
        }
        if body.size_hint().lower() > self.options.max_body_bytes {
            return Err(Trouble::TooLong);
        }
        Ok(())
    }

    /// Makes a request of ours from the one of the client.
    fn prepare(&self, parts: &mut Parts, body: &Upload, wish: Option<&Wish>) {
        headers::strip(&mut parts.headers);
        let peer = parts.extensions.get::<SocketAddr>().map(SocketAddr::ip);
        forwarded::tell(parts, peer, self.options.trust_forwarded);
        parts.uri = self.upstream.place(&parts.uri);
        parts.version = self.upstream.version;
        if parts.version == Version::HTTP_2 {
            // There the host is part of the target, and two that differ make a request malformed.
            parts.headers.remove(HOST);
        } else {
            if parts.headers.contains_key(TE) {
                parts.headers.insert(CONNECTION, HeaderValue::from_static("te"));
            }
            if !body.is_end_stream() && !parts.headers.contains_key(CONTENT_LENGTH) {
                // Without it, a GET would lose its body.
                parts.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            if let Some(wish) = wish {
                wish.tell(parts);
            }
        }
    }

    /// Waits for the answer to begin, for as long as something moves.
    async fn ask(
        &self,
        request: Request<Upload>,
        mut progress: watch::Receiver<Stage>,
    ) -> Result<Response<Incoming>, Trouble> {
        let mut answer = std::pin::pin!(self.client.request(request));
        let mut moves = true;
        loop {
            let next = async {
                tokio::select! {
                    answer = &mut answer => Some(answer),
                    changed = progress.changed(), if moves => {
                        moves = changed.is_ok();
                        None
                    }
                }
            };
            match tokio::time::timeout(self.options.response_timeout, next).await {
                Ok(Some(Ok(answer))) => return Ok(answer),
                Ok(Some(Err(_))) => return Err(Trouble::of(*progress.borrow())),
                Ok(None) => (),
                Err(_) if *progress.borrow() == Stage::Awaited => return Err(Trouble::ClientTooSlow),
                Err(_) => return Err(Trouble::UpstreamTooSlow),
            }
        }
    }
}

impl Service<Request<Incoming>> for Proxy {
    type Response = Response<ProxyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ProxyBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let proxy = Arc::clone(&self.0);
        Box::pin(async move { Ok(proxy.go(request).await.unwrap_or_else(Trouble::answer)) })
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("upstream", &self.0.upstream).finish_non_exhaustive()
    }
}

// === impl Trouble ===

impl Trouble {
    /// Why the upstream could not be asked, by how far the body of the request came.
    const fn of(stage: Stage) -> Self {
        match stage {
            Stage::TooLong => Self::TooLong,
            Stage::Broken => Self::BadRequest("The body of the request ended early, or makes no sense."),
            Stage::Awaited | Stage::Moving | Stage::Done => Self::Unreachable,
        }
    }

    fn answer(self) -> Response<ProxyBody> {
        let (status, error, message) = match self {
            Self::BadRequest(message) => (StatusCode::BAD_REQUEST, "bad_request", message),
            Self::NoTunnels => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "CONNECT is for proxies, and this is a gateway.")
            }
            Self::TooLong => {
                (StatusCode::PAYLOAD_TOO_LARGE, "body_too_long", "The body of the request is longer than it may be.")
            }
            Self::ClientTooSlow => {
                (StatusCode::REQUEST_TIMEOUT, "request_timeout", "The rest of the request did not arrive in time.")
            }
            Self::Unreachable => {
                (StatusCode::BAD_GATEWAY, "upstream_unreachable", "The service behind this gateway cannot be reached.")
            }
            Self::UpstreamTooSlow => (
                StatusCode::GATEWAY_TIMEOUT,
                "upstream_timeout",
                "The service behind this gateway did not answer in time.",
            ),
        };
        // Two short texts can always be written.
        let body = serde_json::to_vec(&Told { error, message }).unwrap_or_default();
        let mut response = Response::new(Either::Right(Full::from(body)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if status.is_client_error() {
            // Whatever follows on this connection may belong to the same request.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
