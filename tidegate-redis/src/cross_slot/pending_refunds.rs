//! `PendingRefunds`: the units that the parts of a plan took, and that are refunded unless the whole plan passes.

use tidegate::StoreError;
use tidegate::spi::{Adjustment, Plan, ReservationTerms, Store, Verdict};
use tokio::task::JoinHandle;

use crate::call::CallError;
use crate::cardinality::OverflowRoute;
use crate::store::RedisStore;

/// Units to refund unless the plan passes. Dropping it refunds them in the background: the caller stopped waiting.
pub(super) struct PendingRefunds<'s, 'r> {
    store: &'s RedisStore,
    refunds: Vec<Adjustment<'r>>,
    /// Whether the caller may repeat the plan: a reservation with an idempotency key. A late release would end the repeated one.
    is_repeatable: bool,
    /// Whether a part found a reservation that was made before.
    is_repeat: bool,
}

impl<'s, 'r> PendingRefunds<'s, 'r> {
    pub(super) const fn new(store: &'s RedisStore) -> Self {
        Self { store, refunds: Vec::new(), is_repeatable: false, is_repeat: false }
    }

    /// Adds what `part` took, which was sent with these routes. What an earlier call has reserved stays: holds, and the slots beside them,
    /// are found by their owner alone.
    pub(super) fn add(&mut self, part: &Plan<'r>, routes: &[OverflowRoute<'r>], verdict: &Verdict) {
        self.is_repeatable = part.reservation().is_some_and(ReservationTerms::is_keyed);
        self.is_repeat |= verdict.is_repeat();
        for (index, (check, check_verdict)) in part.checks().iter().zip(verdict.checks()).enumerate() {
            let is_kept = verdict.is_repeat() || self.is_repeat && check.gate().limit().is_held();
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

    /// Drops all refunds but those of slots of concurrency limits, and returns whether there are any.
    pub(super) fn keep_slots(&mut self) -> bool {
        self.refunds.retain(|refund| refund.limit.is_held());
        !self.refunds.is_empty()
    }

    /// Drops the refunds: the plan has passed.
    pub(super) fn cancel(&mut self) {
        self.refunds.clear();
    }

    /// Refunds everything, and returns whether that worked. A failed refund is not retried, since it may have been applied.
    pub(super) async fn refund(&mut self) -> bool {
        let refunds = std::mem::take(&mut self.refunds);
        refunds.is_empty() || self.store.adjust(&refunds).await.is_ok()
    }

    /// Refunds everything in a task of its own.
    pub(super) fn spawn_refund(&mut self) -> Option<JoinHandle<Result<(), StoreError>>> {
        self.store.spawn_adjustments(&std::mem::take(&mut self.refunds))
    }

    /// Refunds everything after `failure`, and returns the failure: possibly applied if the refund failed.
    pub(super) async fn refund_after(&mut self, failure: CallError) -> CallError {
        let refunded = self.refund().await;
        CallError {
            error: if refunded { failure.error } else { failure.error.with_possibly_applied() },
            mid_migration: failure.mid_migration && refunded,
            ..failure
        }
    }
}

impl Drop for PendingRefunds<'_, '_> {
    fn drop(&mut self) {
        if !self.is_repeatable {
            self.store.adjust_soon(&self.refunds);
        }
    }
}
