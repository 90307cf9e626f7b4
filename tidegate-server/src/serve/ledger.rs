//! `ServerLedger`: the ledger of a server: its start-up checks, the service that moves entries into it, and its state.
//!
//! ```text
//! LedgerSetup (flags, rules) ──▶ journal ──▶ store ──▶ ServerLedger ──▶ limiter
//!                                                        └── preparation: partitions without a state are rebuilt
//! ```

mod preparation;
mod reconcile_job;
mod requirements;
mod timed_stage;

pub(crate) use preparation::PreparationState;
pub(crate) use reconcile_job::{ReconcileJob, ReconcileStatus, unrepaired};
pub(crate) use requirements::{LedgerMeans, warn_of_unrecorded};

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate::spi::{Journal, LedgerStage};
use tidegate::{Clock, Secret, SystemClock, Timer};
use tidegate_ledger::{
    JournalErrorKind, JournalFile, Ledger, LedgerError, LedgerErrorKind, LedgerLock, LedgerService, LedgerUrl,
    ServiceOptions, ServiceStats,
};
use tidegate_rules::RuleFile;

use self::preparation::Preparation;
use self::requirements::admits_without_store;
use self::timed_stage::TimedStage;
use super::metrics::Metrics;
use super::options::ServeArgs;
use crate::failure::Failure;
use crate::store::{AnyStore, StoreUrl};
use crate::timer::tokio_timer;

/// Clocks that differ by more than this are reported.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(2);

/// Clocks that differ by more than this are an error: entries would count in the wrong periods.
const MAX_CLOCK_ERROR: Duration = Duration::from_hours(1);

/// Time for the last entries to reach the ledger at the end. What does not is posted at the next start.
const LAST_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Attempts to get what another process uses, and the time between them: the one before may still be ending.
const MAX_LOCK_ATTEMPTS: u32 = 30;
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The ledger that the flags name, before the store is opened.
#[derive(Debug)]
pub(crate) struct LedgerSetup {
    url: LedgerUrl,
    budget: Duration,
    journal: Option<Arc<JournalFile>>,
    secret: Secret,
    is_store_shared: bool,
}

/// The ledger of a server.
pub(crate) struct ServerLedger {
    url: LedgerUrl,
    ledger: Ledger,
    service: LedgerService<AnyStore>,
    has_journal: bool,
    preparation: Preparation,
    reconcile: ReconcileJob,
    /// Keeps other instances with a memory store away.
    _lock: Option<LedgerLock>,
}

impl LedgerSetup {
    /// Checks that the server has what its rules need, and opens the journal. `None` without a ledger.
    pub(crate) async fn new(arguments: &ServeArgs, store: &StoreUrl, file: &RuleFile) -> Result<Option<Self>, Failure> {
        let url = arguments.ledger.url()?;
        let (secret, is_store_shared) = (arguments.secret.secret()?, store.is_shared());
        let means = LedgerMeans { url: url.as_ref(), is_store_shared, has_secret: secret.is_some() };
        means.check(file).map_err(Failure::usage)?;
        let (Some(url), Some(secret)) = (url, secret) else { return Ok(None) };
        check_directory(&url)?;
        // The memory store has its outbox there. On a shared store, only a rule that admits requests without it needs one.
        let needs_journal =
            !store.is_shared() || arguments.ledger.given_journal().is_some() || admits_without_store(file).is_some();
        let journal = if needs_journal { Some(open_journal(arguments.ledger.journal(&url)).await?) } else { None };
        Ok(Some(Self { url, budget: arguments.ledger.budget(), journal, secret, is_store_shared }))
    }

    /// The journal, for the memory store.
    pub(crate) fn journal(&self) -> Option<Arc<dyn Journal>> {
        self.journal.clone().map(|journal| journal as Arc<dyn Journal>)
    }
}

/// A file in a directory that does not exist is most likely a mistyped path. Nothing is created then.
fn check_directory(url: &LedgerUrl) -> Result<(), Failure> {
    let LedgerUrl::Sqlite(path) = url else { return Ok(()) };
    match path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        Some(directory) if !directory.is_dir() => {
            Err(Failure::usage(format!("--ledger {url}: there is no directory {}; create it", directory.display())))
        }
        _ => Ok(()),
    }
}

/// Waits until the process before this one has ended.
async fn lock_for_memory_store(ledger: &Ledger) -> Result<LedgerLock, LedgerError> {
    let timer = tokio_timer();
    let mut attempts = MAX_LOCK_ATTEMPTS;
    loop {
        attempts -= 1;
        match ledger.memory_store_lock().await {
            Err(error) if error.kind() == LedgerErrorKind::Busy && attempts > 0 => {
                timer.sleep(LOCK_RETRY_INTERVAL).await;
            }
            result => return result,
        }
    }
}

