//! Protocol upgrades such as WebSocket: the request, and the tunnel that follows it. Bytes in a tunnel are neither inspected
//! nor counted. A tunnel holds the slots of its request until it closes, and closes if they are lost, or if one side has closed and
//! the other is idle.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tidegate::grants::HeldLease;

use super::hop_by_hop::tokens;
use super::request_body::RequestBody;
use super::tunnel_copy::copy_until_idle;
use super::upstream_slots::UpstreamSlot;
use crate::listen::{ConnectionPermit, RequestPermit, TaskSpawner, sleep};

/// A client's request for an upgrade.
pub(super) struct UpgradeRequest {
    protocols: HeaderValue,
    client: OnUpgrade,
    /// The permits of the connection and the request that become the tunnel.
    permits: (Option<ConnectionPermit>, Option<Arc<RequestPermit>>),
    lease: Option<HeldLease>,
}

impl UpgradeRequest {
    /// The upgrade that `request` asks for, if it asks for one that the gateway supports.
    pub(super) fn from_request(request: &mut Request<RequestBody>) -> Option<Self> {
        let protocols = request.headers().get(UPGRADE).filter(|_| is_upgrade(request)).cloned()?;
        let permits = (request.extensions().get().cloned(), request.extensions().get().cloned());
        let lease = request.extensions().get().cloned();
        Some(Self { protocols, client: hyper::upgrade::on(request), permits, lease })
    }

    /// Adds the upgrade headers to the upstream request.
    pub(super) fn add_headers(&self, parts: &mut Parts) {
        set_upgrade_headers(&mut parts.headers, self.protocols.clone());
    }

    /// Connects the client with the upstream, which has accepted the upgrade in `response`. The tunnel keeps the slot. After
    /// one side has closed, the other may be idle for `half_closed_timeout`.
    pub(super) fn open_tunnel(
        self,
        response: &mut Response<Incoming>,
        protocol: Option<HeaderValue>,
        slot: Option<UpstreamSlot>,
        half_closed_timeout: Duration,
        tasks: &TaskSpawner,
    ) {
        let upstream = hyper::upgrade::on(&mut *response);
        let Self { protocols, client, permits, lease } = self;
        set_upgrade_headers(response.headers_mut(), protocol.unwrap_or(protocols));
        tasks.spawn(async move {
            // Either side may have disconnected; the error has no recipient.
            if let (Ok(upstream), Ok(client)) = (upstream.await, client.await) {
                let idle_timer = || sleep(half_closed_timeout);
                tokio::select! {
                    () = copy_until_idle(TokioIo::new(client), TokioIo::new(upstream), idle_timer) => {}
                    () = lost(lease.as_ref()) => {}
                }
            }
            drop((permits, slot, lease));
        });
    }
}

/// Completes when the slots of a tunnel are lost.
async fn lost(lease: Option<&HeldLease>) {
    match lease {
        Some(lease) => lease.lost().await,
        None => std::future::pending().await,
    }
}

/// Whether `request` asks for an upgrade that the gateway supports.
pub(super) fn is_upgrade<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.version() == Version::HTTP_11
        && headers.get_all(UPGRADE).into_iter().count() == 1
        && tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"))
        && !requests_http(headers)
}

/// Whether the upstream accepts the upgrade.
pub(super) fn is_accepted(response: &Response<Incoming>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
}

/// Whether the client asks for HTTP or TLS: requests in such a tunnel would bypass the limits.
fn requests_http(headers: &HeaderMap) -> bool {
    let is_http = |token: &str| {
        let name = token.split('/').next().unwrap_or_default();
        ["h2c", "h2", "http", "tls"].iter().any(|protocol| name.eq_ignore_ascii_case(protocol))
    };
    tokens(headers, &UPGRADE).any(is_http)
}

pub(super) fn set_upgrade_headers(headers: &mut HeaderMap, protocols: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocols);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_to_http_or_tls_is_not_supported() {
        for (protocols, is_http) in [
            ("websocket", false),
            ("SPDY/3.1", false),
            ("h2c", true),
            ("websocket, H2C", true),
            ("HTTP/2.0", true),
            ("TLS/1.2, HTTP/1.1", true),
        ] {
            let headers = HeaderMap::from_iter([(UPGRADE, HeaderValue::from_static(protocols))]);
            assert_eq!(requests_http(&headers), is_http, "{protocols}");
        }
    }
}
