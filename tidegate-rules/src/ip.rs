//! IP addresses in rules and headers: one spelling for each client, and the network that is limited as one subject.
//!
//! Trust in addresses is decided in `forwarded`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use tidegate::spi::format_address;

/// The longest text of an address, with port, brackets and zone.
const MAX_ADDRESS_BYTES: usize = 128;

/// The prefix lengths that make an address a subject. A client with an IPv6 address usually has its whole /64, so a limit per
/// full address would have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPrefixes {
    v4: u8,
    v6: u8,
}

/// Parses an address in a header, which may have a port, brackets, a zone or quotes.
pub(crate) fn parse(text: &str) -> Option<IpAddr> {
    // Most are plain addresses, as front ends write them.
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Some(address.into());
    }
    if text.len() > MAX_ADDRESS_BYTES {
        return None;
    }
    let text = text.trim();
    let text = text.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).unwrap_or(text).trim();
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']')?;
        return (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then(|| v6(address))?;
    }
    match text.split_once(':') {
        // A second colon makes it IPv6, which carries a port only behind brackets.
        Some((address, port)) if is_port(port) && !address.is_empty() => address.parse().ok().map(IpAddr::V4),
        Some(_) => v6(text),
        None => text.parse().ok().map(IpAddr::V4),
    }
}

/// The normal form of an address: an IPv4 address mapped into IPv6 (`::ffff:0:0/96`), or translated with the well-known
/// prefix of NAT64 (`64:ff9b::/96`), becomes that IPv4 address.
///
/// Recognized by range, not by notation: `::ffff:102:304` is `1.2.3.4` too. Otherwise all of IPv4 would share one /64. A 6to4
/// address (`2002::/16`) stays as it is: its /64 belongs to one site.
pub(crate) fn normalize(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => embedded(v6).map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// Parses a network: `10.0.0.0/8`, or a single address.
///
/// A network of embedded IPv4 addresses becomes the IPv4 network, since it is compared with what [`normalize`] returns.
pub(crate) fn parse_network(text: &str) -> Result<IpNet, String> {
    const NETWORK_HELP: &str = "write one such as 10.0.0.0/8, 2001:db8::/32 or 203.0.113.9";
    if text.len() > MAX_ADDRESS_BYTES {
        return Err(format!("a text of {} bytes is not a network; {NETWORK_HELP}", text.len()));
    }
    let invalid = || format!("{text:?} is not a network; {NETWORK_HELP}");
    let (address, prefix) = match text.trim().split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text.trim(), None),
    };
    let address: IpAddr = address.parse().map_err(|_| invalid())?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        // Digits only: `parse` would accept a sign.
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().map_err(|_| invalid())?,
        Some(_) => return Err(invalid()),
        None => max,
    };
    let as_written = IpNet::new(address, prefix)
        .map_err(|_| format!("{text:?} has a prefix of {prefix} bits; such an address has {max}"))?;
    if as_written != as_written.trunc() {
        let network = as_written.trunc();
        return Err(format!(
            "{text:?} is an address in a network; write {network}, or {address} for the single address"
        ));
    }
    // Only a prefix of 96 or more stays within the embedded addresses.
    let shorter = prefix.checked_sub(96).filter(|_| address.is_ipv6());
    let embedded =
        shorter.and_then(|prefix| IpNet::new(normalize(address), prefix).ok()).filter(|_| normalize(address).is_ipv4());
    Ok(embedded.unwrap_or(as_written))
}

impl IpPrefixes {
    /// Limits IPv4 by the first `v4` bits of the address and IPv6 by the first `v6`.
    pub(crate) fn new(v4: u8, v6: u8) -> Result<Self, String> {
        for (kind, bits, max) in [("IPv4", v4, 32), ("IPv6", v6, 128)] {
            if bits == 0 || bits > max {
                return Err(format!("an {kind} prefix of {bits} bits is out of range: it must be 1 to {max}"));
            }
        }
        Ok(Self { v4, v6 })
    }

