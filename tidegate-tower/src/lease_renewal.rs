//! `LeaseRenewal`: holds the leases of admitted requests, and starts the task that renews them when the first one is held.

use std::sync::Arc;

use tidegate::grants::{HeldLease, HeldLeases};
use tidegate::spi::Store;
use tidegate::sync::Mutex;
use tidegate::{Grant, Limiter, Timer};
use tokio::task::JoinHandle;

/// The leases of the requests of all layers with one limiter.
pub(crate) struct LeaseRenewal<S> {
    leases: HeldLeases<S>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl<S: Store + 'static> LeaseRenewal<S> {
    pub(crate) fn new(timer: Arc<dyn Timer>) -> Self {
        Self { leases: HeldLeases::new(timer), task: Mutex::default() }
    }

    pub(crate) fn hold(&self, limiter: &Arc<Limiter<S>>, lease: Grant) -> HeldLease {
        self.leases.hold(limiter, lease)
    }

    /// Starts the task, unless it runs. The runtime of an earlier one may have been shut down.
    pub(crate) fn start(&self, current_limiter: impl FnMut() -> Arc<Limiter<S>> + Send + 'static) {
        let mut task = self.task.lock();
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        // Without a runtime of tokio's, the slots run out after their leases.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            *task = Some(runtime.spawn(self.leases.run(current_limiter)));
        }
    }
}

impl<S> LeaseRenewal<S> {
    pub(crate) fn held(&self) -> usize {
        self.leases.held()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.leases.lost()
    }
}
