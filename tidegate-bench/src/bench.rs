//! `tidegate bench`: what the doors cost, measured where it runs.
//!
//! ```text
//! options ──▶ cores ──▶ subjects (child processes, asks) ──▶ load: at once │ on time ──▶ figures
//!                           └── nothing, nginx, upstream        └── latencies, and what `traffic` has
//! ```
//!
//! The servers are processes of their own on one core, the load is one thread on another. It judges no figure.

mod ask;
mod cores;
mod figure;
mod latency;
mod load;
mod nginx;
mod nothing;
mod options;
mod subject;
mod upstream;
mod url;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate::Timer;

pub use options::BenchArgs;

use crate::traffic::{self, Line, NoAnswer};
use cores::Cores;
use figure::Figure;
use options::Target;
use subject::Subject;
use tidegate_server::command::{Exit, Failure, Output};
use upstream::Upstream;

/// Runs `tidegate bench`.
pub fn run(arguments: &BenchArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    if let Some(contradiction) = arguments.contradiction() {
        return Err(Failure::usage(contradiction));
    }
    if arguments.targets == [Target::ServeNothing] {
        return nothing::run(output);
    }
    let timer = Arc::new(tidegate_server::command::tokio_timer());
    if let Some(url) = &arguments.to.url {
        return until_stopped(url::run(arguments, url, &timer, output));
    }
    let cores = Cores::choose(arguments.server_core, arguments.load_core)?;
    let failed = |error: std::io::Error| Failure::usage(format!("there is nothing to measure with: {error}"));
    let folder = tempfile::tempdir().map_err(failed)?;
    let upstream = Upstream::bind().map_err(failed)?;
    let mut pinned = cores.go_to_server();
    let subjects = subject::start(arguments, folder.path(), upstream.address().map_err(failed)?)?;
    pinned &= cores.go_to_load();
    notes(arguments, &subjects, &cores, pinned, output);
    let figures = until_stopped(async {
        tokio::select! {
            measured = measure(arguments, &subjects, &timer, output) => measured,
            served = upstream.serve() => {
                Err(Failure::usage(format!("the upstream of the gateways ended: {:?}", served.err())))
            }
        }
    })?;
    show(arguments, &figures, cores.chosen().filter(|_| pinned), output);
    Ok(Exit::Success)
}

/// Runs on this thread alone, unless a signal ends it before; either way what was started ends with the caller.
fn until_stopped<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| traffic::no_runtime(&error))?;
    runtime.block_on(async {
        let stopped = tidegate_server::command::stop_signal();
        let stopped = stopped.map_err(|error| Failure::usage(format!("signals cannot be listened to: {error}")))?;
        tokio::select! {
            done = work => done,
            () = stopped => Err(Failure::usage("stopped by a signal, so there are no figures")),
        }
    })
}

/// What whoever reads the figures should know.
fn notes(arguments: &BenchArgs, subjects: &[Subject], cores: &Cores, pinned: bool, output: &mut Output<'_>) {
    if arguments.wants(Target::Nginx) && !subjects.iter().any(|subject| subject.kind.is_nginx()) {
        output.info("nginx is left out: there is none on this machine");
    }
    match cores.chosen() {
        Some((server, load)) if pinned && server == load => {
            output.warn("servers and load share a core, so that each disturbs the other");
        }
        Some(_) if pinned => {}
        _ => output.warn("servers and load have no core of their own here, so that each may disturb the other"),
    }
    if cfg!(debug_assertions) {
        output.warn("this is a debug build; its figures mean nothing");
    }
}

/// First what requests cost, all servers in turn and the best round of each; then how long answers take.
async fn measure(
    arguments: &BenchArgs,
    subjects: &[Subject],
    timer: &Arc<impl Timer + 'static>,
    output: &mut Output<'_>,
) -> Result<Vec<Figure>, Failure> {
    let mut best = vec![Duration::MAX; subjects.len()];
    for round in 1..=arguments.rounds {
        for (subject, best) in subjects.iter().zip(&mut best) {
            output.progress(format_args!("round {round} of {}: {}", arguments.rounds, subject.kind.title()));
            *best = turn(subject, arguments).await?.min(*best);
        }
    }
    let mut figures = Vec::new();
    for (subject, cpu) in subjects.iter().zip(best) {
        output.progress(format_args!("latencies: {}", subject.kind.title()));
        let lines = open(subject, arguments).await?;
        let found = load::on_time(lines, &subject.ask, arguments.rate, arguments.seconds, timer).await;
        let latencies = found.map_err(|why| wrong(subject, &why))?;
        if latencies.unanswered() > 0 {
            return Err(wrong(subject, "some requests got no answer"));
        }
        figures.push(Figure { kind: subject.kind, cpu, latencies });
    }
    output.progress("");
    Ok(figures)
}

/// The CPU time of a request, over one round.
async fn turn(subject: &Subject, arguments: &BenchArgs) -> Result<Duration, Failure> {
    let lines = open(subject, arguments).await?;
    let before = subject.child.cpu()?;
    load::at_once(lines, &subject.ask, arguments.requests).await.map_err(|why| wrong(subject, &why))?;
    let spent = subject.child.cpu()?.saturating_sub(before);
    Ok(Duration::from_secs_f64(spent.as_secs_f64() / arguments.requests as f64))
}

/// Connections that have been used already, so that opening them is no part of what is measured.
async fn open(subject: &Subject, arguments: &BenchArgs) -> Result<Vec<Line>, Failure> {
    let opened = Line::open(subject.ask.protocol, &subject.ask.authority, arguments.connections).await;
    let lines = opened.map_err(|error: NoAnswer| wrong(subject, &error.to_string()))?;
    let each = u64::from(arguments.connections) * 4;
    load::at_once(lines, &subject.ask, each).await.map_err(|why| wrong(subject, &why))
}

fn wrong(subject: &Subject, why: &str) -> Failure {
    Failure::usage(format!("{}: {why}; there are no figures", subject.kind.title()))
}

fn show(arguments: &BenchArgs, figures: &[Figure], cores: Option<(usize, usize)>, output: &mut Output<'_>) {
    for figure in figures {
        for doubt in figure.latencies.doubts() {
            output.warn(format_args!("{}: {doubt}", figure.kind.title()));
        }
    }
    if !arguments.json {
        figure::print(figures, arguments.rate, output);
        return;
    }
    let (subjects, ratios) = figure::json(figures);
    output.json(&json!({
        "rounds": arguments.rounds,
        "requests": arguments.requests,
        "connections": arguments.connections,
        "rate": arguments.rate,
        "seconds": arguments.seconds.as_secs_f64(),
        "server_core": cores.map(|(server, _)| server),
        "load_core": cores.map(|(_, load)| load),
        "debug_build": cfg!(debug_assertions),
        "subjects": subjects,
        "ratios": ratios,
    }));
}
