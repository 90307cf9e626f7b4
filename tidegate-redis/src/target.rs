//! `Target`: what a URL says about where the store is. It parses; it connects to nothing, and no error repeats the URL,
//! which may hold a password.
//!
//! ```text
//! redis://[user:password@]host[:port][/database]                    one server; also redis+unix://
//! redis+sentinel://[user:password@]host:port,host:port/NAME[/database]  the primary that the sentinels name
//! redis+cluster://[user:password@]host:port,host:port                a cluster; any of its servers will do
//! rediss…                                                           each of them over TLS
//! ?ca=/path                                                         trust this CA file instead of the system's
//! ?sentinel_user=…&sentinel_password=…                              what the sentinels themselves want
//! ```

use std::fmt;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use tidegate::{StoreError, StoreErrorKind};

/// Where the store is, and how to be let in.
pub(crate) struct Target {
    pub(crate) topology: Topology,
    /// The first address, with user, password, database and TLS.
    pub(crate) info: ConnectionInfo,
    /// Every address of the URL; none for a socket in the file system.
    pub(crate) addresses: Vec<Address>,
    /// The file with the certificates to trust.
    pub(crate) ca: Option<String>,
}

/// What is at the addresses.
pub(crate) enum Topology {
    /// One server.
    Single,
    /// Sentinels, which know the primary by this name and want these credentials.
    Sentinel { name: String, credentials: RedisConnectionInfo },
    /// Servers of a cluster.
    Cluster,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// What stands after the question mark.
#[derive(Default)]
struct Settings {
    ca: Option<String>,
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
    /// What is the client library's to read.
    rest: String,
}

impl Target {
    /// Reads a URL.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| unusable("it has no scheme such as redis://"))?;
        let (scheme, topology) = match scheme {
            "redis+sentinel" => ("redis", "sentinel"),
            "rediss+sentinel" => ("rediss", "sentinel"),
            "redis+cluster" => ("redis", "cluster"),
            "rediss+cluster" => ("rediss", "cluster"),
            other => (other, ""),
        };
        if rest.contains('#') {
            return Err(unusable("it has a `#`: write it as %23 in a password; certificates are always checked"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !matches!(scheme, "redis" | "rediss") {
            // A socket in the file system: everything in it is the client library's to read.
            let info = url.into_connection_info().map_err(|_| unusable("it is not one that can be connected to"))?;
            return Ok(Self { topology: Topology::Single, info, addresses: Vec::new(), ca: None });
        }
        let settings = Settings::parse(query)?;
        settings.check(scheme == "rediss", topology == "sentinel")?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (topology, database) = match topology {
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(unusable("the name of the primary is missing: redis+sentinel://host:26379/NAME"));
                }
                (Topology::Sentinel { name: decoded(name)?, credentials: settings.credentials() }, database)
            }
            "cluster" if !matches!(path, "" | "0") => {
                return Err(unusable("a cluster has no database to choose: leave out what stands after the address"));
            }
            "cluster" => (Topology::Cluster, ""),
            _ => (Topology::Single, path),
        };
        let infos = connections(scheme, authority, database, &settings.rest, &topology)?;
        let addresses = infos.iter().filter_map(|info| Address::of(info.addr())).collect();
        let first = infos.into_iter().next().ok_or_else(|| unusable("the address is missing"))?;
        Ok(Self { topology, info: first, addresses, ca: settings.ca })
    }
}

/// One connection for each host of `authority`, all with the same user, password and database.
fn connections(
    scheme: &str,
    authority: &str,
    database: &str,
    query: &str,
    topology: &Topology,
) -> Result<Vec<ConnectionInfo>, StoreError> {
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let hosts: Vec<&str> = hosts.split(',').collect();
    if hosts.len() > 1 && matches!(topology, Topology::Single) {
        return Err(unusable("it names several servers: write redis+sentinel:// or redis+cluster:// for those"));
    }
    let default_port = if matches!(topology, Topology::Sentinel { .. }) { ":26379" } else { "" };
    let connection = |host: &&str| {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let port = if has_port { "" } else { default_port };
        let url = format!("{scheme}://{user}{host}{port}/{database}{query}");
        url.into_connection_info().map_err(|_| unusable("it is not one that can be connected to"))
    };
    hosts.iter().map(connection).collect()
}

impl Settings {
    fn parse(query: &str) -> Result<Self, StoreError> {
        let mut settings = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "ca" => settings.ca = Some(decoded(value)?),
                "sentinel_user" => settings.sentinel_user = Some(decoded(value)?),
                "sentinel_password" => settings.sentinel_password = Some(decoded(value)?),
                "protocol" => settings.rest = format!("?{pair}"),
                _ => {
                    let known =
                        "after `?` it may have ca, sentinel_user, sentinel_password and protocol, and nothing else";
                    return Err(unusable(known));
                }
            }
        }
        Ok(settings)
    }

    fn check(&self, tls: bool, sentinel: bool) -> Result<(), StoreError> {
        if self.ca.is_some() && !tls {
            return Err(unusable("it has a ca but no TLS: write rediss instead of redis"));
        }
        if (self.sentinel_user.is_some() || self.sentinel_password.is_some()) && !sentinel {
            return Err(unusable("it has credentials for sentinels but names none: write redis+sentinel://"));
        }
        Ok(())
    }

    fn credentials(&self) -> RedisConnectionInfo {
        let mut credentials = RedisConnectionInfo::default();
        if let Some(user) = &self.sentinel_user {
            credentials = credentials.set_username(user);
        }
        if let Some(password) = &self.sentinel_password {
            credentials = credentials.set_password(password);
        }
        credentials
    }
}

