//! The adjustments that renew or end the parts of a grant, under the current rules. Limits that no longer exist are skipped.

use super::{Ending, Grant, GrantKind, GrantPart};
use crate::RuleSet;
use crate::algorithm::{HoldOp, Op};
use crate::limit::MAX_AMOUNT;
use crate::store::{Adjustment, AdjustmentResults, is_bundled};

/// What a renewal does about a slot that the store does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retake {
    /// The slot may have run out: it is not held.
    No,
    /// Less than the lease has passed since the slot was last known to be held, so the store has lost it: it is taken again if it fits.
    IfLost,
}

/// Adjustments, each of one part of a grant.
#[derive(Debug, Default)]
pub(crate) struct PartAdjustments<'r> {
    /// The index of the part of each.
    parts: Vec<usize>,
    pub(crate) adjustments: Vec<Adjustment<'r>>,
}

impl Grant {
    /// The adjustments of `ending` in the store, and those in the memory of this instance.
    pub(crate) fn endings<'r>(&self, rules: &'r RuleSet, ending: &Ending) -> [PartAdjustments<'r>; 2] {
        self.adjustments(|part| part.ending(rules, ending, self.has_lost_place))
    }

    /// The renewals in the store, and those in the memory of this instance, which loses no slots.
    pub(crate) fn renewals<'r>(&self, rules: &'r RuleSet, retake: Retake) -> [PartAdjustments<'r>; 2] {
        self.adjustments(|part| {
            let weight = if retake == Retake::IfLost && !part.local { part.cost } else { 0 };
            let renewal = part.adjustment(rules, Op::Renew { position: part.position, weight })?;
            Some(renewal).filter(|renewal| part.is_endable(true) && renewal.limit.has_slots())
        })
    }

    fn adjustments<'r>(&self, adjustment: impl Fn(&GrantPart) -> Option<Adjustment<'r>>) -> [PartAdjustments<'r>; 2] {
        let (mut stored, mut local) = (PartAdjustments::default(), PartAdjustments::default());
        for (index, part) in self.parts.iter().enumerate() {
            if let Some(adjustment) = adjustment(part) {
                let list = if part.local { &mut local } else { &mut stored };
                list.parts.push(index);
                list.adjustments.push(adjustment);
            }
        }
        [stored, local]
    }

    /// Changes the grant as if `ending` were done, before it is sent: a caller that goes away meanwhile must not do it again. Returns the parts that
    /// were changed or removed, by their indexes.
    pub(crate) fn begin(&mut self, rules: &RuleSet, ending: &Ending) -> Vec<(usize, GrantPart)> {
        let is_taken = |(_, part): &(usize, &GrantPart)| part.kind == GrantKind::Taken;
        let taken = self.parts.iter().enumerate().filter(is_taken).map(|(index, part)| (index, part.clone()));
        match ending {
            Ending::Refund => {
                let taken = taken.collect();
                self.parts.retain(|part| part.kind != GrantKind::Taken);
                taken
            }
            Ending::Settle(costs) => {
                let taken = taken.collect();
                for part in &mut self.parts {
                    let cost = part.actual(rules, costs).unwrap_or(part.cost);
                    match part.kind {
                        // A commit that fails is sent again in the background.
                        GrantKind::Held => part.settled = part.settled.max(Some(cost)),
                        GrantKind::Taken => part.cost = cost,
                        GrantKind::Slot => {}
                    }
                }
                taken
            }
            Ending::Commit(_) | Ending::Release => Vec::new(),
        }
    }

    /// Takes back the changes of [`begin`](Self::begin) to the parts whose adjustments were not sent, so that the call can be repeated.
    pub(crate) fn restore(
        &mut self,
        ending: &Ending,
        changed: Vec<(usize, GrantPart)>,
        sent: &PartAdjustments<'_>,
        results: &AdjustmentResults,
    ) {
        let is_unsent = |index: usize| {
            let mut results = sent.parts.iter().zip(results.iter());
            results.any(|(part, result)| {
                *part == index && result.as_ref().is_err_and(|error| !error.is_possibly_applied())
            })
        };
        for (index, part) in changed.into_iter().filter(|(index, _)| is_unsent(*index)) {
            match self.parts.get_mut(index).filter(|_| matches!(ending, Ending::Settle(_))) {
                Some(changed) => *changed = part,
                None => self.parts.push(part),
            }
        }
    }
}

impl GrantPart {
    /// The adjustment of `ending`, if it changes this part and its limit still exists.
    fn ending<'r>(&self, rules: &'r RuleSet, ending: &Ending, has_lost_place: bool) -> Option<Adjustment<'r>> {
        let position = self.position;
        let op = match (self.kind, ending) {
            (GrantKind::Taken | GrantKind::Slot, Ending::Refund) if self.is_endable(has_lost_place) => {
                Op::Refund { cost: self.cost, position }
            }
            (GrantKind::Slot, Ending::Commit(_) | Ending::Release) => Op::Refund { cost: MAX_AMOUNT, position },
            (GrantKind::Held, Ending::Refund | Ending::Release) => Op::Hold(HoldOp::Release { position }),
            (GrantKind::Held, Ending::Commit(costs)) => {
                Op::Hold(HoldOp::Commit { cost: self.actual(rules, costs).unwrap_or(self.cost), position })
            }
            (GrantKind::Held, Ending::Settle(costs)) => {
                let cost = self.actual(rules, costs).unwrap_or(self.cost);
                match self.settled {
                    None => Op::Hold(HoldOp::Commit { cost, position }),
                    // What is less is not given back: part of it may be back already.
                    Some(settled) if cost > settled && !self.local => {
                        Op::Charge { cost: cost - settled, position: position.hold_period() }
                    }
                    Some(_) => return None,
                }
            }
            (GrantKind::Taken, Ending::Settle(costs)) => {
                let actual = self.actual(rules, costs)?;
                match self.cost.checked_sub(actual) {
                    Some(0) => return None,
                    Some(_) if self.overflowed => return None,
                    Some(surplus) => Op::Refund { cost: surplus, position },
                    None => Op::Charge { cost: actual - self.cost, position },
                }
            }
            _ => return None,
        };
        let adjustment = self.adjustment(rules, op)?;
        let is_kept = match self.kind {
            GrantKind::Held => adjustment.limit.keeps_holds(),
            GrantKind::Slot => adjustment.limit.has_slots(),
            GrantKind::Taken => true,
        };
        let bundled = matches!(ending, Ending::Refund)
            && is_bundled(adjustment.limit, self.shadow)
            && self.kind == GrantKind::Taken;
        is_kept.then_some(Adjustment { bundled, ..adjustment })
    }

    /// `op` on the state of this part, by itself. `None` if the limit no longer exists.
    fn adjustment<'r>(&self, rules: &'r RuleSet, op: Op) -> Option<Adjustment<'r>> {
        let gate = self.gate(rules)?;
        let key = rules.key_of_grant(gate, self.partition, self.subject)?;
        let (anonymous, network) = (self.anonymous, self.network);
        let (limit, share, bundled) = (gate.limit(), self.share, false);
        let adjustment = Adjustment { key, limit, op, gate, anonymous, network, bundled, share };
        Some(adjustment.at_position(self.position))
    }
}
