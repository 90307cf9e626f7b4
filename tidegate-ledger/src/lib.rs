//! The ledger of Tidegate: durable entries of quotas in SQLite or PostgreSQL, and the service that moves them there from the outboxes of a store.
//!
//! ```text
//! store ──▶ outbox ──▶ LedgerService (flush, confirm, rebuild, repair) ──▶ Ledger (SQLite │ PostgreSQL)
//! ```
//!
//! These verbs change what a store or the ledger has:
//!
//! | verb | changes | what it does |
//! |---|---|---|
//! | **rebuild** | a partition of the store | writes all its states from the ledger, after the store has lost them or has gone back to an older copy of itself |
//! | **repair** | accounts in the store | sets their states to what the ledger has, unless their partition is written to meanwhile |
//! | **reconcile** | nothing; with `apply`, the store | compares all accounts of the ledger with the store; with `apply`, repairs those that differ and rebuilds lost partitions |
//! | **correct** | an account in the ledger | adds an entry with author and reason. A *reset* is the correction to 0 that also forgives the debt. The account is repaired then |
//! | **roll up** | entries in the ledger | deletes single entries from before a day. Their sums stay |
//!
//! - **The step that admits writes the entry.** A store appends an [`OutboxEntry`](tidegate::spi::OutboxEntry) to the outbox of the partition in the
//!   same atomic step as the change of the state. So neither exists without the other, whichever process dies. A full outbox is a failure of
//!   the store; no entry is dropped.
//! - **A flush** reads the oldest entries, posts them in one transaction, and removes them from the outbox after the commit. If it dies in
//!   between, the next one posts them again. The [id](tidegate::spi::EntryId) is the primary key, so an entry counts once.
//! - **`sync` is `async` plus waiting.** Callers that wait for a partition share the next flush. An error, or a caller that goes away,
//!   refunds the take, and the refund is an entry, too. While the ledger is known to be down and the rule is closed, the store is not called.
//! - **Generations.** A partition has a random number beside its outbox. A store without it was emptied or replaced: it admits nothing
//!   until it is rebuilt. A refund to another generation gives nothing back, since the take may have been lost before it was
//!   in the ledger. A store that has gone back to an older copy of itself loses its generation.
//! - **States are computed from sums.** The consumption of a period is the sum of its amounts, and debt is carried from one period with entries
//!   to the next. The index of a period means the same in all time zones, so the ledger needs no calendar. The beginning and the end of a
//!   reservation may arrive in any order.
//! - **Without the store**, requests that a policy other than `closed` admits are written to the [journal](JournalFile) of the instance, and
//!   posted later. Then their accounts are repaired.
//!
//! The words that store, limiter and ledger share are in [`tidegate::spi`]; the library does not depend on this crate.

mod database;
mod export;
mod journal;
mod ledger_error;
mod ledger_url;
mod service;
mod usage;

pub use database::{Correction, ExportQuery, Ledger, LedgerEntry, LedgerLock, Posted, RollUp};
pub use export::ExportFormat;
pub use journal::{DEFAULT_MAX_JOURNAL_BYTES, JournalError, JournalErrorKind, JournalFile, JournalRecovery};
pub use ledger_error::{LedgerError, LedgerErrorKind};
pub use ledger_url::LedgerUrl;
pub use service::{
    AccountUnits, Difference, LedgerService, PendingRepair, PrepareReport, ReconcileReport, RepairReport, ServiceError,
    ServiceOptions, ServiceStats,
};
pub use usage::{PeriodPoint, UsageQuery, UsageRow, period_bounds, period_text, time_text};
