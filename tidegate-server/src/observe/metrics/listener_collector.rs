//! `ListenerCollector`: the counters of all addresses of a server, as metrics and in the log.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use crate::listen::{Bound, Gauge, ListenerStats};

/// The counters of each address.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListenerCollector {
    pub(crate) http: Arc<ListenerStats>,
    pub(crate) grpc: Arc<ListenerStats>,
    pub(crate) gateway: Arc<ListenerStats>,
    pub(crate) admin: Arc<ListenerStats>,
}

/// Logs when a bound is reached, and when it no longer is. It compares once in each interval, so that a flood of clients does not
/// become a flood of lines.
#[derive(Debug, Default)]
pub(crate) struct BoundLog {
    /// For each address and bound: how often it had been reached at the last comparison, and whether that was logged.
    states: [[(u64, bool); Bound::ALL.len()]; ListenerCollector::COUNT],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressLabel {
    address: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BoundLabels {
    address: &'static str,
    bound: &'static str,
}

impl ListenerCollector {
    const COUNT: usize = 4;

    /// Each address by the name of its flag.
    fn all(&self) -> [(&'static str, &ListenerStats); Self::COUNT] {
        [("http", &self.http), ("grpc", &self.grpc), ("gateway", &self.gateway), ("admin", &self.admin)]
    }
}

impl Collector for ListenerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauges = [
            ("tidegate_connections", "Open connections of clients, by address", Gauge::Connections),
            ("tidegate_requests", "Requests under way, by address", Gauge::Requests),
        ];
        for (name, help, of) in gauges {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (address, stats) in self.all() {
                metric.encode_family(&AddressLabel { address })?.encode_gauge(&gauge(stats, of))?;
            }
        }
        let gauges = [
            ("tidegate_upstream_requests", "Requests and tunnels at the upstream", Gauge::UpstreamRequests),
            ("tidegate_upstream_waiting", "Requests that wait for the upstream", Gauge::UpstreamWaiting),
        ];
        for (name, help, of) in gauges {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            metric.encode_gauge(&gauge(&self.gateway, of))?;
        }
        let help = "Times that a bound on clients was reached, by address and bound";
        let mut metric = encoder.encode_descriptor("tidegate_bound_reached", help, None, MetricType::Counter)?;
        for (address, stats) in self.all() {
            for bound in Bound::ALL {
                let none: Option<&Exemplar<BoundLabels, u64>> = None;
                let labels = BoundLabels { address, bound: bound.name() };
                metric.encode_family(&labels)?.encode_counter(&stats.reached(bound), none)?;
            }
        }
        Ok(())
    }
}

fn gauge(stats: &ListenerStats, gauge: Gauge) -> i64 {
    i64::try_from(stats.value(gauge)).unwrap_or(i64::MAX)
}

impl BoundLog {
    /// Logs what has changed since the last call.
    pub(crate) fn update(&mut self, listeners: &ListenerCollector) {
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
    use super::*;
    use crate::observe::log::status_log::tests::logged_lines;

    #[test]
    fn a_bound_is_logged_when_it_is_reached_and_when_it_no_longer_is() {
        let (listeners, mut log) = (ListenerCollector::default(), BoundLog::default());
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
