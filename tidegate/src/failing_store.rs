//! `FailingStore`: a store that fails as a test says, to see what a program does then.

use std::fmt;
use std::future::pending;
use std::sync::Arc;

use crate::key::Key;
use crate::spi::{Plan, Verdict};
use crate::store::{Adjustment, AdjustmentResults, KnownDenial, OutstandingHolds, Store};
use crate::sync::Mutex;
use crate::{MemoryStore, StoreError, StoreErrorKind};

/// A store that fails as a test says. Every other call goes to the store inside.
///
/// ```
/// use tidegate::spi::FailingStore;
/// use tidegate::{Limit, Limiter, MemoryStore, OnFailure, Rate, Request, Rule, RuleSet};
///
/// # async fn closed_rules_refuse() -> Result<(), Box<dyn std::error::Error>> {
/// let rule = Rule::new("payments", Limit::token_bucket(5, Rate::per_second(1)?)?).with_on_failure(OnFailure::Closed);
/// let store = FailingStore::new(MemoryStore::new());
/// let limiter = Limiter::new(RuleSet::new([rule])?, store.clone());
///
/// assert!(limiter.check(&Request::new("pay")).await.is_ok());
/// store.fail();
/// assert!(limiter.check(&Request::new("pay")).await.is_err());
/// # Ok(())
/// # }
/// # use std::future::Future;
/// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// # assert!(matches!(std::pin::pin!(closed_rules_refuse()).poll(&mut context), std::task::Poll::Ready(Ok(()))));
/// ```
pub struct FailingStore<S = MemoryStore> {
    store: Arc<S>,
    faults: Arc<Mutex<Box<Faults>>>,
}

/// A call of a store.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum FailingCall<'c, 'r> {
    /// [`Store::decide`].
    Decide(&'c Plan<'r>),
    /// [`Store::apply`].
    Apply(&'c [Adjustment<'r>]),
    /// [`Store::spawn_apply`].
    SpawnApply(&'c [Adjustment<'r>]),
    /// [`Store::outstanding`], [`Store::forget`] or [`Store::ping`].
    Other,
}

/// How a call fails.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// It is not carried out.
    Error(StoreError),
    /// It is carried out, and never answered.
    Silence,
}

type Faults = dyn FnMut(FailingCall<'_, '_>) -> Option<Fault> + Send;

impl<S: Store> FailingStore<S> {
    /// A store that does not fail yet.
    pub fn new(store: S) -> Self {
        Self { store: Arc::new(store), faults: Arc::new(Mutex::new(Box::new(|_| None))) }
    }

    /// From now on, every call fails as if the server were unreachable.
    pub fn fail(&self) {
        self.fail_with(StoreError::new(StoreErrorKind::Unavailable, "the server is unreachable"));
    }

    /// From now on, every call fails with `error`.
    pub fn fail_with(&self, error: StoreError) {
        self.fail_if(move |_| Some(Fault::Error(error.clone())));
    }

    /// From now on, those calls fail for which `fault` returns how.
    pub fn fail_if(&self, fault: impl FnMut(FailingCall<'_, '_>) -> Option<Fault> + Send + 'static) {
        *self.faults.lock() = Box::new(fault);
    }

    /// From now on, no call fails.
    pub fn recover(&self) {
        self.fail_if(|_| None);
    }

    /// The store inside.
    pub fn inner(&self) -> &S {
        &self.store
    }

    fn fault(&self, call: FailingCall<'_, '_>) -> Option<Fault> {
        (self.faults.lock())(call)
    }

    async fn call<T>(&self, call: FailingCall<'_, '_>, result: impl Future<Output = T>) -> Result<T, StoreError> {
        match self.fault(call) {
            None => Ok(result.await),
            Some(Fault::Error(error)) => Err(error),
            Some(Fault::Silence) => {
                result.await;
                pending().await
            }
        }
    }
}

impl FailingStore {
    /// A memory store of which every call fails as if the server were unreachable.
    pub fn unavailable() -> Self {
        let store = Self::new(MemoryStore::new());
        store.fail();
        store
    }

    /// A memory store of which every call fails with `error`.
    pub fn failing_with(error: StoreError) -> Self {
        let store = Self::new(MemoryStore::new());
        store.fail_with(error);
        store
    }
}

impl<S: Store> Store for FailingStore<S> {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        self.call(FailingCall::Decide(plan), self.store.decide(plan)).await?
    }

    async fn apply(&self, adjustments: &[Adjustment<'_>]) -> AdjustmentResults {
        let applied = self.call(FailingCall::Apply(adjustments), self.store.apply(adjustments)).await;
        applied.unwrap_or_else(|error| AdjustmentResults::failed(adjustments.len(), &error))
    }

    fn spawn_apply(&self, adjustments: &[Adjustment<'_>]) {
        if self.fault(FailingCall::SpawnApply(adjustments)).is_none() {
            self.store.spawn_apply(adjustments);
        }
    }

    async fn outstanding(&self, plan: &Plan<'_>) -> Result<OutstandingHolds, StoreError> {
        self.call(FailingCall::Other, self.store.outstanding(plan)).await?
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        self.call(FailingCall::Other, self.store.forget(keys)).await?
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.call(FailingCall::Other, self.store.ping()).await?
    }

    fn instances(&self) -> Option<u32> {
        self.store.instances()
    }

    fn ledger_generation(&self, partition: u16) -> Option<u64> {
        self.store.ledger_generation(partition)
    }

    fn known_denial(&self, plan: &Plan<'_>) -> Option<KnownDenial> {
        self.store.known_denial(plan)
    }
}

impl<S> Clone for FailingStore<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), faults: Arc::clone(&self.faults) }
    }
}

impl<S> fmt::Debug for FailingStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailingStore").finish_non_exhaustive()
    }
}
