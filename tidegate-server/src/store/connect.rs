//! `StoreArgs`: the flags of the store, and connecting to it. A server also starts if its store does not answer, since it must work without the store anyway.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tidegate::spi::Namespace;
use tidegate::spi::{DEFAULT_MAX_KEYS, Journal};
use tidegate::{StoreError, Timer};
use tidegate_redis::RedisOptions;
use tokio::task::JoinHandle;

use super::{AnyStore, StoreUrl};
use crate::args::deployment::NamespaceArgs;
use crate::args::flag_values::{millis, whole_number};
use crate::command::failure::Failure;
use crate::command::tokio_timer;

/// The largest room of the memory store.
const MAX_MEMORY_KEYS: u64 = 1_000_000_000;

/// The flags.
#[derive(Args)]
pub(crate) struct StoreArgs {
    /// The store: `memory:` for this process alone, redis://host:port, or several servers with redis+sentinel:// or
    /// redis+cluster://; rediss for TLS
    #[arg(long, value_name = "URL", env = "TIDEGATE_STORE", hide_env_values = true, default_value = "memory:")]
    store: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Time after which a server of a shared store that owes a reply counts as failed; then each rule does what its `on_failure`
    /// says [default: 25ms]
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_STORE_BUDGET", value_parser = millis(1..=60_000))]
    pub(crate) store_budget: Option<Duration>,
    /// Maximum time that a decision waits to be sent while a shared store answers others; after it, this instance is overloaded,
    /// and each rule does what its `on_overload` says
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_QUEUE_WAIT", value_parser = millis(1..=60_000), default_value = "250ms")]
    queue_wait: Duration,
    /// Maximum number of buckets that the memory store holds, and the memory of an instance while a shared store fails; further
    /// subjects share overflow buckets. Each takes 64 to 128 bytes, and with a sliding log nine more for each request. Three quarters of the
    /// room are for unauthenticated subjects
    #[arg(long, value_name = "N", env = "TIDEGATE_MEMORY_KEYS", value_parser = whole_number::<usize>(1..=MAX_MEMORY_KEYS), default_value_t = DEFAULT_MAX_KEYS)]
    pub(crate) memory_keys: usize,
}

/// Time between two attempts to reach a store that did not answer at the start.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The attempts to reach a store that did not answer at the start; dropping it ends them.
#[derive(Debug, Default)]
pub(crate) struct StoreProbe(Option<JoinHandle<()>>);

impl StoreArgs {
    /// The URL of the store.
    pub(crate) fn url(&self) -> Result<StoreUrl, Failure> {
        StoreUrl::parse(&self.store).map_err(|why| Failure::usage(format!("--store: {why}")))
    }

    /// The namespace of this deployment.
    pub(crate) const fn namespace(&self) -> &Namespace {
        &self.namespace.namespace
    }

    /// How a shared store uses its servers.
    fn redis_options(&self) -> RedisOptions {
        let options = RedisOptions::new().with_namespace(self.namespace().clone()).with_queue_wait(self.queue_wait);
        match self.store_budget {
            Some(timeout) => options.with_timeout(timeout),
            None => options,
        }
    }

    /// Opens the store at `url` and logs a warning for each harmful setting of its servers.
    ///
    /// Fails if the store can never be used. If it does not answer now, it is examined again until it does. The memory store writes what
    /// the ledger is to have to `journal`.
    pub(crate) async fn connect(
        &self,
        url: &StoreUrl,
        journal: Option<Arc<dyn Journal>>,
    ) -> Result<(AnyStore, StoreProbe), Failure> {
        let failed = |error: StoreError| Failure::Store { error, meanwhile: "" };
        let store = AnyStore::from_url(url, self.redis_options(), self.memory_keys, journal).map_err(failed)?;
        match store.check_servers().await {
            Ok(warnings) => warn(&warnings),
            Err(error) if error.is_transient() => {
                tracing::warn!(target: "tidegate::store", "each rule does what its on_failure says until the store answers: {error}");
                let task = tokio::spawn(examine_until_ready(store.clone(), tokio_timer()));
                return Ok((store, StoreProbe(Some(task))));
            }
            Err(error) => return Err(failed(error)),
        }
        Ok((store, StoreProbe::default()))
    }
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        store: StoreArgs,
    }

    fn parse(line: &str) -> Result<StoreArgs, String> {
        let flags = Flags::try_parse_from(line.split_whitespace());
        flags.map(|flags| flags.store).map_err(|error| error.to_string())
    }

    #[test]
    fn the_room_of_the_memory_store_is_a_flag() {
        let memory_keys = |line: &str| parse(line).unwrap().memory_keys;
        assert_eq!((memory_keys("serve"), memory_keys("serve --memory-keys 2000000")), (1_000_000, 2_000_000));
        for wrong in ["0", "-1", "1e6", "1000000001", ""] {
            let error = parse(&format!("serve --memory-keys={wrong}")).err();
            assert!(error.is_some_and(|error| error.contains("--memory-keys")), "{wrong}");
        }
    }

    #[test]
    fn without_flags_the_store_has_its_default_times() {
        let times = |options: RedisOptions| (options.timeout(), options.queue_wait());
        let with_flags = |line: &str| times(parse(line).unwrap().redis_options());
        assert_eq!(with_flags("serve"), times(RedisOptions::new()));
        let expected = (Duration::from_millis(100), Duration::from_millis(40));
        assert_eq!(with_flags("serve --store-budget 100 --queue-wait 40"), expected);
    }
}
