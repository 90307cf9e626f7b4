//! Reconciliation: compares what the store and the ledger say about each account.
//!
//! Each partition is read between two moments at which its outbox was empty and had the same position, so entries under way are no differences.
//! Accounts that the ledger has never heard of are not found: stores cannot list theirs. Reservations are not compared.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::StoreErrorKind;
use tidegate::limits::Periods;
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::{AccountKey, GateState, Outbox, OutboxPosition, PARTITIONS};

use super::error::ServiceError;
use super::state::ServiceState;
use super::timer;

/// Attempts to read a partition that is written to all the time.
const MAX_READ_ATTEMPTS: u32 = 20;

/// Attempts to reconcile a partition whose store does not answer, and the time between two of them.
const MAX_STORE_ATTEMPTS: u32 = 10;
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Differences that a report lists. Beyond, they are counted.
const MAX_LISTED_DIFFERENCES: usize = 10_000;

/// An account about which the store and the ledger disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// The account.
    pub key: AccountKey,
    /// The rule; or `$` and the budget, if several rules share it.
    pub rule: String,
    /// The index of the period that both were compared in.
    pub period: u64,
    /// What the store says. `None` if it has a value that this version does not write.
    pub gate: Option<AccountUnits>,
    /// What the ledger says.
    pub ledger: AccountUnits,
}

/// Units of an account in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountUnits {
    /// Units consumed, with the debt that was carried into the period.
    pub total: u64,
    /// The part of it that later periods pay.
    pub debt: u64,
}

/// The result of a reconciliation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReconcileReport {
    /// Accounts that were compared.
    pub accounts: u64,
    /// Differences, also those beyond what is listed.
    pub differences: u64,
    /// The first 10,000 differences.
    pub listed: Vec<Difference>,
    /// Partitions that the store had lost.
    pub lost: Vec<u16>,
    /// Accounts that were repaired, and partitions that were rebuilt.
    pub repaired: u64,
    /// Accounts that could not be compared or repaired, because their partition was written to during every attempt. Repeat the call.
    pub busy: Vec<AccountKey>,
}

/// What the store has of an account.
enum StoredQuota {
    Readable(Option<QuotaState>),
    /// A value that this version does not write.
    Unreadable,
}

impl ReconcileReport {
    /// Adds the report about another partition.
    fn add(&mut self, other: Self) {
        self.accounts += other.accounts;
        self.differences += other.differences;
        self.repaired += other.repaired;
        self.lost.extend(other.lost);
        self.busy.extend(other.busy);
        let room = MAX_LISTED_DIFFERENCES.saturating_sub(self.listed.len());
        self.listed.extend(other.listed.into_iter().take(room));
    }
}

impl<O: Outbox> ServiceState<O> {
    pub(super) async fn reconcile(&self, apply: bool) -> Result<ReconcileReport, ServiceError> {
        let lock = self.ledger.reconcile_lock().await?;
        self.counters.reconciled_partitions.store(0, Ordering::Relaxed);
        let report = self.reconcile_all(apply).await;
        lock.release().await;
        report
    }

    async fn reconcile_all(&self, apply: bool) -> Result<ReconcileReport, ServiceError> {
        self.post_journaled().await?;
        let mut report = ReconcileReport::default();
        for partition in 0..PARTITIONS {
            self.counters.reconciled_partitions.store(partition.into(), Ordering::Relaxed);
            report.add(self.reconcile_patiently(partition, apply).await?);
        }
        self.counters.reconciled_partitions.store(PARTITIONS.into(), Ordering::Relaxed);
        self.counters.differences.fetch_add(report.differences, Ordering::Relaxed);
        Ok(report)
    }

    /// A store that does not answer for a moment must not end what has taken minutes.
    async fn reconcile_patiently(&self, partition: u16, apply: bool) -> Result<ReconcileReport, ServiceError> {
        let mut attempts = 1;
        loop {
            match self.reconcile_partition(partition, apply).await {
                Err(ServiceError::Store(_)) if attempts < MAX_STORE_ATTEMPTS => attempts += 1,
                result => return result,
            }
            timer::sleep(STORE_RETRY_DELAY).await;
        }
    }

