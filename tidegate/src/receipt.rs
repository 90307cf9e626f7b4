//! `Receipt`: what a decision consumed and where, for a refund or settlement.
//!
//! A limit promises a bound on what is admitted and not given back. So no limit gives back what it has forgotten, what has refilled, or a place in
//! a queue that others wait behind. The refunds of one request are *bundled*: one that is stuck in a queue keeps all of them taken.
//! Settlements are corrected one by one. The slot of a concurrency limit is not a price and always goes back.

use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::algorithm::{FractionalMicros, HoldOp, Op, TakePosition};
use crate::decision::{BudgetShare, CheckResult};
use crate::lease::Retake;
use crate::limit::Algorithm;
use crate::limit::MAX_AMOUNT;
use crate::plan::Role;
use crate::spi::Subject;
use crate::store::{Adjustment, hold_release_op, is_bundled};
use crate::{Network, RuleSet};

/// The first byte: the version of the layout. Version 1 did not say until when a take is missing from a bucket, so a refund by it could
/// give back tokens that had refilled. It is rejected.
const LAYOUT_VERSION: u8 = 2;

/// Bits of an entry's flags.
const HAS_PLAN: u8 = 1;
const IS_ANONYMOUS: u8 = 2;
const IS_SHADOW: u8 = 4;
const IS_SLOT: u8 = 8;
const IS_HOLD: u8 = 16;
const IS_SHARE: u8 = 32;

/// What a decision consumed. A refund takes the receipt, so that it happens once.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "a receipt does nothing until it is refunded"]
pub struct Receipt {
    entries: SmallVec<[ReceiptEntry; 1]>,
    /// Whether the request has a place in a queue that cannot be given back: in an overflow bucket, or in the memory of an
    /// instance. Then nothing but slots is refunded.
    has_lost_place: bool,
}

#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
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
    /// Whether it is a shadow check.
    shadow: bool,
    /// The network of the subject, for a charge to its overflow bucket. Not part of the bytes, which are for refunds.
    network: Option<Network>,
    /// Whether an overflow bucket decided, to which nothing but a slot is refunded.
    overflowed: bool,
    /// Whether it is a slot of a concurrency limit, which is not a price: it goes back, whatever happens to the rest.
    slot: bool,
    /// Whether it is the hold of a reservation, which is committed or released, not refunded.
    hold: bool,
    /// Whether it is in the memory of this instance, under its share of the limit.
    share: bool,
    /// The costs of further rules that share the check through a budget.
    others: Vec<(SmolStr, u64)>,
}

