//! `Receipt`: what a decision consumed and where, so that it can be given back.

use std::sync::Arc;

use smol_str::SmolStr;

use crate::algorithm::{Op, Place};
use crate::decision::{Checked, Sharing};
use crate::key::Key;
use crate::limit::LARGEST_AMOUNT;
use crate::store::Adjustment;
use crate::{Few, RuleSet, Subject};

/// What a decision consumed. Giving it back takes it: a receipt is good for one refund.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a receipt does nothing until it is refunded"]
pub struct Receipt {
    entries: Few<Entry>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    rule: SmolStr,
    limit_name: SmolStr,
    plan: Option<Arc<str>>,
    subject: Subject,
    partition: u16,
    /// Of all rules together that share the check.
    cost: u64,
    place: Place,
    /// What rules other than the first have to do with it, through a budget.
    others: Vec<(SmolStr, u64)>,
}

impl Receipt {
    pub(crate) fn new<'c>(units: u64, taken: impl Iterator<Item = (usize, &'c Checked)>, sharing: &[Sharing]) -> Self {
        let entry = |(place, check): (usize, &Checked)| {
            let others = sharing.iter().filter(|other| other.check == place);
            Entry {
                rule: check.rule.clone(),
                limit_name: check.limit_name.clone(),
                plan: check.plan.clone(),
                subject: check.subject,
                partition: check.partition,
                cost: check.cost.saturating_mul(units),
                place: check.place,
                others: others.map(|other| (other.rule.clone(), other.cost.saturating_mul(units))).collect(),
            }
        };
        Self { entries: taken.map(entry).collect() }
    }

    /// Whether there is nothing to give back.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(|entry| entry.cost == 0)
    }

    /// The refunds under the rules of today: a limit that is gone has nothing to give back to.
    pub(crate) fn refunds<'r>(&self, rules: &'r RuleSet) -> Vec<Adjustment<'r>> {
        let refund = |entry: &Entry| Op::Refund { cost: entry.cost, place: entry.place };
        self.adjustments(rules, |entry| (entry.cost > 0).then(|| refund(entry)))
    }

    /// What makes of the cost that was consumed the one that it turned out to be, where that is known.
    pub(crate) fn settlements<'r>(
        &self,
        rules: &'r RuleSet,
        actual: impl Fn(&str) -> Option<u64>,
    ) -> Vec<Adjustment<'r>> {
        self.adjustments(rules, |entry| {
            let actual = entry.actual(&actual)?;
            match entry.cost.checked_sub(actual) {
                Some(0) => None,
                Some(back) => Some(Op::Refund { cost: back, place: entry.place }),
                None => Some(Op::Charge { cost: actual - entry.cost }),
            }
        })
    }

    fn adjustments<'r>(&self, rules: &'r RuleSet, op: impl Fn(&Entry) -> Option<Op>) -> Vec<Adjustment<'r>> {
        let adjust = |entry: &Entry| {
            let gate = rules.gate(&entry.rule, entry.plan.as_deref(), &entry.limit_name)?;
            let key = Key::in_partition(gate.stem(), entry.partition, entry.subject);
            Some(Adjustment { key, limit: gate.limit(), op: op(entry)? })
        };
        self.entries.iter().filter_map(adjust).collect()
    }
}

impl Entry {
    /// What the rules of this entry together really cost; none if nobody tells.
    fn actual(&self, actual: impl Fn(&str) -> Option<u64>) -> Option<u64> {
        let others: u64 = self.others.iter().map(|(_, cost)| *cost).fold(0, u64::saturating_add);
        let own = (&self.rule, self.cost.saturating_sub(others));
        let parts = || self.others.iter().map(|(rule, cost)| (rule, *cost)).chain([own]);
        parts().find_map(|(rule, _)| actual(rule))?;
        let total = parts().map(|(rule, cost)| actual(rule).unwrap_or(cost)).fold(0, u64::saturating_add);
        Some(total.min(LARGEST_AMOUNT))
    }
}
