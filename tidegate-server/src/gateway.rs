//! `Gateway`: a reverse proxy that applies the rules in front of any HTTP service.
//!
//! ```text
//! client ──▶ connection ──▶ LimitLayer ──▶ Proxy ──▶ upstream
//!            peer address    429, 503,     forwarded, headers,
//!            timeouts        delays        upload, tunnel
//!            merge ◀──────────────────────────┘
//! ```
//!
//! Bodies, trailers and upgraded connections pass as they come; nothing is kept. What the limits mean and how a denial looks
//! is decided by [`LimitLayer`]; this door only carries.

mod options;
pub use options::GatewayOptions;
mod upstream;
pub use upstream::UpstreamError;
mod forwarded;
mod headers;
mod merge;
mod proxy;
mod tasks;
mod tunnel;
mod upload;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tidegate::Store;
use tidegate_tower::{LimitLayer, LimitService, ResponseBody};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;
use tower_layer::Layer;

use proxy::{Proxy, ProxyBody};
use tasks::Tasks;
use upstream::Upstream;

/// How long no connection is taken after one could not be, such as when there are too many open files.
const BREATHER: Duration = Duration::from_millis(100);
/// How often a silent HTTP/2 client is asked whether it is still there.
const PING: Duration = Duration::from_secs(30);

/// A reverse proxy with limits. One for each upstream.
///
/// ```no_run
/// use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
/// use tidegate_server::gateway::{Gateway, GatewayOptions};
/// use tidegate_tower::LimitLayer;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = RuleSet::new([Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?).per(["ip"])])?;
/// let layer = LimitLayer::new(Limiter::new(rules, MemoryStore::new()));
///
/// let gateway = Gateway::new(&"http://127.0.0.1:3000".parse()?, GatewayOptions::new())?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8000").await?;
/// gateway.serve(listener, layer, async { drop(tokio::signal::ctrl_c().await) }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Gateway {
    upstream: Upstream,
    options: GatewayOptions,
}

/// All that a connection needs.
struct Door<S> {
    service: LimitService<Proxy, S>,
    http: auto::Builder<TokioExecutor>,
    header_timeout: Duration,
}

impl Gateway {
    /// A gateway to `upstream`: `http://host:port`, or `h2c://host:port` for one that speaks HTTP/2 without TLS.
    ///
    /// Over HTTP/1.1 the upstream gets the host that the client asked for as `Host`; over HTTP/2, only as
    /// `X-Forwarded-Host`.
    pub fn new(upstream: &Uri, options: GatewayOptions) -> Result<Self, UpstreamError> {
        Ok(Self { upstream: Upstream::new(upstream)?, options })
    }

    /// Takes connections until `shutdown`, then none any more. Requests and tunnels that are under way may end, within
    /// [`GatewayOptions::drain_timeout`].
    pub async fn serve<S>(
        self,
        listener: TcpListener,
        layer: LimitLayer<S>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> io::Result<()>
    where
        S: Store + 'static,
    {
        let (tasks, graceful) = (Tasks::new(), GracefulShutdown::new());
        let starter = tasks.starter();
        let drain_timeout = self.options.drain_timeout;
        let door = self.door(&layer, &tasks);
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut shutdown => break,
            };
            match accepted {
                Ok((stream, peer)) => starter.start(connection(Arc::clone(&door), stream, peer, graceful.watcher())),
                Err(error) if is_about_one(&error) => (),
                Err(_) => {
                    if tokio::time::timeout(BREATHER, &mut shutdown).await.is_ok() {
                        break;
                    }
                }
            }
        }
        drop(listener);
        let drained = async {
            graceful.shutdown().await;
            tasks.ended().await;
        };
        // What has not ended by then ends with `tasks`.
        let _ = tokio::time::timeout(drain_timeout, drained).await;
        Ok(())
    }

    fn door<S: Store>(self, layer: &LimitLayer<S>, tasks: &Tasks) -> Arc<Door<S>> {
        let Self { upstream, options } = self;
        let mut http = auto::Builder::new(TokioExecutor::new());
        let timer = TokioTimer::new();
        let mut http1 = http.http1();
        http1.timer(timer.clone()).header_read_timeout(options.header_timeout).max_buf_size(options.max_header_bytes);
        let longest_list = u32::try_from(options.max_header_bytes).unwrap_or(u32::MAX);
        http.http2().timer(timer).keep_alive_interval(PING).max_header_list_size(longest_list);
        let header_timeout = options.header_timeout;
        let service = layer.layer(Proxy::new(upstream, options, tasks.starter()));
        Arc::new(Door { service, http, header_timeout })
    }
}

/// Serves one connection. Its errors are the client's: it has gone, or makes no sense and was told so.
async fn connection<S: Store + 'static>(door: Arc<Door<S>>, stream: TcpStream, peer: SocketAddr, watcher: Watcher) {
    // Only speed is lost without it.
    let _ = stream.set_nodelay(true);
    let asked = Arc::new(AtomicBool::new(false));
    let answer = {
        let (service, asked) = (door.service.clone(), Arc::clone(&asked));
        hyper::service::service_fn(move |request| {
            asked.store(true, Ordering::Relaxed);
            answer(service.clone(), peer, request)
        })
    };
    let serving = watcher.watch(door.http.serve_connection_with_upgrades(TokioIo::new(stream), answer).into_owned());
    let mut serving = std::pin::pin!(serving);
    // Until the first bytes tell the protocol, no timeout of any protocol holds.
    if tokio::time::timeout(door.header_timeout, &mut serving).await.is_err() && asked.load(Ordering::Relaxed) {
        let _ = serving.await;
    }
}

/// Answers one request.
async fn answer<S: Store + 'static>(
    service: LimitService<Proxy, S>,
    peer: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Response<ResponseBody<ProxyBody>>, Infallible> {
    request.extensions_mut().insert(peer);
    let mut response = service.oneshot(request).await?;
    merge::put_back(&mut response);
    Ok(response)
}

/// Whether an error is about the connection that was to be taken, and not about taking any.
fn is_about_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
