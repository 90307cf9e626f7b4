//! The client's address behind proxies: the rightmost address in the header that is not a trusted proxy.
//!
//! Pure. Proxies append on the right, so the list is read from there and only through trusted proxies; a client can write
//! anything to the left.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;
use smol_str::SmolStr;

use crate::ip;

/// The most elements that are read, from the right.
const MAX_FORWARDED_ELEMENTS: usize = 64;

/// The most bytes that are read, from the right.
const MAX_FORWARDED_BYTES: usize = 8 * 1024;

/// Which proxies are trusted to send the client's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyTrust {
    /// None: the peer is the client.
    None,
    /// Proxies in these networks.
    Networks(Vec<IpNet>),
    /// This many proxies in a row, the peer included. More than 64 trusts none.
    Hops(u8),
}

/// The header that the trusted proxies write. Only this one is read; any other may come from the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`: addresses, one appended by each proxy.
    XForwardedFor,
    /// `Forwarded` (RFC 7239): elements, one appended by each proxy.
    Forwarded,
    /// A header with a single address that the proxy overwrites, such as `cf-connecting-ip`.
    Single(SmolStr),
}

/// The client's address in its [normal form](ip::normalize); `None` if the peer is unknown.
///
/// `header` is the value of the header that `by` names, with several lines joined by commas. The work is bounded.
pub(crate) fn client_ip(
    peer: Option<IpAddr>,
    header: Option<&str>,
    trust: &ProxyTrust,
    by: &ForwardedHeader,
) -> Option<IpAddr> {
    let peer = ip::normalize(peer?);
    let Some(header) = header.filter(|_| trust.trusts(peer)) else {
        return Some(peer);
    };
    let read = |element| by.address(element).map(ip::normalize);
    let mut elements = by.elements(header).take(MAX_FORWARDED_ELEMENTS);
    let client = match (by, trust) {
        (ForwardedHeader::Single(_), _) => read(header),
        // Elements in between are not checked: each of the counted proxies appended the address of the one before it.
        (_, ProxyTrust::Hops(hops)) => {
            usize::from(*hops).checked_sub(1).and_then(|skip| elements.nth(skip)).and_then(read)
        }
        _ => {
            // An invalid element ends the walk at the last valid one: no trusted proxy wrote what is further left.
            let mut last = None;
            for address in elements.map_while(read) {
                last = Some(address);
                if !trust.trusts(address) {
                    break;
                }
            }
            last
        }
    };
    Some(client.unwrap_or(peer))
}

impl ProxyTrust {
    /// Whether a proxy with this address is trusted; a counted proxy may have any address.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        match self {
            Self::None => false,
            Self::Networks(networks) => networks.iter().any(|network| network.contains(&address)),
            Self::Hops(hops) => *hops > 0,
        }
    }
}

impl ForwardedHeader {
    /// The elements, the last one first.
    fn elements<'h>(&self, header: &'h str) -> ElementsFromRight<'h> {
        let end = header.len().saturating_sub(MAX_FORWARDED_BYTES);
        ElementsFromRight { rest: Some(header), end, quotes: *self == Self::Forwarded }
    }

    fn address(&self, element: &str) -> Option<IpAddr> {
        match self {
            Self::Forwarded => ip::parse(&node(element)?),
            Self::XForwardedFor | Self::Single(_) => ip::parse(element),
        }
    }
}

/// The elements of a list, the last one first, as far as they lie wholly within the last [`MAX_FORWARDED_BYTES`].
struct ElementsFromRight<'h> {
    /// The part that has not been read.
    rest: Option<&'h str>,
    /// Where to stop reading.
    end: usize,
    /// Whether commas between quotes are part of an element.
    quotes: bool,
}

impl<'h> Iterator for ElementsFromRight<'h> {
    type Item = &'h str;

