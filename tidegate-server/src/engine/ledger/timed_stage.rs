//! `TimedStage`: a ledger stage that reports how long decisions wait for the ledger. It changes no result.

use std::sync::Arc;

use tidegate::spi::{AccountKey, BoxFuture, LedgerStage, OutboxEntry, UnconfirmedEntry};
use tidegate::{Clock, StoreError, SystemClock};

use crate::observe::metrics::Metrics;

/// A stage whose confirmations are measured.
pub(crate) struct TimedStage<S> {
    stage: S,
    metrics: Arc<Metrics>,
    clock: SystemClock,
}

impl<S> TimedStage<S> {
    pub(crate) fn new(stage: S, metrics: Arc<Metrics>) -> Self {
        Self { stage, metrics, clock: SystemClock::new() }
    }
}

impl<S: LedgerStage> LedgerStage for TimedStage<S> {
    fn verified(&self) -> Result<(), StoreError> {
        self.stage.verified()
    }

    fn ready(&self) -> Result<(), StoreError> {
        self.stage.ready()
    }

    fn confirm(&self, entries: Vec<UnconfirmedEntry>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let begun = self.clock.now();
            let result = self.stage.confirm(entries).await;
            self.metrics.ledger_confirmed(self.clock.now().since(begun), result.is_ok());
            result
        })
    }

    fn journal(&self, entries: Vec<OutboxEntry>) -> Result<(), StoreError> {
        self.stage.journal(entries)
    }

    fn name_account(&self, account: AccountKey, name: &str) {
        self.stage.name_account(account, name);
    }
}
