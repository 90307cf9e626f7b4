//! `LeaseCollector`: metrics of the leases that requests hold at the gateway, read when they are scraped.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use tidegate_tower::Handle;

use super::RuleLabel;

/// The numbers of a scrape.
#[derive(Debug)]
struct LeaseCollector {
    held: usize,
    lost: u64,
}

/// The metrics in the text format of `OpenMetrics`.
pub(crate) fn open_metrics<S>(handle: &Handle<S>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(LeaseCollector { held: handle.held_leases(), lost: handle.lost_leases() }));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

impl Collector for LeaseCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests and tunnels at the gateway that hold slots of concurrency limits";
        let mut metric = encoder.encode_descriptor("rate_limit_held_leases", help, None, MetricType::Gauge)?;
        metric.encode_gauge(&i64::try_from(self.held).unwrap_or(i64::MAX))?;
        let help = "Requests and tunnels at the gateway that were ended because they lost their slots";
        let mut metric = encoder.encode_descriptor("rate_limit_lost_leases", help, None, MetricType::Counter)?;
        let none: Option<&Exemplar<RuleLabel, u64>> = None;
        metric.encode_counter(&self.lost, none)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{Limiter, MemoryStore, RuleSet};

    use super::*;

    #[test]
    fn held_and_lost_leases_are_always_shown() {
        let handle = Handle::new(Limiter::new(RuleSet::new([]).unwrap(), MemoryStore::new()));
        let text = open_metrics(&handle);
        for line in ["rate_limit_held_leases 0", "rate_limit_lost_leases_total 0"] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
