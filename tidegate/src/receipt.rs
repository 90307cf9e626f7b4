//! `Receipt`: what a decision consumed and where, for a refund or settlement.

use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::RuleSet;
use crate::algorithm::{FractionalMicros, Op, TakePosition};
use crate::decision::{BudgetShare, CheckResult};
use crate::key::Key;
use crate::limit::MAX_AMOUNT;
use crate::spi::Subject;
use crate::store::Adjustment;

/// The first byte: the version of the layout.
const LAYOUT_VERSION: u8 = 1;

/// What a decision consumed. A refund takes the receipt, so that it happens once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a receipt does nothing until it is refunded"]
pub struct Receipt {
    entries: SmallVec<[ReceiptEntry; 1]>,
}

#[derive(Debug, PartialEq, Eq)]
struct ReceiptEntry {
    rule: SmolStr,
    limit_name: SmolStr,
    plan: Option<Arc<str>>,
    subject: Subject,
    partition: u16,
    /// The cost of all rules that share the check.
    cost: u64,
    position: TakePosition,
    /// Whether the subject is unauthenticated.
    anonymous: bool,
    /// Whether an overflow bucket decided, to which nothing is refunded.
    overflowed: bool,
    /// The costs of further rules that share the check through a budget.
    others: Vec<(SmolStr, u64)>,
}

impl Receipt {
    pub(crate) fn new<'c>(
        units: u64,
        taken: impl Iterator<Item = (usize, &'c CheckResult)>,
        budget_shares: &[BudgetShare],
    ) -> Self {
        let entry = |(index, check): (usize, &CheckResult)| {
            let others = budget_shares.iter().filter(|other| other.check == index);
            ReceiptEntry {
                rule: check.rule.clone(),
                limit_name: check.limit_name.clone(),
                plan: check.plan.clone(),
                subject: check.subject,
                partition: check.partition,
                cost: check.cost.saturating_mul(units),
                position: check.position,
                anonymous: check.anonymous,
                overflowed: check.overflowed,
                others: others.map(|other| (other.rule.clone(), other.cost.saturating_mul(units))).collect(),
            }
        };
        Self { entries: taken.map(entry).collect() }
    }

    /// Whether there is nothing to refund.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(|entry| entry.refundable() == 0)
    }

    /// The receipt as bytes, for another process to keep. Sign them and accept each once: anyone who can forge them can refund
    /// units that were never consumed.
    ///
    /// They are sufficient for a refund. For rules that share a budget they contain only the sum of the costs, not what
    /// [`settle`](crate::Limiter::settle) needs.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![LAYOUT_VERSION];
        for entry in self.entries.iter().filter(|entry| !entry.overflowed) {
            push_text(&mut bytes, &entry.rule);
            push_text(&mut bytes, &entry.limit_name);
            bytes.push(u8::from(entry.plan.is_some()) + 2 * u8::from(entry.anonymous));
            push_text(&mut bytes, entry.plan.as_deref().unwrap_or_default());
            bytes.extend_from_slice(&entry.subject.hash().to_be_bytes());
            bytes.extend_from_slice(&entry.partition.to_be_bytes());
            let FractionalMicros { micros, part } = entry.position.slot();
            for number in [entry.cost, micros, part] {
                bytes.extend_from_slice(&number.to_be_bytes());
            }
        }
        bytes
    }

    /// The receipt from the bytes of [`to_bytes`](Self::to_bytes); `None` if they are invalid.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut bytes = bytes.strip_prefix(&[LAYOUT_VERSION])?;
        let mut entries = SmallVec::new();
        while !bytes.is_empty() {
            let rest = &mut bytes;
            let (rule, limit_name) = (read_text(rest)?.into(), read_text(rest)?.into());
            let flags = read_array(rest).map(|[flags]| flags).filter(|flags| *flags < 4)?;
            let plan = read_text(rest)?;
            entries.push(ReceiptEntry {
                rule,
                limit_name,
                plan: (flags & 1 == 1).then(|| plan.into()),
                anonymous: flags & 2 == 2,
                overflowed: false,
                subject: Subject::from_hash(u128::from_be_bytes(read_array(rest)?)),
                partition: u16::from_be_bytes(read_array(rest)?),
                cost: u64::from_be_bytes(read_array(rest)?),
                position: TakePosition::from_slot(FractionalMicros {
                    micros: u64::from_be_bytes(read_array(rest)?),
                    part: u64::from_be_bytes(read_array(rest)?),
                }),
                others: Vec::new(),
            });
        }
        Some(Self { entries })
    }

    /// The refunds under the current rules. Limits that no longer exist are skipped.
    pub(crate) fn refunds<'r>(&self, rules: &'r RuleSet) -> Vec<Adjustment<'r>> {
        let refund = |entry: &ReceiptEntry| Op::Refund { cost: entry.cost, position: entry.position };
        self.adjustments(rules, |entry| (entry.refundable() > 0).then(|| refund(entry)))
    }

    /// The refunds and charges that turn the consumed cost into the actual cost, where that is known.
    pub(crate) fn settlements<'r>(
        &self,
        rules: &'r RuleSet,
        actual: impl Fn(&str) -> Option<u64>,
    ) -> Vec<Adjustment<'r>> {
        self.adjustments(rules, |entry| {
            let actual = entry.actual(&actual)?;
            match entry.cost.checked_sub(actual) {
                Some(_) if entry.overflowed => None,
                Some(0) => None,
                Some(surplus) => Some(Op::Refund { cost: surplus, position: entry.position }),
                None => Some(Op::Charge { cost: actual - entry.cost }),
            }
        })
    }

    fn adjustments<'r>(&self, rules: &'r RuleSet, op: impl Fn(&ReceiptEntry) -> Option<Op>) -> Vec<Adjustment<'r>> {
        let adjust = |entry: &ReceiptEntry| {
            let gate = rules.gate(&entry.rule, entry.plan.as_deref(), &entry.limit_name)?;
            let key = Key::in_partition(gate.stem(), entry.partition, entry.subject);
            let anonymous = entry.anonymous.then_some(gate);
            Some(Adjustment { key, limit: gate.limit(), op: op(entry)?, anonymous })
        };
        self.entries.iter().filter_map(adjust).collect()
    }
}

