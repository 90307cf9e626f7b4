//! Connecting to the store. A server also starts if its store does not answer, since it must work without the store anyway.

use std::sync::Arc;
use std::time::Duration;

use tidegate::spi::Journal;
use tidegate::{StoreError, Timer};
use tokio::task::JoinHandle;

use crate::args::serve_args::ServeArgs;
use crate::command::failure::Failure;
use crate::store::{AnyStore, StoreUrl};

/// Time between two attempts to reach a store that did not answer at the start.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The attempts to reach a store that did not answer at the start; dropping it ends them.
#[derive(Debug, Default)]
pub(crate) struct StoreProbe(Option<JoinHandle<()>>);

/// Opens the store at `url` and logs a warning for each harmful setting of its servers.
///
/// Fails if the store can never be used. If it does not answer now, it is examined again until it does. The memory store writes what the
/// ledger is to have to `journal`.
pub(crate) async fn connect(
    url: &StoreUrl,
    arguments: &ServeArgs,
    journal: Option<Arc<dyn Journal>>,
) -> Result<(AnyStore, StoreProbe), Failure> {
    let failed = |error: StoreError| Failure::Store { error, meanwhile: "" };
    let store = AnyStore::from_url(url, arguments.redis_options(), arguments.memory_keys, journal).map_err(failed)?;
    match store.check_servers().await {
        Ok(warnings) => warn(&warnings),
        Err(error) if error.is_transient() => {
            tracing::warn!(target: "tidegate::store", "each rule does what its on_failure says until the store answers: {error}");
            let task = tokio::spawn(examine_until_ready(store.clone(), crate::command::timer::tokio_timer()));
            return Ok((store, StoreProbe(Some(task))));
        }
        Err(error) => return Err(failed(error)),
    }
    Ok((store, StoreProbe::default()))
}

async fn examine_until_ready(store: AnyStore, timer: impl Timer) {
    let mut reported = String::new();
    loop {
        timer.sleep(RETRY_INTERVAL).await;
        match store.check_servers().await {
            Ok(warnings) => return warn(&warnings),
            Err(error) if error.is_transient() => {}
            // The store answers but cannot be used. An operator may fix that, so it is reported once and tried again.
            Err(error) => {
                let problem = error.to_string();
                if problem != reported {
                    tracing::warn!(target: "tidegate::store", "{problem}");
                    reported = problem;
                }
            }
        }
    }
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        tracing::warn!(target: "tidegate::store", "{warning}");
    }
}

impl Drop for StoreProbe {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}
