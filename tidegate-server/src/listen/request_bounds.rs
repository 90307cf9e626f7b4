//! `RequestBounds`: how many requests may be under way at a listener, in all and for one client.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::clients::{ClientCounts, ClientPermit, ResolveClient};
use super::listener_stats::{Bound, Gauge, GaugeGuard, ListenerStats};
use super::{ConnectionLimits, Listener};

/// Seconds after which a refused client may try again.
const RETRY_AFTER_SECONDS: u16 = 1;

/// The most calls under way whose bodies and decisions are in memory.
const MAX_CALLS: usize = 8192;

/// How long a request is under way, and which bounds apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestScope {
    /// Until the response is known, at an address for the operator's own services: a fixed bound.
    Call,
    /// Until the end of the response or of the tunnel, at an address for clients: the bounds of [`ConnectionLimits`].
    Response,
}

/// Permits for the requests of a listener.
pub(super) struct RequestBounds {
    pub(super) scope: RequestScope,
    all: Arc<Semaphore>,
    by_client: Arc<ClientCounts>,
    resolver: Arc<dyn ResolveClient>,
    stats: Arc<ListenerStats>,
}

/// One request under way, until it is dropped. A request extension if the request asks for an upgrade: the tunnel keeps it.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    _permit: OwnedSemaphorePermit,
    _client: Option<ClientPermit>,
    _gauge: GaugeGuard,
}

/// The permit of a request, which a tunnel may share.
pub(super) enum HeldPermit {
    Own { _permit: RequestPermit },
    Shared { _permit: Arc<RequestPermit> },
}

impl RequestBounds {
    pub(super) fn new(scope: RequestScope, listener: &Listener) -> Self {
        let limits: &ConnectionLimits = &listener.limits;
        let max = if scope == RequestScope::Call { MAX_CALLS } else { limits.max_requests };
        Self {
            scope,
            all: Arc::new(Semaphore::new(max)),
            by_client: ClientCounts::new(limits.max_requests_per_client),
            resolver: Arc::clone(&listener.resolver),
            stats: Arc::clone(&listener.stats),
        }
    }

    /// A permit for a request from `peer`, or the bound that refuses it.
    pub(super) fn acquire<B>(&self, peer: IpAddr, request: &mut Request<B>) -> Result<HeldPermit, Bound> {
        let permit = self.try_acquire(peer, request.headers());
        let permit = permit.inspect_err(|bound| self.stats.count(*bound))?;
        if self.scope == RequestScope::Call || !request.headers().contains_key(UPGRADE) {
            return Ok(HeldPermit::Own { _permit: permit });
        }
        let permit = Arc::new(permit);
        request.extensions_mut().insert(Arc::clone(&permit));
        Ok(HeldPermit::Shared { _permit: permit })
    }

    fn try_acquire(&self, peer: IpAddr, headers: &HeaderMap) -> Result<RequestPermit, Bound> {
        let client = match self.scope {
            RequestScope::Call => None,
            RequestScope::Response => self.resolver.of_request(peer, headers),
        };
        let client = client.map(|client| self.by_client.acquire(client).ok_or(Bound::MaxRequestsPerClient));
        let client = client.transpose()?;
        let permit = Arc::clone(&self.all).try_acquire_owned().map_err(|_| Bound::MaxRequests)?;
        Ok(RequestPermit { _permit: permit, _client: client, _gauge: self.stats.enter(Gauge::Requests) })
    }
}

/// The response to a request that a bound refuses.
pub(super) fn refusal(bound: Bound) -> Response<Full<Bytes>> {
    if bound == Bound::MaxRequestsPerClient {
        let body = br#"{"error":"too_many_requests","message":"Too many requests of this client are under way."}"#;
        return json_response(StatusCode::TOO_MANY_REQUESTS, body);
    }
    json_response(
        StatusCode::SERVICE_UNAVAILABLE,
        br#"{"error":"overloaded","message":"Too many requests are under way."}"#,
    )
}

fn json_response(status: StatusCode, body: &'static [u8]) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
    response
}
