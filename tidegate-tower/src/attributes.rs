//! `Attributes`: what the rules may count by, read from an HTTP request. The first stage of this door: it translates, and
//! decides nothing.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::header::{HOST, HeaderMap, HeaderName};
use http::request::Parts;
use smallvec::SmallVec;
use smol_str::SmolStr;
use tidegate::attributes;
use tidegate::spi::address_text;

use crate::BodyText;

/// What earlier middleware knows about a request, such as who was authenticated: an extension of the request.
///
/// Rules count by these names. The names that this crate fills in itself (`method`, `path`, `query`, `host`, `ip`, `body`)
/// and every name with a colon in it are never read from here, so nobody can be made to count as somebody else's address
/// or header by mistake.
///
/// ```
/// use tidegate_tower::Attributes;
///
/// # let mut request = http::Request::new(());
/// request.extensions_mut().get_or_insert_default::<Attributes>().insert("user", "42");
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Attributes(Vec<(SmolStr, String)>);

/// The address of the TCP peer: an extension of the request, for servers that have no type of their own for it. A plain
/// [`SocketAddr`] does as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// The attributes that a set of rules reads, and where each comes from. Found out once, not for every request.
pub(crate) struct Reads(Vec<(SmolStr, Source)>);

/// Where an attribute comes from.
enum Source {
    Method,
    Path,
    Query,
    Host,
    Ip,
    Body,
    Header(HeaderName),
    /// From [`Attributes`].
    Given,
    /// A name that no HTTP request can fill.
    Nowhere,
}

/// What an HTTP request brings of what the rules read.
pub(crate) struct Values<'a>(SmallVec<[(&'a str, Cow<'a, str>); 4]>);

impl Attributes {
    /// None.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// These and one more; a name that is there already gets the new value.
    pub fn with(mut self, name: impl Into<SmolStr>, value: impl Into<String>) -> Self {
        self.insert(name, value);
        self
    }

    /// Adds one; a name that is there already gets the new value.
    pub fn insert(&mut self, name: impl Into<SmolStr>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of one.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Shows the names only: values are subjects, which do not belong into logs.
impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attributes")?;
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

// === impl Reads ===

impl Reads {
    pub(crate) fn new(names: impl IntoIterator<Item = SmolStr>) -> Self {
        let source = |name: SmolStr| {
            let source = Source::of(&name);
            (name, source)
        };
        Self(names.into_iter().map(source).collect())
    }

    /// What `parts` bring. What the layer was told about the request goes before what earlier middleware knew.
    pub(crate) fn values<'a>(&'a self, parts: &'a Parts, told: &'a Attributes, peer: Option<IpAddr>) -> Values<'a> {
        let known = parts.extensions.get::<Attributes>();
        let value = |(name, source): &'a (SmolStr, Source)| {
            let value = match source {
                Source::Method => Some(parts.method.as_str().into()),
                Source::Path => Some(parts.uri.path().into()),
                Source::Query => parts.uri.query().map(Cow::Borrowed),
                Source::Host => host(parts),
                Source::Ip => peer.map(|ip| address_text(ip.to_canonical()).into()),
                Source::Body => parts.extensions.get::<BodyText>().map(|body| body.as_str().into()),
                Source::Header(header) => joined(&parts.headers, header),
                Source::Given => told.value(name).or_else(|| known?.value(name)).map(Cow::Borrowed),
                Source::Nowhere => None,
            };
            Some((name.as_str(), value?))
        };
        Values(self.0.iter().filter_map(value).collect())
    }
}

impl Source {
    fn of(name: &str) -> Self {
        match name {
            attributes::METHOD => Self::Method,
            attributes::PATH => Self::Path,
            attributes::QUERY => Self::Query,
            attributes::HOST => Self::Host,
            attributes::IP => Self::Ip,
            attributes::BODY => Self::Body,
            _ => match attributes::header_name(name) {
                Some(header) => header.parse().map_or(Self::Nowhere, Self::Header),
                None if attributes::is_reserved(name) => Self::Nowhere,
                None => Self::Given,
            },
        }
    }
}

// === impl Values ===

impl Values<'_> {
    /// The question to the limiter.
    pub(crate) fn request<'a>(&'a self, action: &'a str, cost: u64) -> tidegate::Request<'a> {
        let request = tidegate::Request::new(action).with_cost(cost);
        self.0.iter().fold(request, |request, (name, value)| request.with_attribute(name, value))
    }
}

// === reading a request ===

/// The peer, where nobody says how to find it.
pub(crate) fn peer(parts: &Parts) -> Option<IpAddr> {
    let own = parts.extensions.get::<Peer>().map(|peer| peer.0);
    own.or_else(|| parts.extensions.get::<SocketAddr>().map(SocketAddr::ip))
}

/// All lines of a header as one value.
pub(crate) fn joined<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, str>> {
    let lines = headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
    attributes::join_header_lines(name.as_str(), lines)
}

