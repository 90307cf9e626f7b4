//! `Cluster`: sends each call to the server that owns its slot, and follows slots that move. A call that may have run is
//! never resent: only a redirect or a missing connection sends it to another server.

use std::collections::HashMap;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tidegate::sync::Mutex;
use tidegate::{StoreError, StoreErrorKind};

use crate::address::Address;
use crate::call::{CallError, NodeRequest};
use crate::error::not_applied;
use crate::node::RedisNode;
use crate::node_error::NodeError;
use crate::node_factory::NodeFactory;
use crate::slot_map::SlotMap;
use crate::timeouts::Timeouts;
use crate::topology_cache::{RefreshFuture, TopologyCache, TopologyVersion};

/// How many servers one call is sent to, one after the other. A slot that moves during the call takes two or three.
const MAX_ATTEMPTS: usize = 6;

/// How many servers are queried for the slot map before the refresh fails.
const MAX_MAP_QUERIES: usize = 8;

/// The servers of one cluster.
pub(crate) struct Cluster {
    factory: NodeFactory,
    /// The addresses of the URL.
    seeds: Vec<Address>,
    map: TopologyCache<Arc<SlotMap>>,
    /// The target of the last `MOVED`: its slot map is the most recent one.
    hint: Mutex<Option<Address>>,
    /// Servers that did not respond or cannot serve their slots. They are queried for the map last, since a server that is
    /// cut off from the cluster keeps an old map.
    suspects: Mutex<Vec<Address>>,
    /// Nodes by address. Those without slots are dropped when the map is refreshed.
    nodes: Mutex<HashMap<Address, RedisNode>>,
}

impl Cluster {
    /// A cluster that is discovered through `seeds`. Nothing is connected yet.
    pub(crate) fn new(factory: NodeFactory, seeds: Vec<Address>) -> Self {
        Self {
            factory,
            seeds,
            map: TopologyCache::new(),
            hint: Mutex::default(),
            suspects: Mutex::default(),
            nodes: Mutex::default(),
        }
    }

    /// Sends `call` to the owner of `slot`, and follows redirects.
    pub(crate) async fn send<R: NodeRequest>(self: &Arc<Self>, slot: u16, call: &R) -> Result<R::Reply, CallError> {
        let (mut address, mut version) = self.owner(slot, call.timeouts()).await?;
        let mut asking = false;
        let mut attempts = 1;
        loop {
            let error = match call.send_to(&self.node(&address), asking).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if attempts == MAX_ATTEMPTS {
                return Err(CallError::from(&error));
            }
            attempts += 1;
            match redirect(&error, &address) {
                Some((ErrorKind::Server(ServerErrorKind::Ask), target)) => (address, asking) = (target, true),
                Some((_, target)) => {
                    self.map.mark_stale(version);
                    *self.hint.lock() = Some(target.clone());
                    // The target is known, so the call does not wait for the refresh that this starts.
                    version = self.map(call.timeouts()).await?.1;
                    (address, asking) = (target, false);
                }
                None => {
                    if owner_may_change(&error) {
                        self.suspect(&address);
                        self.map.mark_stale(version);
                    }
                    if error.down_reason().is_none() {
                        return Err(CallError::from(&error));
                    }
                    let (next, newer) = self.owner(slot, call.timeouts()).await?;
                    if next == address {
                        return Err(CallError::from(&error));
                    }
                    (address, asking, version) = (next, false, newer);
                }
            }
        }
    }

    /// Every primary that owns slots.
    pub(crate) async fn primaries(
        self: &Arc<Self>,
        timeouts: Timeouts,
    ) -> Result<Vec<(Address, RedisNode)>, StoreError> {
        let (map, _) = self.map(timeouts).await?;
        Ok(map.primaries().into_iter().map(|address| (address.clone(), self.node(address))).collect())
    }

    /// The owner of `slot` by the cached map, without a query.
    pub(crate) fn known_owner(&self, slot: u16) -> Option<Address> {
        self.map.current().and_then(|map| map.owner(slot).cloned())
    }

    /// Every node that owns slots and that a call was sent to.
    pub(crate) fn known_nodes(&self) -> Vec<RedisNode> {
        self.nodes.lock().values().cloned().collect()
    }

    /// The owner of `slot`. If the cached map has none, waits for a refresh once.
    async fn owner(self: &Arc<Self>, slot: u16, timeouts: Timeouts) -> Result<(Address, TopologyVersion), StoreError> {
        let (map, version) = self.map(timeouts).await?;
        if let Some(owner) = map.owner(slot) {
            return Ok((owner.clone(), version));
        }
        let (map, version) = self.map.get_newer(version, timeouts, self.refresh()).await?;
        let owner = map.owner(slot).cloned().ok_or_else(|| {
            StoreError::new(StoreErrorKind::Refused, "no server of the cluster owns the slot of this key at the moment")
        });
        owner.map(|owner| (owner, version))
    }

