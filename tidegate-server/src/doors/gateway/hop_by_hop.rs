//! Hop-by-hop headers, which a proxy must not forward: removed from requests and responses. Pure.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE,
};

/// The hop-by-hop headers of RFC 9110 (section 7.6.1) and of common practice, beside those that `Connection` names.
pub(super) const HOP_BY_HOP_HEADERS: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TRANSFER_ENCODING,
    UPGRADE,
    TE,
];

/// Removes the hop-by-hop headers; `TE: trailers` stays.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // Transfer-Encoding overrides Content-Length (RFC 9112, section 6.3). The next server must not see both.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION).filter_map(|name| name.parse().ok()).collect();
    let accepts_trailers = accepts_trailers(headers);
    for name in named.iter().chain(&HOP_BY_HOP_HEADERS) {
        headers.remove(name);
    }
    if accepts_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether the sender accepts trailers.
fn accepts_trailers(headers: &HeaderMap) -> bool {
    tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"))
}

/// The items of a comma-separated header, over all of its lines.
pub(super) fn tokens<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_removal(fields: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        remove_hop_by_hop(&mut headers);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let fields = [
            ("connection", "close, X-Hop"),
            ("connection", "x-other"),
            ("x-hop", "1"),
            ("x-hop", "2"),
            ("x-other", "3"),
            ("x-kept", "4"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic x"),
            ("proxy-authenticate", "Basic"),
            ("proxy-connection", "keep-alive"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
            ("trailer", "x-sum"),
        ];
        assert_eq!(after_removal(&fields), ["x-kept: 4", "trailer: x-sum"]);
    }

    #[test]
    fn only_trailers_are_forwarded_of_te() {
        assert_eq!(after_removal(&[("te", "gzip, Trailers"), ("connection", "te")]), ["te: trailers"]);
        assert_eq!(after_removal(&[("te", "gzip")]), [""; 0]);
    }

    #[test]
    fn a_content_length_beside_a_transfer_encoding_is_removed() {
        assert_eq!(after_removal(&[("content-length", "5"), ("transfer-encoding", "chunked")]), [""; 0]);
        assert_eq!(after_removal(&[("content-length", "5")]), ["content-length: 5"]);
    }

    #[test]
    fn a_malformed_connection_header_is_ignored() {
        assert_eq!(after_removal(&[("connection", ",, not a name ,\t;"), ("x-kept", "1")]), ["x-kept: 1"]);
    }
}
