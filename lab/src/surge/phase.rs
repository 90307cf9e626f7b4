//! `Phase`: one of the four runs of the scenario: starts service, gateways and crowd, and samples the service meanwhile.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{RuleSet, Timer};
use tidegate_rules::RuleFile;
use tidegate_server::command::{Failure, Output};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::backend::{Backend, ServiceComponents};
use super::fleet::Fleet;
use super::format::format_count;
use super::load_stats::CpuSample;
use super::options::Scenario;
use super::request_log::RequestOutcome;
use super::results::{Observations, PhaseResults};
use super::shared_store::SharedStore;
use super::simulation::Simulation;
use super::{background_load, flood, riders};
use crate::traffic::{Connection, RequestError};

const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
const SAMPLES_PER_SECOND: u32 = 10;

/// Time that requests in flight have at the end of a phase.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// The limits of each rider, and the same with those of all riders together.
const RIDER_RULES: &str = include_str!("riders.yaml");
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

    /// Whether the gateways share their limits. Only then a bot floods them: limits that each gateway keeps for itself do not stop it.
    pub(crate) const fn shares_limits(self) -> bool {
        matches!(self, Self::Shared | Self::Capacity)
    }

    /// Runs the phase until its end or until `stop` completes, and returns whether it was stopped.
    pub(crate) async fn run(
        self,
        context: &RunContext<'_>,
        stop: impl Future<Output = ()>,
        output: &mut Output<'_>,
    ) -> Result<(PhaseResults, bool), Failure> {
        let RunContext { scenario, instances, store, ref gateway_runtime, ref timer } = *context;
        let rules = self.rules()?;
        let failed = |error: io::Error| Failure::usage(format!("cannot start the service: {error}"));
        let backend = Backend::start(scenario.seed, Arc::clone(timer)).map_err(failed)?;
        let shared = (store.phase_keys(self.number()), scenario.flood_connections);
        let (keys, flood_connections) = if self.shares_limits() { shared } else { (None, 0) };
        let fleet = Fleet::start(gateway_runtime, instances, backend.address, &rules, keys.as_ref(), timer).await?;
        let unreachable = |error: RequestError| Failure::usage(format!("cannot reach a gateway: {error}"));
        let flood = flood::connect(&fleet.addresses, flood_connections).await.map_err(unreachable)?;
        let simulation = Simulation::connect(&fleet.addresses, Arc::clone(timer), scenario).await;
        let simulation = Arc::new(simulation.map_err(unreachable)?);

        let (cpu_before, mut crowd) = (CpuSample::now(store.process_id()), spawn_crowd(&simulation, flood));
        let mut samples = Vec::new();
        let stopped = tokio::select! {
            () = observe(&simulation, &backend.components, &mut samples, output) => false,
            () = stop => true,
        };
        let elapsed = timer.now().since(simulation.start);
        if !stopped {
            wait_for_requests_in_flight(&simulation).await;
        }
        simulation.request_log().cut_off(timer.now());
        let cpu = cpu_before.and_then(|before| CpuSample::now(store.process_id())?.since(before));
        // In a block, so that the gateways can log again before they stop.
        let results = {
            let (service, admissions) = (&backend.components, &fleet.admissions.entries());
            let observations = Observations { service, admissions, rules: &rules, samples: &samples, cpu, elapsed };
            PhaseResults::new(self, context, &simulation.request_log(), &observations)
        };
        crowd.shutdown().await;
        fleet.stop().await;
        Ok((results, stopped))
    }
}

/// Starts all clients, those of the flood with their connections.
fn spawn_crowd(simulation: &Arc<Simulation>, flood: Vec<Connection>) -> JoinSet<()> {
    let mut crowd = JoinSet::new();
    for number in 0..simulation.scenario.users {
        crowd.spawn(riders::run_rider(Arc::clone(simulation), number));
    }
    background_load::spawn(simulation, &mut crowd);
    let connections = flood.len() as f64;
    for (number, connection) in flood.into_iter().enumerate() {
        crowd.spawn(flood::run_connection(Arc::clone(simulation), connection, number as f64 / connections));
    }
    crowd
}

/// Samples the service until the end of the phase, and shows the counts each second.
async fn observe(
    simulation: &Simulation,
    service: &ServiceComponents,
    samples: &mut Vec<ServiceSample>,
    output: &mut Output<'_>,
) {
    for number in 0.. {
        let goes_on = simulation.wait_until(simulation.start.plus(SAMPLE_INTERVAL * number)).await;
        let waiting = service.matching.state().waiting;
        if number > 0 && number.is_multiple_of(SAMPLES_PER_SECOND) {
            print_progress(simulation, u64::from(number / SAMPLES_PER_SECOND), waiting, output);
        }
        if !goes_on {
            return;
        }
        let (busy_workers, index_backlog) = (service.matching.busy(), service.index.backlog());
        samples.push(ServiceSample { waiting, busy_workers, index_backlog });
    }
}

/// Shows the counts: on a terminal one line that is overwritten, elsewhere a line every five seconds.
fn print_progress(simulation: &Simulation, second: u64, waiting: u64, output: &mut Output<'_>) {
    let total_seconds = simulation.scenario.phase_duration.as_secs();
    let count = |outcomes: &[RequestOutcome]| {
        format_count(simulation.request_log().seconds.iter().map(|second| second.count(outcomes)).sum())
    };
    let line = format!(
        "  {second:>2} of {total_seconds} s   served {:>7}   denied {:>7}   failed {:>6}   waiting for a worker {:>6}",
        count(&[RequestOutcome::Served]),
        count(&[RequestOutcome::Refused]),
        count(&[RequestOutcome::Failed, RequestOutcome::TimedOut, RequestOutcome::CutOff]),
        format_count(waiting),
    );
    if output.shows_progress() {
        output.progress(line);
    } else if second.is_multiple_of(5) || second == total_seconds {
        output.info(line);
    }
}

/// Waits until no request is in flight, at most [`GRACE_PERIOD`].
async fn wait_for_requests_in_flight(simulation: &Simulation) {
    let mut left = GRACE_PERIOD;
    while !left.is_zero() && !simulation.request_log().in_flight.is_empty() {
        simulation.timer.sleep(SAMPLE_INTERVAL).await;
        left = left.saturating_sub(SAMPLE_INTERVAL);
    }
}