impl Address {
    /// The address of a connection, unless it is a socket in the file system.
    pub(crate) fn of(addr: &ConnectionAddr) -> Option<Self> {
        match addr {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(Self { host: host.clone(), port: *port })
            }
            _ => None,
        }
    }

    /// Reads `host:port` as servers write it: without brackets, and without a host if it is that of the `answering` one.
    pub(crate) fn told_by(answering: &Self, text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        // Some versions append the name of the host.
        let port = port.split(',').next()?.parse().ok()?;
        let host = if matches!(host, "" | "?") { answering.host.as_str() } else { host };
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

/// `text` with every `%` and two hexadecimal digits as the byte that they mean.
fn decoded(text: &str) -> Result<String, StoreError> {
    let wrong = || unusable("a `%` in it is not followed by two hexadecimal digits that make text");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(wrong()) };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

fn unusable(why: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unexpected, format!("the URL of the store cannot be used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(target: &Target) -> Vec<String> {
        target.addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_kind_of_url_is_read() {
        let one = Target::parse("redis://ann:p%40ss@h/3").unwrap();
        assert_eq!(addresses(&one), ["h:6379"]);
        let settings = one.info.redis_settings();
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("ann"), Some("p@ss"), 3));

        let url = "rediss+sentinel://ann:pw@a,b:7,[::1]/my%20primary/2?ca=/etc/my%20ca.pem&sentinel_password=s%26s";
        let watched = Target::parse(url).unwrap();
        assert_eq!(addresses(&watched), ["a:26379", "b:7", "[::1]:26379"]);
        assert_eq!((watched.info.redis_settings().db(), watched.ca.as_deref()), (2, Some("/etc/my ca.pem")));
        assert!(matches!(watched.info.addr(), ConnectionAddr::TcpTls { insecure: false, .. }));
        let Topology::Sentinel { name, credentials } = watched.topology else { panic!("not a sentinel") };
        assert_eq!((name.as_str(), credentials.username(), credentials.password()), ("my primary", None, Some("s&s")));

        let cluster = Target::parse("redis+cluster://ann:pw@a:1,b:2/").unwrap();
        assert_eq!(addresses(&cluster), ["a:1", "b:2"]);
        assert!(matches!(cluster.topology, Topology::Cluster));
    }

    #[test]
    fn a_url_that_cannot_be_used_is_told_why_and_not_repeated() {
        for (url, why) in [
            ("redis", "scheme"),
            ("redis://:hunter2@a,b", "several servers"),
            ("redis+sentinel://:hunter2@a", "the name of the primary is missing"),
            ("redis+cluster://:hunter2@a:1/1", "no database"),
            ("redis://:hunter2@h?ca=/x", "write rediss"),
            ("rediss://:hunter2@h#insecure", "always checked"),
            ("rediss://:hunter2@h?tls=off", "nothing else"),
            ("redis+cluster://h?sentinel_user=hunter2", "names none"),
            ("rediss://:hunter2@h?ca=%zz", "hexadecimal"),
            ("redis+cluster://:hunter2@", "connected to"),
            ("http://:hunter2@h", "connected to"),
        ] {
            let Err(error) = Target::parse(url) else { panic!("{url} is read") };
            let error = error.to_string();
            assert!(error.contains(why) && error.contains("URL") && !error.contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn what_servers_call_each_other_is_read() {
        let answering = Address { host: "10.0.0.1".into(), port: 1 };
        let told = |text| Address::told_by(&answering, text).map(|address| address.to_string());
        assert_eq!(told("10.0.0.2:7000").as_deref(), Some("10.0.0.2:7000"));
        assert_eq!(told("::1:7000").as_deref(), Some("[::1]:7000"));
        assert_eq!(told(":7000").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(told("?:7000").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(told("nonsense"), None);
    }
}
