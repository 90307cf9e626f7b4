//! `GateState`: the state of one quota as the ledger knows it, to rebuild or repair the state in a store.

use super::AccountKey;
use crate::Timestamp;
use crate::algorithm::quota::QuotaState;

/// The state of one quota and its reservations, as the ledger knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateState {
    /// Whose quota it is.
    pub key: AccountKey,
    /// What is used, in the last period in which anything was.
    pub state: QuotaState,
    /// The amount with grace under which it was used last.
    pub hard_limit: u64,
    /// The reservations that are open or whose end must be remembered, oldest first.
    pub holds: Vec<GateHold>,
}

/// A reservation as the ledger knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateHold {
    /// Whose it is.
    pub owner: u64,
    /// When it was made.
    pub at: Timestamp,
    /// When it runs out, unless it ended before.
    pub expires_at: Timestamp,
    /// Units held, or committed.
    pub units: u64,
    /// Whether it has ended.
    pub status: GateHoldStatus,
}

/// Whether a reservation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateHoldStatus {
    /// It is open.
    Open,
    /// It was committed.
    Committed,
    /// It was released.
    Released,
}