    async fn map(self: &Arc<Self>, timeouts: Timeouts) -> Result<(Arc<SlotMap>, TopologyVersion), StoreError> {
        self.map.get(timeouts, self.refresh()).await
    }

    fn refresh(self: &Arc<Self>) -> impl Fn(Option<Arc<SlotMap>>) -> RefreshFuture<Arc<SlotMap>> {
        let cluster = Arc::clone(self);
        move |previous| {
            let cluster = Arc::clone(&cluster);
            Box::pin(async move { cluster.query_map(previous).await })
        }
    }

    /// Queries one server after the other for the slot map. Calls to servers with an open breaker fail at once.
    async fn query_map(&self, previous: Option<Arc<SlotMap>>) -> Result<Arc<SlotMap>, StoreError> {
        let hint = self.hint.lock().take();
        let primaries: Vec<Address> = previous.iter().flat_map(|map| map.primaries()).cloned().collect();
        let suspects = std::mem::take(&mut *self.suspects.lock());
        let candidates = in_query_order(hint.iter().chain(&primaries).chain(&self.seeds), &suspects);
        let mut failure = None;
        for address in candidates.into_iter().take(MAX_MAP_QUERIES) {
            match self.query_map_from(address).await {
                Ok(map) => {
                    self.nodes.lock().retain(|address, _| map.primaries().contains(&address));
                    return Ok(Arc::new(map));
                }
                Err(error) if error.is_transient() => failure = failure.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or_else(|| StoreError::new(StoreErrorKind::Unavailable, "the URL names no server")))
    }

    async fn query_map_from(&self, address: &Address) -> Result<SlotMap, StoreError> {
        let timeouts = self.factory.topology_timeouts();
        let reply = self.node(address).query::<Value>(redis::cmd("CLUSTER").arg("SLOTS"), timeouts).await;
        let reply = reply.map_err(|error| match error.redis_error().and_then(RedisError::detail) {
            Some(detail) if detail.contains("cluster support disabled") => {
                let message = "the server is not part of a cluster: write redis:// instead of redis+cluster://";
                StoreError::new(StoreErrorKind::Unsupported, message)
            }
            _ => not_applied(&StoreError::from(&error)),
        })?;
        let map = SlotMap::parse(&reply, address).ok_or_else(|| {
            let message = "the reply to CLUSTER SLOTS is malformed; is there a proxy in front of the cluster?";
            StoreError::new(StoreErrorKind::Unexpected, message)
        })?;
        if map.primaries().is_empty() {
            // A server that was removed from its cluster has an empty map. Another one may know the slots.
            return Err(StoreError::new(StoreErrorKind::Refused, "no server of the cluster owns any slot yet"));
        }
        Ok(map)
    }

    fn suspect(&self, address: &Address) {
        let mut suspects = self.suspects.lock();
        if !suspects.contains(address) {
            suspects.push(address.clone());
        }
    }

    fn node(&self, address: &Address) -> RedisNode {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return node.clone();
        }
        let node = self.factory.node_at(address);
        nodes.insert(address.clone(), node.clone());
        node
    }
}

/// `addresses` without repetitions, `suspects` last.
fn in_query_order<'a>(addresses: impl Iterator<Item = &'a Address>, suspects: &[Address]) -> Vec<&'a Address> {
    let mut ordered: Vec<&Address> = Vec::new();
    for address in addresses {
        if !ordered.contains(&address) {
            ordered.push(address);
        }
    }
    ordered.sort_by_key(|address| suspects.contains(address));
    ordered
}

/// Where `error`, a reply of the server at `sender`, redirects the call: for this call only (`ASK`) or permanently (`MOVED`).
fn redirect(error: &NodeError, sender: &Address) -> Option<(ErrorKind, Address)> {
    let error = error.redis_error()?;
    let (address, _) = error.redirect_node()?;
    Some((error.kind(), Address::parse_announced(address, sender)?))
}

/// Whether the slot may have, or soon get, another owner.
fn owner_may_change(error: &NodeError) -> bool {
    error.is_unresponsive() || matches!(error.code(), Some("CLUSTERDOWN" | "MASTERDOWN" | "READONLY" | "LOADING"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspect_servers_are_queried_last() {
        let [a, b, c] = [1, 2, 3].map(|port| Address { host: "here".to_owned(), port });
        let addresses = [a.clone(), b.clone(), c.clone(), a.clone()];
        assert_eq!(in_query_order(addresses.iter(), &[]), [&a, &b, &c]);
        assert_eq!(in_query_order(addresses.iter(), &[a.clone(), b.clone()]), [&c, &a, &b]);
        assert_eq!(in_query_order(addresses[..1].iter(), std::slice::from_ref(&a)), [&a], "there is no other server");
    }
}
