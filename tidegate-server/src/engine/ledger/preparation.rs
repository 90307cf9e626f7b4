//! `Preparation`: opening a ledger that was down at the start, replaying the journal, and rebuilding what the store has lost.
//!
//! A server starts without its store, and without its ledger in PostgreSQL. Then this is tried again until both answer; quotas with a ledger do
//! what their `on_failure` says until then. If the ledger answers and does not fit this instance, they are closed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Timer;
use tidegate::spi::Store;
use tidegate_ledger::{Ledger, LedgerError, LedgerLock, LedgerService, PrepareReport};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::checks::{CheckedLedger, LedgerCheck, LedgerChecks, OpeningError};
use crate::command::tokio_timer;
use crate::store::AnyStore;

/// A server listens after this time even if it is not prepared. It is alive then, and says that it is not ready.
const MAX_WAIT_BEFORE_LISTENING: Duration = Duration::from_secs(5);

/// Time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How far the preparation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PreparationState {
    /// It runs: states of quotas are being rebuilt.
    Rebuilding,
    /// The store or the ledger did not answer. It will be tried again.
    Waiting(Arc<str>),
    /// The ledger answers and does not fit this instance, which is checked again.
    Closed(LedgerCheck, Arc<str>),
    /// It is done.
    Done,
}

impl PreparationState {
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Rebuilding => "rebuilding",
            Self::Waiting(_) => "waiting",
            Self::Closed(..) => "closed",
            Self::Done => "ready",
        }
    }

    /// The check that failed.
    pub(crate) const fn failed_check(&self) -> Option<LedgerCheck> {
        match self {
            Self::Closed(check, _) => Some(*check),
            _ => None,
        }
    }

    /// Logs it, unless it was `reported`.
    fn report_after(&self, reported: &Self) {
        match self {
            Self::Closed(check, problem) if reported.failed_check() != Some(*check) => {
                let check = check.as_str();
                tracing::error!(
                    target: "tidegate::ledger", check,
                    "rules with a ledger refuse all requests (503), whatever their on_failure is: {problem}. It is checked again every second"
                );
            }
            Self::Waiting(problem) if self != reported => tracing::warn!(
                target: "tidegate::ledger",
                "quotas with a ledger cannot be used yet: {problem}. It is tried again every second"
            ),
            _ => {}
        }
    }

    /// Why the ledger cannot be used, and what to do.
    pub(crate) fn problem(&self) -> Option<&str> {
        match self {
            Self::Waiting(problem) | Self::Closed(_, problem) => Some(problem),
            Self::Rebuilding | Self::Done => None,
        }
    }
}

/// The task that prepares; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Preparation {
    state: watch::Receiver<PreparationState>,
    task: JoinHandle<()>,
}

/// What the task works with.
pub(super) struct PreparationTask {
    pub(super) checks: LedgerChecks,
    pub(super) ledger: Ledger,
    pub(super) lock: Option<LedgerLock>,
    pub(super) store: AnyStore,
    pub(super) service: LedgerService<AnyStore>,
}

impl Preparation {
    pub(super) fn start(task: PreparationTask) -> Self {
        let unopened = task.ledger.unopened_error();
        let (sender, state) = watch::channel(unopened.map_or(PreparationState::Rebuilding, |error| waiting(&error)));
        Self { state, task: tokio::spawn(task.run(sender)) }
    }

    pub(crate) fn state(&self) -> PreparationState {
        self.state.borrow().clone()
    }

    /// Waits until the first attempt has ended, but not for long.
    pub(crate) async fn wait_before_listening(&self) {
        let mut state = self.state.clone();
        let attempt = state.wait_for(|state| *state != PreparationState::Rebuilding);
        if tokio::time::timeout(MAX_WAIT_BEFORE_LISTENING, attempt).await.is_err() {
            let message = "quotas are being rebuilt from the ledger; until this is done, the server is not ready";
            tracing::warn!(target: "tidegate::ledger", "{message}");
        }
    }
}

impl PreparationTask {
    async fn run(mut self, state: watch::Sender<PreparationState>) {
        let (timer, mut reported) = (tokio_timer(), state.borrow().clone());
        if reported != PreparationState::Rebuilding {
            timer.sleep(RETRY_INTERVAL).await;
        }
        loop {
            match self.prepare(&state).await {
                Ok(PrepareReport { rebuilt, replayed, .. }) => {
                    // Before the line, so that who reads it finds a server that is ready.
                    state.send_replace(PreparationState::Done);
                    tracing::info!(target: "tidegate::ledger", rebuilt, replayed, "store and ledger are ready");
                    // It goes on holding the lock.
                    return std::future::pending().await;
                }
                Err(failed) => {
                    failed.report_after(&reported);
                    reported = failed.clone();
                    state.send_replace(failed);
                }
            }
            timer.sleep(RETRY_INTERVAL).await;
        }
    }

    async fn prepare(&mut self, state: &watch::Sender<PreparationState>) -> Result<PrepareReport, PreparationState> {
        let before = state.borrow().clone();
        // At the start, nobody can ask for the state yet. After that, a rebuild runs only if both answer.
        if before != PreparationState::Rebuilding {
            self.open_ledger(before).await?;
            self.ledger.ping().await.map_err(|error| waiting(&error))?;
            self.store.ping().await.map_err(|error| waiting(&error))?;
            state.send_replace(PreparationState::Rebuilding);
        }
        Box::pin(self.service.prepare()).await.map_err(|error| waiting(&error))
    }

    /// Opens the ledger if it is not open, in this state.
    async fn open_ledger(&mut self, state: PreparationState) -> Result<(), PreparationState> {
        if self.ledger.unopened_error().is_none() {
            return Ok(());
        }
        let OpeningError { error, check } = match Box::pin(self.checks.open()).await {
            Ok(CheckedLedger { ledger, lock }) => {
                self.lock = lock;
                self.ledger.adopt(&ledger);
                return Ok(());
            }
            Err(error) => error,
        };
        if let Some(check) = check {
            let problem = error.to_string();
            self.ledger.set_unopened_error(LedgerError::mismatch(problem.clone()));
            return Err(PreparationState::Closed(check, problem.into()));
        }
        // Silence does not make a ledger fit.
        if state.failed_check().is_some() {
            return Err(state);
        }
        let state = waiting(&error);
        self.ledger.set_unopened_error(error);
        Err(state)
    }
}

fn waiting(problem: &dyn fmt::Display) -> PreparationState {
    PreparationState::Waiting(problem.to_string().into())
}

impl Drop for Preparation {
    fn drop(&mut self) {
        self.task.abort();
    }
}
