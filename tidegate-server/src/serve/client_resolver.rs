//! `ClientResolver`: who the client of a connection or a request is, by the trusted proxies of the rule file and the networks that
//! `--exempt-clients` names.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use tidegate::attributes::join_header_lines;
use tidegate_rules::{ClientAddresses, RuleFile};

use crate::listen::ResolveClient;

/// Networks as a flag names them: addresses and prefixes, separated by commas, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Networks(Vec<IpNet>);

/// Finds clients. The rules may change while the server runs.
pub(crate) struct ClientResolver {
    exempt: Networks,
    addresses: RwLock<Arc<ForwardedAddresses>>,
}

/// The trusted proxies, and the header that they write.
struct ForwardedAddresses {
    clients: ClientAddresses,
    header: Option<HeaderName>,
}

impl ClientResolver {
    pub(crate) fn new(exempt: Networks, file: &RuleFile) -> Self {
        Self { exempt, addresses: RwLock::new(Arc::new(ForwardedAddresses::new(file))) }
    }

    /// Follows the trusted proxies of another file.
    pub(crate) fn follow(&self, file: &RuleFile) {
        let addresses = Arc::new(ForwardedAddresses::new(file));
        *self.addresses.write().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    fn addresses(&self) -> Arc<ForwardedAddresses> {
        Arc::clone(&self.addresses.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ResolveClient for ClientResolver {
    fn of_connection(&self, peer: IpAddr) -> Option<IpAddr> {
        let peer = peer.to_canonical();
        (!self.exempt.contains(peer) && !self.addresses().clients.trusts(peer)).then_some(peer)
    }

    fn of_request(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        let (peer, addresses) = (peer.to_canonical(), self.addresses());
        let is_trusted = addresses.clients.trusts(peer);
        let header = if is_trusted { addresses.header_value(headers) } else { None };
        let client = addresses.clients.client(peer, header.as_deref());
        // A proxy that names no client asks for itself, such as for a health check.
        let is_proxy = is_trusted && client == peer;
        (!is_proxy && !self.exempt.contains(client)).then_some(client)
    }
}

impl ForwardedAddresses {
    fn new(file: &RuleFile) -> Self {
        let clients = file.client_addresses();
        Self { header: clients.header().parse().ok(), clients }
    }

    fn header_value<'h>(&self, headers: &'h HeaderMap) -> Option<Cow<'h, str>> {
        let name = self.header.as_ref()?;
        let lines = headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
        join_header_lines(name.as_str(), lines)
    }
}

impl Networks {
    fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

impl FromStr for Networks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        let network = |part: &str| {
            let part = part.trim();
            let network = part.parse::<IpNet>().or_else(|_| part.parse::<IpAddr>().map(IpNet::from));
            network.map_err(|_| "write networks such as 10.0.0.0/8, separated by commas, or `none`".to_owned())
        };
        text.split(',').map(network).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Debug for ClientResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientResolver").field("exempt", &self.exempt).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver(identify: &str, exempt: &str) -> ClientResolver {
        let text = format!(
            "version: 1\nidentify: {{ {identify} }}\nrules: [{{ id: a, per: [client], fixed_window: {{ limit: 9, window: 1h }} }}]\n"
        );
        ClientResolver::new(exempt.parse().unwrap(), &RuleFile::parse("rules.yaml", &text).unwrap())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn client(resolver: &ClientResolver, peer: &str, forwarded: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        if !forwarded.is_empty() {
            headers.insert("x-forwarded-for", forwarded.parse().unwrap());
        }
        resolver.of_request(ip(peer), &headers).map(|client| client.to_string())
    }

    #[test]
    fn a_request_through_a_trusted_proxy_belongs_to_its_client() {
        let resolver = resolver("trusted_proxies: 10.0.0.0/8", "127.0.0.0/8");
        for (peer, forwarded, expected) in [
            ("10.0.0.1", "198.51.100.1, 203.0.113.9", Some("203.0.113.9")),
            ("10.0.0.1", "203.0.113.9, 10.0.0.2", Some("203.0.113.9")),
            ("10.0.0.1", "", None),
            ("10.0.0.1", "127.0.0.1", None),
            ("203.0.113.9", "127.0.0.1", Some("203.0.113.9")),
            ("203.0.113.9", "10.0.0.1", Some("203.0.113.9")),
            ("::ffff:203.0.113.9", "", Some("203.0.113.9")),
            ("127.0.0.1", "203.0.113.9", None),
        ] {
            assert_eq!(client(&resolver, peer, forwarded).as_deref(), expected, "{peer} {forwarded}");
        }
    }

    #[test]
    fn connections_of_trusted_proxies_and_exempt_networks_are_not_bounded() {
        let resolver = resolver("trusted_proxies: 10.0.0.0/8", "127.0.0.0/8, ::1");
        for (peer, is_exempt) in [("10.1.2.3", true), ("127.0.0.9", true), ("::1", true), ("203.0.113.9", false)] {
            assert_eq!(resolver.of_connection(ip(peer)).is_none(), is_exempt, "{peer}");
        }
    }

    #[test]
    fn behind_a_counted_proxy_the_client_is_bounded_and_the_connections_are_not() {
        let resolver = resolver("trusted_hops: 1", "none");
        assert_eq!(client(&resolver, "192.0.2.1", "203.0.113.9").as_deref(), Some("203.0.113.9"));
        assert_eq!(resolver.of_connection(ip("192.0.2.1")), None);
    }

    #[test]
    fn networks_are_addresses_and_prefixes_or_none() {
        assert_eq!("none".parse(), Ok(Networks(Vec::new())));
        let networks: Networks = "10.0.0.0/8, 203.0.113.9,2001:db8::/32".parse().unwrap();
        assert!(networks.contains(ip("203.0.113.9")) && !networks.contains(ip("203.0.113.10")));
        for text in ["", "10.0.0.0/33", "localhost", "10.0.0.1,"] {
            assert!(text.parse::<Networks>().unwrap_err().contains("10.0.0.0/8"), "{text}");
        }
    }
}
