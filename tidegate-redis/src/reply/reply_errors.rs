//! The errors for replies that decide nothing, or that are not ours.

use tidegate::{StoreError, StoreErrorKind};

/// The error for a key whose value no version of this store has written. `check` counts from 1.
pub(crate) fn unreadable(check: u64) -> StoreError {
    let message = format!(
        "the value under the key of check {check} is not one that this version writes; it was left as it is. \
         Delete it, upgrade this instance, or give this deployment a namespace of its own"
    );
    StoreError::new(StoreErrorKind::Unreadable, message)
}

/// The error if the clock of the server was set between two calls, so that not even the periods at its own time contained the next.
pub(crate) fn stale() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unexpected,
        "the clock of the server jumped while a quota was being decided; try again",
    )
}

/// The error for a partition whose generation is missing, or has just changed.
pub(crate) fn rebuilding() -> StoreError {
    StoreError::new(
        StoreErrorKind::Rebuilding,
        "the store has lost the state of quotas with a ledger, or the quotas are being rebuilt from the ledger; nothing was decided",
    )
}

/// The error for an outbox that has no room for an entry.
pub(super) fn outbox_full() -> StoreError {
    StoreError::new(
        StoreErrorKind::Refused,
        "the outbox of the ledger is full, so nothing was decided; check that the ledger can be reached and keeps up, and that the store \
         has memory left",
    )
}

/// The error for a reply that is not one of ours.
pub(crate) fn malformed() -> StoreError {
    let message = "the reply of the script is malformed; is there a proxy in front of the server?";
    StoreError::new(StoreErrorKind::Unexpected, message).with_possibly_applied()
}
