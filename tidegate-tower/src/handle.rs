//! `Handle`: the limiter that all layers, services and connections share, and the way to put another in its place. It
//! decides nothing.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tidegate::Limiter;
use tidegate::spi::Store;

use crate::attributes::Reads;

/// Reaches the limiter of a layer, and of every clone and service that was made from it.
///
/// ```
/// use std::sync::Arc;
/// use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
/// use tidegate_tower::LimitLayer;
///
/// let rules = RuleSet::new([Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?)])?;
/// let layer = LimitLayer::new(Limiter::new(rules, Arc::new(MemoryStore::new())));
/// let handle = layer.handle();
///
/// // Later, while the server runs. What was spent stays spent, since the store is the same.
/// let rules = RuleSet::new([Rule::new("api", Limit::token_bucket(50, Rate::per_second(10)?)?)])?;
/// handle.replace(handle.limiter().with_rules(rules));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Handle<S>(Arc<RwLock<Arc<Current<S>>>>);

/// A limiter, and what its rules say once for all requests.
pub(crate) struct Current<S> {
    pub(crate) limiter: Arc<Limiter<S>>,
    pub(crate) reads: Reads,
    /// Whether a rule has its costs told by the response.
    pub(crate) settles: bool,
}

impl<S: Store> Handle<S> {
    /// A handle for doors of one's own; [`LimitLayer::of`](crate::LimitLayer::of) makes a layer of it.
    pub fn new(limiter: Limiter<S>) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(Current::new(limiter)))))
    }

    /// Puts another limiter in place for all requests from now on. Those that are under way end with the one they met.
    ///
    /// Its rules bring all that they say along: the header fields of answers and where the actual cost is told, unless the
    /// layer was told [otherwise](crate::LimitLayer::contract).
    pub fn replace(&self, limiter: Limiter<S>) {
        let next = Arc::new(Current::new(limiter));
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, next);
        drop(current);
        // Only now, since the end of a limiter may take its time, and nobody should wait for it.
        drop(before);
    }

    /// The limiter that decides now.
    pub fn limiter(&self) -> Arc<Limiter<S>> {
        Arc::clone(&self.current().limiter)
    }
}

impl<S> Handle<S> {
    pub(crate) fn current(&self) -> Arc<Current<S>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<S: Store> Current<S> {
    fn new(limiter: Limiter<S>) -> Self {
        let (reads, settles) =
            (Reads::new(limiter.rules().reads().into_iter().map(Into::into)), limiter.rules().has_cost_headers());
        Self { limiter: Arc::new(limiter), reads, settles }
    }
}

impl<S> Clone for Handle<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Handle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
