//! The header fields of a request: checked and brought into the one form that the rules judge and the upstream receives. It runs before
//! the decision, so that nothing is counted that the upstream does not see. `docs/gateway.md` has the policy for each field.

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{Request, StatusCode};
use http_body::Body;
use smallvec::SmallVec;

use super::hop_by_hop::{HOP_BY_HOP_HEADERS, remove_hop_by_hop, tokens};
use super::{forwarded_headers, tunnel};

/// Why the fields of a request cannot be forwarded in a form that has one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldError {
    Host(&'static str),
    /// `Connection` names a field that rules read or that the gateway sets: the next server would not see it.
    ConnectionNamesField,
    /// `Trailer` names such a field: some servers add the trailers of a body to the fields of the request.
    TrailerNamesField,
    /// A field is written with `_` and with `-`, which many servers take for the same name.
    TwoSpellings,
    TransferCoding,
}

/// What happens to a field of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldPolicy {
    Forward,
    Remove,
    /// Removed, unless a trusted proxy sets it or the rules read it.
    RemoveUntrusted,
    /// A name with `_`: removed, unless the rules read it.
    Underscore,
}

/// Brings the fields of a request into their final form. `trusted` is whether a proxy in front sets `X-Forwarded-*`, `reads` whether the
/// rules read a field.
pub(super) fn normalize<B: Body>(
    request: &mut Request<B>,
    trusted: bool,
    reads: impl Fn(&HeaderName) -> bool,
) -> Result<(), FieldError> {
    if let Some(problem) = forwarded_headers::host_problem(request) {
        return Err(FieldError::Host(problem));
    }
    check_transfer_coding(request.headers())?;
    if names_fixed_field(request.headers(), &CONNECTION, &reads) {
        return Err(FieldError::ConnectionNamesField);
    }
    if names_fixed_field(request.headers(), &TRAILER, &reads) {
        return Err(FieldError::TrailerNamesField);
    }
    let protocols = tunnel::is_upgrade(request).then(|| request.headers().get(UPGRADE).cloned()).flatten();
    let length = request.body().size_hint().exact();
    let headers = request.headers_mut();
    remove_hop_by_hop(headers);
    if let Some(protocols) = protocols {
        tunnel::set_upgrade_headers(headers, protocols);
    }
    remove_unwanted(headers, trusted, &reads)?;
    join_cookies(headers);
    // Servers disagree on lengths such as `05`.
    if headers.contains_key(CONTENT_LENGTH) {
        match length {
            Some(length) => _ = headers.insert(CONTENT_LENGTH, HeaderValue::from(length)),
            None => _ = headers.remove(CONTENT_LENGTH),
        }
    }
    forwarded_headers::set_headers(request, trusted);
    Ok(())
}

/// hyper removes the framing of `chunked` and forwards the rest as it is, so a body in another coding would lose its name.
fn check_transfer_coding(headers: &HeaderMap) -> Result<(), FieldError> {
    if !headers.contains_key(TRANSFER_ENCODING) {
        return Ok(());
    }
    let mut codings = tokens(headers, &TRANSFER_ENCODING);
    let is_chunked = codings.next().is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
    if is_chunked && codings.next().is_none() { Ok(()) } else { Err(FieldError::TransferCoding) }
}

/// Whether `list` names a field that the upstream must receive as it was decided on.
fn names_fixed_field(headers: &HeaderMap, list: &HeaderName, reads: impl Fn(&HeaderName) -> bool) -> bool {
    let names = tokens(headers, list).filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok());
    let is_fixed = |name: &HeaderName| {
        name == HOST
            || name == CONTENT_LENGTH
            || name.as_str().starts_with("x-forwarded-")
            || (!HOP_BY_HOP_HEADERS.contains(name) && reads(name))
    };
    names.into_iter().any(|name| is_fixed(&name))
}

/// Removes the fields of a client that the upstream could take for those of a proxy, for another target, or for another name.
fn remove_unwanted(
    headers: &mut HeaderMap,
    trusted: bool,
    reads: impl Fn(&HeaderName) -> bool,
) -> Result<(), FieldError> {
    let mut unwanted: SmallVec<[HeaderName; 4]> = SmallVec::new();
    for name in headers.keys() {
        let is_removed = match policy(name.as_str()) {
            FieldPolicy::Forward => false,
            FieldPolicy::Remove => true,
            FieldPolicy::RemoveUntrusted => !trusted && !reads(name),
            FieldPolicy::Underscore => {
                let is_read = reads(name);
                if is_read && headers.contains_key(name.as_str().replace('_', "-")) {
                    return Err(FieldError::TwoSpellings);
                }
                !is_read
            }
        };
        if is_removed {
            unwanted.push(name.clone());
        }
    }
    for name in unwanted {
        headers.remove(name);
    }
    Ok(())
}

