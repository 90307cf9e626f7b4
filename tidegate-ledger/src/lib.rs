//! The ledger of Tidegate: durable entries of quotas in SQLite or PostgreSQL, and the service that moves them there from the outboxes of a store.
//!
//! ```text
//! store ──▶ outbox ──▶ LedgerService (flush, confirm, rebuild, repair) ──▶ Ledger (SQLite │ PostgreSQL)
//! ```

mod database;
mod export;
mod journal;
mod ledger_error;
mod ledger_url;
mod service;
mod usage;

pub use database::{Correction, ExportQuery, Ledger, LedgerEntry, LedgerLock, Posted, Reset, RollUp};
pub use export::ExportFormat;
pub use journal::{DEFAULT_MAX_JOURNAL_BYTES, JournalError, JournalErrorKind, JournalFile, JournalRecovery};
pub use ledger_error::{LedgerError, LedgerErrorKind};
pub use ledger_url::LedgerUrl;
pub use service::{
    AccountUnits, Difference, LedgerService, PendingRepair, PrepareReport, ReconcileReport, RepairReport, ServiceError,
    ServiceOptions, ServiceStats,
};
pub use usage::{PeriodPoint, UsageQuery, UsageRow, period_text};
