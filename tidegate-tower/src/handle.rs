//! `Handle`: the limiter that all layers, services and connections share, and how to replace it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use http::header::HeaderName;
use tidegate::grants::{GrantError, HeldLease};
use tidegate::spi::Store;
use tidegate::sync::RwLock;
use tidegate::{Decision, Ending, Grant, GrantGuard, Limiter, Request, Timer};

use crate::attribute_sources::AttributeSources;
use crate::lease_renewal::LeaseRenewal;

/// Reads and replaces the limiter of a layer, its clones and their services.
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
/// // Later, while the server runs. The store is the same, so what was consumed stays consumed.
/// let rules = RuleSet::new([Rule::new("api", Limit::token_bucket(50, Rate::per_second(10)?)?)])?;
/// handle.replace(handle.limiter().with_rules(rules));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Handle<S>(Arc<SharedLimiter<S>>);

struct SharedLimiter<S> {
    active: RwLock<Arc<ActiveLimiter<S>>>,
    /// Made when the first lease is held.
    leases: OnceLock<Box<LeaseRenewal<S>>>,
}

/// A limiter, and what its rules need from every request.
pub(crate) struct ActiveLimiter<S> {
    pub(crate) limiter: Arc<Limiter<S>>,
    pub(crate) sources: AttributeSources,
    /// Whether a rule reads the size of the body.
    pub(crate) reads_size: bool,
    /// Whether a rule reads the actual cost from a response header.
    pub(crate) has_cost_headers: bool,
    /// Whether the cost under a rule is the token usage of a language model.
    pub(crate) has_usage: bool,
}

impl<S: Store> Handle<S> {
    /// A handle for a front end of your own; [`LimitLayer::from_handle`](crate::LimitLayer::from_handle) makes a layer of it.
    pub fn new(limiter: Limiter<S>) -> Self {
        let active = RwLock::new(Arc::new(ActiveLimiter::new(limiter)));
        Self(Arc::new(SharedLimiter { active, leases: OnceLock::new() }))
    }

    /// Replaces the limiter for all requests from now on. Requests in flight finish with the limiter they started with.
    ///
    /// The rules of the new limiter also decide the headers of responses, unless the layer has a
    /// [policy of its own](crate::LimitLayer::with_header_policy), and which response header has the actual cost.
    pub fn replace(&self, limiter: Limiter<S>) {
        let new = Arc::new(ActiveLimiter::new(limiter));
        let mut active = self.0.active.write();
        let old = std::mem::replace(&mut *active, new);
        drop(active);
        // After the lock is released: dropping a limiter may take long.
        drop(old);
    }

    /// Whether the current rules read this header. A front end that removes headers removes none of these, or refuses the request.
    pub fn reads_header(&self, name: &HeaderName) -> bool {
        self.active().sources.reads_header(name)
    }

    /// Reserves the estimated cost of work that a handler does, under the rules of the action of `request`. What is returned beside the
    /// decision is released when it is dropped, unless it is committed: so a handler that fails, panics or is cancelled pays nothing.
    /// It holds nothing if the request is denied.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::{Ending, MemoryStore, Request};
    /// use tidegate_tower::Handle;
    ///
    /// async fn complete(limits: Handle<Arc<MemoryStore>>, user: &str) -> Result<String, Box<dyn std::error::Error>> {
    ///     let request = Request::new("complete").with_attribute("user", user).with_cost(4_000);
    ///     let (decision, tokens) = limits.reserve(&request, None).await?;
    ///     if !decision.is_allowed() {
    ///         return Ok("no tokens left".to_owned());
    ///     }
    ///     let (text, used) = ("…".to_owned(), 1_234); // the work; an error here releases the tokens
    ///     tokens.end(Ending::Commit(used.into())).await?;
    ///     Ok(text)
    /// }
    /// ```
    pub async fn reserve(
        &self,
        request: &Request<'_>,
        idempotency_key: Option<&str>,
    ) -> Result<(Decision, GrantGuard<S>), GrantError> {
        let limiter = self.limiter();
        let mut decision = limiter.reserve(request, idempotency_key).await?;
        let guard = GrantGuard::new(limiter, decision.take_grant(), Ending::Release);
        Ok((decision, guard))
    }

    /// The current limiter.
    pub fn limiter(&self) -> Arc<Limiter<S>> {
        Arc::clone(&self.active().limiter)
    }
}

impl<S: Store + 'static> Handle<S> {
    /// Holds a lease that `limiter` has granted. The timer of the first one decides when leases are due.
    #[cold]
    pub(crate) fn hold(&self, limiter: &Arc<Limiter<S>>, lease: Grant, timer: &Arc<dyn Timer>) -> HeldLease {
        let leases = self.0.leases.get_or_init(|| Box::new(LeaseRenewal::new(Arc::clone(timer))));
        // The task must not keep the layer: it ends when that is gone and nothing is held any more.
        let (shared, mut last) = (Arc::downgrade(&self.0), Arc::clone(limiter));
        leases.start(move || {
            if let Some(shared) = shared.upgrade() {
                last = Arc::clone(&shared.active().limiter);
            }
            Arc::clone(&last)
        });
        leases.hold(limiter, lease)
    }
}

impl<S> Handle<S> {
    /// The number of leases that requests hold now, until their response bodies end.
    pub fn held_leases(&self) -> usize {
        self.0.leases.get().map_or(0, |leases| leases.held())
    }

    /// How many requests have lost their slots.
    pub fn lost_leases(&self) -> u64 {
        self.0.leases.get().map_or(0, |leases| leases.lost())
    }

    pub(crate) fn active(&self) -> Arc<ActiveLimiter<S>> {
        self.0.active()
    }
}

impl<S> SharedLimiter<S> {
    fn active(&self) -> Arc<ActiveLimiter<S>> {
        Arc::clone(&self.active.read())
    }
}

impl<S: Store> ActiveLimiter<S> {
    fn new(limiter: Limiter<S>) -> Self {
        let sources = AttributeSources::new(limiter.rules().reads());
        let has_cost_headers = limiter.rules().has_cost_headers();
        let has_usage = limiter.rules().has_usage();
        let reads_size = sources.reads_size();
        Self { limiter: Arc::new(limiter), sources, reads_size, has_cost_headers, has_usage }
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
