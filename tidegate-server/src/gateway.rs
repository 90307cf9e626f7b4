//! `Gateway`: a reverse proxy that applies the rules in front of any HTTP service.
//!
//! ```text
//! client ──▶ Listener ──▶ LimitLayer ──▶ Proxy ──▶ upstream
//!            TLS,          429, 503,     forwarded, headers,
//!            timeouts      delays        upload, tunnel
//!            merge ◀────────────────────────┘
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
use proxy::{Proxy, ProxyBody};
use upstream::Upstream;

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
    /// A gateway to `upstream`: `http://host:port`, or `h2c://host:port` for one that speaks HTTP/2 without TLS.
    ///
    /// Over HTTP/1.1 the upstream gets the host that the client asked for as `Host`; over HTTP/2, only as
    /// `X-Forwarded-Host`.
    pub fn new(upstream: &Uri, options: GatewayOptions) -> Result<Self, UpstreamError> {
        Ok(Self { upstream: Upstream::new(upstream)?, options })
    }

    /// Takes connections until `shutdown`, then none any more. Requests and tunnels that are under way may end, within
    /// [`ConnectionLimits::drain_timeout`](crate::ConnectionLimits::drain_timeout). Whether all of them did.
    pub async fn serve<S>(
        self,
        listener: impl Into<Listener> + Send,
        layer: LimitLayer<S>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> bool
    where
        S: Store + 'static,
    {
        let tasks = Tasks::new();
        let service = Arc::new(layer.layer(Proxy::new(self.upstream, self.options, tasks.starter())));
        let service = hyper::service::service_fn(move |request| answer(LimitService::clone(&service), request));
        listener.into().tells_client().serve(service, tasks, shutdown).await
    }

    /// Like [`serve`](Self::serve), and calls `observer` with the status of every response and the time since the head of
    /// its request was read, measured by `clock`.
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
        let service = Arc::new(layer.layer(Proxy::new(self.upstream, self.options, tasks.starter())));
        let service = hyper::service::service_fn(move |request| {
            let (service, clock, observer) = (LimitService::clone(&service), Arc::clone(&clock), Arc::clone(&observer));
            async move {
                let begun = clock.now();
                let response = answer(service, request).await?;
                observer(response.status(), clock.now().since(begun));
                Ok(response)
            }
        });
        listener.tells_client().serve(service, tasks, shutdown).await
    }
}

/// Answers one request.
async fn answer<S: Store + 'static>(
    service: LimitService<Proxy, S>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody<ProxyBody>>, Infallible> {
    let mut response = service.oneshot(request).await?;
    merge::put_back(&mut response);
    Ok(response)
}
