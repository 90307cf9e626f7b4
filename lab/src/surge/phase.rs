//! `Phase`: one of the four runs of the scenario: starts service, gateways and crowd, and samples the service meanwhile.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::{RuleSet, Timer};
use tidegate_rules::RuleFile;
use tidegate_server::command::Failure;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::backend::{Backend, ServiceComponents};
use super::cpu::CpuSample;
use super::fleet::{Fleet, LimitStorage};
use super::options::Scenario;
use super::results::{Observations, PhaseResults};
use super::shared_store::SharedStore;
use super::simulation::{OwnConnection, Simulation};
use super::{background_load, flood, riders};
use crate::traffic::RequestError;

/// Pause between the last preparation and the start of a phase.
const START_DELAY: Duration = Duration::from_millis(100);

/// Interval of the samples of the service.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Time that requests in flight have at the end of a phase.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// The limits of each rider.
const RIDER_RULES: &str = include_str!("riders.yaml");

/// The limits of each rider and those of all riders together.
const CAPACITY_RULES: &str = include_str!("surge.yaml");

/// The limits between the crowd and the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    NoLimits,
    PerGateway,
    Shared,
    Capacity,
}

/// What every phase of a run needs.
pub(crate) struct RunContext<'a> {
    pub(crate) scenario: Scenario,
    pub(crate) instances: u32,
    pub(crate) store: &'a SharedStore,
    /// The runtime of the gateways, apart from that of the crowd.
    pub(crate) gateway_runtime: Handle,
    pub(crate) timer: Arc<dyn Timer>,
}

/// The state of the service at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServiceSample {
    pub(crate) waiting: u64,
    pub(crate) busy_workers: u32,
    pub(crate) index_backlog: Duration,
}

/// Counts since the start of a phase.
pub(crate) struct Progress {
    pub(crate) second: u64,
    pub(crate) total_seconds: u64,
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) waiting: u64,
}

impl Phase {
    pub(crate) const ALL: [Self; 4] = [Self::NoLimits, Self::PerGateway, Self::Shared, Self::Capacity];

    pub(crate) const fn number(self) -> usize {
        self as usize + 1
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::NoLimits => "no limits",
            Self::PerGateway => "limits for each rider, in the memory of each gateway",
            Self::Shared => "limits for each rider, shared",
            Self::Capacity => "shared, and one for all riders together",
        }
    }

    /// The rule file in `examples/`.
    pub(crate) const fn rule_file(self) -> Option<&'static str> {
        match self {
            Self::NoLimits => None,
            Self::PerGateway | Self::Shared => Some("examples/surge-riders.yaml"),
            Self::Capacity => Some("examples/surge.yaml"),
        }
    }

    pub(crate) fn rules(self) -> Result<RuleSet, Failure> {
        let text = match self {
            Self::NoLimits => "version: 1\nrules: []\n",
            Self::PerGateway | Self::Shared => RIDER_RULES,
            Self::Capacity => CAPACITY_RULES,
        };
        Ok(RuleFile::parse(self.rule_file().unwrap_or("no rules"), text)?.rules().clone())
    }

    /// Whether a bot floods the gateways. Limits that each gateway keeps for itself do not stop it.
    pub(crate) const fn has_flood(self) -> bool {
        matches!(self, Self::Shared | Self::Capacity)
    }

    fn limit_storage(self, store: &SharedStore) -> LimitStorage {
        match self {
            Self::NoLimits | Self::PerGateway => LimitStorage::PerGateway,
            Self::Shared | Self::Capacity => store.limit_storage(self.number()),
        }
    }

    /// Runs the phase until its end or until `stop` completes, and returns whether it was stopped.
    pub(crate) async fn run(
        self,
        context: &RunContext<'_>,
        stop: impl Future<Output = ()>,
        mut on_progress: impl FnMut(&Progress),
    ) -> Result<(PhaseResults, bool), Failure> {
        let RunContext { scenario, instances, store, ref gateway_runtime, ref timer } = *context;
        let rules = self.rules()?;
        let failed = |error: io::Error| Failure::usage(format!("cannot start the service: {error}"));
        let backend = Backend::start(scenario.seed, Arc::clone(timer)).await.map_err(failed)?;
        let storage = self.limit_storage(store);
        let fleet = Fleet::start(gateway_runtime, instances, backend.address, &rules, &storage, timer).await?;
        let mut simulation = Simulation::new(&fleet.addresses, Arc::clone(timer), scenario);
        let unreachable = |error: RequestError| Failure::usage(format!("cannot reach a gateway: {error}"));
        simulation.connect().await.map_err(unreachable)?;
        let flood_connections = if self.has_flood() { scenario.flood_connections } else { 0 };
        let flood = flood::connect(&simulation, flood_connections).await.map_err(unreachable)?;
        simulation.start_at(timer.now().plus(START_DELAY));
        let simulation = Arc::new(simulation);

        let (cpu_before, mut crowd) = (CpuSample::now(store.process_id()), spawn_crowd(&simulation, flood));
        let samples = Arc::new(Mutex::new(Vec::new()));
        crowd.spawn(sample_service(Arc::clone(&simulation), Arc::clone(&backend.components), Arc::clone(&samples)));
        let stopped = tokio::select! {
            () = report_progress(&simulation, &samples, &mut on_progress) => false,
            () = stop => true,
        };
        let elapsed = timer.now().since(simulation.start);
        if !stopped {
            wait_for_requests_in_flight(&simulation).await;
        }
        simulation.request_log().cut_off(timer.now());
        let cpu = cpu_before.and_then(|before| CpuSample::now(store.process_id())?.since(before));
        let samples = std::mem::take(&mut *samples.lock().unwrap_or_else(PoisonError::into_inner));
        let observations = Observations {
            service: &backend.components,
            fleet: &fleet.metrics,
            rules: &rules,
            samples: &samples,
            cpu,
            elapsed,
        };
        let results = PhaseResults::new(self, context, &simulation.request_log(), &observations);
        crowd.shutdown().await;
        fleet.stop().await;
        Ok((results, stopped))
    }
}

