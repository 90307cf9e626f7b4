//! `AttributeSources`: reads the attributes that the rules use from an HTTP request. It translates and decides nothing.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName};
use http::request::Parts;
use smallvec::SmallVec;
use tidegate::attributes;
use tidegate::spi::format_address;

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

/// The attributes of one request.
#[derive(Default)]
pub(crate) struct AttributeValues<'a> {
    values: SmallVec<[(&'a str, Cow<'a, str>); 4]>,
    /// Further lines of headers that came more than once and are no lists. Rules decide whether such a request can be judged.
    repeats: Vec<(&'a str, Cow<'a, str>)>,
}

/// The attributes of a request, without the request.
pub(crate) struct OwnedAttributes {
    values: Vec<(String, String)>,
    repeats: Vec<(String, String)>,
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

    /// Reads the attributes from a request. `layer_attributes` take precedence over the extension [`Attributes`].
    pub(crate) fn read<'a>(
        &'a self,
        parts: &'a Parts,
        layer_attributes: &'a Attributes,
        peer: Option<IpAddr>,
        body_size: Option<u64>,
    ) -> AttributeValues<'a> {
        let extension = parts.extensions.get::<Attributes>();
        let mut values = AttributeValues::default();
        for (name, source) in &self.0 {
            let value = match source {
                AttributeSource::Method => Some(parts.method.as_str().into()),
                AttributeSource::Path => Some(parts.uri.path().into()),
                AttributeSource::Query => parts.uri.query().map(Cow::Borrowed),
                AttributeSource::Host => host(parts, &mut values.repeats),
                AttributeSource::Ip => peer.map(|ip| format_address(ip.to_canonical()).into()),
                AttributeSource::Size => body_size.map(|size| size_text(&parts.headers, size)),
                AttributeSource::Body => parts.extensions.get::<BodyText>().map(|body| body.as_str().into()),
                AttributeSource::Header(header) if attributes::is_list_header(header.as_str()) => {
                    header_value(&parts.headers, header)
                }
                AttributeSource::Header(header) => single_value(&parts.headers, header, name, &mut values.repeats),
                AttributeSource::Application => {
                    let value = layer_attributes.attribute(name).or_else(|| extension?.attribute(name));
                    value.map(Cow::Borrowed)
                }
                AttributeSource::Unavailable => None,
            };
            values.values.extend(value.map(|value| (name.as_str(), value)));
        }
        values
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

impl AttributeValues<'_> {
    /// A copy that does not borrow from the request.
    pub(crate) fn to_owned_attributes(&self) -> OwnedAttributes {
        let owned = |(name, value): &(&str, Cow<'_, str>)| ((*name).to_owned(), value.clone().into_owned());
        OwnedAttributes {
            values: self.values.iter().map(owned).collect(),
            repeats: self.repeats.iter().map(owned).collect(),
        }
    }

    /// The request for the limiter.
    pub(crate) fn to_request<'a>(&'a self, action: &'a str, cost: u64) -> tidegate::Request<'a> {
        let request = tidegate::Request::new(action).with_cost(cost);
        let request = self.values.iter().fold(request, |request, (name, value)| request.with_attribute(name, value));
        self.repeats.iter().fold(request, |request, (name, value)| request.with_further_value(name, value))
    }
}

impl OwnedAttributes {
    /// The request for the limiter, with a body of this size.
    pub(crate) fn to_request<'a>(&'a self, action: &'a str, cost: u64, size: &'a str) -> tidegate::Request<'a> {
        let request = tidegate::Request::new(action).with_cost(cost).with_attribute(attributes::SIZE, size);
        let request = self.values.iter().fold(request, |request, (name, value)| request.with_attribute(name, value));
        self.repeats.iter().fold(request, |request, (name, value)| request.with_further_value(name, value))
    }
}

/// The size as text, without an allocation for most requests.
fn size_text(headers: &HeaderMap, size: u64) -> Cow<'_, str> {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    match length {
        _ if size == 0 => Cow::Borrowed("0"),
        Some(length) if length.parse() == Ok(size) && !length.starts_with('+') => Cow::Borrowed(length),
        _ => Cow::Owned(size.to_string()),
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

/// The first line of a header. Further lines are added to `repeats` as values of `attribute`.
fn single_value<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
    attribute: &'a str,
    repeats: &mut Vec<(&'a str, Cow<'a, str>)>,
) -> Option<Cow<'a, str>> {
    let mut lines = lines(headers, name);
    let first = lines.next()?;
    repeats.extend(lines.map(|line| (attribute, line)));
    Some(first)
}

/// The lines of a header. Their bytes are kept, so that two keys are never counted as one.
fn lines<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = Cow<'a, str>> + use<'a> {
    headers.get_all(name).into_iter().map(|line| attributes::bytes_to_text(line.as_bytes()))
}

/// The requested host in its normal form. The request target takes precedence over the header (RFC 9112, section 3.2.2);
/// in HTTP/2 the target is `:authority`.
fn host<'a>(parts: &'a Parts, repeats: &mut Vec<(&'a str, Cow<'a, str>)>) -> Option<Cow<'a, str>> {
    if let Some(authority) = parts.uri.authority() {
        return Some(attributes::normalize_host(attributes::host_in_authority(authority.as_str())));
    }
    Some(match single_value(&parts.headers, &HOST, attributes::HOST, repeats)? {
        Cow::Borrowed(value) => attributes::normalize_host(value),
        Cow::Owned(value) => Cow::Owned(attributes::normalize_host(&value).into_owned()),
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request, request};

    use super::*;

    /// The attribute `name` of a request, with attributes set by the layer.
    fn read_with(request: Request<()>, layer_attributes: &Attributes, name: &str) -> Option<String> {
        let (parts, ()) = request.into_parts();
        let sources = AttributeSources::new([name.to_owned()]);
        let values = sources.read(&parts, layer_attributes, peer(&parts), Some(1024));
        values.to_request("", 1).attribute(name).map(str::to_owned)
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
            let (none, layer_attributes) = (None, Attributes::new());
            let values = sources.read(&parts, &layer_attributes, none, None);
            let request = values.to_request("", 1);
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
