//! `ServerState`: what an operator wants to see of the way to one server. Plain numbers; it changes nothing.

use crate::breaker::BreakerState;
use crate::store::RedisStore;

/// How a store gets on with one server.
///
/// The counts begin anew when the server leaves the topology and comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerState {
    /// Where it is: host and port, or the path of a socket.
    pub address: String,
    /// Whether it is asked.
    pub breaker: BreakerState,
    /// How often it was found to be silent.
    pub opened: u64,
    /// Calls that are on their way to it.
    pub in_flight: usize,
    /// Calls that were not sent because too many were on their way.
    pub overloaded: u64,
}

/// Watching
impl RedisStore {
    /// How it gets on with each server that decides, as far as they are known: the one of the URL, the primary behind
    /// sentinels, the primaries of a cluster.
    pub fn state(&self) -> Vec<ServerState> {
        let mut states: Vec<ServerState> = self.link.known().iter().map(crate::node::Node::state).collect();
        states.sort_by(|one, other| one.address.cmp(&other.address));
        states
    }
}
