//! What the metrics say of the servers of the store, asked when somebody looks.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use tidegate::Store;
use tidegate_redis::{BreakerState, ServerState};

use crate::store::AnyStore;

/// The servers of a store.
#[derive(Debug)]
pub(crate) struct Servers(pub(crate) AnyStore);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServerLabel {
    server: String,
}

/// A metric of each server: its name, what it means, and its value.
type Gauge = (&'static str, &'static str, fn(&ServerState) -> i64);
type Count = (&'static str, &'static str, fn(&ServerState) -> u64);

const GAUGES: [Gauge; 2] = [
    ("rate_limit_store_up", "Whether a server of the store is asked: 0 while it is silent", |server| {
        i64::from(server.breaker == BreakerState::Closed)
    }),
    ("rate_limit_store_in_flight", "Calls on their way to a server of the store", |server| {
        i64::try_from(server.in_flight).unwrap_or(i64::MAX)
    }),
];

const COUNTS: [Count; 2] = [
    ("rate_limit_store_silences", "How often a server of the store was found to be silent", |server| server.opened),
    ("rate_limit_store_overloads", "Calls that were not sent, since too many were on their way", |server| {
        server.overloaded
    }),
];

impl Collector for Servers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(instances) = self.0.instances() {
            let help = "Instances that share the store, by their heartbeats";
            encoder
                .encode_descriptor("rate_limit_instances", help, None, MetricType::Gauge)?
                .encode_gauge(&i64::from(instances))?;
        }
        let servers: Vec<(ServerLabel, ServerState)> = self
            .0
            .servers()
            .into_iter()
            .map(|server| (ServerLabel { server: server.address.clone() }, server))
            .collect();
        for (name, help, value) in GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (label, server) in &servers {
                metric.encode_family(label)?.encode_gauge(&value(server))?;
            }
        }
        for (name, help, value) in COUNTS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (label, server) in &servers {
                let none: Option<&Exemplar<ServerLabel, u64>> = None;
                metric.encode_family(label)?.encode_counter(&value(server), none)?;
            }
        }
        Ok(())
    }
}