fn policy(name: &str) -> FieldPolicy {
    match name {
        // CGI passes `Proxy` to programs as `HTTP_PROXY`, by which many choose a proxy for their own requests. Some frameworks route by
        // the others, and the rules judge the path.
        "proxy" | "x-original-url" | "x-rewrite-url" => FieldPolicy::Remove,
        "forwarded" | "x-real-ip" => FieldPolicy::RemoveUntrusted,
        // Extended or set by the gateway.
        "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host" => FieldPolicy::Forward,
        _ if name.contains('_') => FieldPolicy::Underscore,
        _ if name.starts_with("x-forwarded-") => FieldPolicy::RemoveUntrusted,
        _ => FieldPolicy::Forward,
    }
}

/// Joins the lines of `Cookie`, of which HTTP/2 sends one for each cookie (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(COOKIE).into_iter();
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return };
    let mut joined = first.as_bytes().to_vec();
    for line in std::iter::once(second).chain(lines) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(line.as_bytes());
    }
    // Valid values are valid when joined.
    if let Ok(value) = HeaderValue::from_bytes(&joined) {
        headers.insert(COOKIE, value);
    }
}

impl FieldError {
    /// The status, the name and the message of the response.
    pub(super) const fn response(self) -> (StatusCode, &'static str, &'static str) {
        const BAD_REQUEST: (StatusCode, &str) = (StatusCode::BAD_REQUEST, "bad_request");
        match self {
            Self::Host(problem) => (BAD_REQUEST.0, BAD_REQUEST.1, problem),
            Self::ConnectionNamesField => {
                (BAD_REQUEST.0, BAD_REQUEST.1, "The Connection field names a field that must be forwarded.")
            }
            Self::TrailerNamesField => {
                (BAD_REQUEST.0, BAD_REQUEST.1, "The Trailer field names a field that must come before the body.")
            }
            Self::TwoSpellings => (BAD_REQUEST.0, BAD_REQUEST.1, "The request has one field in two spellings."),
            Self::TransferCoding => (
                StatusCode::NOT_IMPLEMENTED,
                "transfer_coding_not_supported",
                "This gateway supports no transfer coding but chunked.",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;

    use super::*;

    /// The fields after normalization by a gateway whose rules read `x-api-key`, `x_read` and `x-real-ip` if `reads_ip`.
    fn fields_with(lines: &[(&'static str, &'static str)], trusted: bool) -> Result<Vec<String>, FieldError> {
        let body = Full::new(Bytes::from_static(b"hello"));
        let mut request = Request::post("/").header("host", "a").body(body).unwrap();
        for (name, value) in lines {
            request.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        normalize(&mut request, trusted, |name| ["x-api-key", "x_read", "cf-connecting-ip"].contains(&name.as_str()))?;
        let set_by_gateway =
            |name: &HeaderName| ["host", "x-forwarded-proto", "x-forwarded-host"].contains(&name.as_str());
        let fields = request.headers().iter().filter(|(name, _)| !set_by_gateway(name));
        Ok(fields.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect())
    }

    fn fields(lines: &[(&'static str, &'static str)]) -> Result<Vec<String>, FieldError> {
        fields_with(lines, false)
    }

    /// Otherwise each request has a key of its own for the rules and none for the upstream.
    #[test]
    fn connection_may_not_name_a_field_that_rules_read_or_the_gateway_sets() {
        for names in [
            "X-Api-Key",
            "close, x-api-key",
            "host",
            "X-Forwarded-For",
            "x-forwarded-proto",
            "Content-Length",
            "close,,\tHOST ",
        ] {
            assert_eq!(
                fields(&[("connection", names), ("x-api-key", "k")]),
                Err(FieldError::ConnectionNamesField),
                "{names}"
            );
        }
        assert_eq!(
            fields(&[("connection", "close"), ("connection", "x-api-key")]),
            Err(FieldError::ConnectionNamesField),
            "on any line"
        );
        for names in ["close", "keep-alive", "x-mine", "te, upgrade", "x-api-keys", "not a name"] {
            assert_eq!(
                fields(&[("connection", names), ("x-api-key", "k")]),
                Ok(vec!["x-api-key: k".into()]),
                "{names}"
            );
        }
    }

    /// Otherwise the key that the rules count by is not the one that such a server reads.
    #[test]
    fn a_trailer_may_not_be_a_field_that_rules_read_or_the_gateway_sets() {
        for names in ["X-Api-Key", "x-sum, x-api-key", "Host", "x-forwarded-for", "content-length"] {
            assert_eq!(fields(&[("trailer", names)]), Err(FieldError::TrailerNamesField), "{names}");
        }
        assert_eq!(fields(&[("trailer", "x-sum")]), Ok(vec!["trailer: x-sum".into()]));
    }

    #[test]
    fn fields_that_redirect_an_upstream_are_removed() {
        for name in ["proxy", "x-original-url", "x-rewrite-url"] {
            for trusted in [false, true] {
                assert_eq!(fields_with(&[(name, "/admin")], trusted), Ok(vec![]), "{name}");
            }
        }
    }

    #[test]
    fn fields_about_the_client_are_removed_unless_a_proxy_is_trusted() {
        for name in ["forwarded", "x-real-ip", "x-forwarded-port", "x-forwarded-prefix", "x-forwarded-uri"] {
            assert_eq!(fields_with(&[(name, "1")], false), Ok(vec![]), "{name}");
            assert_eq!(fields_with(&[(name, "1")], true), Ok(vec![format!("{name}: 1")]), "{name}");
        }
        assert_eq!(fields(&[("cf-connecting-ip", "1")]), Ok(vec!["cf-connecting-ip: 1".into()]));
    }

    /// CGI, WSGI and PHP take `X_Api_Key` for `X-Api-Key`.
    #[test]
    fn names_with_an_underscore_are_removed_unless_rules_read_them() {
        assert_eq!(fields(&[("x_api_key", "b"), ("x-api-key", "a")]), Ok(vec!["x-api-key: a".into()]));
        assert_eq!(fields(&[("content_length", "9"), ("x_forwarded_for", "1")]), Ok(vec![]));
        assert_eq!(fields(&[("x_read", "a")]), Ok(vec!["x_read: a".into()]));
        assert_eq!(fields(&[("x_read", "a"), ("x-read", "b")]), Err(FieldError::TwoSpellings));
    }

    #[test]
    fn lines_of_cookies_are_joined() {
        assert_eq!(
            fields(&[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")]),
            Ok(vec!["cookie: a=1; b=2; c=3".into()])
        );
    }

    #[test]
    fn a_length_is_written_in_its_shortest_form() {
        for length in ["5", "05", "0000005"] {
            assert_eq!(fields(&[("content-length", length)]), Ok(vec!["content-length: 5".into()]));
        }
        assert_eq!(fields(&[("content-length", "5"), ("content-length", "05")]), Ok(vec!["content-length: 5".into()]));
    }

    #[test]
    fn only_chunked_is_a_transfer_coding() {
        for codings in ["gzip, chunked", "chunked, chunked", "gzip", "", "identity, chunked"] {
            assert_eq!(fields(&[("transfer-encoding", codings)]), Err(FieldError::TransferCoding), "{codings}");
        }
        assert_eq!(fields(&[("transfer-encoding", "Chunked")]), Ok(vec![]));
    }

    #[test]
    fn an_upgrade_keeps_its_protocol() {
        let upgrade = [("connection", "keep-alive, Upgrade, x-mine"), ("upgrade", "websocket"), ("x-mine", "1")];
        assert_eq!(fields(&upgrade), Ok(vec!["connection: upgrade".into(), "upgrade: websocket".into()]));
        assert_eq!(fields(&[("connection", "upgrade"), ("upgrade", "h2c")]), Ok(vec![]));
    }

    /// `tidegate rules validate --door gateway` reports rules that read a field which is removed here.
    #[test]
    fn the_check_of_rule_files_knows_which_fields_are_removed() {
        for name in [
            "connection",
            "http2-settings",
            "keep-alive",
            "proxy",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
            "transfer-encoding",
            "x-original-url",
            "x-rewrite-url",
            "cookie",
            "content-length",
            "forwarded",
            "host",
            "x-forwarded-for",
            "x-forwarded-port",
            "x-real-ip",
            "x_user",
        ] {
            let mut request = Request::post("/").header("host", "a").body(Full::new(Bytes::from_static(b"x"))).unwrap();
            request
                .headers_mut()
                .insert(name, HeaderValue::from_static(if name == "content-length" { "1" } else { "chunked" }));
            normalize(&mut request, false, |read| read == name).unwrap();
            let rule = format!("{{ id: a, per: ['header:{name}'], fixed_window: {{ limit: 1, window: 1h }} }}");
            let file =
                tidegate_rules::RuleFile::parse("rules.yaml", &format!("version: 1\nrules: [{rule}]\n")).unwrap();
            let is_reported = !tidegate_rule_tools::door_gaps(&file, tidegate_rules::FrontDoor::Gateway).is_empty();
            assert_eq!(is_reported, !request.headers().contains_key(name), "{name}");
        }
    }
}
