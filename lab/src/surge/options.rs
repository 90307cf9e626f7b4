//! The flags of `tidegate-lab surge`, and the scenario that they describe.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidegate_server::StoreUrl;
use tidegate_server::command::Failure;

/// Simulate a crowd against a service of limited capacity, without limits and with them, in three minutes
///
/// Starts a ride-hailing service that can match about 150 riders a second, several gateways in front of it, and a Redis server
/// that the gateways share. Then it simulates the same crowd four times: without limits, with limits that each gateway keeps
/// for itself, with the same limits shared, and with an additional limit for all riders together. In the last two phases, a bot
/// floods the gateways over 1,000 connections. Everything listens on free ports of this machine and stops with the command.
///
/// Goals that the run or the machine cannot answer are not judged: times of a short run or of a debug build, and what a busy machine
/// made unreliable. The report has the reason.
///
/// Exit code: 0 if every judged goal was reached (see the end of the output), 1 if one was missed, 2 for wrong arguments
/// or after a signal, 3 if the store of --store failed at the start.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SurgeArgs {
    /// A short run: under a minute, with a timeout of 6 seconds instead of 30. It shows the same, but judges no times
    #[arg(long)]
    pub(crate) quick: bool,
    /// Number of riders
    #[arg(long, value_name = "N", default_value_t = DEFAULT_USERS, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) users: u32,
    /// Number of gateways
    #[arg(long, value_name = "N", default_value_t = DEFAULT_INSTANCES, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) instances: u32,
    /// Connections of a bot that floods the gateways in the last two phases; 0 for no flood
    #[arg(long, value_name = "N", default_value_t = DEFAULT_FLOOD, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(crate) flood: u32,
    /// Duration of each of the four phases, in seconds [default: 45, or 12 with --quick]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: Option<u32>,
    /// Seed of the random numbers, which decide what each rider does and when
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SEED)]
    pub(crate) seed: u64,
    /// The store that the gateways share, instead of a Redis server of this run. The run uses keys of its own, and deletes them
    /// at the end. There is no environment variable for it, so that a simulation never hits a production store by accident
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The file of the report: one HTML page with tables and plots
    #[arg(long, value_name = "FILE", default_value = "tidegate-surge.html")]
    pub(crate) report: PathBuf,
    /// A file for the picture at the top of the report, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// The crowd of a run, the same in every phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) users: u32,
    /// Connections of the flood in the phases that have one.
    pub(crate) flood_connections: u32,
    pub(crate) seed: u64,
    pub(crate) phase_duration: Duration,
    /// Riders that arrive each second, until all are there.
    pub(crate) arrivals_per_second: u32,
    /// How long a rider waits for a response.
    pub(crate) timeout: Duration,
    /// Why the run judges no times; `None` if it does.
    pub(crate) obstacle: Option<&'static str>,
}

const DEFAULT_USERS: u32 = 2000;
const DEFAULT_INSTANCES: u32 = 12;
const DEFAULT_FLOOD: u32 = 1000;
const DEFAULT_SEED: u64 = 1;
const DEFAULT_PHASE_SECONDS: u32 = 45;
const DEFAULT_QUICK_PHASE_SECONDS: u32 = 12;

impl SurgeArgs {
    pub(crate) fn scenario(&self) -> Scenario {
        let default_seconds = if self.quick { DEFAULT_QUICK_PHASE_SECONDS } else { DEFAULT_PHASE_SECONDS };
        let seconds = self.seconds.unwrap_or(default_seconds);
        let (arrivals_per_second, timeout_seconds) = if self.quick { (500, 6) } else { (200, 30) };
        let is_full = !self.quick && seconds >= DEFAULT_PHASE_SECONDS && self.users >= DEFAULT_USERS;
        Scenario {
            users: self.users,
            flood_connections: self.flood,
            seed: self.seed,
            phase_duration: Duration::from_secs(seconds.into()),
            arrivals_per_second,
            timeout: Duration::from_secs(timeout_seconds),
            obstacle: if is_full {
                cfg!(debug_assertions).then_some("the times of a debug build mean nothing")
            } else {
                Some("times need at least 45 seconds a phase and 2,000 riders")
            },
        }
    }

    /// The command that repeats this run. The store URL is left out: it may contain a password.
    pub(crate) fn command(&self) -> String {
        let mut command = "tidegate-lab surge".to_owned();
        if self.quick {
            command.push_str(" --quick");
        }
        let counts = [
            ("--users", u64::from(self.users), u64::from(DEFAULT_USERS)),
            ("--instances", u64::from(self.instances), u64::from(DEFAULT_INSTANCES)),
            ("--flood", u64::from(self.flood), u64::from(DEFAULT_FLOOD)),
        ];
        let seconds = self.seconds.map(|seconds| ("--seconds", u64::from(seconds), 0));
        for (flag, value, default) in counts.into_iter().chain(seconds).chain([("--seed", self.seed, DEFAULT_SEED)]) {
            if value != default {
                // Writing to a string does not fail.
                let _ = write!(command, " {flag} {value}");
            }
        }
        if self.store.is_some() {
            command.push_str(" --store …");
        }
        command
    }

    /// The URL of `--store`. Memory is refused, since gateways cannot share it.
    pub(crate) fn store(&self) -> Result<Option<String>, Failure> {
        let Some(url) = &self.store else { return Ok(None) };
        match StoreUrl::parse(url).map_err(|reason| Failure::usage(format!("--store: {reason}")))? {
            StoreUrl::Redis(url) => Ok(Some(url)),
            _ => Err(Failure::usage(
                "--store: gateways cannot share `memory:`; write a URL such as `redis://127.0.0.1:6379`, or leave it out",
            )),
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  tidegate-lab surge --quick                        # under a minute
  tidegate-lab surge                                # three minutes, and every goal is judged
  tidegate-lab surge --seed 7 --report seven.html --json
  tidegate-lab surge --store redis://127.0.0.1:6379 --instances 4";

#[cfg(test)]
impl Scenario {
    /// One rider for a second.
    pub(crate) const fn for_tests() -> Self {
        let (phase_duration, timeout) = (Duration::from_secs(1), Duration::from_mins(1));
        let (users, flood_connections, seed, arrivals_per_second, obstacle) = (1, 0, 1, 1, None);
        Self { users, flood_connections, seed, phase_duration, arrivals_per_second, timeout, obstacle }
    }
}