/// Opens the journal, after the process before this one has ended.
async fn open_journal(path: PathBuf) -> Result<Arc<JournalFile>, Failure> {
    let timer = tokio_timer();
    let mut attempts = MAX_LOCK_ATTEMPTS;
    let journal = loop {
        attempts -= 1;
        match JournalFile::open(&path) {
            Ok(journal) => break journal,
            Err(error) if error.kind() == JournalErrorKind::Locked && attempts > 0 => {
                timer.sleep(LOCK_RETRY_INTERVAL).await;
            }
            Err(error) => {
                let message =
                    format!("the journal of the ledger cannot be opened: {error}; --ledger-journal names its file");
                return Err(Failure::usage(message));
            }
        }
    };
    let entries = journal.recovery().entries;
    if entries > 0 {
        tracing::info!(target: "tidegate::ledger", entries, "the journal has entries of an earlier run, which are posted now");
    }
    Ok(Arc::new(journal))
}

impl ServerLedger {
    /// Opens the ledger, checks it, and rebuilds what the store has lost.
    pub(crate) async fn open(setup: LedgerSetup, store: AnyStore) -> Result<Self, Failure> {
        let LedgerSetup { url, budget, journal, secret, is_store_shared } = setup;
        let failed = |error: LedgerError| {
            let message = format!("--ledger {url}: {error}");
            if error.is_transient() { Failure::Server(message) } else { Failure::usage(message) }
        };
        let ledger = Ledger::open(&url).await.map_err(failed)?;
        ledger.ping().await.map_err(failed)?;
        check_clock(&ledger).await.map_err(failed)??;
        ledger.verify_secret(&secret).await.map_err(failed)?;
        let lock = if is_store_shared { None } else { Some(lock_for_memory_store(&ledger).await.map_err(failed)?) };
        let has_journal = journal.is_some();
        let options = ServiceOptions::default().with_budget(budget);
        let options = match journal {
            Some(journal) => options.with_journal(journal),
            None => options,
        };
        let service = LedgerService::start(ledger.clone(), store, options).map_err(failed)?;
        let preparation = Preparation::start(service.clone());
        preparation.wait_before_listening().await;
        Ok(Self { url, ledger, service, has_journal, preparation, reconcile: ReconcileJob::default(), _lock: lock })
    }

    /// The second stage of decisions, which `metrics` measure.
    pub(crate) fn stage(&self, metrics: &Arc<Metrics>) -> Arc<dyn LedgerStage> {
        Arc::new(TimedStage::new(self.service.clone(), Arc::clone(metrics)))
    }

    pub(crate) const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) const fn service(&self) -> &LedgerService<AnyStore> {
        &self.service
    }

    pub(crate) const fn reconcile(&self) -> &ReconcileJob {
        &self.reconcile
    }

    pub(crate) const fn url(&self) -> &LedgerUrl {
        &self.url
    }

    pub(crate) fn stats(&self) -> ServiceStats {
        self.service.stats()
    }

    pub(crate) fn preparation(&self) -> PreparationState {
        self.preparation.state()
    }

    /// Whether these rules can be used with what was opened at the start.
    pub(crate) fn check_journal(&self, file: &RuleFile) -> Result<(), String> {
        match admits_without_store(file).filter(|_| !self.has_journal) {
            Some(rule) => Err(format!(
                "rule `{}` has a ledger and admits requests while the store fails, which needs a journal: restart the server with \
                 --ledger-journal FILE, or write `on_failure: closed`",
                rule.id()
            )),
            None => Ok(()),
        }
    }

    /// Posts what the outboxes contain, and closes the ledger.
    pub(crate) async fn stop(&self) {
        if let Err(error) = Box::pin(self.service.shutdown(LAST_FLUSH_TIMEOUT)).await {
            tracing::warn!(target: "tidegate::ledger", "{error}. What is not in the ledger is posted at the next start");
        }
        self.ledger.close().await;
    }
}

/// Compares the clock of this host with that of the ledger.
async fn check_clock(ledger: &Ledger) -> Result<Result<(), Failure>, LedgerError> {
    let clock = SystemClock::new();
    let before = clock.now();
    let theirs = ledger.now().await?;
    let after = clock.now();
    // Their clock was read between the two.
    let difference = before.since(theirs).max(theirs.since(after));
    Ok(judge_clock(difference))
}

fn judge_clock(difference: Duration) -> Result<(), Failure> {
    let seconds = difference.as_secs();
    if difference > MAX_CLOCK_ERROR {
        return Err(Failure::usage(format!(
            "the clocks of this host and of the ledger differ by {seconds} s, so entries would count in wrong periods: set both by NTP"
        )));
    }
    if difference > MAX_CLOCK_DIFFERENCE {
        tracing::warn!(
            target: "tidegate::ledger", seconds,
            "the clocks of this host and of the ledger differ: near the end of a period, entries may count in the wrong one; set both by NTP"
        );
    }
    Ok(())
}

impl fmt::Debug for ServerLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLedger").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::status_log::tests::logged_lines;

    #[test]
    fn a_clock_that_is_seconds_off_is_reported_and_one_that_is_hours_off_is_an_error() {
        let judge = |seconds: u64| {
            let mut judged = Ok(());
            let lines = logged_lines(|| judged = judge_clock(Duration::from_secs(seconds)));
            (judged.is_ok(), lines.len())
        };
        assert_eq!([judge(0), judge(2), judge(3), judge(3600)], [(true, 0), (true, 0), (true, 1), (true, 1)]);
        assert_eq!(judge(3601), (false, 0));
    }
}
