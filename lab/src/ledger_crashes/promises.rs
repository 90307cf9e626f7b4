//! The promises of the ledger about one account, checked against the notes of the clients. Pure.

use std::collections::{BTreeMap, BTreeSet};

use tidegate::Timestamp;
use tidegate::spi::EntryKind;

use super::call::{Answer, CallKind, CallRecord};
use super::ledger_rows::{EntryRow, LedgerRows};
use super::rules::Account;

/// A loss of the store: what it had not given to the ledger before it died.
#[derive(Clone, Debug)]
pub struct StoreLoss {
    /// When the harness looked into the outboxes for the last time.
    pub looked_at: Timestamp,
    /// When the store was dead.
    pub dead_at: Timestamp,
    /// What was waiting in the outbox of the account at that look: costs of consumptions, and of commits.
    pub waiting: Vec<(EntryKind, i64)>,
}

/// Everything that is known about an account.
#[derive(Clone, Debug)]
pub struct AccountEvidence {
    /// The account.
    pub account: Account,
    /// The calls, in the order in which they were answered.
    pub calls: Vec<CallRecord>,
    /// The ledger.
    pub rows: LedgerRows,
    /// The losses of the store during these calls.
    pub losses: Vec<StoreLoss>,
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
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        self.check_consumptions(&mut problems);
        self.check_commits(&mut problems);
        self.check_reservations(&mut problems);
        self.check_sums(&mut problems);
        problems
    }

    /// How many of the acknowledged units the ledger does not have.
    pub fn lost_units(&self) -> u64 {
        let acknowledged = self.acknowledged_units();
        acknowledged.saturating_sub(u64::try_from(self.rows.consumed()).unwrap_or_default())
    }

    /// The units of all acknowledged consumptions and commits.
    pub fn acknowledged_units(&self) -> u64 {
        let consumed = self.consumption_bounds();
        let committed = self.commit_bounds();
        consumed.iter().chain(&committed).map(|(cost, bounds)| cost * bounds.acknowledged).sum()
    }

    /// Every acknowledged consumption is in the ledger once; beyond these, only such whose caller got no decision.
    fn check_consumptions(&self, problems: &mut Vec<String>) {
        let entries = |kind: EntryKind, amount: i64| {
            let matches = |entry: &&EntryRow| entry.kind == kind && entry.amount == amount && entry.owner == 0;
            self.rows.entries.iter().filter(matches).count() as u64
        };
        let bounds = self.consumption_bounds();
        for (&cost, &Bounds { acknowledged, uncertain, losable }) in &bounds {
            let signed = i64::try_from(cost).unwrap_or(i64::MAX);
            let (consumed, refunded) = (entries(EntryKind::Consume, signed), entries(EntryKind::Release, -signed));
            let counted = format!(
                "{acknowledged} consumptions of {cost} are acknowledged (of which {losable} may be lost), {uncertain} uncertain; the ledger has \
                 {consumed} and {refunded} refunds"
            );
            if consumed + losable < acknowledged + refunded {
                problems.push(format!("an acknowledged consumption is missing: {counted}"));
            }
            if consumed > acknowledged + uncertain {
                problems.push(format!("a consumption is there that nobody made, or twice: {counted}"));
            }
            if refunded > uncertain {
                problems.push(format!("a refund is there that nobody caused: {counted}"));
            }
        }
        let is_known = |entry: &&EntryRow| {
            matches!(entry.kind, EntryKind::Consume)
                && u64::try_from(entry.amount).is_ok_and(|cost| bounds.contains_key(&cost))
        };
        let consumptions = self.rows.entries.iter().filter(|entry| entry.kind == EntryKind::Consume);
        for entry in consumptions.filter(|entry| !is_known(entry)) {
            problems.push(format!("a consumption of an amount that nobody asked for: {entry:?}"));
        }
    }

    /// No idempotency key is counted twice.
    fn check_commits(&self, problems: &mut Vec<String>) {
        let commits = self.rows.entries.iter().filter(|entry| entry.kind == EntryKind::Commit);
        let (mut owners, mut by_cost) = (BTreeSet::new(), BTreeMap::<u64, u64>::new());
        for entry in commits {
            if !owners.insert(entry.owner) {
                problems.push(format!("an idempotency key is counted twice: {entry:?}"));
            }
            *by_cost.entry(u64::try_from(entry.amount).unwrap_or(u64::MAX)).or_default() += 1;
        }
        let bounds = self.commit_bounds();
        let costs: BTreeSet<u64> = bounds.keys().chain(by_cost.keys()).copied().collect();
        for cost in costs {
            let Bounds { acknowledged, uncertain, losable } = bounds.get(&cost).copied().unwrap_or_default();
            let counted = by_cost.get(&cost).copied().unwrap_or_default();
            let described = format!(
                "{acknowledged} keys are committed with {cost} (of which {losable} may be lost), {uncertain} uncertain; the ledger has {counted}"
            );
            if counted + losable < acknowledged {
                problems.push(format!("an acknowledged commit is missing: {described}"));
            }
            if counted > acknowledged + uncertain {
                problems.push(format!("a commit is there that nobody made, or twice: {described}"));
            }
        }
    }

    /// Every acknowledged reservation is in the ledger once.
    fn check_reservations(&self, problems: &mut Vec<String>) {
        let reserves = self.rows.entries.iter().filter(|entry| entry.kind == EntryKind::Reserve);
        let (mut made, mut owners) = (0, BTreeSet::new());
        for entry in reserves {
            made += 1;
            owners.insert(entry.owner);
        }
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
        self.check_ends(problems);
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

    fn consumption_bounds(&self) -> BTreeMap<u64, Bounds> {
        let mut bounds = BTreeMap::<u64, Bounds>::new();
        for call in &self.calls {
            if let CallKind::Consume { cost } = call.kind {
                let of_cost = bounds.entry(cost).or_default();
                of_cost.acknowledged += u64::from(call.answer.is_acknowledged());
                of_cost.uncertain += u64::from(call.answer.is_uncertain());
                of_cost.losable += u64::from(call.answer == Answer::Done && self.was_late(call));
            }
        }
        self.add_waiting(EntryKind::Consume, &mut bounds);
        bounds
    }

    /// By key, since every repeat of a commit is one.
    fn commit_bounds(&self) -> BTreeMap<u64, Bounds> {
        let mut keys = BTreeMap::<&str, (u64, bool, bool, bool)>::new();
        for call in &self.calls {
            if let CallKind::Commit { key, cost } = &call.kind {
                let (_, acknowledged, uncertain, late) = keys.entry(key).or_insert((*cost, false, false, false));
                *acknowledged |= call.answer == Answer::Done;
                *uncertain |= call.answer.is_uncertain();
                *late |= call.answer == Answer::Done && self.was_late(call);
            }
        }
        let mut bounds = BTreeMap::<u64, Bounds>::new();
        for (cost, acknowledged, uncertain, late) in keys.into_values() {
            let of_cost = bounds.entry(cost).or_default();
            of_cost.acknowledged += u64::from(acknowledged);
            of_cost.uncertain += u64::from(uncertain && !acknowledged);
            of_cost.losable += u64::from(acknowledged && late);
        }
        self.add_waiting(EntryKind::Commit, &mut bounds);
        bounds
    }

    /// Whether the store may have lost the call: it was answered after the last look into the outbox before a loss.
    fn was_late(&self, call: &CallRecord) -> bool {
        let is_late = |loss: &StoreLoss| call.ended >= loss.looked_at && call.began <= loss.dead_at;
        self.account.quota.may_lag() && self.losses.iter().any(is_late)
    }

    fn add_waiting(&self, kind: EntryKind, bounds: &mut BTreeMap<u64, Bounds>) {
        if !self.account.quota.may_lag() {
            return;
        }
        let waiting = self.losses.iter().flat_map(|loss| &loss.waiting).filter(|(waiting, _)| *waiting == kind);
        for cost in waiting.filter_map(|(_, amount)| u64::try_from(*amount).ok()) {
            bounds.entry(cost).or_default().losable += 1;
        }
    }
}

#[cfg(test)]
mod tests;
