//! `InstrumentedStore`: a store that reports the duration and the errors of its calls to the metrics. It changes no result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate::spi::{Adjustment, AdjustmentResults, Key, KnownDenial, OutstandingHolds, Plan, Store, Verdict};
use tidegate::sync::Mutex;
use tidegate::{Clock, StoreError, StoreErrorKind, SystemClock, Timestamp};

use crate::observe::metrics::{Metrics, StoreCall};
use crate::store::AnyStore;

/// A store whose calls are measured. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct InstrumentedStore {
    store: AnyStore,
    metrics: Arc<Metrics>,
    clock: SystemClock,
    up: Arc<AtomicBool>,
    /// Calls that failed because this instance is overloaded.
    overloads: Arc<AtomicU64>,
    /// The error of the call after which the store was last considered down.
    last_error: Arc<Mutex<String>>,
}

impl InstrumentedStore {
    pub(crate) fn new(store: AnyStore, metrics: Arc<Metrics>) -> Self {
        let (up, overloads) = (Arc::new(AtomicBool::new(true)), Arc::default());
        Self { store, metrics, clock: SystemClock::new(), up, overloads, last_error: Arc::default() }
    }

    /// The store itself.
    pub(crate) const fn inner(&self) -> &AnyStore {
        &self.store
    }

    /// Whether the last call succeeded that this instance was able to make.
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Calls that failed because this instance is overloaded. They say nothing about the store.
    pub(crate) fn overloads(&self) -> u64 {
        self.overloads.load(Ordering::Relaxed)
    }

    /// The error of the call after which the store was last considered down. It names no password.
    pub(crate) fn last_error(&self) -> String {
        self.last_error.lock().clone()
    }

    fn record<T>(&self, call: StoreCall, begun: Timestamp, result: Result<T, StoreError>) -> Result<T, StoreError> {
        let duration = self.clock.now().since(begun);
        self.metrics.store_called(call, duration, result.as_ref().err());
        if result.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Overloaded) {
            self.overloads.fetch_add(1, Ordering::Relaxed);
            return result;
        }
        // The store answers. It has lost what the ledger rebuilds, and says nothing about other rules.
        if result.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Rebuilding) {
            return result;
        }
        // Read first: most of the time nothing changes, and a write by every core would contend.
        if self.is_up() != result.is_ok() {
            if let Err(error) = &result {
                *self.last_error.lock() = error.to_string();
            }
            self.up.store(result.is_ok(), Ordering::Relaxed);
        }
        result
    }
}

impl Store for InstrumentedStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        let begun = self.clock.now();
        let call = if plan.is_peek() { StoreCall::Peek } else { StoreCall::Decide };
        self.record(call, begun, self.store.decide(plan).await)
    }

    async fn apply(&self, adjustments: &[Adjustment<'_>]) -> AdjustmentResults {
        let begun = self.clock.now();
        let results = self.store.apply(adjustments).await;
        // Its error is that of the call.
        let _ = self.record(StoreCall::Adjust, begun, results.first_error().cloned().map_or(Ok(()), Err));
        results
    }

    fn spawn_apply(&self, adjustments: &[Adjustment<'_>]) {
        self.store.spawn_apply(adjustments);
    }

    async fn outstanding(&self, plan: &Plan<'_>) -> Result<OutstandingHolds, StoreError> {
        let begun = self.clock.now();
        self.record(StoreCall::Peek, begun, self.store.outstanding(plan).await)
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        let begun = self.clock.now();
        self.record(StoreCall::Forget, begun, self.store.forget(keys).await)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let begun = self.clock.now();
        self.record(StoreCall::Ping, begun, self.store.ping().await)
    }

    fn instances(&self) -> Option<u32> {
        self.store.instances()
    }

    fn known_denial(&self, plan: &Plan<'_>) -> Option<KnownDenial> {
        self.store.known_denial(plan)
    }

    fn ledger_generation(&self, partition: u16) -> Option<u64> {
        self.store.ledger_generation(partition)
    }
}