    /// Elements that proxies appended are well formed and parse the same whatever a client wrote before them, an open quote
    /// included.
    fn next(&mut self) -> Option<&'h str> {
        let rest = self.rest.take()?;
        let bytes = rest.as_bytes();
        let mut quoted = false;
        for at in (self.end..bytes.len()).rev() {
            match bytes[at] {
                b'"' if self.quotes && !(quoted && is_escaped(&bytes[self.end..at])) => quoted = !quoted,
                b',' if !quoted => {
                    self.rest = Some(&rest[..at]);
                    return Some(&rest[at + 1..]);
                }
                _ => {}
            }
        }
        (self.end == 0 && !quoted).then_some(rest)
    }
}

/// Whether the byte after `before` is escaped: an odd number of backslashes precedes it.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The value of `for` in one element of `Forwarded`, if it has exactly one and is well formed throughout.
fn node(element: &str) -> Option<Cow<'_, str>> {
    let mut node = None;
    let mut rest = element.trim();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = value(after)?;
        if name.trim().eq_ignore_ascii_case("for") && node.replace(value).is_some() {
            return None;
        }
        let after = after.trim_start();
        rest = if after.is_empty() { after } else { after.strip_prefix(';')?.trim_start() };
    }
    node
}

/// A token or a quoted string at the start of `text`, and what follows it.
fn value(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (token, after) = text.split_at(text.find(';').unwrap_or(text.len()));
        return Some((Cow::Borrowed(token), after));
    };
    let mut plain = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((Cow::Owned(plain), &quoted[at + 1..])),
            '\\' => plain.push(chars.next()?.1),
            _ => plain.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PEER: &str = "10.0.0.1";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// `10.0.0.0/8` and `fd00::/8` are ours.
    fn ours() -> ProxyTrust {
        ProxyTrust::Networks(vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()])
    }

    fn client_text(peer: &str, header: &str, trust: &ProxyTrust, by: &ForwardedHeader) -> String {
        client_ip(Some(ip(peer)), Some(header), trust, by).unwrap().to_string()
    }

    fn by_list(header: &str) -> String {
        client_text(PEER, header, &ours(), &ForwardedHeader::XForwardedFor)
    }

    fn by_forwarded(header: &str) -> String {
        client_text(PEER, header, &ours(), &ForwardedHeader::Forwarded)
    }

    #[test]
    fn a_spoofed_forwarded_header_does_not_change_the_client_address() {
        // A peer that is not trusted may send any header.
        for by in
            [ForwardedHeader::XForwardedFor, ForwardedHeader::Forwarded, ForwardedHeader::Single("x-real-ip".into())]
        {
            assert_eq!(client_text("203.0.113.9", "6.6.6.6", &ours(), &by), "203.0.113.9");
            assert_eq!(client_text(PEER, "6.6.6.6", &ProxyTrust::None, &by), PEER);
            assert_eq!(client_text(PEER, "6.6.6.6", &ProxyTrust::Networks(vec![]), &by), PEER);
            assert_eq!(client_text(PEER, "6.6.6.6", &ProxyTrust::Hops(0), &by), PEER);
        }
        // Behind our proxies, anything the client wrote is to the left of its own address.
        for lie in ["6.6.6.6", "10.0.0.7", "garbage", "", ",,,", "\"", "for=\"", "6.6.6.6, 10.1.1.1"] {
            assert_eq!(by_list(&format!("{lie}, 203.0.113.9")), "203.0.113.9", "{lie}");
            assert_eq!(by_list(&format!("{lie}, 203.0.113.9, 10.0.0.2")), "203.0.113.9", "{lie}");
            assert_eq!(by_forwarded(&format!("{lie}, for=203.0.113.9")), "203.0.113.9", "{lie}");
            assert_eq!(by_forwarded(&format!("{lie}, for=203.0.113.9;by=\"x\", for=\"10.0.0.2\"")), "203.0.113.9");
            let hops =
                |header: String| client_text(PEER, &header, &ProxyTrust::Hops(2), &ForwardedHeader::XForwardedFor);
            assert_eq!(hops(format!("{lie}, 203.0.113.9, 10.0.0.2")), "203.0.113.9", "{lie}");
        }
    }

    #[test]
    fn the_client_is_the_first_untrusted_address_from_the_right() {
        assert_eq!(by_list("203.0.113.9"), "203.0.113.9");
        assert_eq!(by_list("198.51.100.1,203.0.113.9:4711 , 10.0.0.3,10.0.0.2"), "203.0.113.9");
        assert_eq!(by_list("\"[2001:db8::1]:80\", fd00::2"), "2001:db8::1");
    }

    #[test]
    fn if_all_addresses_are_trusted_the_client_is_the_leftmost() {
        assert_eq!(by_list("10.0.0.9, 10.0.0.3"), "10.0.0.9");
        assert_eq!(by_forwarded("for=10.0.0.9, for=10.0.0.3"), "10.0.0.9");
    }

    #[test]
    fn an_invalid_element_ends_the_walk_at_the_last_valid_address() {
        for bad in ["unknown", "_hidden", "garbage", "", "1.2.3", "6.6.6.6 6.6.6.6"] {
            assert_eq!(by_list(&format!("6.6.6.6, {bad}, 10.0.0.3")), "10.0.0.3", "{bad}");
            assert_eq!(by_list(&format!("6.6.6.6, {bad}")), PEER, "{bad}");
            assert_eq!(by_forwarded(&format!("for=6.6.6.6, for=\"{bad}\", for=10.0.0.3")), "10.0.0.3", "{bad}");
        }
        for bad in ["proto=https", "for=1.1.1.1;for=2.2.2.2", "1.1.1.1", "for", "for=\"1.1.1.1\\", "for=\"1.1.1.1\"x"] {
            assert_eq!(by_forwarded(&format!("for=6.6.6.6, {bad}, for=10.0.0.3")), "10.0.0.3", "{bad}");
        }
        assert_eq!(by_forwarded("x\"=1;for=6.6.6.6, for=10.0.0.3"), "10.0.0.3");
        assert_eq!(by_list(""), PEER);
        assert_eq!(by_list("203.0.113.9,"), PEER);
    }

    #[test]
    fn ipv4_addresses_embedded_in_ipv6_are_compared_as_ipv4() {
        assert_eq!(
            client_text("::ffff:a00:1", "::ffff:cb00:7109, ::ffff:10.0.0.2", &ours(), &ForwardedHeader::XForwardedFor),
            { "203.0.113.9" }
        );
        assert_eq!(
            client_ip(Some(ip("::ffff:1.2.3.4")), None, &ours(), &ForwardedHeader::Forwarded),
            Some(ip("1.2.3.4"))
        );
    }

    #[test]
    fn hops_are_counted_from_the_right_with_the_peer_as_the_first() {
        let hops =
            |count, header| client_text("192.0.2.1", header, &ProxyTrust::Hops(count), &ForwardedHeader::XForwardedFor);
        assert_eq!(hops(1, "6.6.6.6, 203.0.113.9"), "203.0.113.9");
        assert_eq!(hops(2, "6.6.6.6, 203.0.113.9, 10.0.0.2"), "203.0.113.9");
        assert_eq!(hops(2, "203.0.113.9, unknown"), "203.0.113.9");
        // Too short a list, or no address at that place, is not what was declared.
        assert_eq!(hops(3, "203.0.113.9, 10.0.0.2"), "192.0.2.1");
        assert_eq!(hops(2, "unknown, 10.0.0.2"), "192.0.2.1");
        assert_eq!(hops(255, &"203.0.113.9,".repeat(300)), "192.0.2.1");
        assert_eq!(
            client_text("192.0.2.1", "for=6.6.6.6, for=1.1.1.1", &ProxyTrust::Hops(1), &ForwardedHeader::Forwarded),
            "1.1.1.1"
        );
    }

    #[test]
    fn a_single_address_header_with_several_addresses_is_ignored() {
        let by = ForwardedHeader::Single("cf-connecting-ip".into());
        assert_eq!(client_text(PEER, "203.0.113.9", &ours(), &by), "203.0.113.9");
        assert_eq!(client_text(PEER, "::ffff:203.0.113.9", &ProxyTrust::Hops(1), &by), "203.0.113.9");
        assert_eq!(client_text(PEER, "203.0.113.9, 6.6.6.6", &ours(), &by), PEER);
        assert_eq!(client_text(PEER, "unknown", &ours(), &by), PEER);
    }

    #[test]
    fn without_a_peer_address_there_is_no_client_address() {
        assert_eq!(client_ip(None, Some("203.0.113.9"), &ProxyTrust::Hops(1), &ForwardedHeader::XForwardedFor), None);
        assert_eq!(client_ip(Some(ip(PEER)), None, &ours(), &ForwardedHeader::XForwardedFor), Some(ip(PEER)));
    }

    #[test]
    fn forwarded_is_read_with_its_quotes_and_pairs() {
        for (header, expected) in [
            ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"),
            ("FOR=192.0.2.60", "192.0.2.60"),
            ("by=10.0.0.1; For=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=\"192.0.2.60:80\" ; proto=https;", "192.0.2.60"),
            ("for=\"1\\92.0.2.60\"", "192.0.2.60"),
            ("for=192.0.2.60;host=\"a, for=6.6.6.6\"", "192.0.2.60"),
            ("for=192.0.2.60;host=\"a\\\", for=6.6.6.6, \\\\\", for=10.0.0.2", "192.0.2.60"),
            ("for=192.0.2.60;ext=\"\\\"\", for=10.0.0.2", "192.0.2.60"),
        ] {
            assert_eq!(by_forwarded(header), expected, "{header}");
        }
    }

    #[test]
    fn a_long_header_is_read_only_up_to_a_bound_from_the_right() {
        let many = |element: &str, count| vec![element; count].join(",");
        // 64 trusted elements hide the client; 63 do not.
        assert_eq!(by_list(&format!("203.0.113.9,{}", many("10.0.0.3", 63))), "203.0.113.9");
        assert_eq!(by_list(&format!("203.0.113.9,{}", many("10.0.0.3", 64))), "10.0.0.3");
        assert_eq!(by_list(&many("10.0.0.3", 10_000)), "10.0.0.3");
        // An element that begins beyond the last 8 KiB is not taken for its tail.
        let ours_after = format!(",{:128}", "10.0.0.3").repeat(63);
        let straddling = format!("garbage{:65}", "203.0.113.9");
        assert_eq!(straddling.len() - "garbage".len() + ours_after.len(), MAX_FORWARDED_BYTES);
        assert_eq!(by_list(&format!("{straddling}{ours_after}")), "10.0.0.3");
        let space = " ".repeat(MAX_FORWARDED_BYTES);
        assert_eq!(by_list(&format!("203.0.113.9,{space}6.6.6.6")), PEER);
        assert_eq!(by_list(&format!("203.0.113.9{space}, 10.0.0.3")), "10.0.0.3");
        assert_eq!(by_forwarded(&format!("for=\"{space}\", for=10.0.0.3")), "10.0.0.3");
        assert_eq!(by_list(&format!("{}, 203.0.113.9", "é".repeat(MAX_FORWARDED_BYTES))), "203.0.113.9");
    }

    proptest! {
        #[test]
        fn no_header_of_a_client_changes_its_address(lie in "[a-z0-9.:;,=_\"\\\\ \\[\\]é]{0,60}") {
            for ours_after in ["", ", 10.0.0.2", ", 10.0.0.3, 10.0.0.2"] {
                prop_assert_eq!(by_list(&format!("{lie}, 203.0.113.9{ours_after}")), "203.0.113.9");
            }
            for ours_after in ["", ", for=10.0.0.2", ", for=10.0.0.3;by=\"a,\\\"\", for=\"10.0.0.2:80\""] {
                prop_assert_eq!(by_forwarded(&format!("{lie}, for=\"203.0.113.9\"{ours_after}")), "203.0.113.9");
            }
        }
    }

    #[test]
    fn no_header_panics_and_every_result_is_normal() {
        bolero::check!().with_type::<String>().for_each(|header| {
            for by in [ForwardedHeader::XForwardedFor, ForwardedHeader::Forwarded, ForwardedHeader::Single("x".into())]
            {
                for trust in [ours(), ProxyTrust::Hops(1), ProxyTrust::None] {
                    let client = client_ip(Some(ip(PEER)), Some(header), &trust, &by).unwrap();
                    assert_eq!(client, ip::normalize(client));
                }
            }
        });
    }
}
