//! `tidegate-lab bench`: measures CPU time and latency of the front ends on this machine.
//!
//! ```text
//! options ──▶ core assignment ──▶ servers under test (processes) ──▶ load: closed loop │ open loop ──▶ measurements
//!                                   └── baseline server, nginx, upstream      └── request template, latency
//! ```
//!
//! The servers are processes on one CPU core, the load is one thread on another. No measurement is judged.

mod baseline_server;
mod core_assignment;
mod latency;
mod load;
mod measurement;
mod nginx;
mod options;
mod request_template;
mod server_under_test;
mod shared;
mod url;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate::Timer;
use tidegate_server::command::{Exit, Failure, Output, stop_signal, tokio_timer};

pub(crate) use options::BenchArgs;

use crate::traffic::{self, Upstream};
use core_assignment::CoreAssignment;
use measurement::Measurement;
use options::Target;
use server_under_test::ServerUnderTest;

/// Runs `tidegate-lab bench`.
pub(crate) fn run(arguments: &BenchArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    if let Some(message) = arguments.conflicting_flags() {
        return Err(Failure::usage(message));
    }
    if arguments.targets == [Target::ServeNothing] {
        return baseline_server::run(output);
    }
    let timer = Arc::new(tokio_timer());
    if let Some(url) = &arguments.url_load.url {
        return run_until_signal(url::run(arguments, url, &timer, output));
    }
    if arguments.targets == [Target::Shared] {
        return shared::run(arguments, &timer, output);
    }
    let cores = CoreAssignment::choose(arguments.server_core, arguments.load_core)?;
    let failed = |error: std::io::Error| Failure::usage(format!("cannot prepare the measurement: {error}"));
    let folder = tempfile::tempdir().map_err(failed)?;
    let upstream = Upstream::bind().map_err(failed)?;
    let mut pinned = cores.pin_to_server_core();
    let servers = server_under_test::start(arguments, folder.path(), upstream.address().map_err(failed)?)?;
    pinned &= cores.pin_to_load_core();
    print_notes(arguments, &servers, &cores, pinned, output);
    let measurements = run_until_signal(async {
        tokio::select! {
            measurements = measure(arguments, &servers, &timer, output) => measurements,
            result = upstream.serve(|_| ()) => {
                Err(Failure::usage(format!("the upstream of the gateways stopped: {:?}", result.err())))
            }
        }
    })?;
    print_results(arguments, &measurements, cores.assigned().filter(|_| pinned), output);
    Ok(Exit::Success)
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

/// Prints what a reader of the results must know first.
fn print_notes(
    arguments: &BenchArgs,
    servers: &[ServerUnderTest],
    cores: &CoreAssignment,
    pinned: bool,
    output: &mut Output<'_>,
) {
    if arguments.includes(Target::Nginx) && !servers.iter().any(|server| server.kind.is_nginx()) {
        output.info("nginx is left out: it is not installed");
    }
    print_core_notes(cores, pinned, output);
}

/// Prints what makes figures doubtful.
fn print_core_notes(cores: &CoreAssignment, pinned: bool, output: &mut Output<'_>) {
    match cores.assigned() {
        Some((server, load)) if pinned && server == load => {
            output.warn("servers and load share a CPU core, so they slow each other down");
        }
        Some(_) if pinned => {}
        _ => output.warn("servers and load have no CPU core of their own, so they may slow each other down"),
    }
    if cfg!(debug_assertions) {
        output.warn("this is a debug build; its figures mean nothing");
    }
}

/// Measures CPU time first, with all servers in turn and the best round of each; then latency.
async fn measure(
    arguments: &BenchArgs,
    servers: &[ServerUnderTest],
    timer: &Arc<impl Timer + 'static>,
    output: &mut Output<'_>,
) -> Result<Vec<Measurement>, Failure> {
    let mut best = vec![Duration::MAX; servers.len()];
    for round in 1..=arguments.rounds {
        for (server, best) in servers.iter().zip(&mut best) {
            output.progress(format_args!("round {round} of {}: {}", arguments.rounds, server.kind.title()));
            *best = measure_cpu(server, arguments).await?.min(*best);
        }
    }
    let mut measurements = Vec::new();
    for (server, cpu) in servers.iter().zip(best) {
        output.progress(format_args!("latencies: {}", server.kind.title()));
        let failed = |reason: String| no_figures(server.kind.title(), &reason);
        let connections = load::open_warm_connections(&server.template, arguments.connections).await.map_err(failed)?;
        let latencies = load::open_loop(connections, &server.template, arguments.rate, arguments.seconds, timer).await;
        let latencies = latencies.map_err(failed)?;
        if latencies.unanswered() > 0 {
            return Err(failed("some requests got no response".to_owned()));
        }
        measurements.push(Measurement { kind: server.kind, cpu, latencies });
    }
    output.progress("");
    Ok(measurements)
}

/// The CPU time of one request, averaged over one round.
async fn measure_cpu(server: &ServerUnderTest, arguments: &BenchArgs) -> Result<Duration, Failure> {
    let failed = |reason: String| no_figures(server.kind.title(), &reason);
    let connections = load::open_warm_connections(&server.template, arguments.connections).await.map_err(failed)?;
    let before = traffic::cpu_time(&server.process)?;
    load::closed_loop(connections, &server.template, arguments.requests).await.map_err(failed)?;
    let spent = traffic::cpu_time(&server.process)?.saturating_sub(before);
    Ok(Duration::from_secs_f64(spent.as_secs_f64() / arguments.requests as f64))
}

/// The failure of a measurement.
fn no_figures(server: &str, reason: &str) -> Failure {
    Failure::usage(format!("{server}: {reason}; there are no figures"))
}

fn print_results(
    arguments: &BenchArgs,
    measurements: &[Measurement],
    cores: Option<(usize, usize)>,
    output: &mut Output<'_>,
) {
    for measurement in measurements {
        for warning in measurement.latencies.warnings() {
            output.warn(format_args!("{}: {warning}", measurement.kind.title()));
        }
    }
    if !arguments.json {
        measurement::print_table(measurements, arguments.rate, output);
        return;
    }
    let (servers, ratios) = measurement::to_json(measurements);
    output.json(&json!({
        "rounds": arguments.rounds,
        "requests": arguments.requests,
        "connections": arguments.connections,
        "rate": arguments.rate,
        "seconds": arguments.seconds.as_secs_f64(),
        "server_core": cores.map(|(server, _)| server),
        "load_core": cores.map(|(_, load)| load),
        "debug_build": cfg!(debug_assertions),
        "subjects": servers,
        "ratios": ratios,
    }));
}
