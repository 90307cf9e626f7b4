//! `GateState`: the state of one quota as the ledger knows it, to rebuild or repair the state in a store.

use super::AccountKey;
use crate::algorithm::{self, State, quota::QuotaState};
use crate::limit::MAX_AMOUNT;
use crate::limits::{Period, Periods};
use crate::{Limit, Timestamp};

/// A state is kept for so much longer: its time zone is not known, and local times are up to 26 hours apart.
const ZONE_MARGIN_MICROS: u64 = 26 * 3_600_000_000;

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

impl GateState {
    /// When no time zone needs what is used any more, in microseconds; 0 if nothing is used. What is not a quota counts as one of years.
    pub fn expiry(&self) -> u64 {
        if self.state.is_empty() {
            return 0;
        }
        let period = self.key.parse().map_or(Period::Year, |(_, period, _)| period);
        let limit = Limit::quota(self.hard_limit.min(MAX_AMOUNT), Periods::utc(period));
        // A quota of any amount in these bounds is valid.
        let expiry = limit.map_or(0, |limit| algorithm::expiry(&State::from(self.state), &limit));
        expiry.saturating_add(ZONE_MARGIN_MICROS)
    }
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
