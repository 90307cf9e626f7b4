//! `tidegate surge`: the concert, before and after. A service that cannot do more, gateways in front of it, and a crowd; four
//! times, each with other limits.
//!
//! ```text
//! options ──▶ store ──▶ phase: crowd (riders, others) ──▶ town ──▶ fleet ──▶ backend (matching, index)   four times
//!                                                          └── ledger   └── admitted
//!                                                                 └───────────┴──▶ found ──▶ aims ──▶ told │ page
//! ```
//!
//! Real HTTP between all of them, in one process: the crowd and the service on one runtime, the gateways on another. Nothing that
//! is measured takes part in a decision.

mod admitted;
mod aims;
mod backend;
mod draw;
mod endpoint;
mod fleet;
mod found;
mod index;
mod ledger;
mod machine;
mod matching;
mod numbers;
mod options;
mod others;
mod page;
mod phase;
mod place;
mod plot;
mod report;
mod riders;
mod store;
mod table;
mod told;
mod town;

use std::sync::Arc;

use tidegate::Timer;
use tokio::runtime::{Builder, Runtime};

pub use options::SurgeArgs;

use crate::traffic;
use found::Found;
use phase::{Evening, Phase};
use place::Place;
use report::Report;
use store::Hosted;
use tidegate_server::command::{Exit, Failure, Output};

/// Runs `tidegate surge`.
pub fn run(arguments: &SurgeArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let (timer, url): (Arc<dyn Timer>, _) = (Arc::new(tidegate_server::command::tokio_timer()), arguments.store()?);
    let (crowd, gateways) = (runtime()?, runtime()?);
    // From here on, and not only once there is something to end: until then a signal would leave the store behind.
    let stopped = {
        let _within = crowd.enter();
        tidegate_server::command::stop_signal()
    };
    let stopped = stopped.map_err(|error| Failure::usage(format!("signals cannot be listened to: {error}")))?;
    let place = Place::reserve(&arguments.report)?;
    let hosted = Hosted::open(url, format!("surge{:08x}", timer.now().as_micros() as u32))?;
    let evening = Evening {
        shape: arguments.shape(),
        instances: if hosted.is_shared() { arguments.instances } else { 1 },
        hosted: &hosted,
        gateways: gateways.handle().clone(),
        timer,
    };
    notes(&evening, output);
    let date = report::date(evening.timer.now());
    let (phases, stopped) = crowd.block_on(phases(&evening, stopped, output))?;
    let report = Report::new(arguments, &evening, date, phases, stopped);
    place.write(&page::page(&report))?;
    if arguments.json {
        output.json(&report);
    } else {
        told::ends(&report, output);
    }
    for doubt in &report.doubts {
        output.warn(doubt);
    }
    output.info(format_args!("report: {}", arguments.report.display()));
    if report.stopped {
        return Err(Failure::usage("stopped by a signal, so that the report has only what was found until then"));
    }
    Ok(Exit::from_success(report.is_proof()))
}

/// All phases, one after the other, and whether a signal has ended them before their time. Either way nothing is left in a store
/// that is somebody else's.
async fn phases(
    evening: &Evening<'_>,
    stopped: impl Future<Output = ()>,
    output: &mut Output<'_>,
) -> Result<(Vec<Found>, bool), Failure> {
    let mut stopped = std::pin::pin!(stopped);
    let (mut phases, mut failure, mut ended) = (Vec::new(), None, false);
    for phase in Phase::ALL {
        told::begins(phase, output);
        let ran = phase.run(evening, &mut stopped, |progress| told::goes(progress, output)).await;
        match ran {
            Ok((found, early)) => {
                phases.push(found);
                ended = early;
            }
            Err(why) => failure = Some(why),
        }
        if ended || failure.is_some() {
            break;
        }
    }
    output.progress("");
    let cleaned = evening.hosted.clean().await;
    match failure {
        Some(failure) => Err(failure),
        None => cleaned.map(|_| (phases, ended)),
    }
}

/// What whoever waits for the figures should know.
fn notes(evening: &Evening<'_>, output: &mut Output<'_>) {
    if !evening.hosted.is_shared() {
        output.warn(
            "there is neither redis-server nor valkey-server on this machine, so nothing can be shared: ONE gateway runs, and \
             keeps its limits in memory. Install one of them, or name a store with --store, to see what twelve do",
        );
    }
    if cfg!(debug_assertions) {
        output.warn("this is a debug build; its times mean nothing");
    }
}

fn runtime() -> Result<Runtime, Failure> {
    Builder::new_multi_thread().enable_all().build().map_err(|error| traffic::no_runtime(&error))
}
