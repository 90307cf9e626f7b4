//! `Fleet`: the gateways of a phase. They share at most the store; the log only observes them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock, Limiter, MemoryStore, RuleSet, Secret, Timer};
use tidegate_server::command::Failure;
use tidegate_server::gateway::{Gateway, GatewayOptions};
use tidegate_server::{AnyStore, ConnectionLimits, Listener};
use tidegate_tower::LimitLayer;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::admission_log::AdmissionLog;
use super::shared_store::StoreKeys;

/// Longer than any phase, so that no request meets a connection that is being closed as idle.
const IDLE_TIMEOUT: Duration = Duration::from_hours(1);

/// Gateways that run until this is dropped.
pub(crate) struct Fleet {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) admissions: Arc<AdmissionLog>,
    stop: watch::Sender<()>,
    tasks: JoinSet<bool>,
}

impl Fleet {
    /// Starts `instances` gateways on `runtime`. Without `keys` each has its limits in its own memory.
    pub(crate) async fn start(
        runtime: &Handle,
        instances: u32,
        backend: SocketAddr,
        rules: &RuleSet,
        keys: Option<&StoreKeys>,
        timer: &Arc<dyn Timer>,
    ) -> Result<Self, Failure> {
        let (stop, stopping) = watch::channel(());
        let mut fleet = Self { addresses: Vec::new(), admissions: Arc::default(), stop, tasks: JoinSet::new() };
        for _ in 0..instances {
            let opened = runtime.spawn(open(keys.cloned())).await;
            let (store, listener) = opened.map_err(|error| start_failure(&error))??;
            fleet.addresses.push(listener.address().map_err(|error| start_failure(&error))?);
            let gateway = gateway(backend)?;
            let limiter = Limiter::new(rules.clone(), store).with_secret(&Secret::public()).with_instances(instances);
            let layer = LimitLayer::new(limiter.with_observer(Arc::clone(&fleet.admissions)));
            let (mut stopping, admissions) = (stopping.clone(), Arc::clone(&fleet.admissions));
            let stopped = async move { drop(stopping.changed().await) };
            let observer = move |status, latency| admissions.record_response(status, latency);
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

/// Opens the store and the listener of one gateway.
async fn open(keys: Option<StoreKeys>) -> Result<(AnyStore, Listener), Failure> {
    let store = match keys {
        None => AnyStore::Memory(Arc::new(MemoryStore::new())),
        Some(keys) => AnyStore::Redis(keys.connect().await?),
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
    use tokio::runtime::Handle;

    use super::super::backend::Backend;
    use super::super::endpoint::Endpoint;
    use super::super::options::Scenario;
    use super::super::phase::Phase;
    use super::super::request_log::{ClientKind, RequestOutcome};
    use super::super::simulation::{Client, Simulation};
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn requests_fail_while_the_service_is_down_and_the_run_goes_on() {
        let timer: Arc<dyn Timer> = Arc::new(tidegate_server::command::tokio_timer());
        let scenario = Scenario::for_tests();
        let mut backend = Backend::start(1, Arc::clone(&timer)).unwrap();
        let rules = Phase::Capacity.rules().ok().unwrap();
        let fleet = Fleet::start(&Handle::current(), 2, backend.address, &rules, None, &timer).await;
        let fleet = fleet.ok().unwrap();
        let simulation = Arc::new(Simulation::connect(&fleet.addresses, Arc::clone(&timer), scenario).await.unwrap());
        let send = || {
            let (simulation, client) = (Arc::clone(&simulation), Client::new(ClientKind::Rider, 0, "ann", &scenario));
            async move { simulation.send(&client, Endpoint::Ride, simulation.start).await.outcome }
        };
        assert_eq!(send().await, RequestOutcome::Served);
        let in_flight = tokio::spawn(send());
        while backend.components.matching.busy() == 0 {
            tokio::task::yield_now().await;
        }
        backend.kill();
        assert_eq!(in_flight.await.unwrap(), RequestOutcome::Failed);
        assert_eq!(send().await, RequestOutcome::Failed);
        assert_eq!(simulation.request_log().count(&[ClientKind::Rider], None).failures(), 2);
        fleet.stop().await;
    }
}