impl Receipt {
    pub(crate) fn new<'c>(
        units: u64,
        taken: impl Iterator<Item = (usize, &'c CheckResult)>,
        budget_shares: &[BudgetShare],
        has_lost_place: bool,
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
                shadow: check.role == Role::Shadow,
                network: check.network,
                overflowed: check.overflowed && check.algorithm != Algorithm::Concurrency && !check.hold,
                slot: check.algorithm == Algorithm::Concurrency,
                hold: check.hold,
                share: check.share,
                others: others.map(|other| (other.rule.clone(), other.cost.saturating_mul(units))).collect(),
            }
        };
        Self { entries: taken.map(entry).collect(), has_lost_place }
    }

    /// The ids of the rules of its entries, also of those that share a check through a budget.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().flat_map(|entry| {
            std::iter::once(entry.rule.as_str()).chain(entry.others.iter().map(|(rule, _)| rule.as_str()))
        })
    }

    /// Removes the entries of rules that are `chosen`, by their ids, and returns them. An entry that several rules share through a budget
    /// is removed if one of them is.
    pub fn split_off(&mut self, chosen: impl Fn(&str) -> bool) -> Self {
        let is_chosen = |entry: &ReceiptEntry| chosen(&entry.rule) || entry.others.iter().any(|(rule, _)| chosen(rule));
        let (split, kept) = std::mem::take(&mut self.entries).into_iter().partition(is_chosen);
        self.entries = kept;
        Self { entries: split, has_lost_place: self.has_lost_place }
    }

    /// Whether there is nothing to refund.
    pub fn is_empty(&self) -> bool {
        self.refundable_entries().next().is_none()
    }

    /// The receipt as bytes, for another process to keep. Sign them and accept each once: anyone who can forge them can refund
    /// units that were never consumed.
    ///
    /// They are sufficient for a refund. For rules that share a budget they contain only the sum of the costs, not what
    /// [`settle`](crate::Limiter::settle) needs.
    ///
    /// One byte is the version, 2. Each check that consumed something adds 73 bytes and the names of its rule, limit and plan.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![LAYOUT_VERSION];
        for entry in self.refundable_entries() {
            push_text(&mut bytes, &entry.rule);
            push_text(&mut bytes, &entry.limit_name);
            let flag = |flag: u8, is_set: bool| if is_set { flag } else { 0 };
            bytes.push(
                flag(HAS_PLAN, entry.plan.is_some())
                    | flag(IS_ANONYMOUS, entry.anonymous)
                    | flag(IS_SHADOW, entry.shadow)
                    | flag(IS_SLOT, entry.slot)
                    | flag(IS_HOLD, entry.hold)
                    | flag(IS_SHARE, entry.share),
            );
            push_text(&mut bytes, entry.plan.as_deref().unwrap_or_default());
            bytes.extend_from_slice(&entry.subject.hash().to_be_bytes());
            bytes.extend_from_slice(&entry.partition.to_be_bytes());
            let FractionalMicros { micros, part } = entry.position.slot();
            let full = entry.position.full();
            for number in [entry.cost, micros, part, full.micros, full.part, entry.position.returned()] {
                bytes.extend_from_slice(&number.to_be_bytes());
            }
            if entry.hold {
                // A commit may have another cost for each rule.
                bytes.extend_from_slice(&u16::try_from(entry.others.len()).unwrap_or(u16::MAX).to_be_bytes());
                for (rule, cost) in entry.others.iter().take(usize::from(u16::MAX)) {
                    push_text(&mut bytes, rule);
                    bytes.extend_from_slice(&cost.to_be_bytes());
                }
            }
        }
        bytes
    }

    /// The receipt from the bytes of [`to_bytes`](Self::to_bytes); `None` if they are invalid, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut bytes = bytes.strip_prefix(&[LAYOUT_VERSION])?;
        let mut entries = SmallVec::new();
        while !bytes.is_empty() {
            let rest = &mut bytes;
            let (rule, limit_name) = (read_text(rest)?.into(), read_text(rest)?.into());
            let flags = read_array(rest).map(|[flags]| flags).filter(|flags| *flags < 64)?;
            let plan = read_text(rest)?;
            entries.push(ReceiptEntry {
                rule,
                limit_name,
                plan: (flags & HAS_PLAN != 0).then(|| plan.into()),
                anonymous: flags & IS_ANONYMOUS != 0,
                shadow: flags & IS_SHADOW != 0,
                slot: flags & IS_SLOT != 0,
                hold: flags & IS_HOLD != 0,
                share: flags & IS_SHARE != 0,
                network: None,
                overflowed: false,
                subject: Subject::from_hash(u128::from_be_bytes(read_array(rest)?)),
                partition: u16::from_be_bytes(read_array(rest)?),
                cost: u64::from_be_bytes(read_array(rest)?),
                position: {
                    let mut number = || read_array(rest).map(u64::from_be_bytes);
                    let slot = FractionalMicros { micros: number()?, part: number()? };
                    let full = FractionalMicros { micros: number()?, part: number()? };
                    TakePosition::from_bucket(slot, full, number()?)
                },
                others: if flags & IS_HOLD == 0 { Vec::new() } else { read_shares(rest)? },
            });
        }
        Some(Self { entries, has_lost_place: false })
    }

    /// The refunds under the current rules, bundled. Limits that no longer exist are skipped.
    pub(crate) fn refunds<'r>(&self, rules: &'r RuleSet) -> Vec<Adjustment<'r>> {
        let refund = |entry: &ReceiptEntry| {
            if entry.hold {
                return None;
            }
            let refund = entry.adjustment(rules, Op::Refund { cost: entry.cost, position: entry.position })?;
            Some(Adjustment { bundled: is_bundled(refund.limit, entry.shadow), ..refund })
        };
        self.refundable_entries().filter_map(refund).collect()
    }

    /// The releases of its slots under the current rules. Limits that no longer exist are skipped.
    pub(crate) fn releases<'r>(&self, rules: &'r RuleSet) -> Vec<Adjustment<'r>> {
        self.refunds(rules).into_iter().filter(|refund| refund.limit.has_slots()).collect()
    }

    /// The renewals of its slots under the current rules. Limits that no longer exist are skipped.
    pub(crate) fn renewals<'r>(&self, rules: &'r RuleSet, retake: Retake) -> Vec<Adjustment<'r>> {
        let renewal = |entry: &ReceiptEntry| {
            let weight = if retake == Retake::IfLost { entry.cost } else { 0 };
            entry.adjustment(rules, Op::Renew { position: entry.position, weight })
        };
        self.refundable_entries().filter_map(renewal).filter(|renewal| renewal.limit.has_slots()).collect()
    }

    /// The commits of its holds with the actual cost, or as reserved where that is unknown, and the releases of its slots, under the
    /// current rules. Limits that no longer exist are skipped.
    pub(crate) fn commits<'r>(&self, rules: &'r RuleSet, actual: impl Fn(&str) -> Option<u64>) -> Vec<Adjustment<'r>> {
        let commit = |entry: &ReceiptEntry| {
            let cost = entry.actual(&actual).unwrap_or(entry.cost);
            entry.ending(rules, Op::Hold(HoldOp::Commit { cost, position: entry.position }))
        };
        self.entries.iter().filter_map(commit).collect()
    }

    /// The releases of its holds and slots under the current rules. Limits that no longer exist are skipped.
    pub(crate) fn hold_releases<'r>(&self, rules: &'r RuleSet) -> Vec<Adjustment<'r>> {
        let release =
            |entry: &ReceiptEntry| entry.ending(rules, Op::Hold(HoldOp::Release { position: entry.position }));
        self.entries.iter().filter_map(release).collect()
    }

    /// Charges under the limits of its holds, of quotas in the period in which they were made, under the current rules: what `actual` is
    /// more than `committed`. Where they are unknown, the cost is as reserved.
    pub(crate) fn late_charges<'r>(
        &self,
        rules: &'r RuleSet,
        committed: impl Fn(&str) -> Option<u64>,
        actual: impl Fn(&str) -> Option<u64>,
    ) -> Vec<Adjustment<'r>> {
        let charge = |entry: &ReceiptEntry| {
            let committed = entry.actual(&committed).unwrap_or(entry.cost);
            let cost = entry.actual(&actual).unwrap_or(entry.cost).checked_sub(committed).filter(|cost| *cost > 0)?;
            entry.adjustment(rules, Op::Charge { cost, position: entry.position.hold_period() })
        };
        self.entries.iter().filter(|entry| entry.hold).filter_map(charge).collect()
    }

    /// The same without its slots.
    pub(crate) fn without_slots(mut self) -> Self {
        self.entries.retain(|entry| !entry.slot);
        self
    }

    /// How long its holds last, if it has any.
    pub(crate) fn hold_ttl_micros(&self) -> Option<u64> {
        self.entries.iter().filter(|entry| entry.hold).map(|entry| entry.position.hold_ttl_micros()).min()
    }

    /// The refunds and charges that turn the consumed cost into the actual cost, where that is known. Slots are not a price: they stay
    /// held until they are released.
    pub(crate) fn settlements<'r>(
        &self,
        rules: &'r RuleSet,
        actual: impl Fn(&str) -> Option<u64>,
    ) -> Vec<Adjustment<'r>> {
        let settlement = |entry: &ReceiptEntry| {
            let actual = entry.actual(&actual)?;
            let op = match entry.cost.checked_sub(actual) {
                Some(_) if entry.overflowed => return None,
                Some(0) => return None,
                Some(surplus) => Op::Refund { cost: surplus, position: entry.position },
                None => Op::Charge { cost: actual - entry.cost, position: entry.position },
            };
            entry.adjustment(rules, op)
        };
        self.entries.iter().filter(|entry| !entry.slot && !entry.hold).filter_map(settlement).collect()
    }

    fn refundable_entries(&self) -> impl Iterator<Item = &ReceiptEntry> {
        let is_refundable = |entry: &&ReceiptEntry| {
            entry.hold || entry.cost > 0 && (entry.slot || !self.has_lost_place && !entry.overflowed)
        };
        self.entries.iter().filter(is_refundable)
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

/// Reads the costs of further rules from the front.
fn read_shares(bytes: &mut &[u8]) -> Option<Vec<(SmolStr, u64)>> {
    let count = u16::from_be_bytes(read_array(bytes)?);
    (0..count).map(|_| Some((read_text(bytes)?.into(), u64::from_be_bytes(read_array(bytes)?)))).collect()
}

/// Reads `N` bytes from the front.
fn read_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*array)
}

