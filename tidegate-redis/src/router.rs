//! `Router`: sends each call to the server responsible for its slot. It hides the topology: one server, a primary behind
//! sentinels, or a cluster.

use std::sync::Arc;

use futures_util::future::join_all;
use tidegate::spi::PARTITIONS;
use tidegate::{StoreError, StoreErrorKind};

use crate::address::Address;
use crate::call::{Call, CallError, NodeRequest};
use crate::cluster::Cluster;
use crate::node::RedisNode;
use crate::node_factory::NodeFactory;
use crate::options::RedisOptions;
use crate::sentinel::Sentinel;
use crate::slot_map::slot_of;
use crate::store_url::{RedisUrl, Topology};
use crate::timeouts::Timeouts;

/// Routes calls to servers. Clones share connections.
#[derive(Clone)]
pub(crate) enum Router {
    Single(RedisNode),
    Sentinel(Arc<Sentinel>),
    Cluster(Arc<Cluster>),
}

impl Router {
    /// A router to the servers of `url`. Nothing is connected yet.
    pub(crate) fn new(url: RedisUrl, options: &RedisOptions) -> Result<Self, StoreError> {
        let factory = NodeFactory::new(&url, options)?;
        Ok(match url.topology {
            Topology::Single => Self::Single(factory.first_node()),
            Topology::Sentinel { name, credentials } => {
                let sentinels = factory.clone().with_credentials(credentials);
                Self::Sentinel(Arc::new(Sentinel::new(factory, &sentinels, &url.addresses, name)))
            }
            Topology::Cluster => Self::Cluster(Arc::new(Cluster::new(factory, url.addresses))),
        })
    }

    /// Whether the keys of one call must share a slot.
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Sends `call`, whose keys are all in `slot`.
    pub(crate) async fn send<R: NodeRequest>(&self, slot: u16, call: &R) -> Result<R::Reply, CallError> {
        match self {
            Self::Single(node) => {
                let reply = call.send_to(node, false).await;
                // After a failover the host name may resolve to another server.
                if reply.as_ref().is_err_and(|error| matches!(error.code(), Some("READONLY" | "MASTERDOWN"))) {
                    node.reconnect();
                }
                reply.map_err(|error| CallError::from(&error))
            }
            Self::Sentinel(sentinel) => sentinel.send(call).await,
            Self::Cluster(cluster) => cluster.send(slot, call).await,
        }
    }

    /// Sends a `PING` the way that decisions are sent. In a cluster it succeeds if one primary responds, since that one still
    /// serves its subjects.
    pub(crate) async fn ping(&self, timeouts: Timeouts) -> Result<(), StoreError> {
        let call = Call::command(redis::cmd("PING"), timeouts);
        // Discovers the topology, if it is not known yet.
        self.primaries(timeouts).await?;
        let pings = self.one_partition_per_primary().into_iter().map(|partition| self.send(slot_of(partition), &call));
        let mut failure = None;
        for reply in join_all(pings.collect::<Vec<_>>()).await {
            match reply {
                Ok(_) => return Ok(()),
                // The server responds, and decisions do not need this permission.
                Err(error) if error.missing_permission => return Ok(()),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.map_or_else(|| StoreError::new(StoreErrorKind::Refused, "no server owns a slot"), Into::into))
    }

    /// Every primary, with its address where there may be several.
    pub(crate) async fn primaries(&self, timeouts: Timeouts) -> Result<Vec<(Option<Address>, RedisNode)>, StoreError> {
        let primaries = match self {
            Self::Single(node) => return Ok(vec![(None, node.clone())]),
            Self::Sentinel(sentinel) => sentinel.primaries(timeouts).await?,
            Self::Cluster(cluster) => cluster.primaries(timeouts).await?,
        };
        Ok(primaries.into_iter().map(|(address, node)| (Some(address), node)).collect())
    }

    /// Every primary of the cached topology, without a query.
    pub(crate) fn known_primaries(&self) -> Vec<RedisNode> {
        match self {
            Self::Single(node) => vec![node.clone()],
            Self::Sentinel(sentinel) => sentinel.known_primary().into_iter().collect(),
            Self::Cluster(cluster) => cluster.known_nodes(),
        }
    }

    /// One partition on each primary of the cached topology.
    pub(crate) fn one_partition_per_primary(&self) -> Vec<u16> {
        let Self::Cluster(cluster) = self else { return vec![0] };
        let (mut partitions, mut owners) = (Vec::new(), Vec::new());
        for partition in 0..PARTITIONS {
            let owner = cluster.known_owner(slot_of(partition));
            if owner.is_some() && !owners.contains(&owner) {
                owners.push(owner);
                partitions.push(partition);
            }
        }
        partitions
    }
}
