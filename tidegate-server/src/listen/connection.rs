//! One connection: TLS handshake, protocol detection, and its requests. Errors are not reported: the client is gone, or hyper
//! has answered a malformed request with 400.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::time::Sleep;

use super::client_body::{ClientBody, Lingering};
use super::client_stream::ClientStream;
use super::clients::{CallCount, ClientPermit};
use super::connection_service::ConnectionService;
use super::guarded_stream::{GuardedStream, sleep};
use super::listener_stats::{GaugeGuard, ListenerStats};
use super::pace::Pace;
use super::request_bounds::{RequestBounds, RequestScope};
use super::tracked_body::ResponseMonitor;
use super::unsent_responses::UnsentResponses;
use super::{ConnectionLimits, Listener, Tls};

/// Interval of HTTP/2 pings to an idle client.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);

/// The most bytes of one HTTP/2 request body that wait to be read.
const HTTP2_STREAM_WINDOW_BYTES: u32 = 64 * 1024;

/// The most bytes of all request bodies of one HTTP/2 connection that wait to be read.
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;

/// hyper takes a further chunk of an HTTP/2 response while fewer bytes than these wait to be sent.
const HTTP2_SEND_BUFFER_BYTES: usize = 16 * 1024;

/// Request extension: the request arrived over TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverTls;

/// What all connections of a listener share.
pub(super) struct ConnectionConfig<S> {
    pub(super) service: S,
    tls: Option<Tls>,
    http: auto::Builder<TokioExecutor>,
    limits: ConnectionLimits,
    /// Whether requests carry the client's address as an extension.
    passes_client_info: bool,
    batches_writes: bool,
    /// Set if the listener bounds the requests under way.
    pub(super) requests: Option<RequestBounds>,
    pub(super) monitor: Arc<ResponseMonitor>,
    pub(super) watches_responses: bool,
    stats: Arc<ListenerStats>,
}

/// Request extension: the permit of the connection, out of [`ConnectionLimits::max_connections`]. A tunnel that outlives the
/// HTTP connection keeps a clone.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPermit {
    _parts: Arc<(OwnedSemaphorePermit, Option<ClientPermit<CallCount>>, GaugeGuard)>,
}

/// The client of a connection.
#[derive(Clone)]
pub(super) struct ClientInfo {
    pub(super) peer: SocketAddr,
    pub(super) permit: ConnectionPermit,
    pub(super) is_tls: bool,
    /// The calls of the client; `None` if no bound for one client applies to this connection: many clients may share it.
    pub(super) calls: Option<CallCount>,
}

/// What the requests of a connection report to it.
pub(super) struct ClientConnection {
    request_count: AtomicU64,
    stalls: Notify,
    is_exempt: bool,
    pub(super) unsent: Arc<UnsentResponses>,
    pub(super) lingering: Lingering,
}

impl ConnectionPermit {
    pub(super) fn new(
        permit: OwnedSemaphorePermit,
        client: Option<ClientPermit<CallCount>>,
        gauge: GaugeGuard,
    ) -> Self {
        Self { _parts: Arc::new((permit, client, gauge)) }
    }
}

impl ClientInfo {
    pub(super) const fn new(
        peer: SocketAddr,
        permit: ConnectionPermit,
        is_tls: bool,
        calls: Option<CallCount>,
    ) -> Self {
        Self { peer, permit, is_tls, calls }
    }
}

