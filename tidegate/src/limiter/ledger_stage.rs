//! The second stage of a decision under quotas with a ledger: waiting until it is durable, and recording what was admitted without the store.

use std::sync::Arc;

use smallvec::SmallVec;

use super::drop_guard::DropGuard;
use crate::algorithm::AdjustmentOutcome;
use crate::algorithm::{HoldOp, Op};
use crate::ledger::{AccountKey, EntryId, EntryKind, LedgerStage, OutboxEntry, UnconfirmedEntry};
use crate::plan::{Check, Plan};
use crate::rules::LedgerMode;
use crate::spi::{CheckVerdict, Verdict};
use crate::store::{Adjustment, AdjustmentResult, AdjustmentResults, Store, StoreError, StoreErrorKind};
use crate::{Decision, Limit, Limiter, Timestamp};

/// Partitions with the generation under which they are written.
type PartitionGenerations = SmallVec<[(u16, u64); 1]>;

impl<S: Store> Limiter<S> {
    /// Sets the ledger. Without one, a memory store without a [journal](crate::MemoryStore::with_journal) decides quotas with a ledger like
    /// others and records nothing; a shared store refuses them with [`StoreErrorKind::Rebuilding`], since nobody prepares its partitions.
    pub fn with_ledger(mut self, ledger: Arc<dyn LedgerStage>) -> Self {
        self.ledger = Some(ledger);
        self
    }

    /// The partitions in which `plan` consumes from quotas that must be durable before it is allowed. Read before the decision: if the store
    /// loses a partition in between, the ledger finds another generation.
    #[inline(always)]
    pub(super) fn sync_generations(&self, plan: &Plan<'_>) -> PartitionGenerations {
        if self.ledger.is_none() || plan.is_peek() {
            return PartitionGenerations::new();
        }
        let is_sync = |check: &&Check<'_>| is_sync(plan, check);
        self.generations(plan.checks().iter().filter(is_sync).map(|check| check.key().partition()))
    }

    fn generations(&self, partitions: impl Iterator<Item = u16>) -> PartitionGenerations {
        let mut generations = PartitionGenerations::new();
        for partition in partitions {
            let generation = self.store.ledger_generation(partition).unwrap_or_default();
            if !generations.contains(&(partition, generation)) {
                generations.push((partition, generation));
            }
        }
        generations
    }

    /// Whether the store may decide `plan` as far as the ledger is concerned.
    pub(super) fn ledger_verified(&self, plan: &Plan<'_>) -> Result<(), StoreError> {
        let has_ledger = || plan.enforced().any(|check| check.gate().ledger().is_some());
        self.ledger.as_ref().filter(|_| has_ledger()).map_or(Ok(()), |ledger| ledger.verified())
    }

    /// Whether the ledger can make anything durable now.
    pub(super) fn ledger_ready(&self) -> Result<(), StoreError> {
        self.ledger.as_ref().map_or(Ok(()), |ledger| self.observe_error(ledger.ready()))
    }

    /// Waits until what the store granted is durable. On failure it is given back, and so it is if the caller goes away.
    pub(super) async fn confirm(
        &self,
        plan: &Plan<'_>,
        verdict: &Verdict,
        generations: PartitionGenerations,
    ) -> Result<(), StoreError> {
        let Some(ledger) = self.ledger.as_ref().filter(|_| !generations.is_empty() && verdict.granted() > 0) else {
            return Ok(());
        };
        // Unless the ledger confirms it, what the store granted goes back, also if the caller goes away before.
        let unconfirmed = DropGuard::new(|| self.spawn_apply(&refunds(plan, verdict)));
        let is_sync = |index: usize| plan.checks().get(index).is_some_and(|check| is_sync(plan, check));
        let written = verdict.entries().filter(|(index, _)| is_sync(*index)).map(|(_, id)| id);
        self.observe_error(ledger.confirm(entries_of(&generations, written)).await)?;
        unconfirmed.disarm();
        Ok(())
    }

    /// Waits until charges and commits of quotas that must be durable are so.
    pub(super) async fn confirm_adjustments(
        &self,
        generations: PartitionGenerations,
        written: Vec<EntryId>,
    ) -> Result<(), StoreError> {
        match self.ledger.as_ref().filter(|_| !generations.is_empty()) {
            Some(ledger) => {
                let confirmed = ledger.confirm(entries_of(&generations, written)).await;
                self.observe_error(confirmed.map_err(StoreError::with_possibly_applied))
            }
            None => Ok(()),
        }
    }

