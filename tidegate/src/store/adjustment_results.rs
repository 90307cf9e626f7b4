//! `AdjustmentResults`: what became of each adjustment of a call. In a cluster, some may fail while others are applied.

use super::StoreError;
use crate::algorithm::AdjustmentOutcome;
use crate::ledger::EntryId;

/// What the store has answered about one adjustment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdjustmentResult {
    /// What became of it.
    pub outcome: AdjustmentOutcome,
    /// The entry that was written for the ledger, if one was and the store tells it.
    pub entry: Option<EntryId>,
}

/// The result of each adjustment of a call, in order. An error belongs to its adjustment alone: it says whether that one was
/// [possibly applied](StoreError::is_possibly_applied) or not.
#[derive(Clone, Debug, Default)]
pub struct AdjustmentResults(Vec<Result<AdjustmentResult, StoreError>>);

impl AdjustmentResult {
    /// A result without an entry.
    pub const fn new(outcome: AdjustmentOutcome) -> Self {
        Self { outcome, entry: None }
    }

    /// Sets the entry.
    pub const fn with_entry(mut self, entry: Option<EntryId>) -> Self {
        self.entry = entry;
        self
    }
}

impl AdjustmentResults {
    /// The same failure of `count` adjustments.
    pub fn failed(count: usize, error: &StoreError) -> Self {
        (0..count).map(|_| Err(error.clone())).collect()
    }

    /// The result of each.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Result<AdjustmentResult, StoreError>> {
        self.0.iter()
    }

    /// The outcome of each, unless one failed: then the first error. It says "possibly applied" if another one was applied.
    pub fn outcomes(&self) -> Result<Vec<AdjustmentOutcome>, StoreError> {
        let outcomes: Vec<AdjustmentOutcome> = self.0.iter().flatten().map(|result| result.outcome).collect();
        match self.first_error() {
            Some(error) if outcomes.is_empty() => Err(error.clone()),
            Some(error) => Err(error.clone().with_possibly_applied()),
            None => Ok(outcomes),
        }
    }

    /// The first error.
    pub fn first_error(&self) -> Option<&StoreError> {
        self.0.iter().find_map(|result| result.as_ref().err())
    }

    /// The entries that were written for the ledger.
    pub fn entries(&self) -> impl Iterator<Item = EntryId> {
        self.0.iter().flatten().filter_map(|result| result.entry)
    }
}

impl FromIterator<Result<AdjustmentResult, StoreError>> for AdjustmentResults {
    fn from_iter<I: IntoIterator<Item = Result<AdjustmentResult, StoreError>>>(results: I) -> Self {
        Self(results.into_iter().collect())
    }
}

impl FromIterator<AdjustmentOutcome> for AdjustmentResults {
    fn from_iter<I: IntoIterator<Item = AdjustmentOutcome>>(outcomes: I) -> Self {
        outcomes.into_iter().map(|outcome| Ok(AdjustmentResult::new(outcome))).collect()
    }
}
