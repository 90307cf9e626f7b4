//! `Receipt`: what a decision consumed and where, so that it can be given back.

use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::RuleSet;
use crate::algorithm::{Moment, Op, Place};
use crate::decision::{CheckResult, Sharing};
use crate::key::Key;
use crate::limit::MAX_AMOUNT;
use crate::spi::Subject;
use crate::store::Adjustment;

/// The first byte: how the others are laid out.
const LAYOUT: u8 = 1;

/// What a decision consumed. Giving it back takes it: a receipt is good for one refund.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a receipt does nothing until it is refunded"]
pub struct Receipt {
    entries: SmallVec<[Entry; 1]>,
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
    /// Whether nobody vouches for the subject.
    anonymous: bool,
    /// Whether it went to an overflow bucket, from which nothing is given back.
    overflowed: bool,
    /// What rules other than the first have to do with it, through a budget.
    others: Vec<(SmolStr, u64)>,
}

impl Receipt {
    pub(crate) fn new<'c>(
        units: u64,
        taken: impl Iterator<Item = (usize, &'c CheckResult)>,
        sharing: &[Sharing],
    ) -> Self {
        let entry = |(place, check): (usize, &CheckResult)| {
            let others = sharing.iter().filter(|other| other.check == place);
            Entry {
                rule: check.rule.clone(),
                limit_name: check.limit_name.clone(),
                plan: check.plan.clone(),
                subject: check.subject,
                partition: check.partition,
                cost: check.cost.saturating_mul(units),
                place: check.place,
                anonymous: check.anonymous,
                overflowed: check.overflowed,
                others: others.map(|other| (other.rule.clone(), other.cost.saturating_mul(units))).collect(),
            }
        };
        Self { entries: taken.map(entry).collect() }
    }

    pub(crate) fn empty() -> Self {
        Self { entries: SmallVec::new() }
    }

    /// Whether there is nothing to give back.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(|entry| entry.returnable() == 0)
    }

    /// The receipt as bytes, for a caller elsewhere to keep. Who can write such bytes can give back what was never taken: sign
    /// them, and let each be used once.
    ///
    /// What [`settle`](crate::Limiter::settle) would need beyond a refund is left out: of rules that share a budget, the bytes
    /// know the sum.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![LAYOUT];
        for entry in self.entries.iter().filter(|entry| !entry.overflowed) {
            push(&mut bytes, &entry.rule);
            push(&mut bytes, &entry.limit_name);
            bytes.push(u8::from(entry.plan.is_some()) + 2 * u8::from(entry.anonymous));
            push(&mut bytes, entry.plan.as_deref().unwrap_or_default());
            bytes.extend_from_slice(&entry.subject.hash().to_be_bytes());
            bytes.extend_from_slice(&entry.partition.to_be_bytes());
            let Moment { micros, part } = entry.place.moment();
            for number in [entry.cost, micros, part] {
                bytes.extend_from_slice(&number.to_be_bytes());
            }
        }
        bytes
    }

    /// The receipt that [`to_bytes`](Self::to_bytes) wrote; none if it did not write these.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut bytes = bytes.strip_prefix(&[LAYOUT])?;
        let mut entries = SmallVec::new();
        while !bytes.is_empty() {
            let rest = &mut bytes;
            let (rule, limit_name) = (text(rest)?.into(), text(rest)?.into());
            let flags = array(rest).map(|[flags]| flags).filter(|flags| *flags < 4)?;
            let plan = text(rest)?;
            entries.push(Entry {
                rule,
                limit_name,
                plan: (flags & 1 == 1).then(|| plan.into()),
                anonymous: flags & 2 == 2,
                overflowed: false,
                subject: Subject::from_hash(u128::from_be_bytes(array(rest)?)),
                partition: u16::from_be_bytes(array(rest)?),
                cost: u64::from_be_bytes(array(rest)?),
                place: Place::before(Moment {
                    micros: u64::from_be_bytes(array(rest)?),
                    part: u64::from_be_bytes(array(rest)?),
                }),
                others: Vec::new(),
            });
        }
        Some(Self { entries })
    }

    /// The refunds under the rules of today: a limit that is gone has nothing to give back to.
    pub(crate) fn refunds<'r>(&self, rules: &'r RuleSet) -> Vec<Adjustment<'r>> {
        let refund = |entry: &Entry| Op::Refund { cost: entry.cost, place: entry.place };
        self.adjustments(rules, |entry| (entry.returnable() > 0).then(|| refund(entry)))
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
                Some(_) if entry.overflowed => None,
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
            let anonymous = entry.anonymous.then_some(gate);
            Some(Adjustment { key, limit: gate.limit(), op: op(entry)?, anonymous })
        };
        self.entries.iter().filter_map(adjust).collect()
    }
}

/// Appends a length and the text.
fn push(bytes: &mut Vec<u8>, text: &str) {
    // Names are short. One that is not would be cut, and its rule not found again, so that nothing is given back.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..usize::from(length)]);
}

/// Takes a text off the front.
fn text<'b>(bytes: &mut &'b [u8]) -> Option<&'b str> {
    let length = u16::from_be_bytes(array(bytes)?);
    let (text, rest) = bytes.split_at_checked(usize::from(length))?;
    *bytes = rest;
    str::from_utf8(text).ok()
}

fn array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*array)
}

impl Entry {
    /// What can be given back.
    const fn returnable(&self) -> u64 {
        if self.overflowed { 0 } else { self.cost }
    }

    /// What the rules of this entry together really cost; none if nobody tells.
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
        let entry = |rule: &str, plan: Option<&str>| Entry {
            rule: rule.into(),
            limit_name: "burst".into(),
            plan: plan.map(Arc::from),
            subject: Subject::from_hash(u128::MAX - 7),
            partition: 513,
            cost: 1 << 40,
            place: Place::before(Moment { micros: 1_763_190_000_123_456, part: 3 }),
            anonymous: plan.is_some(),
            overflowed: false,
            others: Vec::new(),
        };
        Receipt {
            entries: [entry("a", None), entry("größe", Some("")), entry("", Some("pro"))].into_iter().collect()
        }
    }

    #[test]
    fn a_receipt_comes_back_from_its_bytes_as_it_was() {
        assert_eq!(Receipt::from_bytes(&receipt().to_bytes()), Some(receipt()));
    }

    #[test]
    fn what_went_to_an_overflow_bucket_is_not_given_back() {
        let mut receipt = receipt();
        receipt.entries.iter_mut().for_each(|entry| entry.overflowed = true);
        assert!(receipt.is_empty());
        assert_eq!(Receipt::from_bytes(&receipt.to_bytes()), Some(Receipt::empty()));
    }

    #[test]
    fn bytes_that_are_no_receipt_are_none() {
        let bytes = receipt().to_bytes();
        for end in (0..bytes.len()).filter(|end| Receipt::from_bytes(&bytes[..*end]).is_some()) {
            // Where an entry ends, the rest is a shorter receipt; whoever signs them makes a difference of it.
            let shorter = Receipt::from_bytes(&bytes[..end]).map(|receipt| receipt.entries.len());
            assert!(shorter < Some(3), "{end}");
        }
        assert_eq!(Receipt::from_bytes(&[bytes.as_slice(), &[0]].concat()), None);
        assert_eq!(Receipt::from_bytes(&[2]), None, "another layout");
        assert_eq!(Receipt::from_bytes(&[1, 0, 1, 0xff, 0, 0]), None, "not UTF-8");
    }
}
