//! `Sentinel`: sends calls to the primary that the sentinels name, and queries them again when it is gone or demoted. A call
//! that may have run is never resent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::Value;
use tidegate::{StoreError, StoreErrorKind};

use crate::address::Address;
use crate::call::{CallError, NodeRequest};
use crate::error::{denied, not_applied, store_error, unavailable};
use crate::node::RedisNode;
use crate::node_error::NodeError;
use crate::node_factory::NodeFactory;
use crate::timeouts::Timeouts;
use crate::topology_cache::{RefreshFuture, TopologyCache, TopologyVersion};

const NO_SENTINEL: &str = "no sentinel answers at the addresses of the URL";

/// The sentinels, and the primary that they name.
pub(crate) struct Sentinel {
    /// Makes the nodes of primaries.
    factory: NodeFactory,
    sentinels: Vec<RedisNode>,
    /// Index of the sentinel that responded last, which is queried first.
    first: AtomicUsize,
    name: String,
    primary: TopologyCache<Primary>,
}

#[derive(Clone)]
struct Primary {
    address: Address,
    node: RedisNode,
}

impl Sentinel {
    /// The primary `name` of the sentinels at `addresses`. Sentinels have credentials of their own, and thus a factory of
    /// their own. Nothing is connected yet.
    pub(crate) fn new(
        factory: NodeFactory,
        sentinel_factory: &NodeFactory,
        addresses: &[Address],
        name: String,
    ) -> Self {
        let sentinels = addresses.iter().map(|address| sentinel_factory.node_at(address)).collect();
        Self { factory, sentinels, first: AtomicUsize::new(0), name, primary: TopologyCache::new() }
    }

    /// Sends `call` to the primary.
    pub(crate) async fn send<R: NodeRequest>(self: &Arc<Self>, call: &R) -> Result<R::Reply, CallError> {
        let (primary, version) = self.primary(call.timeouts()).await?;
        match call.send_to(&primary.node, false).await {
            Ok(reply) => Ok(reply),
            // Boxed, since it is rare, and every decision would be as large.
            Err(error) => Box::pin(self.retry_on_new_primary(call, version, error)).await,
        }
    }

    /// The primary, as a list of one.
    pub(crate) async fn primaries(
        self: &Arc<Self>,
        timeouts: Timeouts,
    ) -> Result<Vec<(Address, RedisNode)>, StoreError> {
        self.primary(timeouts).await.map(|(primary, _)| vec![(primary.address, primary.node)])
    }

    /// The cached primary, without a query.
    pub(crate) fn known_primary(&self) -> Option<RedisNode> {
        self.primary.current().map(|primary| primary.node)
    }

    /// Passes on the `error` of the primary of `version`. If the call did not run there, and another server is the primary
    /// now, sends it to that one.
    async fn retry_on_new_primary<R: NodeRequest>(
        self: &Arc<Self>,
        call: &R,
        version: TopologyVersion,
        error: NodeError,
    ) -> Result<R::Reply, CallError> {
        let primary = if is_demoted(&error) {
            self.primary.get_newer(version, call.timeouts(), self.refresh()).await
        } else if error.is_unresponsive() {
            self.primary.mark_stale(version);
            self.primary(call.timeouts()).await
        } else {
            return Err(CallError::from(&error));
        };
        let did_not_run = is_demoted(&error) || error.down_reason().is_some();
        match primary {
            Ok((primary, newer)) if newer > version && did_not_run => {
                let reply = call.send_to(&primary.node, false).await;
                if reply.as_ref().is_err_and(|error| is_demoted(error) || error.is_unresponsive()) {
                    self.primary.mark_stale(newer);
                }
                reply.map_err(|error| CallError::from(&error))
            }
            _ => Err(CallError::from(&error)),
        }
    }

    async fn primary(self: &Arc<Self>, timeouts: Timeouts) -> Result<(Primary, TopologyVersion), StoreError> {
        self.primary.get(timeouts, self.refresh()).await
    }

