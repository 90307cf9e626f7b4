//! `RedisUrl`: parses the URL of a store. It connects to nothing, and no error repeats the URL, which may hold a password.
//!
//! ```text
//! redis://[user:password@]host[:port][/database]                        one server; also redis+unix://
//! redis+sentinel://[user:password@]host:port,host:port/NAME[/database]  the primary that the sentinels name
//! redis+cluster://[user:password@]host:port,host:port                   a cluster; any of its servers will do
//! rediss…                                                               each of them over TLS
//! ?ca=/path                                                             trust this CA file instead of the system's
//! ?sentinel_user=…&sentinel_password=…                                  credentials for the sentinels themselves
//! ```

use redis::{ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use tidegate::{StoreError, StoreErrorKind};

use crate::address::Address;

/// The URL of a store, parsed.
pub(crate) struct RedisUrl {
    pub(crate) topology: Topology,
    /// The first address, with user, password, database and TLS.
    pub(crate) info: ConnectionInfo,
    /// Every address of the URL; empty for a Unix socket.
    pub(crate) addresses: Vec<Address>,
    /// Path of the file with the CA certificates to trust.
    pub(crate) ca: Option<String>,
}

/// What is at the addresses.
pub(crate) enum Topology {
    /// One server.
    Single,
    /// Sentinels, with the name of their primary and credentials of their own.
    Sentinel { name: String, credentials: RedisConnectionInfo },
    /// Servers of a cluster.
    Cluster,
}

/// The part of the URL after `?`.
#[derive(Default)]
struct QueryParameters {
    ca: Option<String>,
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
    /// Passed on to the client library.
    passthrough: String,
}

impl RedisUrl {
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
            // A Unix socket: the client library parses all of it.
            let info = url.into_connection_info().map_err(|_| unusable("it is not one that can be connected to"))?;
            return Ok(Self { topology: Topology::Single, info, addresses: Vec::new(), ca: None });
        }
        let parameters = QueryParameters::parse(query)?;
        parameters.validate(scheme == "rediss", topology == "sentinel")?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (topology, database) = match topology {
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(unusable("the name of the primary is missing: redis+sentinel://host:26379/NAME"));
                }
                (Topology::Sentinel { name: percent_decode(name)?, credentials: parameters.credentials() }, database)
            }
            "cluster" if !matches!(path, "" | "0") => {
                return Err(unusable("a cluster has no database to choose: remove the path after the address"));
            }
            "cluster" => (Topology::Cluster, ""),
            _ => (Topology::Single, path),
        };
        let infos = connection_infos(scheme, authority, database, &parameters.passthrough, &topology)?;
        let addresses = infos.iter().filter_map(|info| Address::from_connection_addr(info.addr())).collect();
        let first = infos.into_iter().next().ok_or_else(|| unusable("the address is missing"))?;
        Ok(Self { topology, info: first, addresses, ca: parameters.ca })
    }
}

impl QueryParameters {
    fn parse(query: &str) -> Result<Self, StoreError> {
        let mut parameters = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "ca" => parameters.ca = Some(percent_decode(value)?),
                "sentinel_user" => parameters.sentinel_user = Some(percent_decode(value)?),
                "sentinel_password" => parameters.sentinel_password = Some(percent_decode(value)?),
                "protocol" => parameters.passthrough = format!("?{pair}"),
                _ => {
                    let message =
                        "after `?` it may have ca, sentinel_user, sentinel_password and protocol, and nothing else";
                    return Err(unusable(message));
                }
            }
        }
        Ok(parameters)
    }

    fn validate(&self, is_tls: bool, is_sentinel: bool) -> Result<(), StoreError> {
        if self.ca.is_some() && !is_tls {
            return Err(unusable("it has a ca but no TLS: write rediss instead of redis"));
        }
        if (self.sentinel_user.is_some() || self.sentinel_password.is_some()) && !is_sentinel {
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

/// Connection settings for each host of `authority`, all with the same user, password and database.
fn connection_infos(
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
    let connection_info = |host: &&str| {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let port = if has_port { "" } else { default_port };
        let url = format!("{scheme}://{user}{host}{port}/{database}{query}");
        url.into_connection_info().map_err(|_| unusable("it is not one that can be connected to"))
    };
    hosts.iter().map(connection_info).collect()
}

/// Decodes `%` and two hexadecimal digits to a byte. Anything else after `%` is an error, and so is invalid UTF-8.
fn percent_decode(text: &str) -> Result<String, StoreError> {
    let malformed =
        || unusable("a `%` in it is not followed by two hexadecimal digits, or the decoded text is not UTF-8");
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(malformed()) };
        decoded.push((high * 16 + low) as u8);
    }
    String::from_utf8(decoded).map_err(|_| malformed())
}

fn unusable(reason: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unexpected, format!("the URL of the store cannot be used: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::ConnectionAddr;

    fn addresses(url: &RedisUrl) -> Vec<String> {
        url.addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn urls_of_every_topology_are_parsed() {
        let single = RedisUrl::parse("redis://ann:p%40ss@h/3").unwrap();
        assert_eq!(addresses(&single), ["h:6379"]);
        let settings = single.info.redis_settings();
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("ann"), Some("p@ss"), 3));

        let url = "rediss+sentinel://ann:pw@a,b:7,[::1]/my%20primary/2?ca=/etc/my%20ca.pem&sentinel_password=s%26s";
        let sentinels = RedisUrl::parse(url).unwrap();
        assert_eq!(addresses(&sentinels), ["a:26379", "b:7", "[::1]:26379"]);
        assert_eq!((sentinels.info.redis_settings().db(), sentinels.ca.as_deref()), (2, Some("/etc/my ca.pem")));
        assert!(matches!(sentinels.info.addr(), ConnectionAddr::TcpTls { insecure: false, .. }));
        let Topology::Sentinel { name, credentials } = sentinels.topology else { panic!("not a sentinel") };
        assert_eq!((name.as_str(), credentials.username(), credentials.password()), ("my primary", None, Some("s&s")));

        let cluster = RedisUrl::parse("redis+cluster://ann:pw@a:1,b:2/").unwrap();
        assert_eq!(addresses(&cluster), ["a:1", "b:2"]);
        assert!(matches!(cluster.topology, Topology::Cluster));
    }

    #[test]
    fn the_error_for_an_unusable_url_says_why_without_repeating_it() {
        for (url, reason) in [
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
            let Err(error) = RedisUrl::parse(url) else { panic!("{url} is accepted") };
            let error = error.to_string();
            assert!(error.contains(reason) && error.contains("URL") && !error.contains("hunter2"), "{url}: {error}");
        }
    }
}
