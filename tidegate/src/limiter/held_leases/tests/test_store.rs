//! `TestStore`: a memory store that counts the calls, fails, or keeps a call waiting.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use crate::key::Key;
use crate::spi::{Adjustment, AdjustmentResults, Plan, Store, Verdict};
use crate::sync::Mutex;
use crate::{MemoryStore, StoreError, StoreErrorKind};

/// A memory store that counts the calls, fails, or keeps a call waiting.
#[derive(Clone)]
pub(super) struct TestStore(pub(super) Arc<TestStoreState>);

pub(super) struct TestStoreState {
    pub(super) memory: MemoryStore,
    /// The number of slots in each call.
    pub(super) calls: Mutex<Vec<usize>>,
    pub(super) releases: AtomicUsize,
    pub(super) error: Mutex<Option<StoreError>>,
    /// The store fails only for calls with a slot of this rule.
    pub(super) error_rule: Mutex<Option<&'static str>>,
    /// The calls that are answered before one waits.
    pub(super) calls_before_stall: AtomicUsize,
}

impl TestStore {
    pub(super) fn calls(&self) -> Vec<usize> {
        std::mem::take(&mut *self.0.calls.lock())
    }

    pub(super) fn releases(&self) -> usize {
        self.0.releases.swap(0, Ordering::Relaxed)
    }

    pub(super) fn fail(&self, kind: Option<StoreErrorKind>) {
        let error = kind.map(|kind| StoreError::new(kind, "a test"));
        *self.0.error.lock() = error;
    }
}

impl Store for TestStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        self.0.memory.decide(plan).await
    }

    fn spawn_apply(&self, adjustments: &[Adjustment<'_>]) {
        self.0.releases.fetch_add(adjustments.len(), Ordering::Relaxed);
        self.0.memory.spawn_apply(adjustments);
    }

    async fn apply(&self, updates: &[Adjustment<'_>]) -> AdjustmentResults {
        self.0.calls.lock().push(updates.len());
        poll_fn(|_| match self.0.calls_before_stall.load(Ordering::Relaxed) {
            0 => Poll::Pending,
            calls => {
                self.0.calls_before_stall.store(calls - 1, Ordering::Relaxed);
                Poll::Ready(())
            }
        })
        .await;
        let error = self.0.error.lock().clone();
        let rule = *self.0.error_rule.lock();
        match error.filter(|_| rule.is_none_or(|rule| updates.iter().any(|update| update.gate.rule().id == rule))) {
            Some(error) => AdjustmentResults::failed(updates.len(), &error),
            None => self.0.memory.apply(updates).await,
        }
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        self.0.memory.forget(keys).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
