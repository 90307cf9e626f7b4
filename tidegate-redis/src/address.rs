//! `Address`: host and port of one server.

use std::fmt;

use redis::ConnectionAddr;

/// Host and port of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    /// The address of a TCP connection. `None` for a Unix socket.
    pub(crate) fn from_connection_addr(addr: &ConnectionAddr) -> Option<Self> {
        match addr {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(Self { host: host.clone(), port: *port })
            }
            _ => None,
        }
    }

    /// Parses `host:port` as servers announce it: IPv6 without brackets, and no host if it is that of the `sender`.
    pub(crate) fn parse_announced(text: &str, sender: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        // Some versions append the host name.
        let port = port.split(',').next()?.parse().ok()?;
        let host = if matches!(host, "" | "?") { sender.host.as_str() } else { host };
        Some(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_announced_by_servers_are_parsed() {
        let sender = Address { host: "10.0.0.1".into(), port: 1 };
        let parse = |text| Address::parse_announced(text, &sender).map(|address| address.to_string());
        assert_eq!(parse("10.0.0.2:7000").as_deref(), Some("10.0.0.2:7000"));
        assert_eq!(parse("::1:7000").as_deref(), Some("[::1]:7000"));
        assert_eq!(parse(":7000").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(parse("?:7000").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(parse("nonsense"), None);
    }
}
