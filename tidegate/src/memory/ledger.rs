//! `MemoryStore` with a ledger: it records changes of quotas, and takes over what the ledger knows.

use std::sync::Arc;

use super::MemoryStore;
use super::outbox::MemoryOutbox;
use crate::algorithm::quota::QuotaState;
use crate::algorithm::{State, StateWithHolds};
use crate::key::{Key, KeyStem};
use crate::ledger::{AccountKey, EntryId, GateState, Journal, Outbox, OutboxBatch, OutboxPosition};
use crate::plan::Plan;
use crate::store::{Adjustment, StoreError, StoreErrorKind};

impl MemoryStore {
    /// Records the changes of quotas with a ledger, and writes them to `journal` first. Until the ledger has rebuilt a partition, plans
    /// with such quotas fail there with [`StoreErrorKind::Rebuilding`].
    pub fn with_journal(mut self, journal: Arc<dyn Journal>) -> Self {
        self.outbox = Some(MemoryOutbox::new(journal));
        self
    }

    /// The outbox, if the store has one and `plan` changes quotas with a ledger. Fails if one of their partitions must be rebuilt first.
    pub(super) fn outbox_for(&self, plan: &Plan<'_>) -> Result<Option<&MemoryOutbox>, StoreError> {
        let Some(outbox) = &self.outbox else { return Ok(None) };
        let mut checks = plan.checks().iter().filter(|check| check.gate().ledger().is_some()).peekable();
        if checks.peek().is_none() {
            return Ok(None);
        }
        outbox.require_generations(checks.map(|check| check.key().partition()))?;
        Ok(Some(outbox))
    }

    /// The same for adjustments.
    pub(super) fn outbox_for_each(&self, adjustments: &[Adjustment<'_>]) -> Result<Option<&MemoryOutbox>, StoreError> {
        let Some(outbox) = &self.outbox else { return Ok(None) };
        let mut recorded = adjustments.iter().filter(|one| one.gate.ledger().is_some()).peekable();
        if recorded.peek().is_none() {
            return Ok(None);
        }
        outbox.require_generations(recorded.map(|one| one.key.partition()))?;
        Ok(Some(outbox))
    }
}

/// An account is never shared with others, so a full store refuses new ones.
pub(super) fn full() -> StoreError {
    let message = "the memory store is full and has no state of the subject; raise its maximum number of keys";
    StoreError::new(StoreErrorKind::Refused, message)
}

impl Outbox for MemoryStore {
    async fn read_outbox(&self, partition: u16, max: usize) -> Result<OutboxBatch, StoreError> {
        Ok(self.required_outbox()?.lock().read(partition, max))
    }

    async fn acknowledge(&self, partition: u16, ids: &[EntryId]) -> Result<(), StoreError> {
        self.required_outbox()?.acknowledge(partition, ids);
        Ok(())
    }

    fn take_written_partitions(&self) -> Vec<u16> {
        self.outbox.as_ref().map_or_else(Vec::new, |outbox| outbox.lock().take_written())
    }

    async fn read_states(
        &self,
        partition: u16,
        keys: &[AccountKey],
    ) -> Result<Option<(OutboxPosition, Vec<Option<QuotaState>>)>, StoreError> {
        let stems: Vec<KeyStem> = keys.iter().map(|key| KeyStem::from_text(key.stem.clone())).collect();
        let keys: Vec<Key<'_>> = keys.iter().zip(&stems).map(|(key, stem)| key_of(key, stem)).collect();
        let locked = self.lock(keys.iter());
        let outbox = self.required_outbox()?.lock();
        if outbox.generation(partition).is_none() {
            return Ok(None);
        }
        let states = (0..keys.len()).map(|index| locked.get(index).and_then(State::quota)).collect();
        Ok(Some((outbox.position(partition), states)))
    }

    async fn repair_states(
        &self,
        partition: u16,
        position: &OutboxPosition,
        states: &[GateState],
    ) -> Result<bool, StoreError> {
        let stems = stems_of(states);
        let keys: Vec<Key<'_>> = states.iter().zip(&stems).map(|(state, stem)| key_of(&state.key, stem)).collect();
        let mut locked = self.lock(keys.iter());
        let outbox = self.required_outbox()?.lock();
        if outbox.generation(partition).is_none() || !outbox.is_idle_at(partition, position) {
            return Ok(false);
        }
        for (index, state) in states.iter().enumerate() {
            if state.key.parse().is_none() {
                continue; // It is not the account of a quota.
            }
            locked.replace(index, state.expiry(), |before| match before {
                Some(State::WithHolds(holds)) => {
                    Some(State::WithHolds(Box::new(holds.with_inner(Some(state.state.into())))))
                }
                _ if state.state.is_empty() => None,
                _ => Some(state.state.into()),
            });
        }
        Ok(true)
    }

    async fn rebuild_partition(
        &self,
        partition: u16,
        generation: u64,
        states: &[GateState],
    ) -> Result<u64, StoreError> {
        let stems = stems_of(states);
        let keys: Vec<Key<'_>> = states.iter().zip(&stems).map(|(state, stem)| key_of(&state.key, stem)).collect();
        let mut locked = self.lock(keys.iter());
        let mut outbox = self.required_outbox()?.lock();
        if let Some(generation) = outbox.generation(partition) {
            return Ok(generation);
        }
        for (index, state) in states.iter().enumerate() {
            if state.key.parse().is_none() {
                continue;
            }
            let holds_end = state.holds.iter().map(|hold| hold.expires_at.as_micros()).max().unwrap_or_default();
            let expires_at = state.expiry().max(holds_end);
            let inner = (!state.state.is_empty()).then(|| State::from(state.state));
            locked.replace(index, expires_at, |_| match &state.holds[..] {
                [] => inner,
                holds => Some(State::WithHolds(Box::new(StateWithHolds::from_ledger(inner, holds)))),
            });
        }
        outbox.set_generation(partition, generation);
        Ok(generation)
    }
}

impl MemoryStore {
    fn required_outbox(&self) -> Result<&MemoryOutbox, StoreError> {
        let none = || StoreError::new(StoreErrorKind::Unexpected, "this memory store has no journal");
        self.outbox.as_ref().ok_or_else(none)
    }
}

fn stems_of(states: &[GateState]) -> Vec<KeyStem> {
    states.iter().map(|state| KeyStem::from_text(state.key.stem.clone())).collect()
}

fn key_of<'s>(key: &AccountKey, stem: &'s KeyStem) -> Key<'s> {
    Key::new(stem, key.partition, key.subject)
}
