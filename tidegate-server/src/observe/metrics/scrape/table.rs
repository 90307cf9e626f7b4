//! The metrics of a scrape, in the order of the page.

use prometheus_client::metrics::MetricType;
use tidegate::spi::Store;
use tidegate_ledger::ServiceStats;
use tidegate_redis::{BreakerState, RedisStore};

use super::Number::{self, Real, Whole};
use super::Read::{self, Address, Anonymous, Authenticated, Ledger, Many, One, Server};
use super::{Row, Series};
use crate::listen::{Bound, Gauge, ListenerStats};
use crate::observe::metrics::process;

/// All of them, in the order of the page.
pub(super) const ROWS: &[Row] = &[
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
        One(|of| Some(size(of.addresses.gateway.value(Gauge::UpstreamRequests)))),
    ),
    gauge(
        "tidegate_upstream_waiting",
        "Requests that wait for the upstream",
        One(|of| Some(size(of.addresses.gateway.value(Gauge::UpstreamWaiting)))),
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
        One(|of| of.store.denial_cache_entries().map(size)),
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
        One(|of| Some(size(of.held_leases))),
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
        Ledger(|ledger| Whole(ledger.service.older_copies)),
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

fn size(number: usize) -> Number {
    Whole(number as u64)
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
