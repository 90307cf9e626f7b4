//! `Observer`: sees every decision and every failure, and changes nothing. Metrics, logs and traces hang here.

use std::sync::Arc;

use crate::spi::Plan;
use crate::{Decision, StoreError};

/// Sees what a [`Limiter`](crate::Limiter) does. Every method has an empty default.
///
/// It is called on the way of each request, so it must not block. Subjects reach it hashed only.
pub trait Observer: Send + Sync {
    /// A request was decided. A peek is not one. If the store failed, the decision has the checks that this instance made in
    /// its place, while `plan` has all of them.
    fn decided(&self, plan: &Plan<'_>, decision: &Decision) {
        let _ = (plan, decision);
    }

    /// No rule matched a request; it passed without a question to the store.
    fn no_rule(&self) {}

    /// The store failed.
    fn store_failed(&self, error: &StoreError) {
        let _ = error;
    }

    /// A request was not decided by the store, since that failed with `error`; each of its rules now does what its
    /// [policy](crate::spi::Plan::policies) says. If none refuses it, the [degraded](Decision::degraded) decision comes next.
    fn undecided(&self, plan: &Plan<'_>, error: &StoreError) {
        let _ = (plan, error);
    }
}

/// An observer that others look at too.
impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn decided(&self, plan: &Plan<'_>, decision: &Decision) {
        O::decided(self, plan, decision);
    }

    fn no_rule(&self) {
        O::no_rule(self);
    }

    fn store_failed(&self, error: &StoreError) {
        O::store_failed(self, error);
    }

    fn undecided(&self, plan: &Plan<'_>, error: &StoreError) {
        O::undecided(self, plan, error);
    }
}
