//! `ServerState`: a snapshot of the connection to one server, for operators.

use crate::breaker::BreakerState;
use crate::node::RedisNode;
use crate::store::RedisStore;

/// A snapshot of the connection to one server.
///
/// The counters start at zero when the server joins the topology, and again when it leaves and rejoins.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerState {
    /// Host and port, or the path of a Unix socket.
    pub address: String,
    /// State of the circuit breaker.
    pub breaker: BreakerState,
    /// How often the breaker has opened.
    pub opened: u64,
    /// Plans and calls that were sent and are not answered yet.
    pub in_flight: usize,
    /// Plans and calls that wait to be sent.
    pub waiting: usize,
    /// Plans and calls that failed without being sent, because too many waited or they had waited for too long.
    pub overloaded: u64,
    /// Script calls that decided plans.
    pub batches: u64,
    /// The plans that these calls decided.
    pub batched_plans: u64,
}

/// Monitoring
impl RedisStore {
    /// The state of each known primary, by address: the server of the URL, the primary behind sentinels, or the primaries
    /// of a cluster.
    pub fn server_states(&self) -> Vec<ServerState> {
        let mut states: Vec<ServerState> = self.router.known_primaries().iter().map(RedisNode::state).collect();
        states.sort_by(|one, other| one.address.cmp(&other.address));
        states
    }
}
