//! Upgrades: a request that asks to go on in another protocol, such as WebSocket, and the tunnel that it becomes. Nothing
//! in a tunnel is looked at or counted.

use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::headers::tokens;
use crate::listen::{Place, Starter};

/// A client that wants a tunnel.
pub(super) struct Wish {
    protocols: HeaderValue,
    client: OnUpgrade,
    /// Of the connection that becomes the tunnel.
    place: Option<Place>,
}

impl Wish {
    /// Whether `request` asks for a tunnel that may be opened.
    pub(super) fn of(request: &mut Request<Incoming>) -> Option<Self> {
        let named = tokens(request.headers(), &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
        if request.version() != Version::HTTP_11 || !named || speaks_http(request.headers()) {
            return None;
        }
        let mut lines = request.headers().get_all(UPGRADE).into_iter();
        let (Some(protocols), None) = (lines.next().cloned(), lines.next()) else { return None };
        let place = request.extensions().get::<Place>().cloned();
        Some(Self { protocols, client: hyper::upgrade::on(request), place })
    }

    /// Hands the wish on to the upstream.
    pub(super) fn tell(&self, parts: &mut Parts) {
        asks(&mut parts.headers, self.protocols.clone());
    }

    /// Connects the client and the upstream, whose answer agrees.
    pub(super) fn open(self, response: &mut Response<Incoming>, protocol: Option<HeaderValue>, tasks: &Starter) {
        let upstream = hyper::upgrade::on(&mut *response);
        let (client, place) = (self.client, self.place);
        asks(response.headers_mut(), protocol.unwrap_or(self.protocols));
        tasks.start(async move {
            // Either side may have gone by now; then there is nobody to tell.
            if let (Ok(upstream), Ok(client)) = (upstream.await, client.await) {
                let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(upstream)).await;
            }
            drop(place);
        });
    }
}

/// Whether an answer opens a tunnel.
pub(super) fn agrees(response: &Response<Incoming>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
}

/// HTTP in a tunnel would be requests that nobody counts.
fn speaks_http(headers: &HeaderMap) -> bool {
    let is_http = |token: &str| {
        let name = token.split('/').next().unwrap_or_default();
        ["h2c", "h2", "http", "tls"].iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    tokens(headers, &UPGRADE).any(is_http)
}

fn asks(headers: &mut HeaderMap, protocols: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocols);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_is_no_protocol_to_hide_requests_in() {
        for (protocols, is_http) in [
            ("websocket", false),
            ("SPDY/3.1", false),
            ("h2c", true),
            ("websocket, H2C", true),
            ("HTTP/2.0", true),
            ("TLS/1.2, HTTP/1.1", true),
        ] {
            let headers = HeaderMap::from_iter([(UPGRADE, HeaderValue::from_static(protocols))]);
            assert_eq!(speaks_http(&headers), is_http, "{protocols}");
        }
    }
}
