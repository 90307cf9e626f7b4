//! `RequestAttributes`: translates the parts of an HTTP request into attributes. It is the only place that does, whatever front end the
//! request comes through. It knows no type of an HTTP library, and decides nothing.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use smallvec::SmallVec;

use super::{
    HOST, IP, PATH, QUERY, bytes_to_text, header_name, host_in_authority, is_list_header, join_header_lines,
    normalize_host,
};
use crate::Request;
use crate::spi::format_address;

/// The attributes of a request, as a front end adds them part by part.
///
/// The names of the parts, and the form of their values, are the same for every front end: lines of a header that is a list are joined,
/// those of any other header are repeated values, a host is in its [normal form](normalize_host), an IPv4 address mapped into IPv6 is the
/// IPv4 address. What needs no change is borrowed.
///
/// ```
/// use tidegate::attributes::{METHOD, RequestAttributes};
///
/// let mut attributes = RequestAttributes::new("", 1);
/// attributes.add(METHOD, "GET");
/// attributes.add_target("/search?q=tide");
/// attributes.add_host(None, [&b"API.example.com:443"[..]]);
/// attributes.add_address([203, 0, 113, 9].into());
/// attributes.add_header("header:cookie", [&b"a=1"[..], b"b=2"]);
/// attributes.add_header("header:x-api-key", [&b"k1"[..], b"k2"]);
///
/// let request = attributes.request();
/// for (name, value) in [
///     ("method", "GET"),
///     ("path", "/search"),
///     ("query", "q=tide"),
///     ("host", "api.example.com"),
///     ("ip", "203.0.113.9"),
///     ("header:cookie", "a=1; b=2"),
///     ("header:x-api-key", "k1"),
/// ] {
///     assert_eq!(request.attribute(name), Some(value));
/// }
/// assert_eq!(request.further_values("header:x-api-key").collect::<Vec<_>>(), ["k2"]);
/// ```
#[derive(Clone)]
pub struct RequestAttributes<'a> {
    action: Cow<'a, str>,
    cost: u64,
    values: SmallVec<[Attribute<'a>; 4]>,
    /// Further lines of headers that came more than once and are no lists. Rules decide whether such a request can be judged.
    repeats: Vec<Attribute<'a>>,
}

/// The name and the value of an attribute.
type Attribute<'a> = (Cow<'a, str>, Cow<'a, str>);

impl<'a> RequestAttributes<'a> {
    /// A request without attributes.
    pub fn new(action: impl Into<Cow<'a, str>>, cost: u64) -> Self {
        Self { action: action.into(), cost, values: SmallVec::new(), repeats: Vec::new() }
    }

    /// Adds an attribute whose value needs no change, such as the method, or one of the application. The first value of a name counts.
    #[inline]
    pub fn add(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) {
        self.values.push((name.into(), value.into()));
    }

    /// Adds the path and the query of a request target. The fragment is not a part of a request, and dropped. There is no query without
    /// a `?`.
    pub fn add_target(&mut self, target: &'a str) {
        let target = target.split('#').next().unwrap_or_default();
        match target.split_once('?') {
            Some((path, query)) => {
                self.add(PATH, path);
                self.add(QUERY, query);
            }
            None => self.add(PATH, target),
        }
    }

    /// Adds the requested host: that of the target, which in HTTP/2 is `:authority`, else of the lines of the `Host` header (RFC 9112,
    /// section 3.2.2).
    pub fn add_host(&mut self, authority: Option<&'a str>, lines: impl IntoIterator<Item = &'a [u8]>) {
        if let Some(authority) = authority {
            return self.add(HOST, normalize_host(host_in_authority(authority)));
        }
        let mut lines = lines.into_iter().map(bytes_to_text);
        match lines.next() {
            Some(Cow::Borrowed(line)) => self.add(HOST, normalize_host(line)),
            Some(Cow::Owned(line)) => self.add(HOST, normalize_host(&line).into_owned()),
            None => {}
        }
        self.repeats.extend(lines.map(|line| (HOST.into(), line)));
    }

    /// Adds the address of the TCP peer.
    pub fn add_address(&mut self, peer: IpAddr) {
        self.add(IP, format_address(peer.to_canonical()));
    }

    /// Adds the lines of the header that `attribute` names. Those of a [list](is_list_header) are joined. Of any other header the first one
    /// counts, and the others are [further values](Request::with_further_value).
    pub fn add_header(&mut self, attribute: impl Into<Cow<'a, str>>, lines: impl IntoIterator<Item = &'a [u8]>) {
        let attribute = attribute.into();
        let name = header_name(&attribute).unwrap_or_default();
        if is_list_header(name) {
            if let Some(value) = join_header_lines(name, lines) {
                self.values.push((attribute, value));
            }
            return;
        }
        let mut lines = lines.into_iter().map(bytes_to_text);
        let Some(first) = lines.next() else { return };
        self.repeats.extend(lines.map(|line| (attribute.clone(), line)));
        self.values.push((attribute, first));
    }

