//! `Cluster`: sends a call to the server that owns its slot, and follows the slots when they move. What may have been carried
//! out is not sent again: only an answer that says that nothing ran, or a refused connection, sends a call elsewhere.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tidegate::{StoreError, StoreErrorKind};

use crate::error::{Failed, NodeError, unapplied};
use crate::known::{Asked, Known, Round};
use crate::node::{Call, Dial, Node};
use crate::patience::Patience;
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
    /// Who was said to own a slot that was looked for elsewhere: they know best how the slots lie.
    hint: Mutex<Option<Address>>,
    /// Who was silent, or said that they cannot serve what they own: cut off from the others, they keep an old map.
    avoided: Mutex<Vec<Address>>,
    /// Servers that were spoken to. One that owns nothing any more is dropped with the next map.
    nodes: Mutex<HashMap<Address, Node>>,
}

impl Cluster {
    /// A cluster that is found through `seeds`. Nothing is connected to yet.
    pub(crate) fn new(dial: Dial, seeds: Vec<Address>) -> Self {
        Self {
            dial,
            seeds,
            map: Known::nothing(),
            hint: Mutex::default(),
            avoided: Mutex::default(),
            nodes: Mutex::default(),
        }
    }

    /// Sends `call` to the owner of `slot`.
    pub(crate) async fn send(self: &Arc<Self>, slot: u16, call: &Call) -> Result<Value, Failed> {
        let (mut address, mut round) = self.locate(slot, call.patience).await?;
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
                    *self.hint.lock().unwrap_or_else(PoisonError::into_inner) = Some(target.clone());
                    // It is known where to go; the map may follow.
                    round = self.map(call.patience).await?.1;
                    (address, asking) = (target, false);
                }
                None => {
                    if doubts_owner(&error) {
                        self.avoid(&address);
                        self.map.doubt(round);
                    }
                    if error.down().is_none() {
                        return Err(Failed::by(&error));
                    }
                    let (next, later) = self.locate(slot, call.patience).await?;
                    if next == address {
                        return Err(Failed::by(&error));
                    }
                    (address, asking, round) = (next, false, later);
                }
            }
        }
    }

    /// Sends all `calls`, in one round trip to each server; what becomes of each is `told`. One that fails does not touch the
    /// others.
    pub(crate) async fn send_each(
        self: &Arc<Self>,
        calls: &[(u16, Call)],
        told: &(impl Fn(usize, Result<Value, Failed>) + Sync),
    ) {
        let Some((_, first)) = calls.first() else { return };
        let map = match self.map(first.patience).await {
            Ok((map, _)) => map,
            Err(error) => return (0..calls.len()).for_each(|index| told(index, Err(unapplied(&error).into()))),
        };
        let mut by_owner: HashMap<Option<&Address>, Vec<usize>> = HashMap::new();
        for (index, (slot, _)) in calls.iter().enumerate() {
            by_owner.entry(map.owner(*slot)).or_default().push(index);
        }
        let batches = by_owner.into_iter();
        together(batches.map(async |(address, places)| self.send_batch(address, &places, calls, told).await)).await;
    }

    /// Every primary that owns slots.
    pub(crate) async fn primaries(self: &Arc<Self>, patience: Patience) -> Result<Vec<(Address, Node)>, StoreError> {
        let (map, _) = self.map(patience).await?;
        map.primaries().into_iter().map(|address| Ok((address.clone(), self.node(address)?))).collect()
    }

    /// The owner of `slot`, as far as is known.
    pub(crate) fn owner(&self, slot: u16) -> Option<Address> {
        self.map.now().and_then(|map| map.owner(slot).cloned())
    }

    /// Every server that was spoken to, of those that are known now.
    pub(crate) fn known(&self) -> Vec<Node> {
        self.nodes().values().cloned().collect()
    }

    async fn send_batch(
        self: &Arc<Self>,
        address: Option<&Address>,
        places: &[usize],
        calls: &[(u16, Call)],
        told: &(impl Fn(usize, Result<Value, Failed>) + Sync),
    ) {
        let batch: Vec<&Call> = places.iter().map(|index| &calls[*index].1).collect();
        let replies = match address.map(|address| self.node(address)) {
            Some(Ok(node)) => node.send_each(&batch).await,
            _ => Ok(Vec::new()),
        };
        let mut replies = match replies {
            Ok(replies) => replies.into_iter(),
            Err(error) if error.down().is_some() => Vec::new().into_iter(),
            Err(error) => return places.iter().for_each(|index| told(*index, Err(Failed::by(&error)))),
        };
        let mut elsewhere = Vec::new();
        for index in places {
            match replies.next() {
                Some(Err(error)) if error.is_torn() || !is_elsewhere(&error) => told(*index, Err(Failed::by(&error))),
                Some(Ok(reply)) => told(*index, Ok(reply)),
                // It was not carried out: by itself it finds its way.
                Some(Err(_)) | None => elsewhere.push(*index),
            }
        }
        for index in elsewhere {
            let (slot, call) = &calls[index];
            told(index, self.send(*slot, call).await);
        }
    }

    /// The owner of `slot`. A map that knows none is asked for once more.
    async fn locate(self: &Arc<Self>, slot: u16, patience: Patience) -> Result<(Address, Round), StoreError> {
        let (map, round) = self.map(patience).await?;
        if let Some(owner) = map.owner(slot) {
            return Ok((owner.clone(), round));
        }
        let (map, round) = self.map.renewed(round, patience, self.learn()).await?;
        let owner = map.owner(slot).cloned().ok_or_else(|| {
            StoreError::new(StoreErrorKind::Refused, "no server of the cluster owns the slot of this key at the moment")
        });
        owner.map(|owner| (owner, round))
    }

    async fn map(self: &Arc<Self>, patience: Patience) -> Result<(Arc<SlotMap>, Round), StoreError> {
        self.map.take(patience, self.learn()).await
    }

    /// Asks in a task of its own, which keeps what it needs.
    fn learn(self: &Arc<Self>) -> impl Fn(Option<Arc<SlotMap>>) -> Asked<Arc<SlotMap>> {
        let cluster = Arc::clone(self);
        move |before| {
            let cluster = Arc::clone(&cluster);
            Box::pin(async move { cluster.ask_for_map(before).await })
        }
    }

    /// Asks one server after the other. One that is known to be silent costs no time.
    async fn ask_for_map(&self, before: Option<Arc<SlotMap>>) -> Result<Arc<SlotMap>, StoreError> {
        let hint = self.hint.lock().unwrap_or_else(PoisonError::into_inner).take();
        let known: Vec<Address> = before.iter().flat_map(|map| map.primaries()).cloned().collect();
        let avoided = std::mem::take(&mut *self.avoided.lock().unwrap_or_else(PoisonError::into_inner));
        let asked = in_order(hint.iter().chain(&known).chain(&self.seeds), &avoided);
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

    /// Asks this server last when the map is asked for next.
    fn avoid(&self, address: &Address) {
        let mut avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        if !avoided.contains(address) {
            avoided.push(address.clone());
        }
    }

    async fn ask_one_for_map(&self, address: &Address) -> Result<SlotMap, StoreError> {
        let question = self.dial.learning();
        let reply = self.node(address)?.query::<Value>(redis::cmd("CLUSTER").arg("SLOTS"), question).await;
        let reply = reply.map_err(|error| match error.told().and_then(RedisError::detail) {
            Some(detail) if detail.contains("cluster support disabled") => {
                let message = "the server is not part of a cluster: write redis:// instead of redis+cluster://";
                StoreError::new(StoreErrorKind::Unsupported, message)
            }
            _ => unapplied(&StoreError::from(&error)),
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

/// `addresses`, each once, those to be `avoided` last.
fn in_order<'a>(addresses: impl Iterator<Item = &'a Address>, avoided: &[Address]) -> Vec<&'a Address> {
    let mut ordered: Vec<&Address> = Vec::new();
    for address in addresses {
        if !ordered.contains(&address) {
            ordered.push(address);
        }
    }
    ordered.sort_by_key(|address| avoided.contains(address));
    ordered
}

/// Where `error`, told by `answering`, sends the call: for now (`ASK`) or for good (`MOVED`).
fn redirection(error: &NodeError, answering: &Address) -> Option<(ErrorKind, Address)> {
    let error = error.told()?;
    let (address, _) = error.redirect_node()?;
    Some((error.kind(), Address::told_by(answering, address)?))
}

/// Whether the call was not carried out, and may be elsewhere.
fn is_elsewhere(error: &NodeError) -> bool {
    error.told().is_some_and(RedisError::is_cluster_error)
}

/// Whether the slot may have, or soon get, another owner.
fn doubts_owner(error: &NodeError) -> bool {
    error.is_silence() || matches!(error.code(), Some("CLUSTERDOWN" | "MASTERDOWN" | "READONLY" | "LOADING"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_serve_is_asked_for_the_map_last() {
        let [a, b, c] = [1, 2, 3].map(|port| Address { host: "here".to_owned(), port });
        let known = [a.clone(), b.clone(), c.clone(), a.clone()];
        assert_eq!(in_order(known.iter(), &[]), [&a, &b, &c]);
        assert_eq!(in_order(known.iter(), &[a.clone(), b.clone()]), [&c, &a, &b]);
        assert_eq!(in_order(known[..1].iter(), std::slice::from_ref(&a)), [&a], "there is nobody else");
    }
}