    /// The partitions in which `adjustments` charge quotas that must be durable. Refunds are durable soon.
    pub(super) fn sync_adjustments(&self, adjustments: &[Adjustment<'_>]) -> PartitionGenerations {
        if self.ledger.is_none() {
            return PartitionGenerations::new();
        }
        let is_charge = |op: &Op| matches!(op, Op::Charge { .. } | Op::Hold(HoldOp::Commit { .. }));
        let is_sync = |one: &&Adjustment<'_>| one.gate.ledger() == Some(LedgerMode::Sync) && is_charge(&one.op);
        self.generations(adjustments.iter().filter(is_sync).map(|one| one.key.partition()))
    }

    /// Tells the ledger the names of accounts whose rules keep them.
    pub(super) fn name_accounts(&self, plan: &Plan<'_>) {
        let Some(ledger) = self.ledger.as_ref().filter(|_| !plan.account_names().is_empty()) else { return };
        for (index, name) in plan.account_names() {
            if let Some(check) = plan.checks().get(*index) {
                ledger.name_account(AccountKey::from_key(check.key()), name);
            }
        }
    }

    /// Records what `decision` consumes of quotas with a ledger, which the store has not decided.
    pub(super) fn journal_decision(&self, plan: &Plan<'_>, decision: &Decision) -> Result<(), StoreError> {
        let Some(ledger) = self.ledger.as_ref().filter(|_| decision.is_allowed() && !plan.is_peek()) else {
            return Ok(());
        };
        let now = decision.decided_at();
        let recorded = plan.enforced().filter(|check| check.gate().ledger().is_some());
        let entries: Vec<OutboxEntry> =
            recorded.filter_map(|check| journal_entry(plan, check, decision, now)).collect();
        if entries.is_empty() { Ok(()) } else { self.observe_error(ledger.journal(entries)) }
    }

    /// Records the ends of holds that were made without the store.
    pub(super) fn journal_endings(
        &self,
        endings: &[Adjustment<'_>],
        results: &AdjustmentResults,
    ) -> Result<(), StoreError> {
        let Some(ledger) = self.ledger.as_ref() else { return Ok(()) };
        let now = self.fallback.now();
        let is_applied = |result: &Result<AdjustmentResult, StoreError>| {
            result.as_ref().is_ok_and(|result| result.outcome == AdjustmentOutcome::Applied)
        };
        let ended = endings.iter().zip(results.iter()).filter(|(_, result)| is_applied(result));
        let entry = |(one, _): (&Adjustment<'_>, _)| {
            one.gate.ledger()?;
            let (kind, amount, position) = match one.op {
                Op::Hold(HoldOp::Commit { cost, position }) => (EntryKind::Commit, cost, position),
                Op::Hold(HoldOp::Release { position }) => (EntryKind::Release, 0, position),
                _ => return None,
            };
            let (owner, expires_at) =
                (position.index(), if position.is_keyed_hold() { now } else { Timestamp::default() });
            let entry = empty_entry(AccountKey::from_key(&one.key), one.gate.limit(), now)?;
            Some(OutboxEntry { kind, amount: i64::try_from(amount).ok()?, owner, expires_at, ..entry })
        };
        let entries: Vec<OutboxEntry> = ended.filter_map(entry).collect();
        if entries.is_empty() { Ok(()) } else { self.observe_error(ledger.journal(entries)) }
    }
}

/// Whether `check` consumes from a quota that must be durable before its plan is allowed.
fn is_sync(plan: &Plan<'_>, check: &Check<'_>) -> bool {
    check.gate().ledger() == Some(LedgerMode::Sync) && (check.cost() > 0 || plan.is_hold(check))
}

/// The entries that were written in these partitions. One without an id for each partition in which none was, or the store does not tell it.
fn entries_of(generations: &[(u16, u64)], written: impl IntoIterator<Item = EntryId>) -> Vec<UnconfirmedEntry> {
    let is_awaited = |id: &EntryId| generations.iter().any(|(partition, _)| *partition == id.partition);
    let written = written.into_iter().filter(is_awaited);
    let known = |id: EntryId| UnconfirmedEntry { partition: id.partition, generation: id.generation, id: Some(id) };
    let mut entries: Vec<UnconfirmedEntry> = written.map(known).collect();
    let known = entries.len();
    for &(partition, generation) in generations {
        if entries[..known].iter().all(|entry| entry.partition != partition) {
            entries.push(UnconfirmedEntry { partition, generation, id: None });
        }
    }
    entries
}

/// Gives back all that `verdict` granted. What an earlier call reserved is not this call's to give back.
fn refunds<'r>(plan: &Plan<'r>, verdict: &Verdict) -> Vec<Adjustment<'r>> {
    if verdict.is_repeat() {
        return Vec::new();
    }
    let refund = |(check, result): (&Check<'r>, &CheckVerdict)| {
        result.consumed.then(|| Adjustment::undo(plan, check, verdict.granted(), result.position))
    };
    plan.checks().iter().zip(verdict.checks()).filter_map(refund).collect()
}

/// The entry for what `check` consumes or holds without the store.
fn journal_entry(plan: &Plan<'_>, check: &Check<'_>, decision: &Decision, now: Timestamp) -> Option<OutboxEntry> {
    let entry = empty_entry(AccountKey::from_key(check.key()), check.gate().limit(), now)?;
    let units = check.cost().saturating_mul(decision.granted());
    match plan.reservation() {
        Some(terms) if plan.is_hold(check) => Some(OutboxEntry {
            kind: EntryKind::Reserve,
            held: units,
            owner: terms.owner().number(),
            expires_at: Timestamp::from_micros(now.as_micros().saturating_add(terms.ttl_micros())),
            ..entry
        }),
        _ => Some(OutboxEntry { amount: i64::try_from(units).ok()?, ..entry }).filter(|entry| entry.amount > 0),
    }
}

/// An entry of nothing, in the period of now. `None` if the limit is not a quota.
fn empty_entry(account: AccountKey, limit: &Limit, now: Timestamp) -> Option<OutboxEntry> {
    let Limit::Quota(quota) = limit else { return None };
    let AccountKey { partition, stem, subject } = account;
    Some(OutboxEntry {
        id: EntryId { generation: 0, partition, millis: 0, sequence: 0 },
        kind: EntryKind::Consume,
        at: now,
        stem,
        subject,
        period: quota.periods().bounds_at(now).index,
        amount: 0,
        late_amount: 0,
        held: 0,
        owner: 0,
        expires_at: Timestamp::default(),
        hard_limit: quota.hard_limit(),
    })
}

/// The failure of a request that cannot be recorded.
pub(super) fn unrecorded(error: &StoreError) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, format!("the request cannot be recorded for the ledger: {error}"))
}
