//! `ReconcileJob`: one comparison of store and ledger at a time. It goes on when its caller hangs up, and its result stays until the next.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use tidegate_ledger::{LedgerErrorKind, LedgerService, ReconcileReport, ServiceError};
use tokio::sync::watch;

use crate::store::AnyStore;

/// A call that asks for the result waits for so long.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The last reconcile of this instance.
#[derive(Debug)]
pub(crate) struct ReconcileJob {
    status: watch::Sender<ReconcileStatus>,
    /// Held while a job is started.
    starting: Mutex<()>,
}

/// The state of a reconcile.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReconcileStatus {
    pub(crate) running: bool,
    pub(crate) apply: bool,
    /// The result, or why there is none. `None` before the first one has ended.
    pub(crate) result: Option<Result<Arc<ReconcileReport>, ReconcileFailure>>,
}

/// Why a reconcile has no result.
#[derive(Clone, Debug)]
pub(crate) struct ReconcileFailure {
    pub(crate) message: String,
    /// Whether another instance is at it.
    pub(crate) is_busy: bool,
}

/// One runs already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AlreadyRunning;

impl Default for ReconcileJob {
    fn default() -> Self {
        Self { status: watch::Sender::new(ReconcileStatus::default()), starting: Mutex::default() }
    }
}

impl ReconcileJob {
    /// Starts a reconcile.
    pub(crate) fn start(&self, service: &LedgerService<AnyStore>, apply: bool) -> Result<(), AlreadyRunning> {
        let _starting = self.starting.lock();
        if self.status.borrow().running {
            return Err(AlreadyRunning);
        }
        self.status.send_modify(|status| {
            *status = ReconcileStatus { running: true, apply, result: status.result.take() };
        });
        let (sender, service) = (self.status.clone(), service.clone());
        tokio::spawn(async move {
            let result =
                Box::pin(service.reconcile(apply)).await.map(Arc::new).map_err(|error| ReconcileFailure::from(&error));
            sender.send_replace(ReconcileStatus { running: false, apply, result: Some(result) });
        });
        Ok(())
    }

    /// The state, at the end of the reconcile or after a second.
    pub(crate) async fn wait(&self) -> ReconcileStatus {
        let mut status = self.status.subscribe();
        let _ = tokio::time::timeout(MAX_WAIT, status.wait_for(|status| !status.running)).await;
        self.status.borrow().clone()
    }

    /// Differences that the last one has left.
    pub(crate) fn unrepaired(&self) -> u64 {
        match &self.status.borrow().result {
            Some(Ok(report)) => unrepaired(report),
            _ => 0,
        }
    }
}

/// Differences and lost partitions that a reconcile has left.
pub(crate) fn unrepaired(report: &ReconcileReport) -> u64 {
    (report.differences + report.lost.len() as u64).saturating_sub(report.repaired)
}

impl From<&ServiceError> for ReconcileFailure {
    fn from(error: &ServiceError) -> Self {
        let is_busy = matches!(error, ServiceError::Ledger(error) if error.kind() == LedgerErrorKind::Busy);
        Self { message: error.to_string(), is_busy }
    }
}
