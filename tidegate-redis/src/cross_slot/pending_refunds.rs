//! `PendingRefunds`: the units that the parts of a plan took, and that are refunded unless the whole plan passes.

use std::time::Duration;

use tidegate::spi::{Adjustment, Plan, ReservationTerms, Store, Verdict};

use crate::call::CallError;
use crate::cardinality::OverflowRoute;
use crate::store::RedisStore;
use crate::timer;

/// Units to refund unless the plan passes. Dropping it refunds them in the background: the caller stopped waiting.
pub(super) struct PendingRefunds<'s, 'r> {
    store: &'s RedisStore,
    refunds: Vec<Adjustment<'r>>,
    /// Releases of holds that were sent and are not known to be applied. Dropping this sends them again, which does no harm: nobody else
    /// has their owner.
    unconfirmed: Vec<Adjustment<'r>>,
    /// Whether the caller may repeat the plan: a reservation with an idempotency key. A late release would end the repeated one.
    is_repeatable: bool,
    /// Whether a part found a reservation that was made before.
    is_repeat: bool,
}

impl<'s, 'r> PendingRefunds<'s, 'r> {
    pub(super) const fn new(store: &'s RedisStore) -> Self {
        Self { store, refunds: Vec::new(), unconfirmed: Vec::new(), is_repeatable: false, is_repeat: false }
    }

    /// Sets whether a part has found a reservation that was made before.
    pub(super) const fn with_repeat(mut self, is_repeat: bool) -> Self {
        self.is_repeat = is_repeat;
        self
    }

    /// Adds what `part` took, which was sent with these routes. What an earlier call has reserved stays: holds, and the slots beside them,
    /// are found by their owner alone.
    pub(super) fn add(&mut self, part: &Plan<'r>, routes: &[OverflowRoute<'r>], verdict: &Verdict) {
        self.is_repeatable = part.reservation().is_some_and(ReservationTerms::is_keyed);
        self.is_repeat |= verdict.is_repeat();
        for (index, (check, check_verdict)) in part.checks().iter().zip(verdict.checks()).enumerate() {
            let is_kept = verdict.is_repeat() || self.is_repeat && check.gate().limit().has_slots();
            if check_verdict.consumed && !is_kept {
                let units = verdict.granted().max(1);
                let refund = |check| Adjustment::undo(part, check, units, check_verdict.position);
                let overflow = routes.get(index).and_then(|route| route.overflow);
                self.refunds.push(match overflow.filter(|_| check_verdict.overflowed) {
                    // An overflow bucket is shared, so the maximum TTL of anonymous subjects does not apply to it.
                    Some(bucket) => refund(&check.with_anonymous(false)).with_key(bucket),
                    None => refund(check),
                });
            }
        }
    }

    /// Whether a part found a reservation that was made before.
    pub(super) const fn is_repeat(&self) -> bool {
        self.is_repeat
    }

    /// Drops all refunds but those of slots of concurrency limits, and returns whether there are any.
    pub(super) fn keep_slots(&mut self) -> bool {
        self.refunds.retain(|refund| refund.limit.has_slots());
        !self.refunds.is_empty()
    }

    /// Drops the refunds: the plan has passed.
    pub(super) fn cancel(&mut self) {
        self.refunds.clear();
    }

    /// Refunds everything, and returns whether that worked. A failed refund is not retried, since it may have been applied; a failed release
    /// of a hold is.
    pub(super) async fn refund(&mut self) -> bool {
        let refunds = self.take_refunds();
        let refunded = refunds.is_empty() || self.store.apply(&refunds).await.outcomes().is_ok();
        self.confirm_if(refunded);
        refunded
    }

    /// Refunds everything in a task of its own, and waits for that at most for `limit`. The task continues after it.
    pub(super) async fn refund_within(&mut self, limit: Duration) {
        let refunds = self.take_refunds();
        if let Some(task) = self.store.spawn_adjustments(&refunds) {
            let refunded = timer::timeout(limit, task).await;
            self.confirm_if(matches!(refunded, Some(Ok(results)) if results.outcomes().is_ok()));
        }
    }

    /// Refunds everything after `failure`, and returns the failure: possibly applied if the refund failed.
    ///
    /// If the caller may repeat the plan, everything stays taken: the repeat finds it. While a slot is being migrated, this call itself
    /// decides again, as if nothing had been taken.
    pub(super) async fn refund_after(&mut self, failure: CallError) -> CallError {
        let stays_taken = self.is_repeatable && !failure.mid_migration && !self.refunds.is_empty();
        if stays_taken {
            self.refunds.clear();
        }
        let refunded = self.refund().await && !stays_taken;
        CallError {
            error: if refunded { failure.error } else { failure.error.with_possibly_applied() },
            mid_migration: failure.mid_migration && refunded,
            ..failure
        }
    }

    /// The refunds, which are about to be sent.
    fn take_refunds(&mut self) -> Vec<Adjustment<'r>> {
        let refunds = std::mem::take(&mut self.refunds);
        if !self.is_repeatable {
            self.unconfirmed.extend(refunds.iter().filter(|refund| refund.is_hold_ending()));
        }
        refunds
    }

    fn confirm_if(&mut self, refunded: bool) {
        if refunded {
            self.unconfirmed.clear();
        }
    }
}

impl Drop for PendingRefunds<'_, '_> {
    fn drop(&mut self) {
        if !self.is_repeatable {
            let refunds = self.take_refunds();
            let others: Vec<_> = refunds.into_iter().filter(|refund| !refund.is_hold_ending()).collect();
            self.store.spawn_apply(&others);
            self.store.spawn_releases(&self.unconfirmed);
        }
    }
}
