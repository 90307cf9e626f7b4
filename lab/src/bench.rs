//! `tidegate-lab bench`: measures CPU time and latency of the front ends on this machine.
//!
//! ```text
//! options ──▶ core assignment ──▶ servers under test (processes) ──▶ load: closed loop │ open loop ──▶ figure tables
//!                                   └── baseline server, nginx, upstream      └── request template, latency
//! ```
//!
//! The servers are processes on one CPU core, the load is one thread on another. No measurement is judged.

mod baseline_server;
mod core_assignment;
mod cpu_per_request;
mod figure_table;
mod flood;
mod front_doors;
mod latency;
mod launcher;
mod load;
mod nginx;
mod options;
mod request_template;
mod shared;
mod url;

use tidegate::Timer;
use tidegate_server::command::{Exit, Failure, Output, stop_signal, tokio_timer};

pub(crate) use options::BenchArgs;

use crate::traffic::{self, Upstream};
use core_assignment::{CoreAssignment, Cores};
use launcher::Launcher;
use options::Target;

/// What a measurement needs.
struct Bench<'a> {
    arguments: &'a BenchArgs,
    timer: Box<dyn Timer>,
}

/// Runs `tidegate-lab bench`.
pub(crate) fn run(arguments: &BenchArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    if let Some(message) = arguments.conflicting_flags() {
        return Err(Failure::usage(message));
    }
    if arguments.targets == [Target::ServeNothing] {
        return baseline_server::run(output);
    }
    let bench = Bench { arguments, timer: Box::new(tokio_timer()) };
    if let Some(url) = &arguments.url_load.url {
        return run_until_signal(url::run(&bench, url, output));
    }
    if arguments.targets == [Target::Shared] {
        flood::raise_file_limit()?;
        let (servers, tables, _) = bench.run(output, shared::SharedServers::start, shared::measure)?;
        shared::print(arguments, &servers, &tables, output);
    } else {
        let (doors, measurements, cores) = bench.run(output, front_doors::start, async |bench, doors, output| {
            front_doors::measure(bench, doors, output).await
        })?;
        front_doors::print(arguments, &doors, &measurements, cores, output);
    }
    Ok(Exit::Success)
}

impl Bench<'_> {
    /// Starts servers on one CPU core and measures them from another. Returns the servers, what was measured, and the cores of servers and
    /// load if they were pinned.
    fn run<S, M>(
        &self,
        output: &mut Output<'_>,
        start: impl FnOnce(&BenchArgs, &Launcher, &mut Output<'_>) -> Result<S, Failure>,
        measure: impl AsyncFnOnce(&Self, &S, &mut Output<'_>) -> Result<M, Failure>,
    ) -> Result<(S, M, Cores), Failure> {
        let cores = CoreAssignment::choose(self.arguments.server_core, self.arguments.load_core)?;
        let failed = |error: std::io::Error| Failure::usage(format!("cannot prepare the measurement: {error}"));
        let folder = tempfile::tempdir().map_err(failed)?;
        let upstream = Upstream::bind().map_err(failed)?;
        let launcher = Launcher::new(folder.path(), upstream.address().map_err(failed)?)?;
        let mut pinned = cores.pin_to_server_core();
        let servers = start(self.arguments, &launcher, output)?;
        pinned &= cores.pin_to_load_core();
        let used = cores.assigned.filter(|_| pinned);
        print_notes(used, output);
        let measured = run_until_signal(async {
            tokio::select! {
                measured = measure(self, &servers, output) => measured,
                result = upstream.serve(|_| ()) => {
                    Err(Failure::usage(format!("the upstream of the gateways stopped: {:?}", result.err())))
                }
            }
        })?;
        Ok((servers, measured, used))
    }
}

/// Runs the future on the current thread until it ends or a signal arrives. Either way the caller then drops what it has
/// started.
fn run_until_signal<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| traffic::runtime_failure(&error))?;
    runtime.block_on(async {
        let stop = stop_signal().map_err(|error| traffic::signal_failure(&error))?;
        tokio::select! {
            result = work => result,
            () = stop => Err(Failure::usage("stopped by a signal, so there are no figures")),
        }
    })
}

/// Prints what makes figures doubtful.
fn print_notes(cores: Cores, output: &mut Output<'_>) {
    match cores {
        Some((server, load)) if server == load => {
            output.warn("servers and load share a CPU core, so they slow each other down");
        }
        Some(_) => {}
        None => output.warn("servers and load have no CPU core of their own, so they may slow each other down"),
    }
    if cfg!(debug_assertions) {
        output.warn("this is a debug build; its figures mean nothing");
    }
}
