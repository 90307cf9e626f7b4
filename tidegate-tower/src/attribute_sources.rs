//! `AttributeSources`: reads the parts of an HTTP request that the rules use. [`RequestAttributes`] translates them.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::Authority;
use tidegate::attributes::{self, RequestAttributes};

use crate::body_size::size_text;
use crate::{Attributes, BodyText, Peer};

/// The attributes that a set of rules reads, and where each comes from. Resolved once, not for every request.
pub(crate) struct AttributeSources(Vec<(String, AttributeSource)>);

/// Where an attribute comes from.
enum AttributeSource {
    Method,
    Path,
    Query,
    Host,
    Ip,
    Body,
    Size,
    Header(HeaderName),
    /// The layer's settings or the extension [`Attributes`].
    Application,
    /// No HTTP request has this attribute.
    Unavailable,
}

impl AttributeSources {
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        let with_source = |name: String| {
            let source = AttributeSource::from_name(&name);
            (name, source)
        };
        Self(names.into_iter().map(with_source).collect())
    }

    /// Whether the rules read this header, as an attribute or for the host.
    pub(crate) fn reads_header(&self, name: &HeaderName) -> bool {
        self.0.iter().any(|(_, source)| match source {
            AttributeSource::Header(header) => header == name,
            AttributeSource::Host => name == HOST,
            _ => false,
        })
    }

    /// Whether the rules read the size of the body.
    pub(crate) fn reads_size(&self) -> bool {
        self.0.iter().any(|(_, source)| matches!(source, AttributeSource::Size))
    }

    /// Adds the attributes of a request. `layer_attributes` take precedence over the extension [`Attributes`].
    pub(crate) fn read<'a>(
        &'a self,
        parts: &'a Parts,
        layer_attributes: &'a Attributes,
        peer: Option<IpAddr>,
        body_size: Option<u64>,
        attributes: &mut RequestAttributes<'a>,
    ) {
        for (name, source) in &self.0 {
            let name = name.as_str();
            match source {
                AttributeSource::Method => attributes.add(name, parts.method.as_str()),
                AttributeSource::Path => attributes.add(name, parts.uri.path()),
                AttributeSource::Host => {
                    attributes.add_host(parts.uri.authority().map(Authority::as_str), lines(&parts.headers, &HOST));
                }
                AttributeSource::Header(header) => attributes.add_header(name, lines(&parts.headers, header)),
                AttributeSource::Ip => peer.into_iter().for_each(|peer| attributes.add_address(peer)),
                AttributeSource::Query => add(attributes, name, parts.uri.query()),
                AttributeSource::Body => {
                    add(attributes, name, parts.extensions.get::<BodyText>().map(BodyText::as_str));
                }
                AttributeSource::Size => add(attributes, name, body_size.map(|size| size_text(&parts.headers, size))),
                AttributeSource::Application => {
                    let extension = || parts.extensions.get::<Attributes>()?.attribute(name);
                    add(attributes, name, layer_attributes.attribute(name).or_else(extension));
                }
                AttributeSource::Unavailable => {}
            }
        }
    }
}

/// Adds an attribute, if it has a value.
fn add<'a>(attributes: &mut RequestAttributes<'a>, name: &'a str, value: Option<impl Into<Cow<'a, str>>>) {
    if let Some(value) = value {
        attributes.add(name, value);
    }
}

impl AttributeSource {
    fn from_name(name: &str) -> Self {
        match name {
            attributes::METHOD => Self::Method,
            attributes::PATH => Self::Path,
            attributes::QUERY => Self::Query,
            attributes::HOST => Self::Host,
            attributes::IP => Self::Ip,
            attributes::BODY => Self::Body,
            attributes::SIZE => Self::Size,
            _ => match attributes::header_name(name) {
                Some(header) => header.parse().map_or(Self::Unavailable, Self::Header),
                None if attributes::is_reserved(name) => Self::Unavailable,
                None => Self::Application,
            },
        }
    }
}

/// The TCP peer by the extensions of the request.
pub(crate) fn peer(parts: &Parts) -> Option<IpAddr> {
    let peer = parts.extensions.get::<Peer>().map(|peer| peer.0);
    peer.or_else(|| parts.extensions.get::<SocketAddr>().map(SocketAddr::ip))
}

/// All lines of a header as one value.
pub(crate) fn header_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, str>> {
    attributes::join_header_lines(name.as_str(), lines(headers, name))
}

/// The lines of a header.
fn lines<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    headers.get_all(name).into_iter().map(HeaderValue::as_bytes)
}

#[cfg(test)]
mod tests {
    use http::{Request, request};

    use super::*;

    /// The attribute `name` of a request, with attributes set by the layer.
    fn read_with(request: Request<()>, layer_attributes: &Attributes, name: &str) -> Option<String> {
        let (parts, ()) = request.into_parts();
        let sources = AttributeSources::new([name.to_owned()]);
        let mut attributes = RequestAttributes::new("", 1);
        sources.read(&parts, layer_attributes, peer(&parts), Some(1024), &mut attributes);
        attributes.request().attribute(name).map(str::to_owned)
    }

    fn read(request: request::Builder, name: &str) -> Option<String> {
        read_with(request.body(()).unwrap(), &Attributes::new(), name)
    }