    /// The subject of an address: the address or its network.
    pub(crate) fn subject(self, ip: IpAddr) -> String {
        // Both prefixes are at least 1, so no shift overflows.
        match normalize(ip) {
            IpAddr::V4(ip) if self.v4 == 32 => format_address(ip.into()),
            IpAddr::V4(ip) => {
                let network = Ipv4Addr::from_bits(ip.to_bits() & (u32::MAX << (32 - self.v4)));
                format!("{network}/{}", self.v4)
            }
            IpAddr::V6(ip) if self.v6 == 128 => ip.to_string(),
            IpAddr::V6(ip) => {
                let network = Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << (128 - self.v6)));
                format!("{network}/{}", self.v6)
            }
        }
    }
}

impl Default for IpPrefixes {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}

/// Parses an IPv6 address without its zone, which is local to the machine that wrote it.
fn v6(text: &str) -> Option<IpAddr> {
    let address = match text.split_once('%') {
        Some((address, zone)) if !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_graphic()) => address,
        Some(_) => return None,
        None => text,
    };
    address.parse().ok().map(IpAddr::V6)
}

/// Whether this is a port, or an obfuscated one (RFC 7239: `_` and letters).
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    }
}

fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    const NAT64: u128 = 0x0064_ff9b << 96;
    let nat64 = ip.to_bits() >> 32 == NAT64 >> 32;
    ip.to_ipv4_mapped().or_else(|| nat64.then(|| Ipv4Addr::from_bits(ip.to_bits() as u32)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_parsed_with_port_brackets_zone_or_quotes() {
        for (text, expected) in [
            ("1.2.3.4", "1.2.3.4"),
            (" 1.2.3.4\t", "1.2.3.4"),
            ("1.2.3.4:55", "1.2.3.4"),
            ("1.2.3.4:_hidden", "1.2.3.4"),
            ("\"1.2.3.4:55\"", "1.2.3.4"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("[::1]:55", "::1"),
            ("\" [2001:db8::17]:4711 \"", "2001:db8::17"),
            ("fe80::1%eth0", "fe80::1"),
            ("[fe80::1%25eth0]:80", "fe80::1"),
            ("::ffff:1.2.3.4", "::ffff:1.2.3.4"),
            ("2001:db8::1:80", "2001:db8::1:80"),
            ("::1234", "::1234"),
        ] {
            assert_eq!(parse(text), Some(ip(expected)), "{text}");
        }
    }

    #[test]
    fn an_invalid_address_is_none() {
        for text in [
            "",
            "unknown",
            "_hidden",
            "localhost",
            "1.2.3",
            "1.2.3.4.5",
            "01.2.3.4",
            "1.2.3.4:",
            "1.2.3.4:65536",
            "1.2.3.4:+5",
            "1.2.3.4 5",
            "1.2.3.4, 5.6.7.8",
            "1.2.3.4%eth0",
            "[1.2.3.4]",
            "[::1",
            "::1]",
            "[::1]55",
            "[::1]:x",
            "fe80::1%",
            "\"1.2.3.4",
            "1.2.3.4/24",
            "[]",
            ":",
            ":55",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&format!("{}1.2.3.4", " ".repeat(MAX_ADDRESS_BYTES))), None);
    }

    /// Trap: all of IPv4 shared one bucket, since `::ffff:0:0/96` lies within one /64; and the check looked for dots.
    #[test]
    fn an_ipv4_address_within_ipv6_is_that_ipv4_address() {
        for text in ["1.2.3.4", "::ffff:1.2.3.4", "::ffff:102:304", "64:ff9b::1.2.3.4", "64:ff9b::102:304"] {
            assert_eq!(normalize(ip(text)), ip("1.2.3.4"), "{text}");
            assert_eq!(IpPrefixes::default().subject(ip(text)), "1.2.3.4", "{text}");
        }
        for text in ["2002:102:304::1", "::102:304", "64:ff9b:1::102:304", "::fffe:102:304", "64:ff9b::1:0:0"] {
            assert_eq!(normalize(ip(text)), ip(text), "{text}");
        }
    }

    #[test]
    fn a_subject_is_a_network() {
        let whole = IpPrefixes::default();
        assert_eq!(whole.subject(ip("203.0.113.9")), "203.0.113.9");
        assert_eq!(whole.subject(ip("2001:db8:1:2:3:4:5:6")), "2001:db8:1:2::/64");
        assert_eq!(whole.subject(ip("2001:db8:1:2::1")), whole.subject(ip("2001:db8:1:2:ffff::9")));
        let coarse = IpPrefixes::new(24, 48).unwrap();
        assert_eq!(coarse.subject(ip("203.0.113.9")), "203.0.113.0/24");
        assert_eq!(coarse.subject(ip("2001:db8:1:2::1")), "2001:db8:1::/48");
        let fine = IpPrefixes::new(1, 128).unwrap();
        assert_eq!(fine.subject(ip("203.0.113.9")), "128.0.0.0/1");
        assert_eq!(fine.subject(ip("2001:db8::1")), "2001:db8::1");
    }

    #[test]
    fn impossible_prefixes_are_refused() {
        assert_eq!(
            IpPrefixes::new(33, 64).unwrap_err(),
            "an IPv4 prefix of 33 bits is out of range: it must be 1 to 32"
        );
        assert_eq!(
            IpPrefixes::new(32, 129).unwrap_err(),
            "an IPv6 prefix of 129 bits is out of range: it must be 1 to 128"
        );
        assert!(IpPrefixes::new(0, 64).is_err());
        assert!(IpPrefixes::new(32, 0).is_err());
        assert_eq!(IpPrefixes::new(32, 64), Ok(IpPrefixes::default()));
    }

    #[test]
    fn networks_and_single_addresses_are_networks() {
        for (text, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("127.0.0.1", "127.0.0.1/32"),
            (" ::1 ", "::1/128"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("64:ff9b::a00:0/104", "10.0.0.0/8"),
            ("64:ff9b::/64", "64:ff9b::/64"),
        ] {
            assert_eq!(parse_network(text).map(|network| network.to_string()).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn the_error_of_an_invalid_network_names_the_likely_one() {
        assert_eq!(
            parse_network("10.0.0.1/8").unwrap_err(),
            "\"10.0.0.1/8\" is an address in a network; write 10.0.0.0/8, or 10.0.0.1 for the single address"
        );
        assert_eq!(
            parse_network("10.0.0.0/33").unwrap_err(),
            "\"10.0.0.0/33\" has a prefix of 33 bits; such an address has 32"
        );
        for text in ["", "/8", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/8/8", "10.0.0.0/255.0.0.0", "10.0.0/8", "private"]
        {
            assert!(parse_network(text).unwrap_err().contains("is not a network; write one such as"), "{text}");
        }
        assert!(parse_network(&"1".repeat(10_000)).unwrap_err().len() < 200);
    }

    proptest! {
        #[test]
        fn every_address_parses_in_every_notation(bits in any::<u128>(), small in any::<u32>(), port in any::<u16>()) {
            for ip in [IpAddr::V6(Ipv6Addr::from_bits(bits)), IpAddr::V4(Ipv4Addr::from_bits(small))] {
                prop_assert_eq!(parse(&ip.to_string()), Some(ip));
                let with_port = std::net::SocketAddr::new(ip, port).to_string();
                prop_assert_eq!(parse(&with_port), Some(ip));
                prop_assert_eq!(parse(&format!(" \"{with_port}\"")), Some(ip));
                prop_assert_eq!(normalize(normalize(ip)), normalize(ip));
            }
        }

        #[test]
        fn a_subject_holds_its_address(bits in any::<u128>(), small in any::<u32>(), v4 in 1..=32_u8, v6 in 1..=128_u8) {
            let prefixes = IpPrefixes::new(v4, v6).unwrap();
            for ip in [IpAddr::V6(Ipv6Addr::from_bits(bits)), IpAddr::V4(Ipv4Addr::from_bits(small))] {
                let subject = parse_network(&prefixes.subject(ip)).unwrap();
                prop_assert!(subject.contains(&normalize(ip)));
            }
        }

        #[test]
        fn no_text_of_typical_characters_panics(text in "[0-9a-f:.%/\\[\\]\" _]{0,40}") {
            let _ = (parse(&text), parse_network(&text));
        }
    }

    #[test]
    fn no_text_panics() {
        bolero::check!().with_type::<String>().for_each(|text| {
            assert!(parse(text).is_none_or(|ip| parse(&ip.to_string()) == Some(ip)));
            assert!(
                parse_network(text).is_ok_and(|network| network == network.trunc()) || parse_network(text).is_err()
            );
        });
    }
}
