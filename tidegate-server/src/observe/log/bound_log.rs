//! `BoundLog`: logs when a bound on clients is reached, and when it no longer is.

use crate::listen::{AddressStats, Bound, ListenerStats};

/// The bounds that were reached at the last comparison. They are compared once in each interval, so that a flood of clients does not
/// become a flood of lines.
#[derive(Debug, Default)]
pub(crate) struct BoundLog {
    /// For each address and bound: how often it had been reached at the last comparison, and whether that was logged.
    states: [[(u64, bool); Bound::ALL.len()]; AddressStats::COUNT],
}

impl BoundLog {
    /// Logs what has changed since the last call.
    pub(crate) fn update(&mut self, listeners: &AddressStats) {
        for ((address, stats), states) in listeners.all().into_iter().zip(&mut self.states) {
            for (bound, (count, is_reached)) in Bound::ALL.into_iter().zip(states) {
                let times = stats.reached(bound).saturating_sub(std::mem::replace(count, stats.reached(bound)));
                let was_reached = std::mem::replace(is_reached, times > 0);
                if !was_reached && times > 0 {
                    let problem = describe(bound, stats);
                    tracing::warn!(target: "tidegate::server", address, bound = bound.name(), times, "--{address}: {problem}");
                } else if was_reached && times == 0 {
                    tracing::info!(
                        target: "tidegate::server",
                        address,
                        bound = bound.name(),
                        "--{address}: the bound is no longer reached"
                    );
                }
            }
        }
    }
}

/// What happens at a bound, and how to change it.
fn describe(bound: Bound, stats: &ListenerStats) -> String {
    match bound {
        Bound::MaxConnections => "all connections are in use, and further clients wait (--max-connections)".to_owned(),
        Bound::MaxConnectionsPerClient => {
            "connections of a client that has too many are closed (--max-connections-per-client)".to_owned()
        }
        Bound::Accept => format!("connections cannot be accepted: {}", stats.last_accept_error()),
        Bound::MaxRequests => "too many requests are under way, and further ones get 503 (--max-requests)".to_owned(),
        Bound::MaxRequestsPerClient => {
            "requests of a client that has too many under way get 429 (--max-requests-per-client)".to_owned()
        }
        Bound::UpstreamQueue => {
            "too many requests wait for the upstream, and further ones get 503 (--max-upstream-connections, \
             --max-upstream-queue)"
                .to_owned()
        }
        Bound::Upload => {
            "bodies arrive too slowly and get 408 (--client-timeout, --min-rate, --upload-timeout)".to_owned()
        }
        Bound::SlowReader => "clients read too slowly and are disconnected (--client-timeout, --min-rate)".to_owned(),
        Bound::LargeBodies => {
            "too many large bodies are in memory: further ones get 503, and those of a client with too many get 429"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::status_log::tests::logged_lines;
    use super::*;

    #[test]
    fn a_bound_is_logged_when_it_is_reached_and_when_it_no_longer_is() {
        let (listeners, mut log) = (AddressStats::default(), BoundLog::default());
        let lines = logged_lines(|| {
            for times in [0, 500, 1, 0, 0, 1] {
                (0..times).for_each(|_| listeners.gateway.count(Bound::MaxRequests));
                log.update(&listeners);
            }
        });
        assert_eq!(
            lines,
            ["WARN --gateway", "INFO --gateway", "WARN --gateway"],
            "once for 501 requests in two intervals, and once more"
        );
    }
}
