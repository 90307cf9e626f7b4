//! `Gateway`: a reverse proxy that applies the rules in front of any HTTP service.
//!
//! ```text
//! client ──▶ Listener ──▶ request_fields ──▶ body_reader ──▶ LimitLayer ──▶ Proxy ──▶ upstream
//!            TLS,          hop_by_hop,         if rules        429, 503,     upload, tunnel
//!            timeouts      forwarded_headers   read bodies     delays           │
//!            rate_limit_headers ◀───────────────────────────────────────────────┘
//! ```
//!
//! A request is brought into its final form first, then decided, and then forwarded as it was decided.
//!
//! Bodies, trailers and upgraded connections are streamed, with a bounded buffer for each request; only a body that a rule counts
//! by is read before. [`LimitLayer`] makes the path of each request canonical, decides the request, and writes the 400, 429 and
//! 503 responses; the gateway forwards what was decided.

mod access_log;
mod body_buffer;
mod body_reader;
mod options;
pub use options::GatewayOptions;
mod upstream;
pub use upstream::UpstreamError;
pub(crate) use upstream::upstream_address;
mod forwarded_headers;
mod hop_by_hop;
mod llm;
mod proxy;
mod rate_limit_headers;
mod request_body;
mod request_fields;
mod tunnel;
mod tunnel_copy;
mod upload;
mod upload_pace;
mod upstream_body;
mod upstream_connector;
mod upstream_failure_log;
mod upstream_slots;
mod upstream_tls;
pub use upstream_tls::{UpstreamTls, UpstreamTlsFiles};
mod upstream_tls_args;
pub(crate) use upstream_tls_args::UpstreamTlsArgs;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, Uri};
use http_body_util::Either;
use tidegate::Clock;
use tidegate::spi::Store;
use tidegate_tower::{Handle, LimitLayer, LimitService, ResponseBody};
use tower::ServiceExt;
use tower_layer::Layer;

use crate::listen::{BodyMemory, ClientBody, Listener, ListenerStats, RequestScope, Tasks};
use access_log::AccessLog;
use body_buffer::body_memory;
use proxy::{Proxy, ProxyBody, ProxyError};
use upstream::Upstream;

/// A reverse proxy with rate limits in front of one upstream.
///
/// ```no_run
/// use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
/// use tidegate_server::gateway::{Gateway, GatewayOptions};
/// use tidegate_tower::LimitLayer;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = RuleSet::new([Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?).with_per(["ip"])])?;
/// let layer = LimitLayer::new(Limiter::new(rules, MemoryStore::new()));
///
/// let gateway = Gateway::new(&"http://127.0.0.1:3000".parse()?, GatewayOptions::new())?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8000").await?;
/// gateway.serve(listener, layer, async { drop(tokio::signal::ctrl_c().await) }).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Gateway {
    upstream: Upstream,
    options: GatewayOptions,
}

impl Gateway {
    /// A gateway to `upstream`: `http://host:port` or `https://host`, or for HTTP/2 `h2c://host:port` without TLS and `h2://host`
    /// with it. With TLS, the certificate authorities of the system are trusted.
    ///
    /// An HTTP/1.1 upstream without TLS receives the client's `Host`; others receive it as `X-Forwarded-Host` only.
    pub fn new(upstream: &Uri, options: GatewayOptions) -> Result<Self, UpstreamError> {
        let upstream = Upstream::new(upstream)?;
        if !upstream.is_secure() {
            return Ok(Self { upstream, options });
        }
        let tls = UpstreamTls::load(&UpstreamTlsFiles::new()).map_err(|error| UpstreamError::new(error.to_string()))?;
        Ok(Self { upstream: upstream.with_tls(&tls)?, options })
    }

    /// A gateway to `upstream`, which must use TLS: trusts these authorities, and shows this certificate.
    pub fn with_tls(upstream: &Uri, tls: &UpstreamTls, options: GatewayOptions) -> Result<Self, UpstreamError> {
        Ok(Self { upstream: Upstream::new(upstream)?.with_tls(tls)?, options })
    }

