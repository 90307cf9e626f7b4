//! `StoreCollector`: metrics of a shared store, read when they are scraped: its servers, its namespace and instances, its denial cache, and its
//! keys of unauthenticated subjects.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use tidegate::spi::Store;
use tidegate_redis::{BreakerState, RedisStore, ServerState, SubjectStats};

use super::RuleLabel;
use crate::store::AnyStore;

/// Reads the metrics of a store.
#[derive(Debug)]
pub(crate) struct StoreCollector(pub(crate) AnyStore);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServerLabel {
    server: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamespaceLabel {
    namespace: String,
}

/// A metric with one series for each `T`: its type, name, help and value.
type MetricOf<T> = (MetricType, &'static str, &'static str, fn(&T) -> u64);

const SERVER_METRICS: [MetricOf<ServerState>; 7] = [
    (
        MetricType::Gauge,
        "rate_limit_store_up",
        "Whether calls are sent to a server of the store: 0 while its circuit breaker is open",
        |server| u64::from(server.breaker == BreakerState::Closed),
    ),
    (
        MetricType::Gauge,
        "rate_limit_store_in_flight",
        "Plans and calls that were sent to a server of the store and have no reply yet",
        |server| server.in_flight as u64,
    ),
    (
        MetricType::Gauge,
        "rate_limit_store_waiting",
        "Plans and calls that wait to be sent to a server of the store",
        |server| server.waiting as u64,
    ),
    (
        MetricType::Counter,
        "rate_limit_store_silences",
        "Times that the circuit breaker of a server of the store opened",
        |server| server.opened,
    ),
    (
        MetricType::Counter,
        "rate_limit_store_overloads",
        "Plans and calls that were not sent, since too many waited or they had waited for too long",
        |server| server.overloaded,
    ),
    (MetricType::Counter, "rate_limit_store_batches", "Script calls that decided plans", |server| server.batches),
    (MetricType::Counter, "rate_limit_store_batched_plans", "Plans that these script calls decided", |server| {
        server.batched_plans
    }),
];

const ANONYMOUS_METRICS: [MetricOf<SubjectStats>; 3] = [
    (
        MetricType::Gauge,
        "rate_limit_anonymous_keys",
        "Keys of unauthenticated subjects, the part of this instance",
        |rule| rule.keys,
    ),
    (MetricType::Gauge, "rate_limit_crowded", "Whether new unauthenticated subjects share overflow buckets", |rule| {
        u64::from(rule.overflowing)
    }),
    (MetricType::Counter, "rate_limit_anonymous_created", "Keys created for unauthenticated subjects", |rule| {
        rule.created
    }),
];

const AUTHENTICATED_METRICS: [MetricOf<SubjectStats>; 3] = [
    (
        MetricType::Gauge,
        "rate_limit_authenticated_keys",
        "Keys of authenticated subjects, the part of this instance",
        |rule| rule.keys,
    ),
    (
        MetricType::Gauge,
        "rate_limit_authenticated_crowded",
        "Whether new authenticated subjects share overflow buckets",
        |rule| u64::from(rule.overflowing),
    ),
    (MetricType::Counter, "rate_limit_authenticated_created", "Keys created for authenticated subjects", |rule| {
        rule.created
    }),
];

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(instances) = self.0.instances() {
            let help = "Instances of the namespace, by their heartbeats";
            let mut metric = encoder.encode_descriptor("rate_limit_instances", help, None, MetricType::Gauge)?;
            metric.encode_gauge(&i64::from(instances))?;
        }
        if let Some(store) = self.0.redis() {
            let label = NamespaceLabel { namespace: store.namespace().to_string() };
            let help = "The namespace of this instance on a shared store; always 1";
            let mut metric = encoder.encode_descriptor("tidegate_namespace_info", help, None, MetricType::Gauge)?;
            metric.encode_family(&label)?.encode_gauge(&1_u64)?;
        }
        if let Some(rule_sets) = self.0.redis().and_then(RedisStore::rule_sets) {
            let help = "Different rule sets of the instances of the namespace; more than 1 except during a reload is a mistake";
            let mut metric = encoder.encode_descriptor("rate_limit_rule_sets", help, None, MetricType::Gauge)?;
            metric.encode_gauge(&i64::from(rule_sets))?;
        }
        if let Some(entries) = self.0.denial_cache_entries() {
            let help = "Denials of the store that are still answered without it";
            let mut metric =
                encoder.encode_descriptor("rate_limit_denial_cache_entries", help, None, MetricType::Gauge)?;
            metric.encode_gauge(&i64::try_from(entries).unwrap_or(i64::MAX))?;
        }
        let servers = self.0.servers();
        encode_each(&mut encoder, &SERVER_METRICS, &servers, |server| ServerLabel { server: server.address.clone() })?;
        let anonymous = self.0.anonymous_stats();
        let label = |rule: &SubjectStats| RuleLabel { rule: rule.rule.clone() };
        encode_each(&mut encoder, &ANONYMOUS_METRICS, &anonymous, label)?;
        encode_each(&mut encoder, &AUTHENTICATED_METRICS, &self.0.authenticated_stats(), label)
    }
}

/// Encodes each of `metrics` with one series for each of `items`.
fn encode_each<T, L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    metrics: &[MetricOf<T>],
    items: &[T],
    label: impl Fn(&T) -> L,
) -> fmt::Result {
    for (kind, name, help, value) in metrics.iter().filter(|_| !items.is_empty()) {
        let mut metric = encoder.encode_descriptor(name, help, None, *kind)?;
        for item in items {
            let (label, value) = (label(item), value(item));
            let mut metric = metric.encode_family(&label)?;
            if matches!(kind, MetricType::Counter) {
                let none: Option<&Exemplar<RuleLabel, u64>> = None;
                metric.encode_counter(&value, none)?;
            } else {
                metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
            }
        }
    }
    Ok(())
}