/// Starts all clients, those of the flood with their connections.
fn spawn_crowd(simulation: &Arc<Simulation>, flood: Vec<OwnConnection>) -> JoinSet<()> {
    let mut crowd = JoinSet::new();
    for number in 0..simulation.scenario.users {
        crowd.spawn(riders::run_rider(Arc::clone(simulation), number));
    }
    for number in 0..background_load::driver_count(simulation.scenario.users) {
        crowd.spawn(background_load::run_driver(Arc::clone(simulation), number));
    }
    for number in 0..background_load::CLERK_COUNT {
        crowd.spawn(background_load::run_clerk(Arc::clone(simulation), number));
    }
    crowd.spawn(background_load::run_bot(Arc::clone(simulation)));
    let connections = flood.len() as f64;
    for (number, connection) in flood.into_iter().enumerate() {
        crowd.spawn(flood::run_connection(Arc::clone(simulation), connection, number as f64 / connections));
    }
    crowd
}

/// Samples the service until the end of the phase.
async fn sample_service(
    simulation: Arc<Simulation>,
    service: Arc<ServiceComponents>,
    samples: Arc<Mutex<Vec<ServiceSample>>>,
) {
    let mut due = simulation.start;
    while simulation.wait_until(due).await {
        let sample = ServiceSample {
            waiting: service.matching.waiting(),
            busy_workers: service.matching.busy(),
            index_backlog: service.index.backlog(),
        };
        samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
        due = due.plus(SAMPLE_INTERVAL);
    }
}

/// Reports the counts each second until the end of the phase.
async fn report_progress(
    simulation: &Simulation,
    samples: &Mutex<Vec<ServiceSample>>,
    on_progress: &mut impl FnMut(&Progress),
) {
    let total_seconds = simulation.scenario.phase_duration.as_secs();
    for second in 1..=total_seconds {
        simulation.wait_until(simulation.start.plus(Duration::from_secs(second))).await;
        let last = samples.lock().unwrap_or_else(PoisonError::into_inner).last().copied();
        let waiting = last.map_or(0, |sample| sample.waiting);
        let (mut served, mut refused, mut failed) = (0, 0, 0);
        for counts in simulation.request_log().seconds() {
            served += counts.served;
            refused += counts.refused;
            failed += counts.failed;
        }
        on_progress(&Progress { second, total_seconds, served, refused, failed, waiting });
    }
}

/// Waits until no request is in flight, at most [`GRACE_PERIOD`].
async fn wait_for_requests_in_flight(simulation: &Simulation) {
    let mut left = GRACE_PERIOD;
    while !left.is_zero() && simulation.request_log().in_flight() > 0 {
        simulation.timer.sleep(SAMPLE_INTERVAL).await;
        left = left.saturating_sub(SAMPLE_INTERVAL);
    }
}