/// The requested host in its normal form. The request target takes precedence over the header (RFC 9112, section 3.2.2);
/// in HTTP/2 the target is `:authority`.
fn host(parts: &Parts) -> Option<Cow<'_, str>> {
    if let Some(authority) = parts.uri.authority() {
        return Some(attributes::normalize_host(attributes::host_in_authority(authority.as_str())));
    }
    Some(match joined(&parts.headers, &HOST)? {
        Cow::Borrowed(value) => attributes::normalize_host(value),
        Cow::Owned(value) => Cow::Owned(attributes::normalize_host(&value).into_owned()),
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;

    fn read(request: Request<()>, told: &Attributes, name: &str) -> Option<String> {
        let (parts, ()) = request.into_parts();
        let reads = Reads::new([SmolStr::new(name)]);
        let values = reads.values(&parts, told, peer(&parts));
        values.request("", 1).attribute(name).map(str::to_owned)
    }

    fn of(request: http::request::Builder, name: &str) -> Option<String> {
        read(request.body(()).unwrap(), &Attributes::new(), name)
    }

    #[test]
    fn the_parts_of_a_request_have_names() {
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
            ("user", None),
        ] {
            assert_eq!(of(request(), name).as_deref(), value, "{name}");
        }
        assert_eq!(of(Request::get("/"), "query"), None);
    }

    #[test]
    fn a_host_has_one_spelling() {
        for written in ["example.com", "EXAMPLE.com:443", "example.com:", "example.com.", "Example.com.:80"] {
            assert_eq!(
                of(Request::get("/").header("host", written), "host").as_deref(),
                Some("example.com"),
                "{written}"
            );
        }
        assert_eq!(of(Request::get("/").header("host", "[2001:DB8::1]:80"), "host").as_deref(), Some("[2001:db8::1]"));
        assert_eq!(of(Request::get("/").header("host", "[::1]"), "host").as_deref(), Some("[::1]"));
        assert_eq!(of(Request::get("/").header("host", "example.com:b"), "host").as_deref(), Some("example.com:b"));
        let absolute = Request::get("http://me@Real.example:8080/").header("host", "other.example");
        assert_eq!(of(absolute, "host").as_deref(), Some("real.example"));
        let odd = Request::get("http://Real.example:b/").header("host", "other.example");
        assert_eq!(of(odd, "host").as_deref(), Some("real.example:b"));
        assert_eq!(of(Request::get("/"), "host"), None);
    }

    /// Trap: reading the first line only lets a caller hide what a proxy appended, the last one only what came before.
    #[test]
    fn every_line_of_a_header_counts() {
        let twice = Request::get("/").header("x-key", "a").header("x-key", "b");
        assert_eq!(of(twice, "header:x-key").as_deref(), Some("a, b"));
        let cookies = Request::get("/").header("cookie", "a=1").header("cookie", "b=2");
        assert_eq!(of(cookies, "header:cookie").as_deref(), Some("a=1; b=2"));
        let odd = Request::get("/").header("x-key", HeaderValue::from_bytes(b"\xff!").unwrap());
        assert_eq!(of(odd, "header:x-key").as_deref(), Some("\u{fffd}!"));
    }

    #[test]
    fn the_peer_comes_from_the_connection() {
        let address: SocketAddr = "203.0.113.9:5000".parse().unwrap();
        assert_eq!(of(Request::get("/").extension(address), "ip").as_deref(), Some("203.0.113.9"));
        let own = Request::get("/").extension(address).extension(Peer([198, 51, 100, 1].into()));
        assert_eq!(of(own, "ip").as_deref(), Some("198.51.100.1"));
        let mapped: SocketAddr = "[::ffff:203.0.113.9]:5000".parse().unwrap();
        assert_eq!(of(Request::get("/").extension(mapped), "ip").as_deref(), Some("203.0.113.9"));
    }

    #[test]
    fn what_middleware_knows_cannot_pass_for_the_connection() {
        let mut fake = Attributes::new();
        for name in ["method", "path", "query", "host", "ip", "body", "header:x-key", "cookie:a"] {
            fake.insert(name, "fake");
        }
        for name in ["query", "host", "ip", "body", "header:x-key", "cookie:a"] {
            assert_eq!(read(Request::get("/").extension(fake.clone()).body(()).unwrap(), &fake, name), None, "{name}");
        }
        assert_eq!(of(Request::get("/real").extension(fake.clone()), "path").as_deref(), Some("/real"));
        assert_eq!(of(Request::get("/").extension(fake), "method").as_deref(), Some("GET"));
    }

    #[test]
    fn the_layer_knows_better_than_earlier_middleware() {
        let known = Attributes::new().with("user", "old").with("user", "42").with("tenant", "acme");
        let request = || Request::get("/").extension(known.clone()).body(()).unwrap();
        assert_eq!(read(request(), &Attributes::new(), "user").as_deref(), Some("42"));
        let told = Attributes::new().with("user", "43");
        assert_eq!(read(request(), &told, "user").as_deref(), Some("43"));
        assert_eq!(read(request(), &told, "tenant").as_deref(), Some("acme"));
    }

    #[test]
    fn attributes_keep_their_values_out_of_logs() {
        assert_eq!(format!("{:?}", Attributes::new().with("user", "ann")), r#"Attributes{"user"}"#);
    }
}
