//! `Receipt`: what a decision consumed and where, so that it can be given back.

use smol_str::SmolStr;

use crate::algorithm::{Op, Place};
use crate::decision::Checked;
use crate::key::Key;
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
    subject: Subject,
    partition: u16,
    cost: u64,
    place: Place,
}

impl Receipt {
    pub(crate) fn new<'c>(units: u64, consumed: impl Iterator<Item = &'c Checked>) -> Self {
        let entry = |check: &Checked| Entry {
            rule: check.rule.clone(),
            limit_name: check.limit_name.clone(),
            subject: check.subject,
            partition: check.partition,
            cost: check.cost.saturating_mul(units),
            place: check.place,
        };
        Self { entries: consumed.map(entry).collect() }
    }

    /// Whether there is nothing to give back.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The refunds under the rules of today: a limit that is gone has nothing to give back to.
    pub(crate) fn refunds<'r>(&self, rules: &'r RuleSet) -> Vec<Adjustment<'r>> {
        let refund = |entry: &Entry| {
            let gate = rules.gate(&entry.rule, &entry.limit_name)?;
            let key = Key::in_partition(gate.stem(), entry.partition, entry.subject);
            Some(Adjustment { key, limit: gate.limit(), op: Op::Refund { cost: entry.cost, place: entry.place } })
        };
        self.entries.iter().filter_map(refund).collect()
    }
}
