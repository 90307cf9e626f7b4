//! The promises of the ledger about one account, checked against the notes of the clients. Pure.

use std::collections::{BTreeMap, BTreeSet};

use tidegate::Timestamp;
use tidegate::spi::EntryKind;

use super::call::{Answer, CallKind, CallRecord};
use super::ledger_rows::{EntryRow, LedgerRows};
use super::rules::Account;

/// A loss of the store: what it had not given to the ledger before it died.
#[derive(Clone, Debug)]
pub(super) struct StoreLoss {
    /// When the harness looked into the outboxes for the last time.
    pub(super) looked_at: Timestamp,
    /// When the store was dead.
    pub(super) dead_at: Timestamp,
    /// What was waiting in the outbox of the account at that look: costs of consumptions, and of commits.
    pub(super) waiting: Vec<(EntryKind, i64)>,
}

/// Everything that is known about an account.
#[derive(Clone, Debug)]
pub(super) struct AccountEvidence {
    pub(super) account: Account,
    /// The calls, in the order in which they were answered.
    pub(super) calls: Vec<CallRecord>,
    pub(super) rows: LedgerRows,
    /// The losses of the store during these calls.
    pub(super) losses: Vec<StoreLoss>,
}

/// What must be in the ledger, and what may be, for one cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bounds {
    acknowledged: u64,
    uncertain: u64,
    /// Of the acknowledged ones, what may be lost with the store.
    losable: u64,
}

