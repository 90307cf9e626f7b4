//! `ServiceOptions`: the settings of a ledger service.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock, SystemClock};

use crate::journal::JournalFile;
use crate::{LedgerError, LedgerErrorKind};

/// The settings of a [`LedgerService`](crate::LedgerService).
#[derive(Clone)]
#[non_exhaustive]
pub struct ServiceOptions {
    /// How long a request under a rule with `ledger: sync` waits for the ledger.
    pub budget: Duration,
    /// How long entries of rules with `ledger: async` wait before they are posted.
    pub flush_interval: Duration,
    /// In this time every partition is searched once for entries of instances that have crashed.
    pub sweep_interval: Duration,
    /// How often reservations that ran out are recorded.
    pub expiry_interval: Duration,
    /// How long one call to the ledger may take.
    pub ledger_timeout: Duration,
    /// Entries that are read from an outbox at once.
    pub batch: usize,
    /// Partitions that are read at the same time.
    pub concurrency: usize,
    /// Keeps what is admitted without the store. Without it, nothing is.
    pub journal: Option<Arc<JournalFile>>,
    /// The clock that the lag and the end of reservations are measured by.
    pub clock: Arc<dyn Clock>,
}

impl ServiceOptions {
    /// Sets how long a request under a rule with `ledger: sync` waits.
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// Sets how long entries of rules with `ledger: async` wait.
    pub fn with_flush_interval(mut self, interval: Duration) -> Self {
        self.flush_interval = interval;
        self
    }

    /// Sets the time in which every partition is searched once for entries of crashed instances.
    pub fn with_sweep_interval(mut self, interval: Duration) -> Self {
        self.sweep_interval = interval;
        self
    }

    /// Sets how many entries are read from an outbox at once.
    pub fn with_batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// Sets the journal of what is admitted without the store.
    pub fn with_journal(mut self, journal: Arc<JournalFile>) -> Self {
        self.journal = Some(journal);
        self
    }

    /// Sets the clock.
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    pub(super) fn validate(&self) -> Result<(), LedgerError> {
        let spans = [
            ("budget", self.budget),
            ("flush_interval", self.flush_interval),
            ("sweep_interval", self.sweep_interval),
            ("expiry_interval", self.expiry_interval),
            ("ledger_timeout", self.ledger_timeout),
        ];
        let zero_span = spans.into_iter().find(|(_, span)| span.is_zero()).map(|(name, _)| name);
        let zero_number = [("batch", self.batch), ("concurrency", self.concurrency)].into_iter().find(|one| one.1 == 0);
        match zero_span.or(zero_number.map(|(name, _)| name)) {
            Some(name) => {
                Err(LedgerError::new(LedgerErrorKind::Invalid, format!("the setting {name} of the ledger is 0")))
            }
            None => Ok(()),
        }
    }
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            budget: Duration::from_millis(250),
            flush_interval: Duration::from_millis(100),
            sweep_interval: Duration::from_secs(5),
            expiry_interval: Duration::from_secs(10),
            ledger_timeout: Duration::from_secs(5),
            batch: 1_000,
            concurrency: 8,
            journal: None,
            clock: Arc::new(SystemClock::new()),
        }
    }
}

impl fmt::Debug for ServiceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceOptions")
            .field("budget", &self.budget)
            .field("flush_interval", &self.flush_interval)
            .field("batch", &self.batch)
            .field("journal", &self.journal)
            .finish_non_exhaustive()
    }
}
