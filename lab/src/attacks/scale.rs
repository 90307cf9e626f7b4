//! `Scale`: how large the attacks are.

use std::time::Duration;

use super::attack::Attack;

/// The timeout of a decision: the default, since the promises are about it.
pub const TIMEOUT: Duration = Duration::from_millis(25);

/// How large the attacks are.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Connections to the gateway.
    pub connections: usize,
    /// Requests on each connection.
    pub requests: usize,
    /// Checks at the same moment.
    pub burst: usize,
    /// Bursts that are dropped, and rounds of streams that are reset.
    pub bursts: usize,
    /// Calls that are started and kept.
    pub held: usize,
    /// Requests of each bystander, at least.
    pub bystander_requests: u64,
    /// The interval between requests of a bystander.
    pub pace: Duration,
}

impl Scale {
    /// Small enough for every run of the tests.
    pub const fn for_tests() -> Self {
        Self {
            connections: 200,
            requests: 10,
            burst: 5_000,
            bursts: 20,
            held: 1_500,
            bystander_requests: 20,
            pace: Duration::from_millis(4),
        }
    }

    /// As large as in the table of the page.
    pub const fn for_figures() -> Self {
        Self {
            connections: 1_000,
            requests: 50,
            burst: 5_000,
            bursts: 200,
            held: 5_000,
            bystander_requests: 200,
            pace: Duration::from_millis(4),
        }
    }

    /// The limit of each API key. It refills too slowly to matter.
    pub const fn limit(&self, attack: Attack) -> u64 {
        match attack {
            Attack::ConnectionFlood => 100,
            Attack::ExhaustedClients => 4,
            Attack::SubjectFlood => 2,
            _ => 10,
        }
    }
}
