//! What the upstream is told about a request beyond its own words: whom it came from, for which host, and whether it was
//! counted. Pure.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::Authority;
use tidegate::attributes;
use tidegate::spi::address_text;
use tidegate_tower::Degraded;

use crate::degraded::DEGRADED;
use crate::listen::Secure;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Sets the fields that tell it. What is there already is kept only where it cannot mislead, or where the proxy in front is
/// `trusted`.
pub(super) fn tell(parts: &mut Parts, peer: Option<IpAddr>, trusted: bool) {
    if let Some(host) = host(parts) {
        set(&mut parts.headers, X_FORWARDED_HOST, host.clone(), trusted);
        parts.headers.insert(HOST, host);
    } else if !trusted {
        parts.headers.remove(X_FORWARDED_HOST);
    }
    let protocol = if parts.extensions.get::<Secure>().is_some() { "https" } else { "http" };
    set(&mut parts.headers, X_FORWARDED_PROTO, HeaderValue::from_static(protocol), trusted);
    if let Some(peer) = peer {
        append(&mut parts.headers, peer);
    }
    parts.headers.remove(DEGRADED);
    if parts.extensions.get::<Degraded>().is_some() {
        parts.headers.insert(DEGRADED, HeaderValue::from_static("true"));
    }
}

/// Why the host of a request cannot be relied upon, by RFC 9112 (section 3.2): the next server might take another one.
pub(super) fn ambiguous_host(parts: &Parts) -> Option<&'static str> {
    let mut hosts = parts.headers.get_all(HOST).into_iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Some("The request has more than one Host field."),
        (Some(host), None) if !is_host(host) => Some("The Host field of the request is not a host."),
        (None, _) if parts.version == http::Version::HTTP_11 && parts.uri.authority().is_none() => {
            Some("The request has no Host field.")
        }
        _ => None,
    }
}

fn is_host(host: &HeaderValue) -> bool {
    // Empty is right for a target that has no host.
    let readable =
        |text: &str| text.is_empty() || text.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@'));
    host.to_str().is_ok_and(readable)
}

/// The target of a request goes before its field, as everywhere.
fn host(parts: &Parts) -> Option<HeaderValue> {
    match parts.uri.authority() {
        Some(authority) => HeaderValue::from_str(attributes::host_in_authority(authority.as_str())).ok(),
        None => parts.headers.get(HOST).cloned(),
    }
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue, keep: bool) {
    if !keep || !headers.contains_key(&name) {
        headers.insert(name, value);
    }
}

/// One line, since some servers read only the first.
fn append(headers: &mut HeaderMap, peer: IpAddr) {
    let mut all = Vec::new();
    for line in headers.get_all(X_FORWARDED_FOR) {
        all.extend_from_slice(line.as_bytes());
        all.extend_from_slice(b", ");
    }
    all.extend_from_slice(address_text(peer.to_canonical()).as_bytes());
    // Lines that were valid are valid when joined.
    if let Ok(value) = HeaderValue::from_bytes(&all) {
        headers.insert(X_FORWARDED_FOR, value);
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use tidegate::StoreErrorKind;

    use super::*;

    fn told(request: http::request::Builder, trusted: bool) -> HeaderMap {
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        tell(&mut parts, Some([203, 0, 113, 9].into()), trusted);
        parts.headers
    }

    #[test]
    fn the_peer_is_the_last_of_those_who_passed_it_on() {
        let fresh = told(Request::get("/").header("host", "a"), false);
        assert_eq!(fresh["x-forwarded-for"], "203.0.113.9");
        let passed = Request::get("/").header("x-forwarded-for", "10.0.0.1").header("x-forwarded-for", "10.0.0.2");
        let lines: Vec<_> = told(passed, false).get_all("x-forwarded-for").into_iter().cloned().collect();
        assert_eq!(lines, ["10.0.0.1, 10.0.0.2, 203.0.113.9"]);
    }

    #[test]
    fn what_a_client_claims_is_replaced_unless_a_proxy_is_trusted() {
        let claims = || {
            let request = Request::get("/").header("host", "real.example:80").header("x-forwarded-proto", "https");
            request.header("x-forwarded-host", "claimed.example").header("x-tidegate-degraded", "yes")
        };
        let headers = told(claims(), false);
        assert_eq!([&headers["x-forwarded-proto"], &headers["x-forwarded-host"]], ["http", "real.example:80"]);
        let headers = told(claims(), true);
        assert_eq!([&headers["x-forwarded-proto"], &headers["x-forwarded-host"]], ["https", "claimed.example"]);
        assert!(!headers.contains_key("x-tidegate-degraded"));
    }

    #[test]
    fn a_request_that_was_not_counted_says_so() {
        assert_eq!(
            told(Request::get("/").extension(Degraded { reason: StoreErrorKind::Unavailable }), false)["x-tidegate-degraded"],
            "true"
        );
    }

    #[test]
    fn the_host_of_the_target_goes_before_the_field() {
        let headers = told(Request::get("http://me@target.example/").header("host", "field.example"), false);
        assert_eq!([&headers["host"], &headers["x-forwarded-host"]], ["target.example", "target.example"]);
    }

    #[test]
    fn a_host_must_be_one_and_be_one() {
        let ambiguous = |request: http::request::Builder| ambiguous_host(&request.body(()).unwrap().into_parts().0);
        assert!(ambiguous(Request::get("/")).is_some());
        assert!(ambiguous(Request::get("/").header("host", "a").header("host", "b")).is_some());
        for host in ["a b", "a/b", "me@a", "a,b/"] {
            assert!(ambiguous(Request::get("/").header("host", host)).is_some(), "{host}");
        }
        for host in ["", "a", "a:80", "[::1]:80"] {
            assert_eq!(ambiguous(Request::get("/").header("host", host)), None, "{host}");
        }
        assert_eq!(ambiguous(Request::get("http://a/")), None);
        assert_eq!(ambiguous(Request::get("/").version(http::Version::HTTP_10)), None);
    }
}