/// Appends the length and the text.
fn push_text(bytes: &mut Vec<u8>, text: &str) {
    // Names are short. A longer one would be cut, its rule not found, and nothing refunded.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..usize::from(length)]);
}

/// Reads a text from the front.
fn read_text<'b>(bytes: &mut &'b [u8]) -> Option<&'b str> {
    let length = u16::from_be_bytes(read_array(bytes)?);
    let (text, rest) = bytes.split_at_checked(usize::from(length))?;
    *bytes = rest;
    str::from_utf8(text).ok()
}

/// Reads `N` bytes from the front.
fn read_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*array)
}

impl ReceiptEntry {
    /// The cost that can be refunded.
    const fn refundable(&self) -> u64 {
        if self.overflowed { 0 } else { self.cost }
    }

    /// The actual cost of all rules of this entry; `None` if it is unknown for all of them.
    fn actual(&self, actual: impl Fn(&str) -> Option<u64>) -> Option<u64> {
        let others: u64 = self.others.iter().map(|(_, cost)| *cost).fold(0, u64::saturating_add);
        let own = (&self.rule, self.cost.saturating_sub(others));
        let parts = || self.others.iter().map(|(rule, cost)| (rule, *cost)).chain([own]);
        parts().find_map(|(rule, _)| actual(rule))?;
        let total = parts().map(|(rule, cost)| actual(rule).unwrap_or(cost)).fold(0, u64::saturating_add);
        Some(total.min(MAX_AMOUNT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt() -> Receipt {
        let entry = |rule: &str, plan: Option<&str>| ReceiptEntry {
            rule: rule.into(),
            limit_name: "burst".into(),
            plan: plan.map(Arc::from),
            subject: Subject::from_hash(u128::MAX - 7),
            partition: 513,
            cost: 1 << 40,
            position: TakePosition::from_slot(FractionalMicros { micros: 1_763_190_000_123_456, part: 3 }),
            anonymous: plan.is_some(),
            overflowed: false,
            others: Vec::new(),
        };
        Receipt {
            entries: [entry("a", None), entry("größe", Some("")), entry("", Some("pro"))].into_iter().collect()
        }
    }

    #[test]
    fn a_receipt_survives_the_conversion_to_bytes() {
        assert_eq!(Receipt::from_bytes(&receipt().to_bytes()), Some(receipt()));
    }

    #[test]
    fn overflow_buckets_are_not_refunded() {
        let mut receipt = receipt();
        receipt.entries.iter_mut().for_each(|entry| entry.overflowed = true);
        assert!(receipt.is_empty());
        assert_eq!(Receipt::from_bytes(&receipt.to_bytes()), Some(Receipt { entries: SmallVec::new() }));
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        let bytes = receipt().to_bytes();
        for end in (0..bytes.len()).filter(|end| Receipt::from_bytes(&bytes[..*end]).is_some()) {
            // Cut after an entry, the bytes are a shorter receipt; a signature prevents that.
            let shorter = Receipt::from_bytes(&bytes[..end]).map(|receipt| receipt.entries.len());
            assert!(shorter < Some(3), "{end}");
        }
        assert_eq!(Receipt::from_bytes(&[bytes.as_slice(), &[0]].concat()), None);
        assert_eq!(Receipt::from_bytes(&[2]), None, "another layout");
        assert_eq!(Receipt::from_bytes(&[1, 0, 1, 0xff, 0, 0]), None, "not UTF-8");
    }
}
