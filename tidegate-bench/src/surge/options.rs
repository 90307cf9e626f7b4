//! The flags of `tidegate surge`, and the shape of the evening that they ask for. Nothing is started here.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use tidegate_server::StoreUrl;
use tidegate_server::command::Failure;

/// The concert, before and after: what limits make of a crowd, shown on this machine in three minutes
///
/// Starts a ride-hailing service whose matching takes about 150 requests a second, several gateways in front of it, and a
/// Redis server for them to share; then lets a crowd loose on it four times: without limits, with limits that each gateway
/// keeps for itself, with the same limits shared, and with a limit for all riders together as well. Everything listens on
/// free ports of this machine and ends with the command.
///
/// Exit code: 0 if every aim was reached that this run can judge (see the end of its output), 1 if not, 2 for wrong
/// arguments or after a signal, 3 if the store of --store failed at the start.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SurgeArgs {
    /// A short run: under a minute, with a time-out of 6 seconds instead of 30. It shows the same, and proves less
    #[arg(long)]
    pub(crate) quick: bool,
    /// How many riders come
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) users: u32,
    /// How many gateways there are
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) instances: u32,
    /// How long each of the four phases lasts; left out, 45 seconds, or 12 with --quick
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: Option<u32>,
    /// Who comes when and wants what is drawn from this number
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The store that the gateways share, instead of a server of this run's own. Only keys of its own are touched, and they
    /// are gone at the end. No variable sets it: a crowd must not find the store of production by accident
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Where the report goes: one page with tables and plots
    #[arg(long, value_name = "FILE", default_value = "tidegate-surge.html")]
    pub(crate) report: PathBuf,
    /// Write one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// How the evening goes: the same in every phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) users: u32,
    pub(crate) seed: u64,
    /// How long a phase lasts.
    pub(crate) span: Duration,
    /// How many riders come in a second, until all are there.
    pub(crate) arrivals: u32,
    /// How long a rider waits for an answer.
    pub(crate) patience: Duration,
    /// Whether it is long and crowded enough to judge times by.
    pub(crate) full: bool,
}

/// A phase of a full run.
const FULL: u32 = 45;

/// A phase of a quick run.
const QUICK: u32 = 12;

impl SurgeArgs {
    pub(crate) fn shape(&self) -> Shape {
        let seconds = self.seconds.unwrap_or(if self.quick { QUICK } else { FULL });
        let (arrivals, patience) = if self.quick { (500, 6) } else { (200, 30) };
        Shape {
            users: self.users,
            seed: self.seed,
            span: Duration::from_secs(seconds.into()),
            arrivals,
            patience: Duration::from_secs(patience),
            full: !self.quick && seconds >= FULL && self.users >= 2000,
        }
    }

    /// The command that would do the same again. The store is not repeated: there may be a password in it.
    pub(crate) fn command(&self) -> String {
        let mut command = "tidegate surge".to_owned();
        if self.quick {
            command.push_str(" --quick");
        }
        let numbers = [("--users", u64::from(self.users), 2000), ("--instances", u64::from(self.instances), 12)];
        let seconds = self.seconds.map(|seconds| ("--seconds", u64::from(seconds), 0));
        for (flag, value, usual) in numbers.into_iter().chain(seconds).chain([("--seed", self.seed, 1)]) {
            if value != usual {
                // Writing to a string does not fail.
                let _ = write!(command, " {flag} {value}");
            }
        }
        if self.store.is_some() {
            command.push_str(" --store …");
        }
        command
    }

    /// The store that was asked for. Memory is not shared, so it is none.
    pub(crate) fn store(&self) -> Result<Option<String>, Failure> {
        let Some(url) = &self.store else { return Ok(None) };
        match StoreUrl::parse(url).map_err(|why| Failure::usage(format!("--store: {why}")))? {
            StoreUrl::Redis(url) => Ok(Some(url)),
            _ => Err(Failure::usage(
                "--store: gateways cannot share `memory:`; write a URL such as `redis://127.0.0.1:6379`, or leave it out",
            )),
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  tidegate surge --quick                        # under a minute
  tidegate surge                                # three minutes, and every aim is judged
  tidegate surge --seed 7 --report seven.html --json
  tidegate surge --store redis://127.0.0.1:6379 --instances 4";
