//! `Gateway`: a reverse proxy that applies the rules in front of any HTTP service.
//!
//! ```text
//! client ──▶ Listener ──▶ LimitLayer ──▶ Proxy ──▶ upstream
//!            TLS,          429, 503,     forwarded_headers, hop_by_hop,
//!            timeouts      delays        upload, tunnel
//!            rate_limit_headers ◀───────────┘
//! ```
//!
//! Bodies, trailers and upgraded connections are streamed; nothing is buffered. [`LimitLayer`] makes the path of each request
//! canonical, decides the request, and writes the 400, 429 and 503 responses; the gateway forwards what was decided.

mod access_log;
mod options;
pub use options::GatewayOptions;
mod upstream;
pub use upstream::UpstreamError;
mod forwarded_headers;
mod hop_by_hop;
mod proxy;
mod rate_limit_headers;
mod tunnel;
mod upload;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use tidegate::Clock;
use tidegate::spi::Store;
use tidegate_tower::{LimitLayer, LimitService, ResponseBody};
use tower::ServiceExt;
use tower_layer::Layer;

use crate::listen::{Listener, Tasks};
use access_log::AccessLog;
use proxy::{Proxy, ProxyBody};
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
    /// A gateway to `upstream`: `http://host:port`, or `h2c://host:port` for HTTP/2 without TLS.
    ///
    /// An HTTP/1.1 upstream receives the client's `Host`; an HTTP/2 upstream receives it as `X-Forwarded-Host` only.
    pub fn new(upstream: &Uri, options: GatewayOptions) -> Result<Self, UpstreamError> {
        Ok(Self { upstream: Upstream::new(upstream)?, options })
    }

    /// Accepts connections until `shutdown` completes, then waits up to
    /// [`ConnectionLimits::drain_timeout`](crate::ConnectionLimits::drain_timeout) for open requests and tunnels. Returns
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
        let (tasks, log) = (Tasks::new(), self.options.access_log.then(AccessLog::new));
        let layer = layer.with_canonical_paths(true);
        let service = Arc::new(layer.layer(Proxy::new(self.upstream, self.options, tasks.spawner())));
        let service = hyper::service::service_fn(move |request| {
            let service = LimitService::clone(&service);
            access_log::handle_logged(log.clone(), request, |request| handle(service, request))
        });
        listener.into().with_client_info().serve(service, tasks, shutdown).await
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
        let tasks = Tasks::new();
        let layer = layer.with_canonical_paths(true);
        let service = Arc::new(layer.layer(Proxy::new(self.upstream, self.options, tasks.spawner())));
        let service = hyper::service::service_fn(move |request| {
            let (service, clock, observer) = (LimitService::clone(&service), Arc::clone(&clock), Arc::clone(&observer));
            async move {
                let started = clock.now();
                let response = handle(service, request).await?;
                observer(response.status(), clock.now().since(started));
                Ok(response)
            }
        });
        listener.with_client_info().serve(service, tasks, shutdown).await
    }
}

/// Sends one request through the limit layer and the proxy.
async fn handle<S: Store + 'static>(
    service: LimitService<Proxy, S>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody<ProxyBody>>, Infallible> {
    let mut response = service.oneshot(request).await?;
    rate_limit_headers::merge_upstream_headers(&mut response);
    Ok(response)
}
