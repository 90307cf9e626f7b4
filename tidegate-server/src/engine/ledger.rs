//! `ServerLedger`: the ledger of a server: its start-up checks, the service that moves entries into it, and its state.
//!
//! ```text
//! LedgerSetup (flags, rules) ──▶ journal ──▶ store ──▶ ServerLedger ──▶ limiter
//!                                                        └── preparation: partitions without a state are rebuilt
//! ```

mod checks;
pub(crate) mod ledger_args;
mod preparation;
mod reconcile_job;
mod requirements;
mod timed_stage;

pub(crate) use checks::LedgerCheck;
pub(crate) use preparation::PreparationState;
pub(crate) use reconcile_job::{ReconcileJob, ReconcileStatus, unrepaired};
pub(crate) use requirements::{LedgerMeans, warn_of_unrecorded};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::spi::{Journal, LedgerStage, Namespace};
use tidegate::{Secret, Timer};
use tidegate_ledger::{
    JournalErrorKind, JournalFile, Ledger, LedgerError, LedgerService, LedgerUrl, ServiceOptions, ServiceStats,
};
use tidegate_rules::RuleFile;

use self::checks::{CheckedLedger, LedgerChecks};
use self::ledger_args::LedgerArgs;
use self::preparation::{Preparation, PreparationTask};
use self::requirements::admits_without_store;
use self::timed_stage::TimedStage;
use crate::args::serve_args::ServeArgs;
use crate::command::failure::Failure;
use crate::command::tokio_timer;
use crate::observe::metrics::Metrics;
use crate::store::{AnyStore, StoreUrl};

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
    namespace: Namespace,
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
}

impl LedgerSetup {
    /// Checks that the server has what its rules need, and opens the journal. `None` without a ledger.
    pub(crate) async fn new(arguments: &ServeArgs, store: &StoreUrl, file: &RuleFile) -> Result<Option<Self>, Failure> {
        let flags = &arguments.ledger;
        let url = flags.url()?;
        let (secret, is_store_shared) = (arguments.secret.secret()?, store.is_shared());
        let means = LedgerMeans { url: url.as_ref(), is_store_shared, has_secret: secret.is_some() };
        means.check(file).map_err(Failure::usage)?;
        let (Some(url), Some(secret)) = (url, secret) else { return Ok(None) };
        check_directory(&url)?;
        // The memory store has its outbox there. On a shared store, only a rule that admits requests without it needs one.
        let needs_journal =
            !store.is_shared() || flags.ledger_journal.is_some() || admits_without_store(file).is_some();
        let journal = if needs_journal { Some(open_journal(flags, &url, &secret).await?) } else { None };
        let (budget, namespace) = (flags.ledger_budget, arguments.store.namespace().clone());
        Ok(Some(Self { url, budget, journal, secret, namespace, is_store_shared }))
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

/// Opens the journal, after the process before this one has ended.
async fn open_journal(flags: &LedgerArgs, url: &LedgerUrl, secret: &Secret) -> Result<Arc<JournalFile>, Failure> {
    let path = flags.journal(url);
    let timer = tokio_timer();
    let mut attempts = MAX_LOCK_ATTEMPTS;
    let journal = loop {
        attempts -= 1;
        match JournalFile::open(&path).and_then(|journal| journal.verify_secret(secret).map(|()| journal)) {
            Ok(journal) => break journal,
            Err(error) if error.kind() == JournalErrorKind::Locked && attempts > 0 => {
                timer.sleep(LOCK_RETRY_INTERVAL).await;
            }
            Err(error) => {
                let what = "the journal of the ledger cannot be opened";
                return Err(Failure::usage(match &flags.ledger_journal {
                    Some(_) => format!("--ledger-journal: {what}: {error}"),
                    None => format!("{what}: {error}; --ledger-journal names its file"),
                }));
            }
        }
    };
    let entries = journal.recovery().entries;
    if entries > 0 {
        tracing::info!(target: "tidegate::ledger", entries, "the journal has entries of an earlier run, which are posted when the ledger answers");
    }
    Ok(Arc::new(journal))
}

impl ServerLedger {
    /// Opens the ledger, checks it, and rebuilds what the store has lost. If PostgreSQL does not answer, this is done when it does.
    pub(crate) async fn open(setup: LedgerSetup, store: AnyStore) -> Result<Self, Failure> {
        let LedgerSetup { url, budget, journal, secret, namespace, is_store_shared } = setup;
        let failed = |error: LedgerError| {
            let message = format!("--ledger {url}: {error}");
            if error.is_transient() { Failure::Server(message) } else { Failure::usage(message) }
        };
        let checks = LedgerChecks { url: url.clone(), secret, namespace, is_store_shared };
        let CheckedLedger { ledger, lock } = match Box::pin(checks.open()).await {
            // A file is on this machine, where somebody starts the server.
            Err(silent) if silent.is_silence() && url.is_shared() => {
                let error = silent.error;
                tracing::warn!(
                    target: "tidegate::ledger",
                    "--ledger {url}: {error}. Until it answers, each rule with a ledger does what its on_failure says; it is tried again every \
                     second"
                );
                CheckedLedger { ledger: Ledger::unopened(&url, error), lock: None }
            }
            opened => opened.map_err(|failure| failed(failure.error))?,
        };
        let has_journal = journal.is_some();
        let options = ServiceOptions::default().with_budget(budget);
        let options = match journal {
            Some(journal) => options.with_journal(journal),
            None => options,
        };
        let service = LedgerService::start(ledger.clone(), store.clone(), options).map_err(failed)?;
        let (ledger_of_task, service_of_task) = (ledger.clone(), service.clone());
        let task = PreparationTask { checks, ledger: ledger_of_task, lock, store, service: service_of_task };
        let preparation = Preparation::start(task);
        preparation.wait_before_listening().await;
        Ok(Self { url, ledger, service, has_journal, preparation, reconcile: ReconcileJob::default() })
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

    /// Whether rules with a ledger are decided without the store, or not at all.
    pub(crate) fn is_degraded(&self) -> bool {
        self.preparation().problem().is_some() || self.stats().ledger_error.is_some()
    }

    /// Whether these rules can be used with what was opened at the start.
    pub(crate) fn check_journal(&self, file: &RuleFile) -> Result<(), String> {
        match admits_without_store(file).filter(|_| !self.has_journal) {
            Some(rule) => Err(format!(
                "rule `{}` has a ledger and admits requests while the store fails, which needs a journal: restart the server with \
                 --ledger-journal FILE, or write `on_failure: closed`",
                rule.id
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

impl fmt::Debug for ServerLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLedger").field("url", &self.url).finish_non_exhaustive()
    }
}
