//! `Upstream`: where the requests that pass go to, checked once. It opens no connection.

use std::error::Error;
use std::fmt;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Uri, Version};

/// Where requests go to.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    authority: Authority,
    /// What is spoken there.
    pub(super) version: Version,
}

/// An address that requests cannot be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamError(&'static str);

impl Upstream {
    pub(super) fn new(address: &Uri) -> Result<Self, UpstreamError> {
        let version = match address.scheme_str() {
            Some("http") => Version::HTTP_11,
            Some("h2c") => Version::HTTP_2,
            Some("https") => return Err(UpstreamError("https is not spoken to upstreams; write http://host:port")),
            _ => return Err(UpstreamError("an upstream is written http://host:port, or h2c://host:port for HTTP/2")),
        };
        let Some(authority) = address.authority().filter(|authority| !authority.host().is_empty()) else {
            return Err(UpstreamError("an upstream needs a host; write http://host:port"));
        };
        if authority.as_str().contains('@') {
            return Err(UpstreamError("an upstream has no user and no password; write http://host:port"));
        }
        if address.query().is_some() || address.path().len() > 1 {
            return Err(UpstreamError("an upstream has no path; requests keep theirs. Write http://host:port"));
        }
        Ok(Self { authority: authority.clone(), version })
    }

    /// The place that `target` has there.
    pub(super) fn place(&self, target: &Uri) -> Uri {
        let path = target.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path);
        // All three are there and each is valid, which is all that is asked of them.
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
    fn the_scheme_says_what_is_spoken() {
        assert_eq!(upstream("http://127.0.0.1:3000").unwrap().version, Version::HTTP_11);
        assert_eq!(upstream("h2c://[::1]:3000/").unwrap().version, Version::HTTP_2);
    }

    #[test]
    fn an_address_that_cannot_be_used_says_why() {
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
    fn a_request_keeps_its_path_and_loses_its_own_host() {
        let upstream = upstream("http://up:3000").unwrap();
        let place = |target: &str| upstream.place(&target.parse().unwrap()).to_string();
        assert_eq!(place("/a%20b?x=1"), "http://up:3000/a%20b?x=1");
        assert_eq!(place("http://elsewhere:80/a"), "http://up:3000/a");
        assert_eq!(place("http://elsewhere"), "http://up:3000/");
        assert_eq!(upstream.place(&"*".parse().unwrap()).path(), "*");
    }
}
