//! The ledger a second time, naively: it remembers every entry, and walks from period to period.

use std::collections::{BTreeMap, BTreeSet};

use tidegate::Timestamp;
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::{AccountKey, EntryId, EntryKind, GateHold, GateHoldStatus, GateState, OutboxEntry};

#[derive(Default)]
pub(crate) struct NaiveLedger {
    seen: BTreeSet<EntryId>,
    entries: Vec<OutboxEntry>,
}

impl NaiveLedger {
    pub(crate) fn post(&mut self, entries: &[OutboxEntry]) {
        for entry in entries {
            if self.seen.insert(entry.id) {
                self.entries.push(entry.clone());
            }
        }
    }

    pub(crate) fn gate_state(&self, key: &AccountKey) -> GateState {
        let own: Vec<&OutboxEntry> = self.entries.iter().filter(|entry| entry.account() == *key).collect();
        let (state, hard_limit) = walk(&amounts(&own));
        GateState { key: key.clone(), state, hard_limit, holds: holds(&own) }
    }
}

/// The amounts of each period with entries, and the largest hard limit.
fn amounts(entries: &[&OutboxEntry]) -> BTreeMap<u64, (i64, i64)> {
    let mut periods: BTreeMap<u64, (i64, i64)> = BTreeMap::new();
    for entry in entries {
        let mut add = |period: u64, amount: i64| {
            let (sum, limit) = periods.entry(period).or_default();
            *sum += amount;
            *limit = (*limit).max(entry.hard_limit.cast_signed());
        };
        if entry.late_amount != 0 {
            add(entry.period - 1, entry.late_amount);
        }
        if entry.amount != 0 || entry.late_amount == 0 {
            add(entry.period, entry.amount);
        }
    }
    periods
}

/// Goes through all periods, also those without entries, and lets each pay as much as its limit allows.
fn walk(periods: &BTreeMap<u64, (i64, i64)>) -> (QuotaState, u64) {
    let (Some((&first, _)), Some((&last, _))) = (periods.first_key_value(), periods.last_key_value()) else {
        return (QuotaState::default(), 0);
    };
    let (mut carried, mut previous, mut limit) = (0_i64, 0_i64, 0_i64);
    for period in first..last {
        let consumed = periods.get(&period).map_or(0, |(sum, _)| *sum);
        limit = periods.get(&period).map_or(limit, |(_, limit)| *limit);
        let total = (carried + consumed).max(0);
        previous = total.min(limit);
        carried = total - previous;
    }
    let (consumed, limit) = periods[&last];
    let total = (carried + consumed).max(0);
    let used = total.min(limit);
    let state = QuotaState {
        index: last,
        used: used.unsigned_abs(),
        debt: (total - used).unsigned_abs(),
        previous: previous.unsigned_abs(),
        carried: carried.unsigned_abs(),
    };
    (state, limit.unsigned_abs())
}

fn holds(entries: &[&OutboxEntry]) -> Vec<GateHold> {
    let owners: BTreeSet<u64> = entries.iter().map(|entry| entry.owner).filter(|owner| *owner > 0).collect();
    let mut holds: Vec<GateHold> = owners.into_iter().filter_map(|owner| hold(entries, owner)).collect();
    holds.sort_by_key(|hold| (hold.at, hold.owner));
    holds
}

fn hold(entries: &[&OutboxEntry], owner: u64) -> Option<GateHold> {
    let of_kind = |kind: EntryKind| entries.iter().filter(move |entry| entry.owner == owner && entry.kind == kind);
    let reserve = of_kind(EntryKind::Reserve).max_by_key(|entry| entry.at)?;
    let ends = of_kind(EntryKind::Commit).chain(of_kind(EntryKind::Release)).filter(|end| end.at >= reserve.at);
    let (status, units) = match ends.max_by_key(|end| end.at) {
        None => (GateHoldStatus::Open, reserve.held),
        Some(end) if end.expires_at == Timestamp::default() => return None,
        Some(end) if end.kind == EntryKind::Commit => {
            (GateHoldStatus::Committed, (end.amount + end.late_amount).max(0).unsigned_abs())
        }
        Some(end) => (GateHoldStatus::Released, (end.amount + end.late_amount).max(0).unsigned_abs()),
    };
    Some(GateHold { owner, at: reserve.at, expires_at: reserve.expires_at, units, status })
}
