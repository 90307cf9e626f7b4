//! What the metrics say of a shared store: its servers, its instances, and the strangers under its rules. It is asked when
//! somebody looks.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use tidegate::spi::Store;
use tidegate_redis::{AnonymousStats, BreakerState, ServerState};

use super::metrics::RuleLabel;
use crate::store::AnyStore;

/// The store, for the metrics.
#[derive(Debug)]
pub(crate) struct Shared(pub(crate) AnyStore);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServerLabel {
    server: String,
}

/// A metric of each of several things: its kind, its name, what it means, and its value.
type Metric<T> = (MetricType, &'static str, &'static str, fn(&T) -> u64);

const OF_SERVERS: [Metric<ServerState>; 4] = [
    (
        MetricType::Gauge,
        "rate_limit_store_up",
        "Whether a server of the store is asked: 0 while it is silent",
        |server| u64::from(server.breaker == BreakerState::Closed),
    ),
    (MetricType::Gauge, "rate_limit_store_in_flight", "Calls on their way to a server of the store", |server| {
        server.in_flight as u64
    }),
    (
        MetricType::Counter,
        "rate_limit_store_silences",
        "How often a server of the store was found to be silent",
        |server| server.opened,
    ),
    (
        MetricType::Counter,
        "rate_limit_store_overloads",
        "Calls that were not sent, since too many were on their way",
        |server| server.overloaded,
    ),
];

const OF_STRANGERS: [Metric<AnonymousStats>; 3] = [
    (
        MetricType::Gauge,
        "rate_limit_anonymous_keys",
        "Keys of subjects that nobody vouches for, this instance's part",
        |rule| rule.keys,
    ),
    (MetricType::Gauge, "rate_limit_crowded", "Whether new subjects that nobody vouches for share buckets", |rule| {
        u64::from(rule.overflowing)
    }),
    (
        MetricType::Counter,
        "rate_limit_anonymous_created",
        "Keys created for subjects that nobody vouches for",
        |rule| rule.created,
    ),
];

impl Collector for Shared {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(instances) = self.0.instances() {
            let help = "Instances that share the store, by their heartbeats";
            let mut metric = encoder.encode_descriptor("rate_limit_instances", help, None, MetricType::Gauge)?;
            metric.encode_gauge(&i64::from(instances))?;
        }
        let servers = self.0.servers();
        tell(&mut encoder, &OF_SERVERS, &servers, |server| ServerLabel { server: server.address.clone() })?;
        let strangers = self.0.strangers();
        tell(&mut encoder, &OF_STRANGERS, &strangers, |rule| RuleLabel { rule: rule.rule.clone() })
    }
}

/// Writes each of `metrics` for each of `things`.
fn tell<T, L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    metrics: &[Metric<T>],
    things: &[T],
    label: impl Fn(&T) -> L,
) -> fmt::Result {
    for (kind, name, help, value) in metrics.iter().filter(|_| !things.is_empty()) {
        let mut metric = encoder.encode_descriptor(name, help, None, *kind)?;
        for thing in things {
            let (label, value) = (label(thing), value(thing));
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
