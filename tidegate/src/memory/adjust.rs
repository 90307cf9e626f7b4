//! Charges, refunds, renewals and ends of holds in a [`MemoryStore`], each by itself except those that are bundled.

use super::MemoryStore;
use crate::algorithm::{self, AdjustmentOutcome, Op, holds};
use crate::ledger::entry_for_change;
use crate::overflow::Newcomer;
use crate::store::{Adjustment, AdjustmentResult, AdjustmentResults, StoreError};

impl MemoryStore {
    /// Applies adjustments at once. Without a journal, nothing fails.
    pub(crate) fn apply_now(&self, adjustments: &[Adjustment<'_>]) -> AdjustmentResults {
        let applied = Adjustment::require_valid(adjustments).and_then(|()| self.apply_each(adjustments));
        applied.unwrap_or_else(|error| AdjustmentResults::failed(adjustments.len(), &error))
    }

    fn apply_each(&self, adjustments: &[Adjustment<'_>]) -> Result<AdjustmentResults, StoreError> {
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
                && !algorithm::decide(locked.get(index), adjustment.limit, now, adjustment.op).admitted
        };
        let stays_taken = adjustments.iter().enumerate().any(is_stuck);
        let mut results = Vec::with_capacity(adjustments.len());
        for (index, adjustment) in adjustments.iter().enumerate() {
            let Adjustment { limit, op, bundled, .. } = adjustment;
            // A slot without a state of its own is not taken again in a full store.
            let is_retake = matches!(op, Op::Renew { weight, .. } if *weight > 0);
            let is_refused =
                is_retake && locked.get(index).is_none() && !locked.has_room(index, now, adjustment.anonymous);
            let is_lost = || outbox.is_some_and(|outbox| outbox.has_lost(adjustment));
            if is_refused || *bundled && stays_taken || is_lost() {
                results.push(Ok(AdjustmentResult::new(AdjustmentOutcome::NotFound)));
                continue;
            }
            let is_shared = locked.is_overflow(index);
            let op = if is_shared { op.without_debt() } else { *op };
            let result = algorithm::decide(locked.get(index), limit, now, op);
            let outcome = match op {
                Op::Hold(op) if limit.keeps_holds() => {
                    holds::ending(holds::status(locked.get(index), limit, now, holds::owner_of(op)), op)
                }
                _ if result.admitted => AdjustmentOutcome::Applied,
                _ => AdjustmentOutcome::NotFound,
            };
            let mut entry = None;
            if result.changes {
                let has_ledger = adjustment.gate.ledger().is_some();
                let recorded = outbox.filter(|_| has_ledger).and_then(|outbox| {
                    Some((outbox, entry_for_change(&adjustment.key, limit, locked.get(index), &[op], now)?))
                });
                if let Some((outbox, recorded)) = recorded {
                    match outbox.append(vec![recorded]) {
                        Ok(ids) => entry = ids.first().copied(),
                        Err(error) => {
                            results.push(Err(error));
                            continue;
                        }
                    }
                }
                let max_expiry = adjustment.forget_after().map_or(u64::MAX, |after| now.plus(after).as_micros());
                locked.update(index, limit, now, &[op], max_expiry);
            }
            results.push(Ok(AdjustmentResult::new(outcome).with_entry(entry)));
        }
        locked.sweep_if_due(now);
        Ok(results.into_iter().collect())
    }
}
