//! The headers that the gateway sets on a request: `X-Forwarded-*` for the client, the protocol and the host, and whether the
//! request was admitted without the store. Pure.
//!
//! Those that do not depend on the decision are set before it, so that the rules judge what the upstream receives. The peer is appended
//! after it: the rules know the peer by itself, and read the list that came from it.

use std::net::IpAddr;

use http::Request;
use http::header::{FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::Authority;
use tidegate::attributes;
use tidegate::http::HeaderField;
use tidegate::spi::format_address;
use tidegate_tower::DegradedMode;

use crate::doors::DEGRADED_HEADER;
use crate::listen::OverTls;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Sets the host and the protocol. A client's own values are replaced, unless a `trusted` proxy in front sets them.
pub(super) fn set_headers<B>(request: &mut Request<B>, trusted: bool) {
    let protocol = if request.extensions().get::<OverTls>().is_some() { "https" } else { "http" };
    let host = host(request);
    let headers = request.headers_mut();
    if let Some(host) = host {
        set(headers, X_FORWARDED_HOST, host.clone(), trusted);
        headers.insert(HOST, host);
    } else if !trusted {
        headers.remove(X_FORWARDED_HOST);
    }
    set(headers, X_FORWARDED_PROTO, HeaderValue::from_static(protocol), trusted);
}

/// Appends the peer to `X-Forwarded-For`, and to `Forwarded` if the request has it, and says whether the store failed.
pub(super) fn append_peer(parts: &mut Parts, peer: Option<IpAddr>) {
    if let Some(peer) = peer {
        let address = format_address(peer.to_canonical());
        if parts.headers.contains_key(FORWARDED) {
            let node =
                if peer.to_canonical().is_ipv6() { format!("for=\"[{address}]\"") } else { format!("for={address}") };
            append(&mut parts.headers, FORWARDED, &node);
        }
        append(&mut parts.headers, X_FORWARDED_FOR, &address);
    }
    parts.headers.remove(DEGRADED_HEADER);
    // Only responses have it. A service that logs or trusts it must not see what a client claims.
    parts.headers.remove(HeaderField::Grace.name());
    if parts.extensions.get::<DegradedMode>().is_some() {
        parts.headers.insert(DEGRADED_HEADER, HeaderValue::from_static("true"));
    }
}

/// Returns what is wrong with the host of a request by RFC 9112 (section 3.2): another server might choose another host.
pub(super) fn host_problem<B>(request: &Request<B>) -> Option<&'static str> {
    let mut hosts = request.headers().get_all(HOST).into_iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Some("The request has more than one Host field."),
        (Some(host), None) if !is_host(host) => Some("The Host field of the request is not a valid host."),
        (None, _) if request.version() == http::Version::HTTP_11 && request.uri().authority().is_none() => {
            Some("The request has no Host field.")
        }
        _ => None,
    }
}

fn is_host(host: &HeaderValue) -> bool {
    // RFC 9112 requires an empty field for a target without a host.
    let is_valid =
        |text: &str| text.is_empty() || text.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@'));
    host.to_str().is_ok_and(is_valid)
}

/// The host of the request target takes precedence over the `Host` field.
fn host<B>(request: &Request<B>) -> Option<HeaderValue> {
    match request.uri().authority() {
        Some(authority) => HeaderValue::from_str(attributes::host_in_authority(authority.as_str())).ok(),
        None => request.headers().get(HOST).cloned(),
    }
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue, keep: bool) {
    if !keep || !headers.contains_key(&name) {
        headers.insert(name, value);
    }
}