impl AccountEvidence {
    /// Describes every broken promise.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        self.check_costs(EntryKind::Consume, &mut problems);
        self.check_costs(EntryKind::Commit, &mut problems);
        self.check_keys(&mut problems);
        self.check_reservations(&mut problems);
        self.check_ends(&mut problems);
        self.check_sums(&mut problems);
        problems
    }

    /// How many of the acknowledged units the ledger does not have.
    pub(super) fn lost_units(&self) -> u64 {
        self.acknowledged_units().saturating_sub(u64::try_from(self.rows.consumed()).unwrap_or_default())
    }

    /// The units of all acknowledged consumptions and commits.
    fn acknowledged_units(&self) -> u64 {
        let units = |kind| -> i64 {
            self.bounds(kind).iter().map(|(cost, bounds)| cost * i64::try_from(bounds.acknowledged).unwrap()).sum()
        };
        (units(EntryKind::Consume) + units(EntryKind::Commit)).unsigned_abs()
    }

    fn entries(&self, kind: EntryKind) -> impl Iterator<Item = &EntryRow> {
        self.rows.entries.iter().filter(move |entry| entry.kind == kind)
    }

    /// Everything that was acknowledged is in the ledger once; beyond that, only what callers got no decision about, and refunds of that.
    fn check_costs(&self, kind: EntryKind, problems: &mut Vec<String>) {
        let bounds = self.bounds(kind);
        // Nobody but a reservation consumes with an owner.
        let is_own = |entry: &EntryRow, cost: i64| {
            entry.amount == cost && (kind == EntryKind::Commit || entry.owner == 0 || !bounds.contains_key(&cost))
        };
        let costs: BTreeSet<i64> = bounds.keys().copied().chain(self.entries(kind).map(|entry| entry.amount)).collect();
        for cost in costs {
            let Bounds { acknowledged, uncertain, losable } = bounds.get(&cost).copied().unwrap_or_default();
            let counted = self.entries(kind).filter(|entry| is_own(entry, cost)).count() as u64;
            let is_refund = |entry: &&EntryRow| entry.amount == -cost && entry.owner == 0;
            let refunds = self.entries(EntryKind::Release).filter(is_refund).count() as u64;
            let refunded = if kind == EntryKind::Consume { refunds } else { 0 };
            let mut promise = |is_kept: bool, problem: &str| {
                if !is_kept {
                    problems.push(format!(
                        "{kind:?} of {cost}: {problem}: {acknowledged} are acknowledged (of which {losable} may be lost), {uncertain} \
                         uncertain; the ledger has {counted} and {refunded} refunds"
                    ));
                }
            };
            promise(counted + losable >= acknowledged + refunded, "an acknowledged one is missing");
            promise(counted <= acknowledged + uncertain, "one is there that nobody made, or twice");
            promise(refunded <= uncertain, "a refund is there that nobody caused");
        }
    }

    /// No idempotency key is counted twice.
    fn check_keys(&self, problems: &mut Vec<String>) {
        let mut owners = BTreeSet::new();
        for entry in self.entries(EntryKind::Commit).filter(|entry| !owners.insert(entry.owner)) {
            problems.push(format!("an idempotency key is counted twice: {entry:?}"));
        }
    }

    /// Every acknowledged reservation is in the ledger once.
    fn check_reservations(&self, problems: &mut Vec<String>) {
        let made = self.entries(EntryKind::Reserve).count();
        let owners: BTreeSet<_> = self.entries(EntryKind::Reserve).map(|entry| entry.owner).collect();
        let (mut acknowledged, mut asked) = (BTreeSet::new(), BTreeSet::new());
        for call in &self.calls {
            if let CallKind::Reserve { key, .. } = &call.kind {
                asked.insert(key);
                if call.answer == Answer::Done {
                    acknowledged.insert(key);
                }
            }
        }
        let described =
            format!("{} keys are reserved, {} were asked for; the ledger has {made}", acknowledged.len(), asked.len());
        if !self.account.quota.may_lag() && owners.len() < acknowledged.len() {
            problems.push(format!("an acknowledged reservation is missing: {described}"));
        }
        if owners.len() > asked.len() {
            problems.push(format!("a reservation is there that nobody made: {described}"));
        }
    }

    /// A reservation has ended only if somebody ended it. One that was given back after a 503 can be made again.
    fn check_ends(&self, problems: &mut Vec<String>) {
        let mut ended = BTreeMap::<&str, Timestamp>::new();
        for call in self.calls.iter().filter(|call| call.answer != Answer::Unsent) {
            if let CallKind::Commit { key, .. } | CallKind::Release { key } = &call.kind {
                let began = ended.entry(key).or_insert(call.began);
                *began = call.began.min(*began);
            }
        }
        for call in self.calls.iter().filter(|call| call.answer == Answer::Ended) {
            if let CallKind::Reserve { key, .. } = &call.kind
                && ended.get(key.as_str()).is_none_or(|began| *began > call.ended)
            {
                problems.push(format!("a reservation has ended that nobody ended: {call}"));
            }
        }
    }

    /// The balance is the sum of the entries, and never more than the quota is admitted unless the store lost something.
    fn check_sums(&self, problems: &mut Vec<String>) {
        let (consumed, balance, amount) = (self.rows.consumed(), self.rows.balance, self.account.quota.amount());
        if consumed != balance {
            problems.push(format!("the balance is {balance}, and the sum of the entries {consumed}"));
        }
        if consumed < 0 || u64::try_from(consumed).is_ok_and(|consumed| consumed > amount) {
            problems.push(format!("the ledger has {consumed} of {amount} units"));
        }
        let acknowledged = self.acknowledged_units();
        let may_exceed = self.account.quota.may_lag() && !self.losses.is_empty();
        if acknowledged > amount && !may_exceed {
            problems.push(format!("{acknowledged} units of {amount} were admitted"));
        }
    }

    /// What must be in the ledger for each cost, and what may be. Every repeat of a commit is one with the first.
    fn bounds(&self, kind: EntryKind) -> BTreeMap<i64, Bounds> {
        let mut steps = BTreeMap::<String, (u64, bool, bool, bool)>::new();
        for (number, call) in self.calls.iter().enumerate() {
            let (name, cost) = match (&call.kind, kind) {
                (CallKind::Consume { cost }, EntryKind::Consume) => (number.to_string(), *cost),
                (CallKind::Commit { key, cost }, EntryKind::Commit) => (key.clone(), *cost),
                _ => continue,
            };
            let (_, acknowledged, uncertain, late) = steps.entry(name).or_insert((cost, false, false, false));
            *acknowledged |= call.answer.is_acknowledged();
            *uncertain |= call.answer.is_uncertain();
            *late |= call.answer == Answer::Done && self.was_late(call);
        }
        let mut bounds = BTreeMap::<i64, Bounds>::new();
        for (cost, acknowledged, uncertain, late) in steps.into_values() {
            let of_cost = bounds.entry(i64::try_from(cost).unwrap_or(i64::MAX)).or_default();
            of_cost.acknowledged += u64::from(acknowledged);
            of_cost.uncertain += u64::from(uncertain && !acknowledged);
            of_cost.losable += u64::from(acknowledged && late);
        }
        if self.account.quota.may_lag() {
            let waiting = self.losses.iter().flat_map(|loss| &loss.waiting).filter(|(waiting, _)| *waiting == kind);
            waiting.for_each(|(_, cost)| bounds.entry(*cost).or_default().losable += 1);
        }
        bounds
    }

    /// Whether the store may have lost the call: it was answered after the last look into the outbox before a loss.
    fn was_late(&self, call: &CallRecord) -> bool {
        let is_late = |loss: &StoreLoss| call.ended >= loss.looked_at && call.began <= loss.dead_at;
        self.account.quota.may_lag() && self.losses.iter().any(is_late)
    }
}

#[cfg(test)]
mod tests;
