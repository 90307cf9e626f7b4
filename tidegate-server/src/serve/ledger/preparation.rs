//! `Preparation`: replaying the journal and rebuilding what the store has lost, at the start of a server.
//!
//! A server starts without its store, too. Then this is tried again until the store answers; quotas with a ledger fail until then.

use std::time::Duration;

use tidegate::Timer;
use tidegate_ledger::LedgerService;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::store::AnyStore;
use crate::timer::tokio_timer;

/// A server listens after this time even if it is not prepared. It is alive then, and says that it is not ready.
const MAX_WAIT_BEFORE_LISTENING: Duration = Duration::from_secs(5);

/// Time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How far the preparation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreparationState {
    /// It runs: states of quotas are being rebuilt.
    Rebuilding,
    /// The store or the ledger did not answer. It will be tried again.
    Failed,
    /// It is done.
    Done,
}

impl PreparationState {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Rebuilding => "rebuilding",
            Self::Failed => "waiting",
            Self::Done => "ready",
        }
    }
}

/// The task that prepares; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Preparation {
    state: watch::Receiver<PreparationState>,
    task: JoinHandle<()>,
}

impl Preparation {
    pub(crate) fn start(service: LedgerService<AnyStore>) -> Self {
        let (sender, state) = watch::channel(PreparationState::Rebuilding);
        let task = tokio::spawn(async move {
            let timer = tokio_timer();
            let mut reported = String::new();
            loop {
                match Box::pin(service.prepare()).await {
                    Ok(report) => {
                        // Before the line, so that who reads it finds a server that is ready.
                        sender.send_replace(PreparationState::Done);
                        let (rebuilt, replayed) = (report.rebuilt, report.replayed);
                        tracing::info!(target: "tidegate::ledger", rebuilt, replayed, "store and ledger are ready");
                        return;
                    }
                    Err(error) => {
                        sender.send_replace(PreparationState::Failed);
                        let problem = error.to_string();
                        if problem != reported {
                            tracing::warn!(
                                target: "tidegate::ledger",
                                "quotas with a ledger cannot be used yet: {problem}. It is tried again every second"
                            );
                            reported = problem;
                        }
                    }
                }
                timer.sleep(RETRY_INTERVAL).await;
                sender.send_replace(PreparationState::Rebuilding);
            }
        });
        Self { state, task }
    }

    pub(crate) fn state(&self) -> PreparationState {
        *self.state.borrow()
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

impl Drop for Preparation {
    fn drop(&mut self) {
        self.task.abort();
    }
}