impl ReceiptEntry {
    /// `op` on the state of this entry, by itself. `None` if the limit no longer exists.
    fn adjustment<'r>(&self, rules: &'r RuleSet, op: Op) -> Option<Adjustment<'r>> {
        let gate = rules.gate(&self.rule, self.plan.as_deref(), &self.limit_name)?;
        let key = rules.key_of_receipt(gate, self.partition, self.subject)?;
        let (anonymous, network) = (self.anonymous, self.network);
        let (limit, share, bundled) = (gate.limit(), self.share, false);
        let adjustment = Adjustment { key, limit, op, gate, anonymous, network, bundled, share };
        Some(adjustment.at_position(self.position))
    }

    /// `op` on the hold of this entry, or the release of its slot. `None` if there is neither.
    fn ending<'r>(&self, rules: &'r RuleSet, op: Op) -> Option<Adjustment<'r>> {
        let ending = self.adjustment(rules, op)?;
        match ending.limit {
            limit if self.hold && limit.keeps_holds() => Some(ending),
            limit if self.slot && limit.has_slots() => self.adjustment(rules, hold_release_op(limit, self.position)),
            _ => None,
        }
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
            position: TakePosition::from_bucket(
                FractionalMicros { micros: 1_763_190_000_123_456, part: 3 },
                FractionalMicros { micros: 1_763_190_000_323_456, part: 5 },
                1 << 50,
            ),
            anonymous: plan.is_some(),
            shadow: plan == Some("pro"),
            slot: false,
            hold: false,
            share: rule.is_empty(),
            network: None,
            overflowed: false,
            others: Vec::new(),
        };
        Receipt {
            entries: [entry("a", None), entry("größe", Some("")), entry("", Some("pro"))].into_iter().collect(),
            has_lost_place: false,
        }
    }

    #[test]
    fn each_check_adds_73_bytes_and_its_names() {
        let names: usize =
            ["a", "größe", ""].iter().map(|rule| rule.len() + "burst".len()).sum::<usize>() + "pro".len();
        assert_eq!(receipt().to_bytes().len(), 1 + 3 * 73 + names);
    }

    #[test]
    fn a_receipt_of_an_older_version_is_rejected() {
        let mut bytes = receipt().to_bytes();
        bytes[0] = 1;
        assert_eq!(Receipt::from_bytes(&bytes), None);
    }

    #[test]
    fn a_lost_place_in_a_queue_leaves_nothing_to_refund() {
        let receipt = Receipt { has_lost_place: true, ..receipt() };
        assert!(receipt.is_empty());
        assert_eq!(receipt.to_bytes(), [LAYOUT_VERSION]);
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
        let empty = Receipt { entries: SmallVec::new(), has_lost_place: false };
        assert_eq!(Receipt::from_bytes(&receipt.to_bytes()), Some(empty));
    }

    #[test]
    fn slots_are_given_back_whatever_happens_to_the_rest() {
        let mut receipt = Receipt { has_lost_place: true, ..receipt() };
        receipt.entries[1].slot = true;
        let kept = Receipt::from_bytes(&receipt.to_bytes()).unwrap();
        assert_eq!(kept.entries.as_slice(), &receipt.entries[1..2]);
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
        assert_eq!(Receipt::from_bytes(&[3]), None, "another layout");
        assert_eq!(Receipt::from_bytes(&[2, 0, 1, 0xff, 0, 0]), None, "not UTF-8");
    }
}