/// Appends an element to a list, and joins all lines into one, since some servers read only the first.
fn append(headers: &mut HeaderMap, name: HeaderName, element: &str) {
    let mut joined = Vec::new();
    for line in headers.get_all(&name) {
        joined.extend_from_slice(line.as_bytes());
        joined.extend_from_slice(b", ");
    }
    joined.extend_from_slice(element.as_bytes());
    // Valid values are valid when joined.
    if let Ok(value) = HeaderValue::from_bytes(&joined) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use tidegate::StoreErrorKind;

    use super::*;

    fn forwarded(request: http::request::Builder, trusted: bool) -> HeaderMap {
        let mut request = request.body(()).unwrap();
        set_headers(&mut request, trusted);
        let (mut parts, ()) = request.into_parts();
        append_peer(&mut parts, Some([203, 0, 113, 9].into()));
        parts.headers
    }

    #[test]
    fn the_peer_is_appended_to_a_forwarded_header_that_is_forwarded() {
        let headers =
            forwarded(Request::get("/").header("forwarded", "for=10.0.0.1").header("forwarded", "for=x"), true);
        assert_eq!(headers["forwarded"], "for=10.0.0.1, for=x, for=203.0.113.9");
        assert!(!forwarded(Request::get("/"), true).contains_key("forwarded"));
        let (mut parts, ()) = Request::get("/").header("forwarded", "for=a").body(()).unwrap().into_parts();
        append_peer(&mut parts, Some("2001:db8::1".parse().unwrap()));
        assert_eq!(parts.headers["forwarded"], "for=a, for=\"[2001:db8::1]\"");
    }

    #[test]
    fn the_peer_is_appended_to_x_forwarded_for() {
        let fresh = forwarded(Request::get("/").header("host", "a"), false);
        assert_eq!(fresh["x-forwarded-for"], "203.0.113.9");
        let passed = Request::get("/").header("x-forwarded-for", "10.0.0.1").header("x-forwarded-for", "10.0.0.2");
        let lines: Vec<_> = forwarded(passed, false).get_all("x-forwarded-for").into_iter().cloned().collect();
        assert_eq!(lines, ["10.0.0.1, 10.0.0.2, 203.0.113.9"]);
    }

    #[test]
    fn forwarded_headers_of_a_client_are_replaced_unless_a_proxy_is_trusted() {
        let claims = || {
            let request = Request::get("/").header("host", "real.example:80").header("x-forwarded-proto", "https");
            request
                .header("x-forwarded-host", "claimed.example")
                .header("x-tidegate-degraded", "yes")
                .header("x-tidegate-grace", "true")
        };
        let headers = forwarded(claims(), false);
        assert_eq!([&headers["x-forwarded-proto"], &headers["x-forwarded-host"]], ["http", "real.example:80"]);
        let headers = forwarded(claims(), true);
        assert_eq!([&headers["x-forwarded-proto"], &headers["x-forwarded-host"]], ["https", "claimed.example"]);
        assert!(!headers.contains_key("x-tidegate-degraded") && !headers.contains_key("x-tidegate-grace"));
    }

    #[test]
    fn a_request_admitted_without_the_store_is_marked_as_degraded() {
        assert_eq!(
            forwarded(Request::get("/").extension(DegradedMode::new(StoreErrorKind::Unavailable)), false)["x-tidegate-degraded"],
            "true"
        );
    }

    #[test]
    fn the_host_of_the_target_takes_precedence_over_the_host_field() {
        let headers = forwarded(Request::get("http://me@target.example/").header("host", "field.example"), false);
        assert_eq!([&headers["host"], &headers["x-forwarded-host"]], ["target.example", "target.example"]);
    }

    #[test]
    fn a_request_needs_exactly_one_valid_host() {
        let problem = |request: http::request::Builder| host_problem(&request.body(()).unwrap());
        assert!(problem(Request::get("/")).is_some());
        assert!(problem(Request::get("/").header("host", "a").header("host", "b")).is_some());
        for host in ["a b", "a/b", "me@a", "a,b/"] {
            assert!(problem(Request::get("/").header("host", host)).is_some(), "{host}");
        }
        for host in ["", "a", "a:80", "[::1]:80"] {
            assert_eq!(problem(Request::get("/").header("host", host)), None, "{host}");
        }
        assert_eq!(problem(Request::get("http://a/")), None);
        assert_eq!(problem(Request::get("/").version(http::Version::HTTP_10)), None);
    }
}
