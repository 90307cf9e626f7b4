//! `RequestBounds`: how many requests may be under way at a listener, in all and for one client.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::clients::{CallCount, ClientCounts, ClientPermit, ResolveClient};
use super::listener_stats::{Bound, Gauge, GaugeGuard, ListenerStats};
use super::{ConnectionLimits, Listener};
use crate::calls::retry_after::RETRY_AFTER_ONE_SECOND;

/// The most calls under way whose bodies and decisions are in memory.
pub(crate) const MAX_CALLS: usize = 8192;

/// The most of them that one client may have, so that it cannot have all of them.
const MAX_CALLS_PER_CLIENT: usize = MAX_CALLS / 2;

/// How long a request is under way, and which bounds apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestScope {
    /// Until the response is known, at an address for the operator's own services: fixed bounds.
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
    client: Option<ClientPermit>,
    _call: Option<CallCountGuard>,
    _gauge: GaugeGuard,
}

/// Counts one call of a client until it is dropped.
#[derive(Debug)]
struct CallCountGuard(CallCount);

/// The permit of a request, which a tunnel may share.
pub(super) enum HeldPermit {
    Own(RequestPermit),
    Shared(Arc<RequestPermit>),
}

impl RequestBounds {
    pub(super) fn new(scope: RequestScope, listener: &Listener) -> Self {
        let limits: &ConnectionLimits = &listener.limits;
        let max = if scope == RequestScope::Call { MAX_CALLS } else { limits.max_requests };
        Self {
            scope,
            all: Arc::new(Semaphore::new(max)),
            by_client: ClientCounts::new(limits.max_requests_per_client()),
            resolver: Arc::clone(&listener.resolver),
            stats: Arc::clone(&listener.stats),
        }
    }

    /// A permit for a request from `peer`, or the bound that refuses it. `calls` are those of the client of the connection, unless it is
    /// exempt.
    pub(super) fn acquire<B>(
        &self,
        peer: IpAddr,
        calls: Option<&CallCount>,
        request: &mut Request<B>,
    ) -> Result<HeldPermit, Bound> {
        let permit = self.try_acquire(peer, calls, request.headers());
        let permit = permit.inspect_err(|bound| self.stats.count(*bound))?;
        if self.scope == RequestScope::Call || !request.headers().contains_key(UPGRADE) {
            return Ok(HeldPermit::Own(permit));
        }
        let permit = Arc::new(permit);
        request.extensions_mut().insert(Arc::clone(&permit));
        Ok(HeldPermit::Shared(permit))
    }

    fn try_acquire(
        &self,
        peer: IpAddr,
        calls: Option<&CallCount>,
        headers: &HeaderMap,
    ) -> Result<RequestPermit, Bound> {
        let (client, calls) = match self.scope {
            RequestScope::Call => (None, calls),
            RequestScope::Response => (self.resolver.of_request(peer, headers), None),
        };
        let call = calls.map(|calls| CallCountGuard::acquire(calls).ok_or(Bound::MaxRequestsPerClient)).transpose()?;
        let client = client.map(|client| self.by_client.acquire(client).ok_or(Bound::MaxRequestsPerClient));
        let client = client.transpose()?;
        let permit = Arc::clone(&self.all).try_acquire_owned().map_err(|_| Bound::MaxRequests)?;
        Ok(RequestPermit { _permit: permit, client, _call: call, _gauge: self.stats.enter(Gauge::Requests) })
    }
}

impl HeldPermit {
    /// The client of the request, unless it is exempt.
    pub(super) fn client(&self) -> Option<IpAddr> {
        let permit = match self {
            Self::Own(permit) => permit,
            Self::Shared(permit) => permit,
        };
        permit.client.as_ref().map(ClientPermit::client)
    }
}

impl CallCountGuard {
    /// `None` if the client has the maximum.
    fn acquire(calls: &CallCount) -> Option<Self> {
        let before = calls.fetch_add(1, Ordering::Relaxed);
        let guard = Self(Arc::clone(calls));
        (before < MAX_CALLS_PER_CLIENT).then_some(guard)
    }
}

impl Drop for CallCountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
    response.headers_mut().extend(RETRY_AFTER_ONE_SECOND);
    response
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn one_client_cannot_have_all_calls() {
        let listener = Listener::from(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let bounds = RequestBounds::new(RequestScope::Call, &listener);
        let peer = IpAddr::from([203, 0, 113, 9]);
        let call = |calls: Option<&CallCount>| bounds.acquire(peer, calls, &mut Request::new(()));
        let (hostile, other) = (CallCount::default(), CallCount::default());
        let mut held = Vec::new();
        for _ in 0..MAX_CALLS_PER_CLIENT {
            held.push(call(Some(&hostile)).unwrap());
        }
        for _ in 0..10 {
            assert_eq!(call(Some(&hostile)).err(), Some(Bound::MaxRequestsPerClient));
        }
        held.push(call(Some(&other)).unwrap());
        while held.len() < MAX_CALLS {
            held.push(call(None).unwrap());
        }
        assert_eq!(call(Some(&other)).err(), Some(Bound::MaxRequests));
        drop(held);
        assert_eq!((hostile.load(Ordering::Relaxed), other.load(Ordering::Relaxed)), (0, 0));
        assert!(call(Some(&hostile)).is_ok());
    }
}
