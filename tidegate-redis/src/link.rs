//! `Link`: sends a call for a slot to whoever answers for it: one server, the primary of sentinels, or a server of a cluster.
//! Only here is it known which of these it is.

use std::sync::Arc;

use redis::Value;
use tidegate::StoreError;
use tidegate::spi::PARTITIONS;

use crate::cluster::Cluster;
use crate::error::Failed;
use crate::node::{Call, Dial, Node};
use crate::options::RedisOptions;
use crate::patience::Patience;
use crate::sentinel::Sentinel;
use crate::slots::slot_of;
use crate::target::{Address, Target, Topology};

/// The way to the store. Clones share connections.
#[derive(Clone)]
pub(crate) enum Link {
    /// One server.
    Single(Node),
    /// The primary that sentinels name.
    Sentinel(Arc<Sentinel>),
    /// The servers of a cluster.
    Cluster(Arc<Cluster>),
}

impl Link {
    /// The way to `target`. Nothing is connected to yet.
    pub(crate) fn new(target: Target, options: &RedisOptions) -> Result<Self, StoreError> {
        let dial = Dial::new(&target, options)?;
        Ok(match target.topology {
            Topology::Single => Self::Single(dial.first()?),
            Topology::Sentinel { name, credentials } => {
                let watchers = dial.clone().with_credentials(credentials);
                Self::Sentinel(Arc::new(Sentinel::new(dial, &watchers, &target.addresses, name)?))
            }
            Topology::Cluster => Self::Cluster(Arc::new(Cluster::new(dial, target.addresses))),
        })
    }

    /// Whether keys of different slots cannot be in one call.
    pub(crate) const fn has_slots(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Sends `call`, all keys of which lie in `slot`.
    pub(crate) async fn send(&self, slot: u16, call: &Call) -> Result<Value, Failed> {
        match self {
            Self::Single(node) => {
                let reply = node.send(call, false).await;
                // The name may lead to another server by now.
                if reply.as_ref().is_err_and(|error| matches!(error.code(), Some("READONLY" | "MASTERDOWN"))) {
                    node.renew();
                }
                reply.map_err(|error| Failed::by(&error))
            }
            Self::Sentinel(sentinel) => sentinel.send(call).await,
            Self::Cluster(cluster) => cluster.send(slot, call).await,
        }
    }

    /// Sends all `calls`, in one round trip to each server; what becomes of each is `told` with its place, as soon as it is known.
    /// One that fails does not touch the others.
    pub(crate) async fn send_each(&self, calls: &[(u16, Call)], told: &(impl Fn(usize, Result<Value, Failed>) + Sync)) {
        match self {
            Self::Single(node) => {
                let batch: Vec<&Call> = calls.iter().map(|(_, call)| call).collect();
                let replies = node.send_each(&batch).await;
                let replies = replies.unwrap_or_else(|error| calls.iter().map(|_| Err(error.clone())).collect());
                for (index, reply) in replies.into_iter().enumerate() {
                    told(index, reply.map_err(|error| Failed::by(&error)));
                }
            }
            Self::Sentinel(sentinel) => sentinel.send_each(calls, told).await,
            Self::Cluster(cluster) => cluster.send_each(calls, told).await,
        }
    }

    /// Every server that decides, with its address where there may be several.
    pub(crate) async fn primaries(&self, patience: Patience) -> Result<Vec<(Option<Address>, Node)>, StoreError> {
        let found = match self {
            Self::Single(node) => return Ok(vec![(None, node.clone())]),
            Self::Sentinel(sentinel) => sentinel.primaries(patience).await?,
            Self::Cluster(cluster) => cluster.primaries(patience).await?,
        };
        Ok(found.into_iter().map(|(address, node)| (Some(address), node)).collect())
    }

    /// Every server that decides, as far as is known.
    pub(crate) fn known(&self) -> Vec<Node> {
        match self {
            Self::Single(node) => vec![node.clone()],
            Self::Sentinel(sentinel) => sentinel.known(),
            Self::Cluster(cluster) => cluster.known(),
        }
    }

    /// A partition on each server that decides.
    pub(crate) fn partitions(&self) -> Vec<u16> {
        let Self::Cluster(cluster) = self else { return vec![0] };
        let (mut found, mut seen) = (Vec::new(), Vec::new());
        for partition in 0..PARTITIONS {
            let owner = cluster.owner(slot_of(partition));
            if owner.is_some() && !seen.contains(&owner) {
                seen.push(owner);
                found.push(partition);
            }
        }
        found
    }
}
