//! `Fleet`: the gateways of a phase. They share at most the store; the log and the histogram only observe them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use http::StatusCode;
use tidegate::{Clock, Limiter, MemoryStore, RuleSet, Secret, StoreError, Timer};
use tidegate_server::command::Failure;
use tidegate_server::gateway::{Gateway, GatewayOptions};
use tidegate_server::{AnyStore, ConnectionLimits, Listener};
use tidegate_tower::LimitLayer;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::admission_log::AdmissionLog;
use super::shared_store;
use crate::traffic::{histogram, micros};

/// Longer than any phase, so that no request meets a connection that is being closed as idle.
const IDLE_TIMEOUT: Duration = Duration::from_hours(1);

/// Gateways that run until this is dropped.
pub(crate) struct Fleet {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) metrics: Arc<FleetMetrics>,
    stop: watch::Sender<()>,
    tasks: JoinSet<bool>,
}

/// What is observed at all gateways.
pub(crate) struct FleetMetrics {
    pub(crate) admissions: Arc<AdmissionLog>,
    /// Microseconds from the request head to the 429 response.
    refusals: Mutex<Histogram<u64>>,
}

/// Where gateways keep the state of limits.
#[derive(Clone, Debug)]
pub(crate) enum LimitStorage {
    /// In the memory of each gateway.
    PerGateway,
    /// In one store, under a key prefix.
    Shared { url: String, prefix: String },
}

impl Fleet {
    /// Starts `instances` gateways on `runtime`.
    pub(crate) async fn start(
        runtime: &Handle,
        instances: u32,
        backend: SocketAddr,
        rules: &RuleSet,
        storage: &LimitStorage,
        timer: &Arc<dyn Timer>,
    ) -> Result<Self, Failure> {
        let metrics = Arc::new(FleetMetrics { admissions: Arc::default(), refusals: Mutex::new(histogram()) });
        let (stop, stopping) = watch::channel(());
        let mut fleet = Self { addresses: Vec::new(), metrics, stop, tasks: JoinSet::new() };
        for _ in 0..instances {
            let (store, listener) =
                runtime.spawn(open(storage.clone())).await.map_err(|error| start_failure(&error))??;
            fleet.addresses.push(listener.address().map_err(|error| start_failure(&error))?);
            let gateway = gateway(backend)?;
            let limiter = Limiter::new(rules.clone(), store).with_secret(&Secret::public()).with_instances(instances);
            let layer = LimitLayer::new(limiter.with_observer(Arc::clone(&fleet.metrics.admissions)));
            let (mut stopping, metrics) = (stopping.clone(), Arc::clone(&fleet.metrics));
            let stopped = async move { drop(stopping.changed().await) };
            let observer = move |status, latency| metrics.record(status, latency);
            let clock: Arc<dyn Clock> = Arc::<dyn Timer>::clone(timer);
            let serving = gateway.serve_observed(listener, layer, stopped, clock, Arc::new(observer));
            fleet.tasks.spawn_on(serving, runtime);
        }
        Ok(fleet)
    }

    /// Stops accepting, and waits for all gateways to end.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(());
        while self.tasks.join_next().await.is_some() {}
    }
}

impl FleetMetrics {
    /// Microseconds from the request head to the 429 response.
    pub(crate) fn refusals(&self) -> Histogram<u64> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record(&self, status: StatusCode, latency: Duration) {
        if status == StatusCode::TOO_MANY_REQUESTS {
            self.refusals.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(micros(latency));
        }
    }
}

/// Opens the store and the listener of one gateway.
async fn open(storage: LimitStorage) -> Result<(AnyStore, Listener), Failure> {
    let failed = |error: StoreError| Failure::Store { error, meanwhile: "" };
    let store = match storage {
        LimitStorage::PerGateway => AnyStore::Memory(Arc::new(MemoryStore::new())),
        LimitStorage::Shared { url, prefix } => {
            AnyStore::Redis(shared_store::connect(&url, &prefix).await.map_err(failed)?)
        }
    };
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.map_err(|error| start_failure(&error))?;
    // The simulation compares rate limits; no other bound may refuse a rider.
    let limits = ConnectionLimits::new().with_max_requests(usize::MAX).with_max_connections(usize::MAX);
    let limits = limits.with_header_timeout(IDLE_TIMEOUT).with_drain_timeout(Duration::ZERO);
    Ok((store, listener.with_limits(limits)))
}

fn gateway(backend: SocketAddr) -> Result<Gateway, Failure> {
    let upstream = format!("h2c://{backend}").parse().map_err(|error| start_failure(&error))?;
    // Riders time out; the gateway must not.
    let options = GatewayOptions::new().with_response_timeout(IDLE_TIMEOUT).with_max_upstream_connections(usize::MAX);
    Gateway::new(&upstream, options).map_err(|error| start_failure(&error))
}

fn start_failure(error: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("cannot start a gateway: {error}"))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tokio::runtime::Handle;

    use super::super::backend::Backend;
    use super::super::endpoint::Endpoint;
    use super::super::options::Scenario;
    use super::super::phase::Phase;
    use super::super::request_log::{ClientKind, RequestOutcome};
    use super::super::simulation::Simulation;
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn requests_fail_while_the_service_is_down_and_the_run_goes_on() {
        let timer: Arc<dyn Timer> = Arc::new(tidegate_server::command::tokio_timer());
        let scenario = Scenario {
            users: 1,
            flood_connections: 0,
            seed: 1,
            phase_duration: Duration::from_secs(1),
            arrivals_per_second: 1,
            timeout: Duration::from_mins(1),
            obstacle: None,
        };
        let mut backend = Backend::start(1, Arc::clone(&timer)).await.unwrap();
        let rules = Phase::Capacity.rules().ok().unwrap();
        let fleet =
            Fleet::start(&Handle::current(), 2, backend.address, &rules, &LimitStorage::PerGateway, &timer).await;
        let fleet = fleet.ok().unwrap();
        let simulation = Arc::new(Simulation::new(&fleet.addresses, Arc::clone(&timer), scenario));
        let send = || {
            let simulation = Arc::clone(&simulation);
            let user = HeaderValue::from_static("ann");
            async move {
                simulation
                    .send(ClientKind::Rider(0), &user, Endpoint::Ride, simulation.start, scenario.timeout)
                    .await
                    .outcome
            }
        };
        assert_eq!(send().await, RequestOutcome::Served);
        let in_flight = tokio::spawn(send());
        while backend.components.matching.busy() == 0 {
            tokio::task::yield_now().await;
        }
        backend.kill();
        assert_eq!(in_flight.await.unwrap(), RequestOutcome::Failed);
        assert_eq!(send().await, RequestOutcome::Failed);
        assert_eq!(simulation.request_log().count(&[ClientKind::RIDERS], None).failed, 2);
        fleet.stop().await;
    }
}
