//! `tidegate-lab surge`: simulates a crowd against a service of limited capacity, four times, each with different limits.
//!
//! ```text
//! options ──▶ shared store ──▶ phase: riders, background load, flood ──▶ simulation ──▶ fleet ──▶ backend     four times
//!                                                                   │ request log  └ admission log   └ matching, position index
//!                                                                   └────────────────────┴──▶ results ──▶ goals ──▶ console │ page, picture
//! ```
//!
//! All of them exchange real HTTP in one process: crowd and service on one runtime, the gateways on another. Measuring takes no
//! part in decisions.

mod admission_log;
mod backend;
mod background_load;
mod console;
mod endpoint;
mod fleet;
mod flood;
mod format;
mod goals;
mod load_stats;
mod matching;
mod options;
mod page;
mod phase;
mod picture;
mod plot;
mod position_index;
mod report;
mod report_file;
mod request_log;
mod results;
mod riders;
mod rng;
mod shared_store;
mod simulation;
mod summary;
mod tables;

use std::sync::Arc;

use tidegate::Timer;
use tidegate_server::command::{Exit, Failure, Output, stop_signal, tokio_timer};

pub(crate) use options::SurgeArgs;

use crate::traffic;
use phase::{Phase, RunContext};
use report::Report;
use report_file::ReportFile;
use results::PhaseResults;
use shared_store::SharedStore;

/// Runs `tidegate-lab surge`.
pub(crate) fn run(arguments: &SurgeArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let (timer, url): (Arc<dyn Timer>, _) = (Arc::new(tokio_timer()), arguments.store()?);
    let (crowd_runtime, gateway_runtime) = (traffic::runtime()?, traffic::runtime()?);
    // Signals are caught before the store starts: an uncaught one would leave its process behind.
    let stop = {
        let _guard = crowd_runtime.enter();
        stop_signal().map_err(|error| traffic::signal_failure(&error))?
    };
    flood::raise_open_file_limit(arguments.flood)?;
    let report_file = ReportFile::reserve("--report", &arguments.report)?;
    let picture = arguments.picture.as_ref();
    let picture_file = picture.map(|path| ReportFile::reserve("--picture", path)).transpose()?;
    let store = SharedStore::open(url, format!("surge{:08x}", timer.now().as_micros() as u32));
    let context = RunContext {
        scenario: arguments.scenario(),
        instances: if store.is_shared() { arguments.instances } else { 1 },
        store: &store,
        gateway_runtime: gateway_runtime.handle().clone(),
        timer,
    };
    print_notes(&context, output);
    let date = report::format_date(context.timer.now());
    let (phases, stopped) = crowd_runtime.block_on(run_phases(&context, stop, output))?;
    let report = Report::new(arguments, &context, date, phases, stopped);
    report_file.write(&page::render_page(&report))?;
    if let Some(file) = picture_file {
        file.write(&picture::render_file(&report))?;
    }
    if arguments.json {
        output.json(&report);
    } else {
        console::print_report(&report, output);
    }
    for warning in &report.warnings {
        output.warn(warning);
    }
    if !report.warnings.is_empty() {
        output.warn(summary::DISTURBANCE);
    }
    output.info(format_args!("report: {}", arguments.report.display()));
    if report.stopped {
        return Err(Failure::usage("stopped by a signal, so the report covers only the time until then"));
    }
    Ok(goals::exit(&report.goals))
}

/// Runs all phases in order, and returns whether a signal stopped them early. In any case the keys of this run are deleted from
/// a store of the user.
async fn run_phases(
    context: &RunContext<'_>,
    stop: impl Future<Output = ()>,
    output: &mut Output<'_>,
) -> Result<(Vec<PhaseResults>, bool), Failure> {
    let mut stop = std::pin::pin!(stop);
    let (mut phases, mut stopped) = (Vec::new(), false);
    let run = async {
        for phase in Phase::ALL {
            output.progress("");
            output.info(format_args!("phase {}: {}", phase.number(), phase.title()));
            let (results, stopped_early) = phase.run(context, &mut stop, output).await?;
            phases.push(results);
            stopped = stopped_early;
            if stopped {
                break;
            }
        }
        Ok(())
    };
    let run: Result<(), Failure> = run.await;
    output.progress("");
    let deleted = context.store.delete_keys(Phase::ALL.map(Phase::number)).await;
    run.and(deleted).map(|()| (phases, stopped))
}

/// Prints what a reader of the results must know first.
fn print_notes(context: &RunContext<'_>, output: &mut Output<'_>) {
    if !context.store.is_shared() {
        output.warn(
            "neither redis-server nor valkey-server is installed, so gateways cannot share limits: ONE gateway runs, and keeps \
             its limits in memory. Install one of them, or name a store with --store, to run several gateways",
        );
    }
    if cfg!(debug_assertions) {
        output.warn("this is a debug build; its times mean nothing");
    }
}
