//! One connection: TLS, the protocol, and its requests one by one. Errors are the client's: it has gone, or makes no sense and
//! was told so.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tower::ServiceExt;
use tower_service::Service;

use super::wire::Wire;
use super::{ConnectionLimits, Tls};

/// How often a silent HTTP/2 client is asked whether it is still there.
const PING: Duration = Duration::from_secs(30);

/// The request came over TLS: an extension of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secure;

/// All that a connection needs.
pub(super) struct Door<S> {
    service: S,
    tls: Option<Tls>,
    http: auto::Builder<TokioExecutor>,
    limits: ConnectionLimits,
}

/// The place of a connection among those that there may be: an extension of the request. A tunnel that outlives the connection
/// keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// Who is at the other end.
#[derive(Clone)]
pub(super) struct Client {
    peer: SocketAddr,
    place: Place,
    is_secure: bool,
}

impl Client {
    pub(super) fn new(peer: SocketAddr, place: OwnedSemaphorePermit, is_secure: bool) -> Self {
        Self { peer, place: Place { _permit: Arc::new(place) }, is_secure }
    }
}

impl<S> Door<S> {
    pub(super) fn new(service: S, tls: Option<Tls>, limits: &ConnectionLimits) -> Self {
        let mut http = auto::Builder::new(TokioExecutor::new());
        let timer = TokioTimer::new();
        let mut http1 = http.http1();
        http1.timer(timer.clone()).header_read_timeout(limits.header_timeout).max_buf_size(limits.max_header_bytes);
        let longest_list = u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX);
        http.http2().timer(timer).keep_alive_interval(PING).max_header_list_size(longest_list);
        Self { service, tls, http, limits: limits.clone() }
    }
}

/// Serves one connection to its end.
pub(super) async fn connection<S, B>(
    door: Arc<Door<S>>,
    stream: TcpStream,
    client: Client,
    watcher: Watcher,
    mut ending: watch::Receiver<()>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // Only speed is lost without it.
    let _ = stream.set_nodelay(true);
    match &door.tls {
        None => exchange(&door, stream, client, watcher).await,
        Some(tls) => {
            let shaking_hands = tokio::time::timeout(door.limits.header_timeout, tls.accept(stream));
            // Who has not said who they are by the end is not waited for.
            let shaken = tokio::select! {
                shaken = shaking_hands => shaken,
                _ = ending.changed() => return,
            };
            if let Ok(Ok(stream)) = shaken {
                exchange(&door, stream, client, watcher).await;
            }
        }
    }
}

async fn exchange<S, B>(
    door: &Door<S>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    client: Client,
    watcher: Watcher,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let wire = Wire::new(stream, door.limits.write_timeout);
    let (ambiguous, asked) = (wire.ambiguous(), Arc::new(AtomicU64::new(0)));
    let answer = {
        let (service, asked) = (door.service.clone(), Arc::clone(&asked));
        hyper::service::service_fn(move |request| {
            let number = asked.fetch_add(1, Ordering::Relaxed) + 1;
            let refused = ambiguous.is(number);
            answer((!refused).then(|| service.clone()), client.clone(), request)
        })
    };
    let serving = watcher.watch(door.http.serve_connection_with_upgrades(TokioIo::new(wire), answer).into_owned());
    let mut serving = std::pin::pin!(serving);
    // Until the first bytes tell the protocol, no timeout of any protocol holds.
    if tokio::time::timeout(door.limits.header_timeout, &mut serving).await.is_err()
        && asked.load(Ordering::Relaxed) > 0
    {
        let _ = serving.await;
    }
}

/// Answers one request; without a service, it is one that two servers could read in two ways.
async fn answer<S, B>(
    service: Option<S>,
    client: Client,
    mut request: Request<Incoming>,
) -> Result<Response<Either<B, Full<Bytes>>>, Infallible>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
{
    let Some(service) = service else { return Ok(refused().map(Either::Right)) };
    request.extensions_mut().insert(client.peer);
    request.extensions_mut().insert(client.place);
    if client.is_secure {
        request.extensions_mut().insert(Secure);
    }
    Ok(service.oneshot(request).await?.map(Either::Left))
}

fn refused() -> Response<Full<Bytes>> {
    const BODY: &[u8] =
        br#"{"error":"bad_request","message":"The request has both a Content-Length and a Transfer-Encoding."}"#;
    let mut response = Response::new(Full::from(BODY));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
