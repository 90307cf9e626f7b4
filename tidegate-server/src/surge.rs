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
mod backend;
mod draw;
mod endpoint;
mod fleet;
mod found;
mod index;
mod ledger;
mod machine;
mod matching;
mod options;
mod others;
mod phase;
mod riders;
mod store;
mod town;

use std::sync::Arc;

use tidegate::Timer;
use tokio::runtime::{Builder, Runtime};

pub(crate) use options::SurgeArgs;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::traffic;
use found::Found;
use phase::{Evening, Phase};
use store::Hosted;

pub(crate) fn run(arguments: &SurgeArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let timer: Arc<dyn Timer> = Arc::new(traffic::timer());
    let hosted = Hosted::open(arguments.store()?, format!("surge{:08x}", timer.now().as_micros() as u32))?;
    let (crowd, gateways) = (runtime()?, runtime()?);
    let evening = Evening {
        shape: arguments.shape(),
        instances: if hosted.is_shared() { arguments.instances } else { 1 },
        hosted: &hosted,
        gateways: gateways.handle().clone(),
        timer,
    };
    let mut found: Vec<Found> = Vec::new();
    crowd.block_on(async {
        for phase in Phase::ALL {
            let stopped = std::future::pending();
            found.push(
                phase
                    .run(&evening, stopped, |progress| {
                        output.say(format!(
                            "{} {}: {} {} {} {}",
                            phase.number(),
                            progress.second,
                            progress.served,
                            progress.refused,
                            progress.failed,
                            progress.waiting
                        ));
                    })
                    .await?,
            );
        }
        hosted.clean().await
    })?;
    output.json(&found);
    Ok(Exit::Fine)
}

fn runtime() -> Result<Runtime, Failure> {
    Builder::new_multi_thread().enable_all().build().map_err(|error| traffic::no_runtime(&error))
}
