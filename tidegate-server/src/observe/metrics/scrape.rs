//! `Scrape`: the metrics that are read when the page is asked for: of the addresses, the store, the process, leases and the ledger. One table
//! has all of them, in the order of the page.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use tidegate::Timestamp;
use tidegate::spi::Store;
use tidegate_ledger::ServiceStats;
use tidegate_redis::{BreakerState, RedisStore, ServerState, SubjectStats};

use super::process;
use crate::engine::Engine;
use crate::listen::{AddressStats, Bound, Gauge, ListenerStats};
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
    /// One for each rule that counts unauthenticated subjects in a shared store.
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

/// All of them, in the order of the page.
const ROWS: &[Row] = &[
    // The addresses.
    gauge(
        "tidegate_connections",
        "Open connections of clients, by address",
        Address(|of| of.value(Gauge::Connections)),
    ),
    gauge("tidegate_requests", "Requests under way, by address", Address(|of| of.value(Gauge::Requests))),
    gauge(
        "tidegate_upstream_requests",
        "Requests and tunnels at the upstream",
        One(|of| size(of.addresses.gateway.value(Gauge::UpstreamRequests))),
    ),
    gauge(
        "tidegate_upstream_waiting",
        "Requests that wait for the upstream",
        One(|of| size(of.addresses.gateway.value(Gauge::UpstreamWaiting))),
    ),
    counter(
        "tidegate_bound_reached",
        "Times that a bound on clients was reached, by address and bound",
        Many(|of| {
            let of_address =
                |(address, stats): (&'static str, _)| Bound::ALL.map(|bound| reached(address, stats, bound));
            of.addresses.all().into_iter().flat_map(of_address).collect()
        }),
    ),
    // The store.
    gauge(
        "rate_limit_instances",
        "Instances of the namespace, by their heartbeats",
        One(|of| of.store.instances().map(|instances| Whole(instances.into()))),
    ),
    gauge(
        "tidegate_namespace_info",
        "The namespace of this instance on a shared store; always 1",
        Many(|of| {
            let namespace = of.store.redis().map(|store| store.namespace().to_string());
            namespace.map(|namespace| (vec![("namespace", namespace)], Whole(1))).into_iter().collect()
        }),
    ),
    gauge(
        "rate_limit_rule_sets",
        "Different rule sets of the instances of the namespace; more than 1 except during a reload is a mistake",
        One(|of| of.store.redis().and_then(RedisStore::rule_sets).map(|rule_sets| Whole(rule_sets.into()))),
    ),
    gauge(
        "rate_limit_denial_cache_entries",
        "Denials of the store that are still answered without it",
        One(|of| of.store.denial_cache_entries().and_then(size)),
    ),
    gauge(
        "rate_limit_store_up",
        "Whether calls are sent to a server of the store: 0 while its circuit breaker is open",
        Server(|server| u64::from(server.breaker == BreakerState::Closed)),
    ),
    gauge(
        "rate_limit_store_in_flight",
        "Plans and calls that were sent to a server of the store and have no reply yet",
        Server(|server| server.in_flight as u64),
    ),
    gauge(
        "rate_limit_store_waiting",
        "Plans and calls that wait to be sent to a server of the store",
        Server(|server| server.waiting as u64),
    ),
    counter(
        "rate_limit_store_silences",
        "Times that the circuit breaker of a server of the store opened",
        Server(|server| server.opened),
    ),
    counter(
        "rate_limit_store_overloads",
        "Plans and calls that were not sent, since too many waited or they had waited for too long",
        Server(|server| server.overloaded),
    ),
    counter("rate_limit_store_batches", "Script calls that decided plans", Server(|server| server.batches)),
    counter(
        "rate_limit_store_batched_plans",
        "Plans that these script calls decided",
        Server(|server| server.batched_plans),
    ),
    gauge(
        "rate_limit_anonymous_keys",
        "Keys of unauthenticated subjects, the part of this instance",
        Anonymous(|rule| rule.keys),
    ),
    gauge(
        "rate_limit_crowded",
        "Whether new unauthenticated subjects share overflow buckets",
        Anonymous(|rule| u64::from(rule.overflowing)),
    ),
    counter(
        "rate_limit_anonymous_created",
        "Keys created for unauthenticated subjects",
        Anonymous(|rule| rule.created),
    ),
    gauge(
        "rate_limit_authenticated_keys",
        "Keys of authenticated subjects, the part of this instance",
        Authenticated(|rule| rule.keys),
    ),
    gauge(
        "rate_limit_authenticated_crowded",
        "Whether new authenticated subjects share overflow buckets",
        Authenticated(|rule| u64::from(rule.overflowing)),
    ),
    counter(
        "rate_limit_authenticated_created",
        "Keys created for authenticated subjects",
        Authenticated(|rule| rule.created),
    ),
    // The process.
    gauge("tidegate_build_info", "The build that runs; always 1", Many(|_| vec![(build_labels(), Whole(1))])),
    counter("process_cpu_seconds", "CPU time of the process, in seconds", One(|_| Some(Real(process::cpu_seconds())))),
    gauge(
        "process_start_time_seconds",
        "Start of the process, in seconds since 1970",
        One(|of| Some(Real(of.started.as_micros() as f64 / 1e6))),
    ),
    gauge(
        "process_resident_memory_bytes",
        "Resident memory, in bytes",
        One(|_| process::resident_bytes().map(|bytes| Real(bytes as f64))),
    ),
    gauge("process_open_fds", "Open file descriptors", One(|_| process::open_fds().map(|count| Real(count as f64)))),
    gauge(
        "process_max_fds",
        "Highest number of open file descriptors",
        One(|_| process::max_fds().map(|count| Real(count as f64))),
    ),
    // Leases at the gateway.
    gauge(
        "rate_limit_held_leases",
        "Requests and tunnels at the gateway that hold slots of concurrency limits",
        One(|of| size(of.held_leases)),
    ),
    counter(
        "rate_limit_lost_leases",
        "Requests and tunnels at the gateway that were ended because they lost their slots",
        One(|of| Some(Whole(of.lost_leases))),
    ),
    // The ledger.
    counter(
        "rate_limit_ledger_entries",
        "Entries that this instance brought to the ledger, by whether the ledger had them already",
        Many(|of| of.ledger.iter().flat_map(|ledger| entry_series(&ledger.service)).collect()),
    ),
    counter(
        "rate_limit_ledger_posts",
        "Transactions that brought entries to the ledger",
        Ledger(|ledger| Whole(ledger.service.posts)),
    ),
    counter(
        "rate_limit_ledger_rebuilds",
        "Partitions rebuilt from the ledger, which the store had lost",
        Ledger(|ledger| Whole(ledger.service.rebuilds)),
    ),
    counter(
        "rate_limit_ledger_rollbacks",
        "Partitions found in an older copy of the store, and rebuilt",
        Ledger(|ledger| Whole(ledger.service.rollbacks)),
    ),
    counter(
        "rate_limit_ledger_repairs",
        "Quotas in the store that were set to what the ledger has",
        Ledger(|ledger| Whole(ledger.service.repairs)),
    ),
    gauge(
        "rate_limit_ledger_up",
        "Whether the last call to the ledger succeeded",
        Ledger(|ledger| Whole(ledger.service.ledger_error.is_none().into())),
    ),
    gauge(
        "rate_limit_ledger_waiting_entries",
        "Entries in outboxes that are not in the ledger yet",
        Ledger(|ledger| Whole(ledger.service.waiting)),
    ),
    gauge(
        "rate_limit_ledger_journal_entries",
        "Entries in the local journal",
        Ledger(|ledger| Whole(ledger.service.journal_waiting)),
    ),
    gauge(
        "rate_limit_ledger_waiting_repairs",
        "Quotas that wait to be set to what the ledger has",
        Ledger(|ledger| Whole(ledger.service.repairs_waiting)),
    ),
    gauge(
        "rate_limit_ledger_differences",
        "Differences that the last reconcile left",
        Ledger(|ledger| Whole(ledger.differences)),
    ),
    gauge(
        "rate_limit_ledger_lag_seconds",
        "Age of the oldest entry that is not in the ledger yet",
        Ledger(|ledger| Real(ledger.service.lag.as_secs_f64())),
    ),
];

const fn gauge(name: &'static str, help: &'static str, read: Read) -> Row {
    Row { kind: MetricType::Gauge, name, help, read }
}

const fn counter(name: &'static str, help: &'static str, read: Read) -> Row {
    Row { kind: MetricType::Counter, name, help, read }
}

fn size(number: usize) -> Option<Number> {
    Some(Whole(number as u64))
}

fn reached(address: &'static str, stats: &ListenerStats, bound: Bound) -> Series {
    (vec![("address", address.to_owned()), ("bound", bound.name().to_owned())], Whole(stats.reached(bound)))
}

fn entry_series(stats: &ServiceStats) -> [Series; 2] {
    [("posted", stats.entries_posted), ("repeated", stats.entries_repeated)]
        .map(|(outcome, number)| (vec![("outcome", outcome.to_owned())], Whole(number)))
}

/// The build. A build script may name the revision of the source in `TIDEGATE_REVISION`.
fn build_labels() -> Vec<(&'static str, String)> {
    let revision = option_env!("TIDEGATE_REVISION").unwrap_or("unknown");
    vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("revision", revision.to_owned())]
}

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