    #[test]
    fn each_part_of_a_request_is_an_attribute() {
        let request = || Request::post("/a%20b/c?x=1&y=2").header("host", "Example.COM:8080").header("x-key", "k1");
        for (name, value) in [
            ("method", Some("POST")),
            ("path", Some("/a%20b/c")),
            ("query", Some("x=1&y=2")),
            ("host", Some("example.com")),
            ("header:x-key", Some("k1")),
            ("header:X-Key", Some("k1")),
            ("header:missing", None),
            ("header:not a name", None),
            ("cookie:x", None),
            ("ip", None),
            ("body", None),
            ("request:size", Some("1024")),
            ("user", None),
        ] {
            assert_eq!(read(request(), name).as_deref(), value, "{name}");
        }
        assert_eq!(read(Request::get("/"), "query"), None);
    }

    #[test]
    fn a_host_is_normalized_and_the_target_takes_precedence_over_the_header() {
        let header = |value: &str| read(Request::get("/").header("host", value), "host");
        for value in ["example.com", "EXAMPLE.com:443", "example.com:", "example.com.", "Example.com.:80"] {
            assert_eq!(header(value).as_deref(), Some("example.com"), "{value}");
        }
        for (value, expected) in
            [("[2001:DB8::1]:80", "[2001:db8::1]"), ("[::1]", "[::1]"), ("example.com:b", "example.com:b")]
        {
            assert_eq!(header(value).as_deref(), Some(expected));
        }
        for (target, expected) in
            [("http://me@Real.example:8080/", "real.example"), ("http://Real.example:b/", "real.example:b")]
        {
            assert_eq!(read(Request::get(target).header("host", "other.example"), "host").as_deref(), Some(expected));
        }
        assert_eq!(read(Request::get("/"), "host"), None);
    }

    #[test]
    fn the_lines_of_a_list_are_joined() {
        let lists = [("cookie", "a=1; b=2"), ("x-forwarded-for", "a=1, b=2"), ("accept-language", "a=1, b=2")];
        for (name, joined) in lists {
            let request = Request::get("/").header(name, "a=1").header(name, "b=2");
            assert_eq!(read(request, &format!("header:{name}")).as_deref(), Some(joined));
        }
    }

    #[test]
    fn a_header_that_comes_twice_is_a_repeated_attribute() {
        for (header, name) in [("x-key", "header:x-key"), ("host", "host")] {
            let (parts, ()) = Request::get("/").header(header, "a").header(header, "b").body(()).unwrap().into_parts();
            let sources = AttributeSources::new([name.to_owned()]);
            let (layer_attributes, mut attributes) = (Attributes::new(), RequestAttributes::new("", 1));
            sources.read(&parts, &layer_attributes, None, None, &mut attributes);
            let request = attributes.request();
            assert_eq!(request.attribute(name), Some("a"));
            assert_eq!(request.further_values(name).collect::<Vec<_>>(), ["b"]);
        }
    }

    #[test]
    fn keys_that_differ_only_in_invalid_utf8_are_different_values() {
        let value = |bytes: &[u8]| {
            read(Request::get("/").header("x-key", HeaderValue::from_bytes(bytes).unwrap()), "header:x-key").unwrap()
        };
        assert_eq!(value("clé".as_bytes()), "clé");
        assert_ne!(value(b"\xff!"), value(b"\xfe!"));
        assert_ne!(value(b"\xff!"), value("\u{fffd}!".as_bytes()));
    }

    #[test]
    fn the_peer_comes_from_the_connection() {
        let address: SocketAddr = "203.0.113.9:5000".parse().unwrap();
        assert_eq!(read(Request::get("/").extension(address), "ip").as_deref(), Some("203.0.113.9"));
        let both = Request::get("/").extension(address).extension(Peer([198, 51, 100, 1].into()));
        assert_eq!(read(both, "ip").as_deref(), Some("198.51.100.1"));
        let mapped: SocketAddr = "[::ffff:203.0.113.9]:5000".parse().unwrap();
        assert_eq!(read(Request::get("/").extension(mapped), "ip").as_deref(), Some("203.0.113.9"));
    }

    #[test]
    fn middleware_cannot_set_reserved_attributes() {
        let mut fake = Attributes::new();
        for name in ["method", "path", "query", "host", "ip", "body", "header:x-key", "cookie:a", "request:size"] {
            fake.insert(name, "fake");
        }
        for name in ["query", "host", "ip", "body", "header:x-key", "cookie:a"] {
            let request = Request::get("/").extension(fake.clone()).body(()).unwrap();
            assert_eq!(read_with(request, &fake, name), None, "{name}");
        }
        assert_eq!(read(Request::get("/real").extension(fake.clone()), "path").as_deref(), Some("/real"));
        assert_eq!(read(Request::get("/").extension(fake), "method").as_deref(), Some("GET"));
    }

    #[test]
    fn attributes_of_the_layer_take_precedence_over_those_of_earlier_middleware() {
        let extension = Attributes::new().with_attribute("user", "old").with_attribute("user", "42");
        let extension = extension.with_attribute("tenant", "acme");
        let request = || Request::get("/").extension(extension.clone()).body(()).unwrap();
        assert_eq!(read_with(request(), &Attributes::new(), "user").as_deref(), Some("42"));
        let layer = Attributes::new().with_attribute("user", "43");
        assert_eq!(read_with(request(), &layer, "user").as_deref(), Some("43"));
        assert_eq!(read_with(request(), &layer, "tenant").as_deref(), Some("acme"));
    }
}
