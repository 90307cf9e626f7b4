//! Charges, refunds, renewals and ends of holds in a [`MemoryStore`], each by itself except those that are bundled.

use super::{MemoryStore, ledger};
use crate::algorithm::holds::{self, HoldEnding};
use crate::algorithm::{self, Op};
use crate::ledger::EntryId;
use crate::overflow::Newcomer;
use crate::store::{Adjustment, StoreError};

impl MemoryStore {
    pub(super) fn adjust_now(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        Adjustment::require_changes(adjustments)?;
        self.apply_each(adjustments).map(drop)
    }

    /// Applies adjustments, each by itself, except those that are bundled. Returns for each whether it was admitted.
    pub(crate) fn apply_all(&self, adjustments: &[Adjustment<'_>]) -> Result<Vec<bool>, StoreError> {
        let is_admitted = |ending: HoldEnding| matches!(ending, HoldEnding::Ended | HoldEnding::Repeated);
        Ok(self.apply_each(adjustments)?.into_iter().map(is_admitted).collect())
    }

    /// The same. Returns for each end of a hold what became of it, and for others whether they were admitted or found nothing.
    pub(crate) fn apply_each(&self, adjustments: &[Adjustment<'_>]) -> Result<Vec<HoldEnding>, StoreError> {
        self.apply_recorded(adjustments, &mut Vec::new())
    }

    /// The same. Adds the entries that were written for the ledger to `recorded`.
    pub(super) fn apply_recorded(
        &self,
        adjustments: &[Adjustment<'_>],
        recorded: &mut Vec<EntryId>,
    ) -> Result<Vec<HoldEnding>, StoreError> {
        let outbox = self.outbox_for_each(adjustments)?;
        let mut locked = self.lock(adjustments.iter().map(|adjustment| &adjustment.key));
        let now = self.now();
        for (index, adjustment) in adjustments.iter().enumerate() {
            if adjustment.forget_after().is_some() {
                locked.remove_expired(index, now);
            }
            // Only charges may use the overflow bucket: a refund to it would benefit other subjects. A slot has an owner, even there.
            let Adjustment { key, op, anonymous, .. } = adjustment;
            if let Some(number) = key.overflow_number() {
                locked.locations[index] = self.overflow_location(key, number);
            } else if matches!(op, Op::Charge { .. }) && !locked.has_room(index, now, *anonymous) {
                self.use_overflow(&mut locked, index, key, Newcomer::from_adjustment(adjustment), now);
            }
        }
        self.lock_overflow(&mut locked);
        let is_stuck = |(index, adjustment): (usize, &Adjustment<'_>)| {
            adjustment.is_bundled_place()
                && !algorithm::apply(locked.get(index), adjustment.limit, now, adjustment.op).admitted
        };
        let stays_taken = adjustments.iter().enumerate().any(is_stuck);
        let mut endings = Vec::new();
        for (index, adjustment) in adjustments.iter().enumerate() {
            let Adjustment { limit, op, bundled, .. } = adjustment;
            // A slot without a state of its own is not taken again in a full store.
            let is_retake = matches!(op, Op::Renew { weight, .. } if *weight > 0);
            let is_refused =
                is_retake && locked.get(index).is_none() && !locked.has_room(index, now, adjustment.anonymous);
            let is_lost = || outbox.is_some_and(|outbox| outbox.has_lost(adjustment));
            if is_refused || *bundled && stays_taken || is_lost() {
                endings.push(HoldEnding::NotFound);
                continue;
            }
            let is_shared = locked.is_overflow(index);
            let op = if is_shared { algorithm::without_debt(locked.get(index), limit, now, *op) } else { *op };
            let result = algorithm::apply(locked.get(index), limit, now, op);
            endings.push(match op {
                Op::Hold(op) if limit.keeps_holds() => {
                    holds::ending(holds::status(locked.get(index), limit, now, holds::owner_of(op)), op)
                }
                _ if result.admitted => HoldEnding::Ended,
                _ => HoldEnding::NotFound,
            });
            if let Some(change) = result.change {
                if let (Some(outbox), Some(entry)) =
                    (outbox, ledger::entry_for_adjustment(adjustment, op, locked.get(index), &change, now))
                {
                    // Earlier adjustments are made, so the caller must not repeat all of them.
                    recorded.extend(outbox.append(vec![entry]).map_err(|error| match index {
                        0 => error,
                        _ => error.with_possibly_applied(),
                    })?);
                }
                let max_expiry = adjustment.forget_after().map_or(u64::MAX, |after| now.plus(after).as_micros());
                locked.update(index, limit, change, max_expiry);
            }
        }
        locked.sweep_if_due(now);
        Ok(endings)
    }
}
