//! The canonical request: what is decided is what the inner service receives. Refuses what it could read differently.

use std::borrow::Cow;

use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Uri};
use tidegate::attributes::{ASTERISK_PATH, EscapedSlashes, PathError, canonical_path, misspelled_method};

const MISSPELLED_METHOD: &str = "The method is not in capital letters.";
const INVALID_TARGET: &str = "The request target is not valid.";

/// Makes a request canonical, or returns the message of a 400. The path is replaced only if `replaces_path`; otherwise the
/// limiter judges it as it is.
pub(crate) fn canonicalize(
    parts: &mut Parts,
    escaped_slashes: EscapedSlashes,
    replaces_path: bool,
) -> Result<(), &'static str> {
    if misspelled_method(parts.method.as_str()).is_some() {
        return Err(MISSPELLED_METHOD);
    }
    let path = parts.uri.path();
    if path == ASTERISK_PATH && parts.method != Method::OPTIONS {
        return Err(PathError::Asterisk.as_str());
    }
    if let Cow::Owned(path) = canonical_path(path, escaped_slashes).map_err(PathError::as_str)?
        && replaces_path
    {
        parts.uri = with_path(&parts.uri, path).map_err(|_| INVALID_TARGET)?;
    }
    Ok(())
}

/// The URI with another path.
fn with_path(uri: &Uri, mut path: String) -> Result<Uri, http::Error> {
    if let Some(query) = uri.query() {
        path.push('?');
        path.push_str(query);
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path)?);
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn canonical(method: &str, target: &str, escaped_slashes: EscapedSlashes) -> Result<String, &'static str> {
        let (mut parts, ()) = Request::builder().method(method).uri(target).body(()).unwrap().into_parts();
        canonicalize(&mut parts, escaped_slashes, true).map(|()| parts.uri.to_string())
    }

    #[test]
    fn the_path_is_replaced_and_the_rest_of_the_target_stays() {
        for (target, expected) in [
            ("/a/b?x=/../%2e", "/a/b?x=/../%2e"),
            ("/a/../b?x=/../%2e", "/b?x=/../%2e"),
            ("/a/%2e%2e/b?", "/b?"),
            ("http://host:80/a/../b?q", "http://host:80/b?q"),
            ("http://host", "http://host/"),
            ("//a/../b", "//b"),
            ("/a%2Fb//c;d\\e", "/a%2Fb//c;d\\e"),
        ] {
            assert_eq!(canonical("GET", target, EscapedSlashes::Both).as_deref(), Ok(expected), "{target}");
        }
        assert_eq!(canonical("GET", "/a%2F..%2Fb?c%2F", EscapedSlashes::Decode).as_deref(), Ok("/b?c%2F"));
        assert!(canonical("GET", "/a%2Fb", EscapedSlashes::Reject).is_err());
    }

    #[test]
    fn the_path_stays_as_it_is_unless_the_layer_replaces_it() {
        let (mut parts, ()) = Request::get("/a/../b").body(()).unwrap().into_parts();
        canonicalize(&mut parts, EscapedSlashes::Both, false).unwrap();
        assert_eq!(parts.uri, "/a/../b");
    }

    #[test]
    fn a_known_method_in_other_letters_is_refused() {
        for method in ["post", "Get", "oPTIONS"] {
            assert_eq!(canonical(method, "/", EscapedSlashes::Both), Err(MISSPELLED_METHOD), "{method}");
        }
        for method in ["POST", "FOO", "foo"] {
            assert!(canonical(method, "/", EscapedSlashes::Both).is_ok(), "{method}");
        }
    }

    #[test]
    fn only_an_options_request_applies_to_the_whole_server() {
        assert_eq!(canonical("OPTIONS", "*", EscapedSlashes::Both).as_deref(), Ok("*"));
        assert_eq!(canonical("GET", "*", EscapedSlashes::Both), Err(PathError::Asterisk.as_str()));
    }
}
