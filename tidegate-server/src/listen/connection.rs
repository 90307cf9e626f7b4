//! One connection: TLS, the protocol, and its requests one by one. Errors are the client's: it has gone, or makes no sense and
//! was told so.

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

use super::wire::{Ambiguous, Wire};
use super::{ConnectionLimits, Listener, Tls};

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
    /// Whether requests say whom they are from.
    tells_client: bool,
    /// Whether answers may wait for each other.
    gathers: bool,
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

/// The requests of one connection, on their way to the service.
struct Requests<S> {
    door: Arc<Door<S>>,
    /// Whom they are from, if they are to say so.
    client: Option<Client>,
    ambiguous: Ambiguous,
    /// How many there were.
    asked: Arc<AtomicU64>,
}

pin_project! {
    /// The answer to one request.
    #[project = Answered]
    enum Answer<F> {
        /// Two servers could read it in two ways.
        Refused,
        Asked { #[pin] answer: F },
    }
}

impl<S> Door<S> {
    pub(super) fn new(service: S, listener: &Listener) -> Self {
        let limits = &listener.limits;
        let mut http = auto::Builder::new(TokioExecutor::new());
        let timer = TokioTimer::new();
        let mut http1 = http.http1();
        http1.timer(timer.clone()).header_read_timeout(limits.header_timeout).max_buf_size(limits.max_header_bytes);
        let longest_list = u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX);
        http.http2().timer(timer).keep_alive_interval(PING).max_header_list_size(longest_list);
        Self {
            service,
            tls: listener.tls.clone(),
            http,
            limits: limits.clone(),
            tells_client: listener.tells_client,
            gathers: listener.gathers,
        }
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
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + Sync + 'static,
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
    door: &Arc<Door<S>>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    client: Client,
    watcher: Watcher,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let wire = Wire::new(stream, door.limits.write_timeout, door.gathers);
    let (ambiguous, asked) = (wire.ambiguous(), Arc::new(AtomicU64::new(0)));
    let told = door.tells_client.then(|| client.clone());
    let requests = Requests { door: Arc::clone(door), client: told, ambiguous, asked: Arc::clone(&asked) };
    let serving = watcher.watch(door.http.serve_connection_with_upgrades(TokioIo::new(wire), requests).into_owned());
    let mut serving = std::pin::pin!(serving);
    // Until the first bytes tell the protocol, no timeout of any protocol holds.
    if tokio::time::timeout(door.limits.header_timeout, &mut serving).await.is_err()
        && asked.load(Ordering::Relaxed) > 0
    {
        let _ = serving.await;
    }
}

impl<S, B> Service<Request<Incoming>> for Requests<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = Infallible;
    type Future = Answer<S::Future>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        if self.ambiguous.is(number) {
            return Answer::Refused;
        }
        if let Some(client) = &self.client {
            request.extensions_mut().insert(client.peer);
            request.extensions_mut().insert(client.place.clone());
            if client.is_secure {
                request.extensions_mut().insert(Secure);
            }
        }
        Answer::Asked { answer: self.door.service.call(request) }
    }
}

impl<B, F: Future<Output = Result<Response<B>, Infallible>>> Future for Answer<F> {
    type Output = Result<Response<Either<B, Full<Bytes>>>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(match self.project() {
            Answered::Refused => refused().map(Either::Right),
            Answered::Asked { answer } => ready!(answer.poll(context))?.map(Either::Left),
        }))
    }
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