    fn refresh(self: &Arc<Self>) -> impl Fn(Option<Primary>) -> RefreshFuture<Primary> {
        let sentinel = Arc::clone(self);
        move |previous| {
            let sentinel = Arc::clone(&sentinel);
            Box::pin(async move { sentinel.find_primary(previous).await })
        }
    }

    /// Queries one sentinel after the other until one names a server that itself reports the role of a primary. Calls to
    /// sentinels with an open breaker fail at once.
    async fn find_primary(&self, previous: Option<Primary>) -> Result<Primary, StoreError> {
        let mut failure = None;
        let first = self.first.load(Ordering::Relaxed);
        for offset in 0..self.sentinels.len() {
            let index = (first + offset) % self.sentinels.len();
            match self.query_sentinel(&self.sentinels[index], previous.as_ref()).await {
                Ok(primary) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(primary);
                }
                // A permanent error is more useful to the operator than a transient one.
                Err(error) if failure.as_ref().is_none_or(StoreError::is_transient) => failure = Some(error),
                Err(_) => {}
            }
        }
        Err(failure.unwrap_or_else(|| unavailable("the URL names no sentinel")))
    }

    async fn query_sentinel(&self, sentinel: &RedisNode, previous: Option<&Primary>) -> Result<Primary, StoreError> {
        let mut query = redis::cmd("SENTINEL");
        query.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let reply = sentinel.query::<Option<(String, u16)>>(&query, self.factory.topology_timeouts()).await;
        let Some((host, port)) = reply.map_err(|error| sentinel_error(&error))? else {
            let message = "the sentinels know no primary of this name; check the name after the addresses in the URL";
            return Err(StoreError::new(StoreErrorKind::Refused, message));
        };
        let address = Address { host, port };
        // The node of the same address keeps its connection, breaker and counts.
        let node = match previous.filter(|primary| primary.address == address) {
            Some(primary) => primary.node.clone(),
            None => self.factory.node_at(&address),
        };
        match self.is_primary(&node).await {
            Ok(true) => Ok(Primary { address, node }),
            Ok(false) => {
                let message = "the server that the sentinels name is not a primary (yet); a failover is in progress";
                Err(StoreError::new(StoreErrorKind::Refused, message))
            }
            Err(error) => Err(not_applied(&StoreError::from(&error))),
        }
    }

    /// Whether the server itself reports the role of a primary.
    async fn is_primary(&self, node: &RedisNode) -> Result<bool, NodeError> {
        let reply = node.query::<Value>(&redis::cmd("ROLE"), self.factory.topology_timeouts()).await?;
        let Value::Array(fields) = reply else { return Ok(false) };
        Ok(matches!(fields.first(), Some(Value::BulkString(role)) if role == b"master"))
    }
}

/// Whether the server is not the primary any more. Nothing ran.
fn is_demoted(error: &NodeError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
}

/// The store error for a failed query to a sentinel.
fn sentinel_error(error: &NodeError) -> StoreError {
    let redis_error = match error {
        NodeError::Failed(redis_error) => redis_error,
        NodeError::TimedOut => return unavailable(NO_SENTINEL),
        NodeError::Down(reason) if reason.is_authentication() => {
            return denied("a sentinel rejects its user or password");
        }
        NodeError::Down(reason) if reason.is_unresolved() => {
            return unavailable("the host name of a sentinel cannot be resolved; is it right, and does DNS know it?");
        }
        NodeError::Down(reason) if reason.is_unavailable() => return unavailable(NO_SENTINEL),
        _ => return error.into(),
    };
    match redis_error.code() {
        Some("NOAUTH") => denied("a sentinel requires a password of its own; add ?sentinel_password=… to the URL"),
        Some("NOPERM") => {
            denied("the user of the sentinels may not ask for the primary; allow it +sentinel|get-master-addr-by-name")
        }
        Some("ERR") if redis_error.detail().is_some_and(|detail| detail.contains("unknown command")) => {
            let message = "there is no sentinel at an address of the URL, but a server: write redis:// for that";
            StoreError::new(StoreErrorKind::Unsupported, message)
        }
        None if store_error(redis_error).kind() == StoreErrorKind::Unavailable => unavailable(NO_SENTINEL),
        _ => not_applied(&store_error(redis_error)),
    }
}
