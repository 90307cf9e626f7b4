//! `ReservationTerms`: whose reservation a plan is, and how long it lasts.

use std::time::Duration;

use super::LeaseOwner;
use crate::algorithm::TakePosition;

/// What the holds of one reservation have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationTerms {
    owner: LeaseOwner,
    ttl_micros: u64,
    keyed: bool,
}

impl ReservationTerms {
    /// A reservation of `owner` that lasts for `ttl`, in whole microseconds, unless it ends before. If it is `keyed`, the owner was made
    /// from an idempotency key, and the end is remembered as long as the reservation would have lasted.
    pub fn new(owner: LeaseOwner, ttl: Duration, keyed: bool) -> Self {
        Self { owner, ttl_micros: u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX), keyed }
    }

    /// Who holds what is reserved.
    pub const fn owner(&self) -> LeaseOwner {
        self.owner
    }

    /// How long the reservation lasts, in microseconds.
    pub const fn ttl_micros(&self) -> u64 {
        self.ttl_micros
    }

    /// Whether the reservation has an idempotency key.
    pub const fn is_keyed(&self) -> bool {
        self.keyed
    }

    /// The same without an idempotency key: the holds are given back as if they had never been made, so that a repeated reservation
    /// makes them again.
    pub(crate) const fn undone(mut self) -> Self {
        self.keyed = false;
        self
    }

    /// Where the holds are found again.
    pub const fn position(&self) -> TakePosition {
        TakePosition::from_hold(self.owner, self.ttl_micros, self.keyed)
    }
}
