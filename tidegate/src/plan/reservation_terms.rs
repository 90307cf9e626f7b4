//! `ReservationTerms`: whose reservation a plan is, and how long it lasts.
//!
//! At the gateway and in the tower layer, only checks that count tokens hold their cost. The others take it: as holds, they would turn a rate of
//! requests into a limit of open responses. A take has no owner, so such a reservation has no idempotency key.

use std::time::Duration;

use super::{Check, LeaseOwner};
use crate::algorithm::TakePosition;

/// What the holds of one reservation have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationTerms {
    owner: LeaseOwner,
    ttl_micros: u64,
    keyed: bool,
    usage_only: bool,
}

impl ReservationTerms {
    /// A reservation of `owner` that lasts for `ttl`, in whole microseconds, unless it ends before. If it is `keyed`, the owner was made
    /// from an idempotency key, and the end is remembered as long as the reservation would have lasted.
    pub fn new(owner: LeaseOwner, ttl: Duration, keyed: bool) -> Self {
        Self { owner, ttl_micros: u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX), keyed, usage_only: false }
    }

    /// The owner of its holds.
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

    /// The same, but only checks whose actual cost is the token usage of a language model hold it. The others take it at once, as without a
    /// reservation, and their takes are not repeatable: so not with an idempotency key.
    pub const fn with_usage_only(mut self) -> Self {
        self.usage_only = true;
        self
    }

    /// Whether `check` holds its cost. Otherwise it takes it.
    #[inline]
    pub const fn holds(&self, check: &Check<'_>) -> bool {
        check.gate().limit().keeps_holds() && (!self.usage_only || check.settles_by_usage())
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