    /// The same, without a reference to the request that it was read from.
    pub fn into_owned(self) -> RequestAttributes<'static> {
        let owned = |(name, value): Attribute<'a>| (Cow::Owned(name.into_owned()), Cow::Owned(value.into_owned()));
        RequestAttributes {
            action: Cow::Owned(self.action.into_owned()),
            cost: self.cost,
            values: self.values.into_iter().map(owned).collect(),
            repeats: self.repeats.into_iter().map(owned).collect(),
        }
    }

    /// The request, for a [`Limiter`](crate::Limiter).
    #[inline]
    pub fn request(&self) -> Request<'_> {
        let request = Request::new(&self.action).with_cost(self.cost);
        let request = self.values.iter().fold(request, |request, (name, value)| request.with_attribute(name, value));
        self.repeats.iter().fold(request, |request, (name, value)| request.with_further_value(name, value))
    }
}

/// Shows names only: values identify subjects and must not appear in logs.
impl fmt::Debug for RequestAttributes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestAttributes")?;
        f.debug_set().entries(self.values.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lines<'a> = &'a [&'a [u8]];

    fn header(name: &'static str, lines: Lines<'static>) -> (Option<String>, Vec<String>) {
        let mut attributes = RequestAttributes::new("", 1);
        attributes.add_header(name, lines.iter().copied());
        let request = attributes.request();
        (request.attribute(name).map(str::to_owned), request.further_values(name).map(str::to_owned).collect())
    }

    fn host(authority: Option<&'static str>, lines: Lines<'static>) -> (Option<String>, Vec<String>) {
        let mut attributes = RequestAttributes::new("", 1);
        attributes.add_host(authority, lines.iter().copied());
        let request = attributes.request();
        (request.attribute("host").map(str::to_owned), request.further_values("host").map(str::to_owned).collect())
    }

    #[test]
    fn lines_of_a_list_are_one_value_and_those_of_other_headers_are_several() {
        assert_eq!(header("header:x-key", &[]), (None, vec![]));
        assert_eq!(header("header:x-key", &[b"a"]), (Some("a".into()), vec![]));
        assert_eq!(header("header:x-key", &[b"a", b"b", b"a"]), (Some("a".into()), vec!["b".into(), "a".into()]));
        assert_eq!(header("header:via", &[b"a", b"\xff"]), (Some("a, \u{fffd}ff".into()), vec![]));
        assert_eq!(header("header:cookie", &[b"a=1", b"b=2"]), (Some("a=1; b=2".into()), vec![]));
    }

    #[test]
    fn the_host_of_the_target_takes_precedence_over_the_header() {
        assert_eq!(host(None, &[]), (None, vec![]));
        assert_eq!(host(None, &[b"Example.com:80"]), (Some("example.com".into()), vec![]));
        assert_eq!(host(None, &[b"A\xff:80", b"b"]), (Some("a\u{fffd}ff".into()), vec!["b".into()]));
        assert_eq!(host(Some("me@Real.example:80"), &[b"a", b"b"]), (Some("real.example".into()), vec![]));
    }

    #[test]
    fn a_target_is_split_and_its_fragment_is_dropped() {
        for (target, expected) in [
            ("/a", (Some("/a"), None)),
            ("/a?", (Some("/a"), Some(""))),
            ("/a?b=c?d#e", (Some("/a"), Some("b=c?d"))),
            ("/a#b?c", (Some("/a"), None)),
            ("*", (Some("*"), None)),
        ] {
            let mut attributes = RequestAttributes::new("", 1);
            attributes.add_target(target);
            let request = attributes.request();
            assert_eq!((request.attribute("path"), request.attribute("query")), expected, "{target}");
        }
    }

    #[test]
    fn an_address_has_one_spelling() {
        for (address, expected) in
            [("203.0.113.9", "203.0.113.9"), ("::ffff:203.0.113.9", "203.0.113.9"), ("2001:DB8::1", "2001:db8::1")]
        {
            let mut attributes = RequestAttributes::new("", 1);
            attributes.add_address(address.parse().unwrap());
            assert_eq!(attributes.request().attribute("ip"), Some(expected));
        }
    }

    #[test]
    fn owned_attributes_make_the_same_request() {
        let mut attributes = RequestAttributes::new("login", 3);
        attributes.add("account", "ann");
        attributes.add_header("header:x-key", [&b"a"[..], b"b"]);
        let owned = attributes.into_owned();
        assert_eq!(format!("{owned:?}"), r#"RequestAttributes{"account", "header:x-key"}"#);
        let request = owned.request();
        assert_eq!((request.action(), request.cost()), ("login", 3));
        assert_eq!((request.attribute("account"), request.attribute("header:x-key")), (Some("ann"), Some("a")));
        assert_eq!(request.further_values("header:x-key").collect::<Vec<_>>(), ["b"]);
    }
}