    /// Accepts connections until `shutdown` completes, then waits up to
    /// [the time of its listener](crate::ConnectionLimits::with_drain_timeout) for open requests and tunnels. Returns
    /// whether all of them finished.
    pub async fn serve<S>(
        self,
        listener: impl Into<Listener> + Send,
        layer: LimitLayer<S>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> bool
    where
        S: Store + 'static,
    {
        let listener = listener.into().with_client_info().with_request_bounds(RequestScope::Response);
        let (tasks, log) = (Tasks::new(), self.options.access_log.then(AccessLog::new));
        let door = GatewayDoor::new(self, &layer, &tasks, listener.stats());
        let service = hyper::service::service_fn(move |request| {
            let door = Arc::clone(&door);
            access_log::handle_logged(log.clone(), request, |request| door.handle(request))
        });
        listener.serve(service, tasks, shutdown).await
    }

    /// [`serve`](Self::serve), and calls `observer` with the status of each response and the time since the request headers
    /// were read, by `clock`.
    pub async fn serve_observed<S>(
        self,
        listener: Listener,
        layer: LimitLayer<S>,
        shutdown: impl Future<Output = ()> + Send,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Fn(StatusCode, Duration) + Send + Sync>,
    ) -> bool
    where
        S: Store + 'static,
    {
        let listener = listener.with_client_info().with_request_bounds(RequestScope::Response);
        let tasks = Tasks::new();
        let door = GatewayDoor::new(self, &layer, &tasks, listener.stats());
        let service = hyper::service::service_fn(move |request| {
            let (door, clock, observer) = (Arc::clone(&door), Arc::clone(&clock), Arc::clone(&observer));
            async move {
                let started = clock.now();
                let response = door.handle(request).await?;
                observer(response.status(), clock.now().since(started));
                Ok(response)
            }
        });
        listener.serve(service, tasks, shutdown).await
    }
}

/// What every request passes.
struct GatewayDoor<S> {
    service: LimitService<Proxy, S>,
    /// Tells whether rules read the body of a request.
    layer: LimitLayer<S>,
    /// Tells which headers the rules read.
    rules: Handle<S>,
    options: GatewayOptions,
    /// For bodies that rules read.
    memory: BodyMemory,
    stats: Arc<ListenerStats>,
}

impl<S: Store + 'static> GatewayDoor<S> {
    fn new(gateway: Gateway, layer: &LimitLayer<S>, tasks: &Tasks, stats: &Arc<ListenerStats>) -> Arc<Self> {
        let Gateway { upstream, options } = gateway;
        let layer = layer.clone().with_canonical_paths(true);
        let service = layer.layer(Proxy::new(upstream, options.clone(), tasks.spawner(), stats));
        let (rules, memory) = (layer.handle(), body_memory());
        Arc::new(Self { service, rules, layer, options, memory, stats: Arc::clone(stats) })
    }

    /// Sends one request through the limit layer and the proxy, in its final form.
    async fn handle(self: Arc<Self>, mut request: Request<ClientBody>) -> Result<Response<GatewayBody>, Infallible> {
        let reads = |name: &http::HeaderName| self.rules.reads_header(name);
        if let Err(problem) = request_fields::normalize(&mut request, self.options.trust_forwarded, reads) {
            let format = self.layer.error_format(&request.into_parts().0);
            return Ok(ProxyError::Field(problem).into_response(format).map(Either::Right));
        }
        let read = body_reader::read_for_rules(request, &self.layer, &self.options, &self.memory, &self.stats);
        let request = match read.await {
            Ok(request) => request,
            Err((error, format)) => return Ok(error.into_response(format).map(Either::Right)),
        };
        let mut response = self.service.clone().oneshot(request).await?;
        rate_limit_headers::merge_upstream_headers(&mut response);
        Ok(response.map(Either::Left))
    }
}

/// The body of a response: that of the layer around the proxy, or that of an error before it.
type GatewayBody = Either<ResponseBody<ProxyBody>, ProxyBody>;
