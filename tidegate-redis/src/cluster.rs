//! `Cluster`: sends a call to the server that owns its slot, and follows the slots when they move. What may have been carried
//! out is not sent again: only an answer that says that nothing ran, or a refused connection, sends a call elsewhere.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tidegate::{StoreError, StoreErrorKind};

use crate::error::{Failed, is_unsent, store_error};
use crate::known::{Known, Round};
use crate::node::{Call, Dial, Node};
use crate::slots::SlotMap;
use crate::target::Address;
use crate::together::together;

/// How many servers one call may be sent to, one after the other. A slot that moves while it is looked for takes two or three.
const MOST_HOPS: usize = 6;

/// How many servers are asked for the map before it is said that none answers.
const MOST_ASKED: usize = 8;

/// The servers of one cluster.
pub(crate) struct Cluster {
    dial: Dial,
    /// Where the URL says that servers are.
    seeds: Vec<Address>,
    map: Known<Arc<SlotMap>>,
    /// Servers that were spoken to. One that owns nothing any more is dropped with the next map.
    nodes: Mutex<HashMap<Address, Node>>,
}

impl Cluster {
    /// A cluster that is found through `seeds`. Nothing is connected to yet.
    pub(crate) fn new(dial: Dial, seeds: Vec<Address>) -> Self {
        Self { dial, seeds, map: Known::nothing(), nodes: Mutex::default() }
    }

    /// Sends `call` to the owner of `slot`.
    pub(crate) async fn send(&self, slot: u16, call: &Call) -> Result<Value, Failed> {
        let (mut address, mut round) = self.locate(slot, &[]).await?;
        let mut asking = false;
        let mut hops = 1;
        loop {
            let error = match self.node(&address)?.send(call, asking).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if hops == MOST_HOPS {
                return Err(Failed::by(&error));
            }
            hops += 1;
            match redirection(&error, &address) {
                Some((ErrorKind::Server(ServerErrorKind::Ask), target)) => (address, asking) = (target, true),
                Some((_, target)) => {
                    self.map.doubt(round);
                    // The new owner knows best. If it does not answer, the call finds that out by itself.
                    if let Ok((_, later)) = self.map(std::slice::from_ref(&target), &[]).await {
                        round = later;
                    }
                    (address, asking) = (target, false);
                }
                None => {
                    if doubts_owner(&error) {
                        self.map.doubt(round);
                    }
                    if !is_unsent(&error) {
                        return Err(Failed::by(&error));
                    }
                    let (next, later) = self.locate(slot, std::slice::from_ref(&address)).await?;
                    if next == address {
                        return Err(Failed::by(&error));
                    }
                    (address, asking, round) = (next, false, later);
                }
            }
        }
    }

