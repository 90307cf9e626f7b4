//! `Upstream`: the validated address of the service behind the gateway. It opens no connection.

use std::error::Error;
use std::fmt;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Uri, Version};

/// The address of the upstream.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    authority: Authority,
    /// The HTTP version it speaks.
    pub(super) version: Version,
}

/// An upstream address that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamError(&'static str);

impl Upstream {
    pub(super) fn new(address: &Uri) -> Result<Self, UpstreamError> {
        let version = match address.scheme_str() {
            Some("http") => Version::HTTP_11,
            Some("h2c") => Version::HTTP_2,
            Some("https") => return Err(UpstreamError("https upstreams are not supported; write http://host:port")),
            _ => {
                return Err(UpstreamError(
                    "not an upstream address; write http://host:port, or h2c://host:port for HTTP/2",
                ));
            }
        };
        let Some(authority) = address.authority().filter(|authority| !authority.host().is_empty()) else {
            return Err(UpstreamError("an upstream needs a host; write http://host:port"));
        };
        if authority.as_str().contains('@') {
            return Err(UpstreamError(
                "an upstream address must not contain a user or a password; write http://host:port",
            ));
        }
        if address.query().is_some() || address.path().len() > 1 {
            return Err(UpstreamError(
                "an upstream address must not contain a path, since requests keep their own; write http://host:port",
            ));
        }
        Ok(Self { authority: authority.clone(), version })
    }

    /// The URI of `target` at the upstream.
    pub(super) fn rewrite(&self, target: &Uri) -> Uri {
        let path = target.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path);
        // Cannot fail: all three parts are present and valid.
        Uri::from_parts(parts).unwrap_or_default()
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for UpstreamError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(address: &str) -> Result<Upstream, UpstreamError> {
        Upstream::new(&address.parse().unwrap())
    }

    #[test]
    fn the_scheme_selects_the_http_version() {
        assert_eq!(upstream("http://127.0.0.1:3000").unwrap().version, Version::HTTP_11);
        assert_eq!(upstream("h2c://[::1]:3000/").unwrap().version, Version::HTTP_2);
    }

    #[test]
    fn an_invalid_upstream_address_is_rejected_with_its_reason() {
        for (address, why) in [
            ("https://a", "https"),
            ("ftp://a", "http://host:port"),
            ("localhost:3000", "http://host:port"),
            ("/path", "http://host:port"),
            ("http://user:word@a", "password"),
            ("http://a/base", "path"),
            ("http://a/?q", "path"),
        ] {
            let error = upstream(address).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("word@"), "{address}: {error}");
        }
    }

    #[test]
    fn a_request_keeps_its_path_and_gets_the_upstream_host() {
        let upstream = upstream("http://up:3000").unwrap();
        let rewrite = |target: &str| upstream.rewrite(&target.parse().unwrap()).to_string();
        assert_eq!(rewrite("/a%20b?x=1"), "http://up:3000/a%20b?x=1");
        assert_eq!(rewrite("http://elsewhere:80/a"), "http://up:3000/a");
        assert_eq!(rewrite("http://elsewhere"), "http://up:3000/");
        assert_eq!(upstream.rewrite(&"*".parse().unwrap()).path(), "*");
    }
}
