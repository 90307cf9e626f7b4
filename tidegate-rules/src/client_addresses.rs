//! `ClientAddresses`: finds the client's address behind the trusted proxies of a rule file, for what a server bounds before any
//! rule applies. It finds the same address as the rules do.

use std::net::IpAddr;

use smol_str::SmolStr;

use crate::RuleFile;
use crate::forwarded::{self, ForwardedHeader, ProxyTrust};
use crate::ip;

/// Finds the address of a client by the `trusted_proxies` (or `trusted_hops`) and `forwarded` of a rule file.
///
/// ```
/// use std::net::IpAddr;
/// use tidegate_rules::RuleFile;
///
/// let text = "version: 1\nidentify: { trusted_proxies: 10.0.0.0/8 }\nrules: [{ id: a, per: [client], fixed_window: { limit: 9, window: 1h } }]\n";
/// let clients = RuleFile::parse("rules.yaml", text)?.client_addresses();
/// let (proxy, client): (IpAddr, IpAddr) = ([10, 0, 0, 7].into(), [203, 0, 113, 9].into());
/// assert_eq!(clients.header(), "x-forwarded-for");
/// assert_eq!(clients.client(proxy, Some("198.51.100.1, 203.0.113.9")), client);
/// assert!(clients.trusts(proxy) && !clients.trusts(client));
/// assert_eq!(clients.client(client, Some("198.51.100.1")), client, "only a trusted proxy may name another address");
/// # Ok::<(), tidegate_rules::Report>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientAddresses {
    trust: ProxyTrust,
    forwarded_by: ForwardedHeader,
    header: SmolStr,
}

impl ClientAddresses {
    /// Whether a peer with this address is a trusted proxy. With `trusted_hops`, every peer is.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trust.trusts(ip::normalize(peer))
    }

    /// The name of the header that the trusted proxies write, in lower case.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// The address of the client, in the form that rules count by; `header` is the value of that header, with its lines joined by
    /// commas.
    pub fn client(&self, peer: IpAddr, header: Option<&str>) -> IpAddr {
        forwarded::client_ip(Some(peer), header, &self.trust, &self.forwarded_by).unwrap_or(peer)
    }
}

impl RuleFile {
    /// Who the client of a request is, by the trusted proxies of this file.
    pub fn client_addresses(&self) -> ClientAddresses {
        let config = &self.compiled.matcher.identity_config;
        let name = tidegate::attributes::header_name(&config.forwarded).unwrap_or(&config.forwarded);
        ClientAddresses {
            trust: config.trust.clone(),
            forwarded_by: config.forwarded_by.clone(),
            header: SmolStr::new(name),
        }
    }
}
