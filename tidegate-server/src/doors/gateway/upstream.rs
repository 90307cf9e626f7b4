//! `Upstream`: the validated address of the service behind the gateway. It opens no connection.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::net::Ipv4Addr;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Uri, Version};

use super::upstream_tls::{UpstreamConnectorTls, UpstreamTls};

/// The address of the upstream.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    scheme: Scheme,
    authority: Authority,
    /// The HTTP version it speaks.
    pub(super) version: Version,
    /// None for connections in the clear.
    pub(super) tls: Option<UpstreamConnectorTls>,
}

/// An upstream address that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamError(Cow<'static, str>);

const NO_ADDRESS: &str =
    "not an upstream address; write http://host:port or https://host, or for HTTP/2 h2c://host:port or h2://host";

/// Parses the address of an upstream. No error repeats it: it may contain a password.
pub(crate) fn upstream_address(text: &str) -> Result<Uri, String> {
    let address = text.parse().map_err(|_| NO_ADDRESS)?;
    Upstream::new(&address).map(|_| address).map_err(|error| error.to_string())
}

impl Upstream {
    /// The upstream at `address`. With TLS, the authorities of the system are trusted.
    pub(super) fn new(address: &Uri) -> Result<Self, UpstreamError> {
        let (scheme, version) = match address.scheme_str() {
            Some("http") => (Scheme::HTTP, Version::HTTP_11),
            Some("h2c") => (Scheme::HTTP, Version::HTTP_2),
            Some("https") => (Scheme::HTTPS, Version::HTTP_11),
            Some("h2") => (Scheme::HTTPS, Version::HTTP_2),
            _ => {
                return Err(UpstreamError::new(NO_ADDRESS));
            }
        };
        let Some(authority) = address.authority().filter(|authority| !authority.host().is_empty()) else {
            return Err(UpstreamError::new("an upstream needs a host; write http://host:port"));
        };
        if let Some(why) = wrong_host_or_port(authority) {
            return Err(UpstreamError::new(why));
        }
        if authority.as_str().contains('@') {
            return Err(UpstreamError::new(
                "an upstream address must not contain a user or a password; write http://host:port",
            ));
        }
        if address.query().is_some() || address.path().len() > 1 {
            return Err(UpstreamError::new(
                "an upstream address must not contain a path, since requests keep their own; write http://host:port",
            ));
        }
        Ok(Self { scheme, authority: authority.clone(), version, tls: None })
    }

    /// Whether connections to it use TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Secures the connections to it.
    pub(super) fn with_tls(mut self, tls: &UpstreamTls) -> Result<Self, UpstreamError> {
        if !self.is_secure() {
            return Err(UpstreamError::new("certificates need an upstream with TLS; write https://host"));
        }
        let protocol: &[u8] = if self.version == Version::HTTP_2 { b"h2" } else { b"http/1.1" };
        self.tls = Some(tls.connector(self.authority.host(), protocol)?);
        Ok(self)
    }

    /// The URI of `target` at the upstream.
    pub(super) fn rewrite(&self, target: &Uri) -> Uri {
        let path = target.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path);
        // Cannot fail: all three parts are present and valid.
        Uri::from_parts(parts).unwrap_or_default()
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
    }
}

impl UpstreamError {
    pub(super) fn new(problem: impl Into<Cow<'static, str>>) -> Self {
        Self(problem.into())
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for UpstreamError {}

/// What is wrong with the host and port, which nothing could be connected to.
fn wrong_host_or_port(authority: &Authority) -> Option<&'static str> {
    let host = authority.host();
    let has_port = !authority.as_str().ends_with(host);
    if has_port && authority.port_u16().is_none_or(|port| port == 0) {
        return Some("the port of an upstream is a number from 1 to 65535; write http://host:port");
    }
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_address = host.split('.').all(is_number);
    (is_address && host.parse::<Ipv4Addr>().is_err())
        .then_some("the host of an upstream is no IP address; an address such as 127.0.0.1 has four numbers up to 255")
}

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
        assert_eq!(upstream("https://api.example").unwrap().version, Version::HTTP_11);
        assert_eq!(upstream("h2://api.example").unwrap().version, Version::HTTP_2);
    }

    #[test]
    fn an_invalid_upstream_address_is_rejected_with_its_reason() {
        for (address, why) in [
            ("ftp://a", "http://host:port"),
            ("localhost:3000", "http://host:port"),
            ("/path", "http://host:port"),
            ("http://localhost:", "1 to 65535"),
            ("http://localhost:0", "1 to 65535"),
            ("http://localhost:65536", "1 to 65535"),
            ("http://[::1]:0", "1 to 65535"),
            ("http://127.0.0.300:3000", "up to 255"),
            ("http://127.1", "up to 255"),
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
        let secure = Upstream::new(&"https://up".parse().unwrap()).unwrap();
        assert_eq!(secure.rewrite(&"/a".parse().unwrap()).to_string(), "https://up/a");
    }
}
