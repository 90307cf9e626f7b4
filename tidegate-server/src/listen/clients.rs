//! `Clients`: who a client is, which clients are exempt from the bounds for one client, and how much each uses. One address of
//! IPv4 and one /64 network of IPv6 are one client.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use http::HeaderMap;
use tidegate::sync::{Mutex, MutexGuard};

/// Finds the client of a connection or a request. `None` means that no bound for one client applies.
pub(crate) trait ResolveClient: Send + Sync {
    /// The client of a connection from `peer`.
    fn of_connection(&self, peer: IpAddr) -> Option<IpAddr>;

    /// The client of a request from `peer` with these headers, which a trusted proxy may have sent for another client.
    fn of_request(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr>;
}

/// The peer is the client; one on this machine is exempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAddresses;

/// Counts what each client uses, up to a maximum. All units of a client share a `T`.
pub(crate) struct ClientCounts<T = ()> {
    max: usize,
    clients: Mutex<HashMap<IpAddr, ClientUse<T>>>,
}

/// What a client uses.
struct ClientUse<T> {
    count: usize,
    shared: T,
}

/// What a client uses, until it is dropped.
pub(crate) struct ClientPermit<T = ()> {
    counts: Arc<ClientCounts<T>>,
    client: IpAddr,
    units: usize,
    shared: T,
}

/// The client of a request that has a body, as a request extension. A request of a client that is exempt has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestClient(pub(crate) IpAddr);

/// The calls under way of a client, on all of its connections.
pub(crate) type CallCount = Arc<AtomicUsize>;

impl ResolveClient for PeerAddresses {
    fn of_connection(&self, peer: IpAddr) -> Option<IpAddr> {
        Some(peer.to_canonical()).filter(|peer| !peer.is_loopback())
    }

    fn of_request(&self, peer: IpAddr, _: &HeaderMap) -> Option<IpAddr> {
        self.of_connection(peer)
    }
}

impl<T: Clone + Default> ClientCounts<T> {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, clients: Mutex::default() })
    }

    /// Takes one unit for a client; `None` if it has the maximum.
    pub(crate) fn acquire(self: &Arc<Self>, client: IpAddr) -> Option<ClientPermit<T>> {
        self.acquire_many(client, 1)
    }

    /// Takes some units for a client; `None` if it would have more than the maximum.
    pub(crate) fn acquire_many(self: &Arc<Self>, client: IpAddr, units: usize) -> Option<ClientPermit<T>> {
        let client = network(client);
        let mut clients = self.lock();
        let entry = clients.entry(client);
        let used = if let Entry::Occupied(entry) = &entry { entry.get().count } else { 0 };
        if units > self.max.saturating_sub(used) {
            return None;
        }
        let client_use = entry.or_insert_with(|| ClientUse { count: 0, shared: T::default() });
        client_use.count += units;
        Some(ClientPermit { counts: Arc::clone(self), client, units, shared: client_use.shared.clone() })
    }
}

impl<T> ClientCounts<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, ClientUse<T>>> {
        self.clients.lock()
    }
}

impl<T> ClientPermit<T> {
    /// What all units of the client share.
    pub(crate) const fn shared(&self) -> &T {
        &self.shared
    }

    /// Who uses it.
    pub(crate) const fn client(&self) -> IpAddr {
        self.client
    }

    /// Adds the units of another permit of the same client.
    pub(crate) fn merge(&mut self, mut further: Self) {
        self.units += std::mem::take(&mut further.units);
    }
}

impl<T> Drop for ClientPermit<T> {
    fn drop(&mut self) {
        // A client without any unit has no entry, so that the map is never larger than what is in use.
        if let Entry::Occupied(mut entry) = self.counts.lock().entry(self.client) {
            entry.get_mut().count -= self.units;
            if entry.get().count == 0 {
                entry.remove();
            }
        }
    }
}

/// The network that counts as one client.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

impl<T> fmt::Debug for ClientCounts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCounts").field("max", &self.max).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ClientPermit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientPermit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_client_has_at_most_the_maximum_and_others_are_not_affected() {
        let counts: Arc<ClientCounts> = ClientCounts::new(2);
        let first = counts.acquire(ip("203.0.113.9")).unwrap();
        let _second = counts.acquire(ip("::ffff:203.0.113.9")).unwrap();
        assert!(counts.acquire(ip("203.0.113.9")).is_none());
        assert!(counts.acquire(ip("203.0.113.10")).is_some());
        drop(first);
        assert!(counts.acquire(ip("203.0.113.9")).is_some());
    }

    #[test]
    fn many_units_are_taken_together_or_not_at_all() {
        let counts: Arc<ClientCounts> = ClientCounts::new(10);
        let client = ip("203.0.113.9");
        assert!(counts.acquire_many(client, 11).is_none() && counts.lock().is_empty());
        let mut permit = counts.acquire_many(client, 4).unwrap();
        permit.merge(counts.acquire_many(client, 5).unwrap());
        assert!(counts.acquire_many(client, 2).is_none());
        assert!(counts.acquire_many(ip("203.0.113.10"), 10).is_some());
        drop(permit);
        assert!(counts.lock().is_empty());
    }

    /// A client can have any address of its /64.
    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let counts: Arc<ClientCounts> = ClientCounts::new(1);
        let _first = counts.acquire(ip("2001:db8:0:7::1")).unwrap();
        assert!(counts.acquire(ip("2001:db8:0:7:ffff::2")).is_none());
        assert!(counts.acquire(ip("2001:db8:0:8::1")).is_some());
    }

    #[test]
    fn a_client_that_uses_nothing_is_forgotten() {
        let counts: Arc<ClientCounts> = ClientCounts::new(1);
        for number in 0..1000_u32 {
            assert!(counts.acquire(IpAddr::from(number.to_be_bytes())).is_some());
        }
        assert!(counts.lock().is_empty());
    }

    #[test]
    fn a_peer_on_this_machine_is_exempt() {
        for (peer, is_exempt) in [("127.0.0.1", true), ("::1", true), ("::ffff:127.0.0.1", true), ("10.0.0.1", false)] {
            assert_eq!(PeerAddresses.of_connection(ip(peer)).is_none(), is_exempt, "{peer}");
        }
    }
}
