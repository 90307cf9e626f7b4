//! `Observer`: receives every decision and every failure of the store, for metrics, logs and traces.

use std::sync::Arc;

use crate::spi::Plan;
use crate::{Decision, StoreError};

/// Receives the events of a [`Limiter`](crate::Limiter). Every method has an empty default.
///
/// It is called during each request, so it must not block. It sees subjects only as hashes.
pub trait Observer: Send + Sync {
    /// A request was decided. Not called for peeks. If the store failed, the decision contains only the checks that this
    /// instance made itself, and after a [known denial](Decision::known_denial) only the one that denies, while `plan` contains all of
    /// them. [`Decision::skipped_shadow`] lists the shadow checks that were not decided.
    fn decided(&self, plan: &Plan<'_>, decision: &Decision) {
        let _ = (plan, decision);
    }

    /// No rule matched a request; it passed without a call to the store. `plan` has no checks, and the origin of the request.
    fn no_rule(&self, plan: &Plan<'_>) {
        let _ = plan;
    }

    /// The store failed.
    fn store_failed(&self, error: &StoreError) {
        let _ = error;
    }

    /// The store failed with `error` while deciding a request, so that the [failure policies](crate::spi::Plan::policies) of its
    /// rules apply. Unless one is closed, [`decided`](Self::decided) follows with the [degraded](Decision::degraded) decision.
    fn undecided(&self, plan: &Plan<'_>, error: &StoreError) {
        let _ = (plan, error);
    }

    /// A [commit](crate::Ending::Settle) found a hold under `rule` gone: the store has lost it, it has run out, or the window or
    /// period of the limit was changed. Its cost is charged now, unless it was held in an overflow bucket.
    fn hold_lost(&self, rule: &str) {
        let _ = rule;
    }
}

/// A shared observer.
impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn decided(&self, plan: &Plan<'_>, decision: &Decision) {
        O::decided(self, plan, decision);
    }

    fn no_rule(&self, plan: &Plan<'_>) {
        O::no_rule(self, plan);
    }

    fn store_failed(&self, error: &StoreError) {
        O::store_failed(self, error);
    }

    fn undecided(&self, plan: &Plan<'_>, error: &StoreError) {
        O::undecided(self, plan, error);
    }

    fn hold_lost(&self, rule: &str) {
        O::hold_lost(self, rule);
    }
}