impl ClientConnection {
    /// Counts a request, and returns its number from one on.
    pub(super) fn count_request(&self) -> u64 {
        self.request_count.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A response was ended, since the client did not read it. The connection ends too, since it keeps the bytes that the client
    /// did not take; one that many clients may share goes on.
    pub(super) fn report_stall(&self) {
        if !self.is_exempt {
            self.stalls.notify_one();
        }
    }
}

impl<S> ConnectionConfig<S> {
    pub(super) fn new(service: S, listener: &Listener, monitor: Arc<ResponseMonitor>) -> Self {
        let limits = &listener.limits;
        let mut http = auto::Builder::new(TokioExecutor::new());
        let timer = TokioTimer::new();
        let mut http1 = http.http1();
        http1.timer(timer.clone()).header_read_timeout(limits.header_timeout).max_buf_size(limits.max_header_bytes);
        let max_header_list = u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX);
        let mut http2 = http.http2();
        http2.timer(timer).keep_alive_interval(HTTP2_PING_INTERVAL).max_header_list_size(max_header_list);
        http2.initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES);
        http2.initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES);
        http2.max_send_buf_size(HTTP2_SEND_BUFFER_BYTES).max_concurrent_streams(listener.max_streams);
        Self {
            service,
            tls: listener.tls.clone(),
            http,
            limits: limits.clone(),
            passes_client_info: listener.passes_client_info,
            batches_writes: listener.batches_writes,
            requests: listener.request_scope.map(|scope| RequestBounds::new(scope, listener)),
            monitor,
            watches_responses: listener.watches_responses(),
            stats: Arc::clone(&listener.stats),
        }
    }
}

/// Serves one connection until it closes.
pub(super) async fn serve_connection<S, B>(
    config: Arc<ConnectionConfig<S>>,
    stream: TcpStream,
    client: ClientInfo,
    mut shutting_down: watch::Receiver<()>,
) where
    S: Service<Request<ClientBody>, Response = Response<B>, Error = Infallible> + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // A failure costs latency only.
    let _ = stream.set_nodelay(true);
    let stream = match &config.tls {
        None => ClientStream::Plain(stream),
        Some(tls) => {
            let handshake = tokio::time::timeout(config.limits.header_timeout, tls.accept(stream));
            // A shutdown aborts unfinished handshakes.
            let result = tokio::select! {
                result = handshake => result,
                _ = shutting_down.changed() => return,
            };
            let Ok(Ok(stream)) = result else { return };
            ClientStream::Tls(Box::new(stream))
        }
    };
    serve_http(&config, stream, client, shutting_down).await;
}

async fn serve_http<S, B>(
    config: &Arc<ConnectionConfig<S>>,
    stream: ClientStream,
    client: ClientInfo,
    mut shutting_down: watch::Receiver<()>,
) where
    S: Service<Request<ClientBody>, Response = Response<B>, Error = Infallible> + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let pace = Pace::from_limits(&config.limits);
    let stream = GuardedStream::new(stream, pace, config.batches_writes, Arc::clone(&config.stats));
    let unsent = Arc::new(UnsentResponses::default());
    let is_until_end = config.requests.as_ref().is_some_and(|bounds| bounds.scope == RequestScope::Response);
    let stream = if is_until_end { stream.with_unsent_responses(Arc::clone(&unsent)) } else { stream };
    let state = Arc::new(ClientConnection {
        request_count: AtomicU64::new(0),
        stalls: Notify::new(),
        is_exempt: client.calls.is_none(),
        unsent,
        lingering: stream.lingering().clone(),
    });
    let ambiguous = stream.ambiguous_request();
    let service = ConnectionService::new(config, client, config.passes_client_info, ambiguous, &state);
    let serving = config.http.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    let mut serving = std::pin::pin!(serving);
    // hyper's own timeouts start only once the first bytes have shown the protocol.
    let mut timer: Option<Pin<Box<Sleep>>> = Some(Box::pin(sleep(config.limits.header_timeout)));
    let (mut is_ending, mut is_shutting_down) = (false, false);
    loop {
        let timeout = async {
            match timer.as_mut() {
                Some(timer) => timer.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = serving.as_mut() => return,
            () = timeout => {
                if is_ending || state.request_count.load(Ordering::Relaxed) == 0 {
                    return;
                }
                timer = None;
            }
            _ = shutting_down.changed(), if !is_shutting_down => {
                is_shutting_down = true;
                serving.as_mut().graceful_shutdown();
            }
            () = state.stalls.notified(), if !is_ending => {
                // Other requests of the client may still end.
                is_ending = true;
                serving.as_mut().graceful_shutdown();
                timer = Some(Box::pin(sleep(config.limits.write_timeout)));
            }
        }
    }
}
