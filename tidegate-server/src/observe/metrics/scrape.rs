//! `Scrape`: the metrics that are read when the page is asked for: of the addresses, the store, the process, leases and the ledger. One
//! [table] has all of them.

mod table;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use tidegate::Timestamp;
use tidegate_ledger::ServiceStats;
use tidegate_redis::{ServerState, SubjectStats};

use self::table::ROWS;
use crate::engine::Engine;
use crate::listen::{AddressStats, ListenerStats};
use crate::store::AnyStore;

/// What is read.
#[derive(Debug)]
pub(crate) struct Scrape {
    started: Timestamp,
    addresses: AddressStats,
    store: AnyStore,
    servers: Vec<ServerState>,
    anonymous: Vec<SubjectStats>,
    authenticated: Vec<SubjectStats>,
    held_leases: usize,
    lost_leases: u64,
    ledger: Option<LedgerStats>,
}

/// What is read of the ledger.
#[derive(Debug, Default)]
struct LedgerStats {
    service: ServiceStats,
    /// Of the last reconcile.
    differences: u64,
}

/// A metric.
struct Row {
    kind: MetricType,
    name: &'static str,
    help: &'static str,
    read: Read,
}

/// How the series of a metric are read. A metric without series is not on the page.
enum Read {
    /// One series without labels.
    One(fn(&Scrape) -> Option<Number>),
    /// One for each address.
    Address(fn(&ListenerStats) -> usize),
    /// One for each server of a shared store.
    Server(fn(&ServerState) -> u64),
    /// One for each rule that counts anonymous subjects in a shared store.
    Anonymous(fn(&SubjectStats) -> u64),
    /// One for each rule that counts authenticated subjects there.
    Authenticated(fn(&SubjectStats) -> u64),
    /// One without labels, if there is a ledger.
    Ledger(fn(&LedgerStats) -> Number),
    /// Any number.
    Many(fn(&Scrape) -> Vec<Series>),
}

/// The labels and the value of a series.
type Series = (Vec<(&'static str, String)>, Number);

/// A value. Whole numbers are shown without a decimal point.
#[derive(Clone, Copy, Debug)]
enum Number {
    Whole(u64),
    Real(f64),
}

use Number::{Real, Whole};
use Read::{Address, Anonymous, Authenticated, Ledger, Many, One, Server};

impl Scrape {
    /// Reads the metrics of a server.
    pub(crate) fn new(engine: &Engine) -> Self {
        let (store, handle) = (engine.store().inner(), engine.handle());
        let ledger = engine
            .ledger()
            .map(|ledger| LedgerStats { service: ledger.stats(), differences: ledger.reconcile().unrepaired() });
        Self {
            started: engine.metrics().started(),
            addresses: engine.metrics().addresses().clone(),
            servers: store.servers(),
            anonymous: store.anonymous_stats(),
            authenticated: store.authenticated_stats(),
            store: store.clone(),
            held_leases: handle.held_leases(),
            lost_leases: handle.lost_leases(),
            ledger,
        }
    }

    /// The metrics in the text format of `OpenMetrics`.
    pub(crate) fn open_metrics(self) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_collector(Box::new(self));
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

impl Read {
    fn series(&self, scrape: &Scrape) -> Vec<Series> {
        let one = |number: Option<Number>| number.map(|number| (Vec::new(), number)).into_iter().collect();
        let by_rule = |rules: &[SubjectStats], read: &fn(&SubjectStats) -> u64| {
            rules.iter().map(|rule| (vec![("rule", rule.rule.clone())], Whole(read(rule)))).collect()
        };
        match self {
            One(read) => one(read(scrape)),
            Ledger(read) => one(scrape.ledger.as_ref().map(read)),
            Address(read) => {
                let series = |(address, stats): (&str, &ListenerStats)| {
                    (vec![("address", address.to_owned())], Whole(read(stats) as u64))
                };
                scrape.addresses.all().map(series).into()
            }
            Server(read) => {
                let series = |server: &ServerState| (vec![("server", server.address.clone())], Whole(read(server)));
                scrape.servers.iter().map(series).collect()
            }
            Anonymous(read) => by_rule(&scrape.anonymous, read),
            Authenticated(read) => by_rule(&scrape.authenticated, read),
            Many(read) => read(scrape),
        }
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for row in ROWS {
            let series = row.read.series(self);
            if series.is_empty() {
                continue;
            }
            let mut metric = encoder.encode_descriptor(row.name, row.help, None, row.kind)?;
            for (labels, number) in series {
                if labels.is_empty() {
                    number.encode(row.kind, &mut metric)?;
                } else {
                    number.encode(row.kind, &mut metric.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

impl Number {
    fn encode(self, kind: MetricType, metric: &mut MetricEncoder<'_>) -> fmt::Result {
        let none: Option<&Exemplar<[(&str, &str); 0], f64>> = None;
        match (kind, self) {
            (MetricType::Counter, Whole(number)) => metric.encode_counter(&number, none),
            (MetricType::Counter, Real(number)) => metric.encode_counter(&number, none),
            (_, Whole(number)) => metric.encode_gauge(&i64::try_from(number).unwrap_or(i64::MAX)),
            (_, Real(number)) => metric.encode_gauge(&number),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn scrape() -> Scrape {
        Scrape {
            started: Timestamp::from_micros(0),
            addresses: AddressStats::default(),
            store: AnyStore::Memory(std::sync::Arc::default()),
            servers: Vec::new(),
            anonymous: Vec::new(),
            authenticated: Vec::new(),
            held_leases: 0,
            lost_leases: 0,
            ledger: None,
        }
    }

    fn assert_lines(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn held_and_lost_leases_are_always_shown() {
        assert_lines(&scrape().open_metrics(), &["rate_limit_held_leases 0", "rate_limit_lost_leases_total 0"]);
    }

    #[test]
    fn every_metric_is_shown_before_anything_happened() {
        let text = Scrape { ledger: Some(LedgerStats::default()), ..scrape() }.open_metrics();
        assert_lines(
            &text,
            &[
                "rate_limit_ledger_entries_total{outcome=\"posted\"} 0",
                "rate_limit_ledger_entries_total{outcome=\"repeated\"} 0",
                "rate_limit_ledger_rebuilds_total 0",
                "rate_limit_ledger_rollbacks_total 0",
                "rate_limit_ledger_up 1",
                "rate_limit_ledger_waiting_entries 0",
                "rate_limit_ledger_journal_entries 0",
                "rate_limit_ledger_differences 0",
                "rate_limit_ledger_lag_seconds 0.0",
            ],
        );
    }

    #[test]
    fn what_a_server_does_not_have_is_not_on_its_page() {
        let text = scrape().open_metrics();
        assert!(!text.contains("rate_limit_ledger") && !text.contains("rate_limit_store"), "{text}");
    }

    #[test]
    fn each_metric_has_a_name_of_its_own() {
        let names: HashSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
    }
}