    /// Sends all `calls`, in one round trip to each server. One that fails does not touch the others.
    pub(crate) async fn send_each(&self, calls: &[(u16, Call)]) -> Vec<Result<Value, Failed>> {
        let map = self.map(&[], &[]).await.map(|(map, _)| map).unwrap_or_default();
        let mut by_owner: HashMap<Option<&Address>, Vec<usize>> = HashMap::new();
        for (index, (slot, _)) in calls.iter().enumerate() {
            by_owner.entry(map.owner(*slot)).or_default().push(index);
        }
        let batches = by_owner.into_iter().map(async |(address, places)| {
            let replies = self.send_batch(address, &places, calls).await;
            places.into_iter().zip(replies).collect::<Vec<_>>()
        });
        let mut replies: Vec<(usize, _)> = together(batches).await.into_iter().flatten().collect();
        replies.sort_by_key(|(index, _)| *index);
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    /// Every primary that owns slots.
    pub(crate) async fn primaries(&self) -> Result<Vec<(Address, Node)>, StoreError> {
        let (map, _) = self.map(&[], &[]).await?;
        map.primaries().into_iter().map(|address| Ok((address.clone(), self.node(address)?))).collect()
    }

    /// The owner of `slot`, as far as is known.
    pub(crate) async fn owner(&self, slot: u16) -> Option<Address> {
        self.map(&[], &[]).await.ok().and_then(|(map, _)| map.owner(slot).cloned())
    }

    async fn send_batch(
        &self,
        address: Option<&Address>,
        places: &[usize],
        calls: &[(u16, Call)],
    ) -> Vec<Result<Value, Failed>> {
        let batch: Vec<&Call> = places.iter().map(|index| &calls[*index].1).collect();
        let replies = match address.map(|address| self.node(address)) {
            Some(Ok(node)) => node.send_each(&batch).await,
            _ => Ok(Vec::new()),
        };
        let mut answers = Vec::with_capacity(places.len());
        let mut replies = match replies {
            Ok(replies) => replies.into_iter(),
            Err(error) if is_unsent(&error) => Vec::new().into_iter(),
            Err(error) => return places.iter().map(|_| Err(Failed::by(&error))).collect(),
        };
        for index in places {
            let (slot, call) = &calls[*index];
            answers.push(match replies.next() {
                Some(Err(error)) if !error.is_cluster_error() || is_torn(&error) => Err(Failed::by(&error)),
                Some(Ok(reply)) => Ok(reply),
                // It was not carried out: by itself it finds its way.
                Some(Err(_)) | None => self.send(*slot, call).await,
            });
        }
        answers
    }

    /// The owner of `slot`. A map that knows none is asked for once more.
    async fn locate(&self, slot: u16, avoid: &[Address]) -> Result<(Address, Round), StoreError> {
        let (map, round) = self.map(&[], avoid).await?;
        if let Some(owner) = map.owner(slot) {
            return Ok((owner.clone(), round));
        }
        self.map.doubt(round);
        let (map, round) = self.map(&[], avoid).await?;
        let owner = map.owner(slot).cloned().ok_or_else(|| {
            StoreError::new(StoreErrorKind::Refused, "no server of the cluster owns the slot of this key at the moment")
        });
        owner.map(|owner| (owner, round))
    }

    /// The map, asked anew if it is in doubt: `first` those who should know, and last those to `avoid`.
    async fn map(&self, first: &[Address], avoid: &[Address]) -> Result<(Arc<SlotMap>, Round), StoreError> {
        self.map.take(async |before| self.ask_for_map(before, first, avoid).await).await
    }

    async fn ask_for_map(
        &self,
        before: Option<Arc<SlotMap>>,
        first: &[Address],
        avoid: &[Address],
    ) -> Result<Arc<SlotMap>, StoreError> {
        let known: Vec<Address> = before.iter().flat_map(|map| map.primaries()).cloned().collect();
        let others = known.iter().chain(&self.seeds).filter(|address| !avoid.contains(address));
        let mut asked: Vec<&Address> = Vec::new();
        for address in first.iter().chain(others).chain(avoid) {
            if !asked.contains(&address) {
                asked.push(address);
            }
        }
        let mut failure = None;
        for address in asked.into_iter().take(MOST_ASKED) {
            match self.ask_one_for_map(address).await {
                Ok(map) => {
                    self.nodes().retain(|address, _| map.primaries().contains(&address));
                    return Ok(Arc::new(map));
                }
                Err(error) if error.is_transient() => failure = failure.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or_else(|| StoreError::new(StoreErrorKind::Unavailable, "the cluster has no address")))
    }

    async fn ask_one_for_map(&self, address: &Address) -> Result<SlotMap, StoreError> {
        let reply = self.node(address)?.query::<Value>(redis::cmd("CLUSTER").arg("SLOTS")).await;
        let reply = reply.map_err(|error| match error.detail() {
            Some(detail) if detail.contains("cluster support disabled") => {
                let message = "the server is not part of a cluster: write redis:// instead of redis+cluster://";
                StoreError::new(StoreErrorKind::Unsupported, message)
            }
            _ => store_error(&error),
        })?;
        let map = SlotMap::parse(&reply, address).ok_or_else(|| {
            let message = "the server's list of slots makes no sense; is something between us and the cluster?";
            StoreError::new(StoreErrorKind::Unexpected, message)
        })?;
        if map.primaries().is_empty() {
            // One that was taken out of its cluster says so, too. Another may know more.
            return Err(StoreError::new(StoreErrorKind::Refused, "no server of the cluster owns any slot yet"));
        }
        Ok(map)
    }

    fn node(&self, address: &Address) -> Result<Node, StoreError> {
        let mut nodes = self.nodes();
        if let Some(node) = nodes.get(address) {
            return Ok(node.clone());
        }
        let node = self.dial.at(address)?;
        nodes.insert(address.clone(), node.clone());
        Ok(node)
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, HashMap<Address, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where `error`, told by `answering`, sends the call: for now (`ASK`) or for good (`MOVED`).
fn redirection(error: &RedisError, answering: &Address) -> Option<(ErrorKind, Address)> {
    let (address, _) = error.redirect_node()?;
    Some((error.kind(), Address::told_by(answering, address)?))
}

/// Whether some keys of the call are here and some there.
fn is_torn(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain)
}

/// Whether the slot may have, or soon get, another owner.
fn doubts_owner(error: &RedisError) -> bool {
    error.is_io_error() || matches!(error.code(), Some("CLUSTERDOWN" | "MASTERDOWN" | "READONLY" | "LOADING"))
}
