//! `LedgerCollector`: metrics of the ledger, read when they are scraped.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use tidegate_ledger::ServiceStats;

use crate::engine::ledger::ServerLedger;
use crate::observe::metrics::{OutcomeLabel, RuleLabel};

/// The numbers of a scrape.
#[derive(Debug)]
struct LedgerCollector {
    stats: ServiceStats,
    /// Of the last reconcile.
    differences: u64,
}

/// The metrics in the text format of `OpenMetrics`; none without a ledger.
pub(crate) fn open_metrics(ledger: Option<&ServerLedger>) -> String {
    let Some(ledger) = ledger else { return String::new() };
    encode_stats(LedgerCollector { stats: ledger.stats(), differences: ledger.reconcile().unrepaired() })
}

fn encode_stats(collector: LedgerCollector) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

impl Collector for LedgerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let none: Option<&Exemplar<RuleLabel, u64>> = None;
        let stats = &self.stats;
        let help = "Entries that this instance brought to the ledger, by whether the ledger had them already";
        let mut entries = encoder.encode_descriptor("rate_limit_ledger_entries", help, None, MetricType::Counter)?;
        for (outcome, number) in [("posted", stats.entries_posted), ("repeated", stats.entries_repeated)] {
            entries.encode_family(&OutcomeLabel { outcome })?.encode_counter(&number, none)?;
        }
        let counters = [
            ("rate_limit_ledger_posts", "Transactions that brought entries to the ledger", stats.posts),
            (
                "rate_limit_ledger_rebuilds",
                "Partitions rebuilt from the ledger, which the store had lost",
                stats.rebuilds,
            ),
            (
                "rate_limit_ledger_rollbacks",
                "Partitions found in an older copy of the store, and rebuilt",
                stats.older_copies,
            ),
            ("rate_limit_ledger_repairs", "Quotas in the store that were set to what the ledger has", stats.repairs),
        ];
        for (name, help, number) in counters {
            encoder.encode_descriptor(name, help, None, MetricType::Counter)?.encode_counter(&number, none)?;
        }
        let is_up = u64::from(stats.ledger_error.is_none());
        let gauges = [
            ("rate_limit_ledger_up", "Whether the last call to the ledger succeeded", is_up),
            ("rate_limit_ledger_waiting_entries", "Entries in outboxes that are not in the ledger yet", stats.waiting),
            ("rate_limit_ledger_journal_entries", "Entries in the local journal", stats.journal_waiting),
            (
                "rate_limit_ledger_waiting_repairs",
                "Quotas that wait to be set to what the ledger has",
                stats.repairs_waiting,
            ),
            ("rate_limit_ledger_differences", "Differences that the last reconcile left", self.differences),
        ];
        for (name, help, number) in gauges {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&number)?;
        }
        let help = "Age of the oldest entry that is not in the ledger yet";
        let mut lag = encoder.encode_descriptor("rate_limit_ledger_lag_seconds", help, None, MetricType::Gauge)?;
        lag.encode_gauge(&stats.lag.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_shown_before_anything_happened() {
        let text = encode_stats(LedgerCollector { stats: ServiceStats::default(), differences: 0 });
        for line in [
            "rate_limit_ledger_entries_total{outcome=\"posted\"} 0",
            "rate_limit_ledger_entries_total{outcome=\"repeated\"} 0",
            "rate_limit_ledger_rebuilds_total 0",
            "rate_limit_ledger_rollbacks_total 0",
            "rate_limit_ledger_up 1",
            "rate_limit_ledger_waiting_entries 0",
            "rate_limit_ledger_journal_entries 0",
            "rate_limit_ledger_differences 0",
            "rate_limit_ledger_lag_seconds 0.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
