//! Fields that are between two neighbours only: taken out on the way in and on the way out. Pure.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE,
};

/// What RFC 9110 (section 7.6.1) and common use keep between neighbours, beside what `Connection` names.
const BETWEEN_NEIGHBOURS: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Takes out what is for the neighbour that sent it.
pub(super) fn strip(headers: &mut HeaderMap) {
    // Of two lengths, the encoding is right (RFC 9112, section 6.3). Whoever comes next must not have the choice.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION).filter_map(|name| name.parse().ok()).collect();
    let takes_trailers = takes_trailers(headers);
    for name in named.iter().chain(&BETWEEN_NEIGHBOURS) {
        headers.remove(name);
    }
    headers.remove(TE);
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether the sender wants to know the fields that follow a body.
fn takes_trailers(headers: &HeaderMap) -> bool {
    tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"))
}

/// The words of a field that is a list, over all of its lines.
pub(super) fn tokens<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(fields: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        strip(&mut headers);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn what_is_between_neighbours_stays_there() {
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
        assert_eq!(stripped(&fields), ["x-kept: 4", "trailer: x-sum"]);
    }

    #[test]
    fn of_te_only_trailers_are_passed_on() {
        assert_eq!(stripped(&[("te", "gzip, Trailers"), ("connection", "te")]), ["te: trailers"]);
        assert_eq!(stripped(&[("te", "gzip")]), [""; 0]);
    }

    #[test]
    fn a_length_beside_an_encoding_is_not_passed_on() {
        assert_eq!(stripped(&[("content-length", "5"), ("transfer-encoding", "chunked")]), [""; 0]);
        assert_eq!(stripped(&[("content-length", "5")]), ["content-length: 5"]);
    }

    #[test]
    fn a_connection_field_that_makes_no_sense_does_no_harm() {
        assert_eq!(stripped(&[("connection", ",, not a name ,\t;"), ("x-kept", "1")]), ["x-kept: 1"]);
    }
}
