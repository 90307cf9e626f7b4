//! `Scale`: how large the attacks are.

use std::time::Duration;

/// The timeout of a decision: the default, since the promises are about it.
pub const TIMEOUT: Duration = Duration::from_millis(25);

/// How large the attacks are.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub(super) connections: usize,
    pub(super) requests: usize,
    /// Checks at the same moment.
    pub(super) burst: usize,
    /// Bursts that are dropped, and rounds of streams that are reset.
    pub(super) bursts: usize,
    /// Calls that are started and kept.
    pub(super) held: usize,
    /// Requests of all bystanders after the attack, at least.
    pub(super) bystander_requests: u64,
    /// The interval between requests of a bystander.
    pub(super) pace: Duration,
}

impl Scale {
    /// Small enough for every run of the tests.
    pub const fn for_tests() -> Self {
        let (connections, requests, burst, bursts, held) = (200, 10, 5_000, 20, 1_500);
        Self { connections, requests, burst, bursts, held, bystander_requests: 20, pace: Duration::from_millis(4) }
    }

    /// As large as in the table of the page.
    pub const fn for_figures() -> Self {
        let (connections, requests, bursts, held) = (1_000, 50, 200, 5_000);
        Self { connections, requests, bursts, held, bystander_requests: 200, ..Self::for_tests() }
    }
}
