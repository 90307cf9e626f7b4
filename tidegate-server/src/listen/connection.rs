//! One connection: TLS handshake, protocol detection, and its requests. Errors are not reported: the client is gone, or hyper
//! has answered a malformed request with 400.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::guarded_stream::{AmbiguousRequest, GuardedStream};
use super::{ConnectionLimits, Listener, Tls};

/// Interval of HTTP/2 pings to an idle client.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);

/// Request extension: the request arrived over TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverTls;

/// What all connections of a listener share.
pub(super) struct ConnectionConfig<S> {
    service: S,
    tls: Option<Tls>,
    http: auto::Builder<TokioExecutor>,
    limits: ConnectionLimits,
    /// Whether requests carry the client's address as an extension.
    passes_client_info: bool,
    batches_writes: bool,
}

/// Request extension: the permit of the connection, out of [`ConnectionLimits::max_connections`]. A tunnel that outlives the
/// HTTP connection keeps a clone.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPermit {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// The client of a connection.
#[derive(Clone)]
pub(super) struct ClientInfo {
    peer: SocketAddr,
    permit: ConnectionPermit,
    is_tls: bool,
}

impl ClientInfo {
    pub(super) fn new(peer: SocketAddr, permit: OwnedSemaphorePermit, is_tls: bool) -> Self {
        Self { peer, permit: ConnectionPermit { _permit: Arc::new(permit) }, is_tls }
    }
}

/// The service of one connection: rejects ambiguous requests, adds the client's address, and calls the listener's service.
struct ConnectionService<S> {
    config: Arc<ConnectionConfig<S>>,
    /// Set if requests carry it as an extension.
    client: Option<ClientInfo>,
    ambiguous: AmbiguousRequest,
    request_count: Arc<AtomicU64>,
}

pin_project! {
    /// The response to one request.
    #[project = ResponseFutureProjection]
    enum ResponseFuture<F> {
        /// The request has two body lengths.
        Ambiguous,
        Service { #[pin] response: F },
    }
}

impl<S> ConnectionConfig<S> {
    pub(super) fn new(service: S, listener: &Listener) -> Self {
        let limits = &listener.limits;
        let mut http = auto::Builder::new(TokioExecutor::new());
        let timer = TokioTimer::new();
        let mut http1 = http.http1();
        http1.timer(timer.clone()).header_read_timeout(limits.header_timeout).max_buf_size(limits.max_header_bytes);
        let max_header_list = u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX);
        http.http2().timer(timer).keep_alive_interval(HTTP2_PING_INTERVAL).max_header_list_size(max_header_list);
        Self {
            service,
            tls: listener.tls.clone(),
            http,
            limits: limits.clone(),
            passes_client_info: listener.passes_client_info,
            batches_writes: listener.batches_writes,
        }
    }
}

/// Serves one connection until it closes.
pub(super) async fn serve_connection<S, B>(
    config: Arc<ConnectionConfig<S>>,
    stream: TcpStream,
    client: ClientInfo,
    watcher: Watcher,
    mut shutting_down: watch::Receiver<()>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // A failure costs latency only.
    let _ = stream.set_nodelay(true);
    match &config.tls {
        None => serve_http(&config, stream, client, watcher).await,
        Some(tls) => {
            let handshake = tokio::time::timeout(config.limits.header_timeout, tls.accept(stream));
            // A shutdown aborts unfinished handshakes.
            let result = tokio::select! {
                result = handshake => result,
                _ = shutting_down.changed() => return,
            };
            if let Ok(Ok(stream)) = result {
                serve_http(&config, stream, client, watcher).await;
            }
        }
    }
}

async fn serve_http<S, B>(
    config: &Arc<ConnectionConfig<S>>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    client: ClientInfo,
    watcher: Watcher,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = GuardedStream::new(stream, config.limits.write_timeout, config.batches_writes);
    let request_count = Arc::new(AtomicU64::new(0));
    let service = ConnectionService {
        config: Arc::clone(config),
        client: config.passes_client_info.then(|| client.clone()),
        ambiguous: stream.ambiguous_request(),
        request_count: Arc::clone(&request_count),
    };
    let serving = watcher.watch(config.http.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned());
    let mut serving = std::pin::pin!(serving);
    // hyper's own timeouts start only once the first bytes have shown the protocol.
    if tokio::time::timeout(config.limits.header_timeout, &mut serving).await.is_err()
        && request_count.load(Ordering::Relaxed) > 0
    {
        let _ = serving.await;
    }
}

impl<S, B> Service<Request<Incoming>> for ConnectionService<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = Infallible;
    type Future = ResponseFuture<S::Future>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let number = self.request_count.fetch_add(1, Ordering::Relaxed) + 1;
        if self.ambiguous.is_number(number) {
            return ResponseFuture::Ambiguous;
        }
        if let Some(client) = &self.client {
            request.extensions_mut().insert(client.peer);
            request.extensions_mut().insert(client.permit.clone());
            if client.is_tls {
                request.extensions_mut().insert(OverTls);
            }
        }
        ResponseFuture::Service { response: self.config.service.call(request) }
    }
}

impl<B, F: Future<Output = Result<Response<B>, Infallible>>> Future for ResponseFuture<F> {
    type Output = Result<Response<Either<B, Full<Bytes>>>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(match self.project() {
            ResponseFutureProjection::Ambiguous => bad_request().map(Either::Right),
            ResponseFutureProjection::Service { response } => ready!(response.poll(context))?.map(Either::Left),
        }))
    }
}

fn bad_request() -> Response<Full<Bytes>> {
    const BODY: &[u8] =
        br#"{"error":"bad_request","message":"The request has both a Content-Length and a Transfer-Encoding."}"#;
    let mut response = Response::new(Full::from(BODY));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
