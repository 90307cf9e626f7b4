//! `ClientResolver`: who the client of a connection or a request is, by the trusted proxies of the rule file and the networks that
//! `--exempt-clients` names.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use tidegate::Request;
use tidegate::attributes::{self, join_header_lines};
use tidegate::sync::RwLock;
use tidegate_rules::{ClientAddresses, FrontDoor, RuleFile};

use crate::listen::ResolveClient;
use crate::observe::metrics::untrusted_forwarded::UntrustedForwarded;

/// Networks as a flag names them: addresses and prefixes, separated by commas, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Networks(Vec<IpNet>);

/// Finds clients. The rules may change while the server runs.
pub(crate) struct ClientResolver {
    exempt: Networks,
    untrusted: UntrustedForwarded,
    addresses: RwLock<Arc<ForwardedAddresses>>,
}

/// The trusted proxies, and the header that they write.
struct ForwardedAddresses {
    clients: ClientAddresses,
    header: Option<HeaderName>,
    /// The attribute of that header, if a rule reads the client's address.
    attribute: Option<String>,
}

impl ClientResolver {
    pub(crate) fn new(exempt: Networks, file: &RuleFile, untrusted: UntrustedForwarded) -> Self {
        Self { exempt, untrusted, addresses: RwLock::new(Arc::new(ForwardedAddresses::new(file))) }
    }

    /// Counts a call of forward-auth with an address of its client, if the rules read it and do not trust the caller.
    pub(crate) fn count_call(&self, peer: IpAddr, headers: &HeaderMap) {
        let addresses = self.addresses();
        if addresses.attribute.is_some() && addresses.has_header(headers) && !addresses.clients.trusts(peer) {
            self.untrusted.count(FrontDoor::ForwardAuth, addresses.clients.header());
        }
    }

    /// Counts a check with an address of its client, if the rules read it and do not trust the address that it came from.
    pub(crate) fn count_check(&self, request: &Request<'_>) {
        let addresses = self.addresses();
        let Some(attribute) = &addresses.attribute else { return };
        if request.attribute(attribute).is_some()
            && let Some(Ok(peer)) = request.attribute(attributes::IP).map(str::parse)
            && !addresses.clients.trusts(peer)
        {
            self.untrusted.count(FrontDoor::Check, addresses.clients.header());
        }
    }

    /// Follows the trusted proxies of another file.
    pub(crate) fn follow(&self, file: &RuleFile) {
        let addresses = Arc::new(ForwardedAddresses::new(file));
        *self.addresses.write() = addresses;
    }

    fn addresses(&self) -> Arc<ForwardedAddresses> {
        Arc::clone(&self.addresses.read())
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
        if !is_trusted && addresses.has_header(headers) {
            self.untrusted.count(FrontDoor::Gateway, addresses.clients.header());
        }
        let client = addresses.clients.client(peer, header.as_deref());
        // A proxy that names no client asks for itself, such as for a health check.
        let is_proxy = is_trusted && client == peer;
        (!is_proxy && !self.exempt.contains(client)).then_some(client)
    }
}

impl ForwardedAddresses {
    fn new(file: &RuleFile) -> Self {
        let clients = file.client_addresses();
        let attribute = attributes::header_attribute(clients.header());
        let is_read = file.rules().reads().contains(&attribute);
        Self { header: clients.header().parse().ok(), attribute: is_read.then_some(attribute), clients }
    }

    fn has_header(&self, headers: &HeaderMap) -> bool {
        self.header.as_ref().is_some_and(|name| headers.contains_key(name))
    }

    fn header_value<'h>(&self, headers: &'h HeaderMap) -> Option<Cow<'h, str>> {
        let name = self.header.as_ref()?;
        join_header_lines(name.as_str(), headers.get_all(name).iter().map(HeaderValue::as_bytes))
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
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::observe::log::status_log::tests::logged_lines;

    fn resolver(identify: &str, exempt: &str) -> ClientResolver {
        let text = format!(
            "version: 1\nidentify: {{ {identify} }}\nrules: [{{ id: a, per: [client], fixed_window: {{ limit: 9, window: 1h }} }}]\n"
        );
        let file = RuleFile::parse("rules.yaml", &text).unwrap();
        ClientResolver::new(exempt.parse().unwrap(), &file, UntrustedForwarded::new(&mut Registry::default()))
    }

    fn untrusted(resolver: &ClientResolver) -> [u64; 3] {
        [FrontDoor::Gateway, FrontDoor::ForwardAuth, FrontDoor::Check].map(|door| resolver.untrusted.value(door))
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
    fn forwarded_headers_of_untrusted_senders_are_counted_and_logged_once_for_each_door() {
        let resolver = resolver("trusted_proxies: 10.0.0.0/8", "none");
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", "203.0.113.9".parse().unwrap());
        let lines = logged_lines(|| {
            for peer in ["192.0.2.1", "192.0.2.2", "10.0.0.1", "::ffff:10.0.0.1"].map(ip) {
                resolver.of_request(peer, &headers);
                resolver.of_request(peer, &HeaderMap::new());
                resolver.count_call(peer, &headers);
                resolver.count_call(peer, &HeaderMap::new());
                let text = peer.to_string();
                let check = Request::new("").with_attribute("ip", &text);
                resolver.count_check(&check);
                resolver.count_check(&check.with_attribute("header:x-forwarded-for", "203.0.113.9"));
            }
        });
        assert_eq!(untrusted(&resolver), [2, 2, 2]);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines.iter().all(|line| line.starts_with("WARN a sender that is not trusted")), "{lines:?}");
    }

    #[test]
    fn a_forwarded_header_that_no_rule_reads_is_not_counted_where_only_rules_would_read_it() {
        let text =
            "version: 1\nrules: [{ id: a, per: ['header:x-key', path], fixed_window: { limit: 9, window: 1h } }]\n";
        let file = RuleFile::parse("rules.yaml", text).unwrap();
        let resolver =
            ClientResolver::new("none".parse().unwrap(), &file, UntrustedForwarded::new(&mut Registry::default()));
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", "203.0.113.9".parse().unwrap());
        resolver.of_request(ip("192.0.2.1"), &headers);
        resolver.count_call(ip("192.0.2.1"), &headers);
        assert_eq!(untrusted(&resolver), [1, 0, 0], "the gateway also bounds what each client may use");
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