    async fn reconcile_partition(&self, partition: u16, apply: bool) -> Result<ReconcileReport, ServiceError> {
        let mut report = ReconcileReport::default();
        for _ in 0..MAX_READ_ATTEMPTS {
            let Some(drained) = self.drain(partition).await? else { break };
            let states = self.call(self.ledger.gate_states(partition)).await?;
            let read = if drained.generation.is_some() { self.read_gate(partition, &states).await? } else { None };
            let Some((positions, gate)) = read else {
                report.lost.push(partition);
                if apply {
                    report.repaired += u64::from(self.rebuild(partition).await?);
                }
                return Ok(report);
            };
            if positions.iter().any(|position| *position != drained.position) {
                continue;
            }
            report.accounts = states.len() as u64;
            let pairs = states.iter().zip(gate);
            report.listed = pairs.filter_map(|(ledger, gate)| self.compare(&gate, ledger)).collect();
            report.differences = report.listed.len() as u64;
            if apply && report.differences > 0 {
                let keys: Vec<AccountKey> = report.listed.iter().map(|difference| difference.key.clone()).collect();
                report.busy = self.repair_partition(partition, &keys).await?;
                report.repaired = report.differences - report.busy.len() as u64;
            }
            return Ok(report);
        }
        report.busy = self.call(self.ledger.accounts_of(partition)).await?;
        Ok(report)
    }

    /// The states in the store, and the positions of the outbox at which they were read. `None` if the partition is lost.
    #[allow(clippy::type_complexity, reason = "both are read together")]
    async fn read_gate(
        &self,
        partition: u16,
        states: &[GateState],
    ) -> Result<Option<(Vec<OutboxPosition>, Vec<StoredQuota>)>, ServiceError> {
        let (mut positions, mut gate) = (Vec::new(), Vec::with_capacity(states.len()));
        let keys: Vec<AccountKey> = states.iter().map(|state| state.key.clone()).collect();
        let mut chunks: VecDeque<&[AccountKey]> = keys.chunks(self.options.batch).collect();
        while let Some(keys) = chunks.pop_front() {
            match self.store.read_states(partition, keys).await {
                Ok(Some((position, states))) => {
                    positions.push(position);
                    gate.extend(states.into_iter().map(StoredQuota::Readable));
                }
                Ok(None) => return Ok(None),
                Err(error) if error.kind() == StoreErrorKind::Unreadable => match keys {
                    [_] => gate.push(StoredQuota::Unreadable),
                    // It fails the read of all, and must not hide the others.
                    keys => keys.chunks(1).rev().for_each(|key| chunks.push_front(key)),
                },
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some((positions, gate)))
    }

    /// Compares an account in the later one of the two periods.
    fn compare(&self, gate: &StoredQuota, ledger: &GateState) -> Option<Difference> {
        let parts = ledger.key.parse();
        let (gate, is_readable) = match gate {
            StoredQuota::Readable(state) => (*state, true),
            StoredQuota::Unreadable => (None, false),
        };
        let gate_index = gate.map_or_else(
            || {
                // A store forgets a state two periods later, when nothing of it counts any more.
                let now = parts.as_ref().map(|parts| Periods::utc(parts.1).bounds_at(self.options.clock.now()).index);
                now.filter(|now| *now >= ledger.state.index + 2).unwrap_or_default()
            },
            |gate| gate.index,
        );
        let period = gate_index.max(ledger.state.index);
        let units = |state: QuotaState| {
            let state = state.rolled_to(period, ledger.hard_limit);
            AccountUnits { total: state.used + state.debt, debt: state.debt }
        };
        let (gate, ledger_units) = (is_readable.then(|| gate.map(units).unwrap_or_default()), units(ledger.state));
        (gate != Some(ledger_units)).then(|| Difference {
            key: ledger.key.clone(),
            rule: parts.map_or_else(|| ledger.key.stem.clone(), |parts| parts.0),
            period,
            gate,
            ledger: ledger_units,
        })
    }
}
