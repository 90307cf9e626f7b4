//! `ServiceError`: which side failed when the ledger and a store were brought together.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tidegate::{StoreError, StoreErrorKind};

use crate::{JournalError, LedgerError, LedgerErrorKind};

/// Which side failed when the ledger and a store were brought together. What was done until then stays, and the call can be repeated.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ServiceError {
    /// The ledger.
    Ledger(LedgerError),
    /// The store.
    Store(StoreError),
    /// The journal.
    Journal(Arc<JournalError>),
    /// Not everything was done in time.
    TimedOut,
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ledger(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::Journal(error) => error.fmt(f),
            Self::TimedOut => f.write_str("not every entry reached the ledger in time; the others stay in the outbox"),
        }
    }
}

impl Error for ServiceError {}

impl From<LedgerError> for ServiceError {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<JournalError> for ServiceError {
    fn from(error: JournalError) -> Self {
        Self::Journal(Arc::new(error))
    }
}

/// The error of a caller who waits for the ledger: what the store has granted may not be durable.
pub(super) fn unconfirmed(error: &LedgerError) -> StoreError {
    unavailable(error).with_possibly_applied()
}

/// The same before anything was sent to the store.
pub(super) fn unavailable(error: &LedgerError) -> StoreError {
    let kind = match error.kind() {
        LedgerErrorKind::Mismatch => StoreErrorKind::Mismatch,
        LedgerErrorKind::ReadOnly | LedgerErrorKind::Full | LedgerErrorKind::Newer => StoreErrorKind::Refused,
        _ => StoreErrorKind::Unavailable,
    };
    StoreError::new(kind, "the ledger did not record the entries").with_source(error.clone())
}

/// The error of a caller before the store was brought up to the ledger.
pub(super) fn unprepared() -> StoreError {
    StoreError::new(StoreErrorKind::Rebuilding, "the store is being compared with the ledger")
}

/// The error of a caller whose partition has been lost since its decision.
pub(super) fn lost() -> StoreError {
    StoreError::new(StoreErrorKind::Rebuilding, "the store lost the entries before they were in the ledger")
        .with_possibly_applied()
}

/// The error of a caller that does not begin to wait, because those before it have waited long enough.
pub(super) fn overdue() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the ledger takes longer than requests wait for it")
}

/// The error of a caller who has waited long enough.
pub(super) fn too_slow() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the ledger did not record the entries in time")
        .with_possibly_applied()
}

/// The error of a caller of a service that was stopped.
pub(super) fn stopped() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the ledger service was stopped").with_possibly_applied()
}
