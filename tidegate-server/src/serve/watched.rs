//! `Watched`: any store, with the time that each call takes told to the metrics. It changes no answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::spi::{Adjustment, Key, Plan, Store, Verdict};
use tidegate::{Clock, StoreError, SystemClock, Timestamp};

use super::metrics::{Metrics, StoreCall};
use crate::store::AnyStore;

/// A store whose calls are measured. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    store: AnyStore,
    metrics: Arc<Metrics>,
    clock: SystemClock,
    up: Arc<AtomicBool>,
    /// How it failed, when it last began to.
    why: Arc<Mutex<String>>,
}

impl Watched {
    pub(crate) fn new(store: AnyStore, metrics: Arc<Metrics>) -> Self {
        Self { store, metrics, clock: SystemClock::new(), up: Arc::new(AtomicBool::new(true)), why: Arc::default() }
    }

    /// The store itself.
    pub(crate) const fn store(&self) -> &AnyStore {
        &self.store
    }

    /// Whether the last call went well.
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// How it failed, when it last began to, in words for an operator.
    pub(crate) fn why(&self) -> String {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn measured<T>(&self, call: StoreCall, begun: Timestamp, result: Result<T, StoreError>) -> Result<T, StoreError> {
        let took: Duration = self.clock.now().since(begun);
        self.metrics.store_called(call, took, result.as_ref().err());
        // Looked at first, since most of the time nothing changes, and all cores would write to one place.
        if self.is_up() != result.is_ok() {
            if let Err(error) = &result {
                *self.why.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
            }
            self.up.store(result.is_ok(), Ordering::Relaxed);
        }
        result
    }
}

impl Store for Watched {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        let begun = self.clock.now();
        let call = if plan.is_peek() { StoreCall::Peek } else { StoreCall::Decide };
        self.measured(call, begun, self.store.decide(plan).await)
    }

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        let begun = self.clock.now();
        self.measured(StoreCall::Adjust, begun, self.store.adjust(adjustments).await)
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        self.store.adjust_soon(adjustments);
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        let begun = self.clock.now();
        self.measured(StoreCall::Forget, begun, self.store.forget(keys).await)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let begun = self.clock.now();
        self.measured(StoreCall::Ping, begun, self.store.ping().await)
    }

    fn instances(&self) -> Option<u32> {
        self.store.instances()
    }
}
