//! `Check`: a gate, and who is to pass it at what cost. Pure.

use std::time::Duration;

use super::Gate;
use crate::key::Key;
use crate::limit::MAX_AMOUNT;
use crate::spi::Subject;
use crate::{OnFailure, Timestamp};

/// A cost that no limit can ever admit; a larger one is as good as this.
const MORE_THAN_ANY: u64 = MAX_AMOUNT + 1;

/// A gate, whose key it is, and what it costs.
#[derive(Clone, Copy, Debug)]
pub struct Check<'r> {
    gate: &'r Gate,
    key: Key<'r>,
    cost: u64,
    /// Of the gate, or stricter: that of a rule that shares the check.
    on_failure: OnFailure,
    security: bool,
    anonymous: bool,
}

impl<'r> Check<'r> {
    pub(crate) fn from_key(gate: &'r Gate, key: Key<'r>, cost: u64) -> Self {
        let (on_failure, security) = (gate.on_failure(), gate.is_security());
        Self { gate, key, cost: cost.min(MORE_THAN_ANY), on_failure, security, anonymous: false }
    }

    /// A check of `gate` for a subject that decides its own partition.
    pub fn new(gate: &'r Gate, subject: Subject, cost: u64) -> Self {
        Self::from_key(gate, Key::new(gate.stem(), subject, subject), cost)
    }

    /// Which limit of which rule.
    pub const fn gate(&self) -> &'r Gate {
        self.gate
    }

    /// Where its state is.
    pub const fn key(&self) -> &Key<'r> {
        &self.key
    }

    /// Whether answers must give nothing away, for this rule or for one that shares the check.
    pub const fn is_security(&self) -> bool {
        self.security
    }

    /// What happens to the request while the store fails.
    pub const fn on_failure(&self) -> OnFailure {
        self.on_failure
    }

    /// Whether the request must be refused while the store fails. A static rule without a cap has nothing to go by.
    pub(super) fn fails_closed(&self) -> bool {
        match self.on_failure {
            OnFailure::Closed => true,
            OnFailure::Static => self.gate.static_limit().is_none(),
            OnFailure::Open | OnFailure::Degraded | OnFailure::Local => false,
        }
    }

    /// The same check, for a subject that nobody vouches for if `anonymous`: one of many, perhaps of too many.
    pub const fn with_anonymous(mut self, anonymous: bool) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// Whether nobody vouches for the subject.
    pub const fn is_anonymous(&self) -> bool {
        self.anonymous
    }

    /// How long the store remembers the subject after it was last seen, if that may be less than its limit would.
    pub const fn forget_after(&self) -> Option<Duration> {
        if self.anonymous { self.gate.anonymous().forget_after } else { None }
    }

    /// The latest instant, in microseconds, until which what is written now is remembered.
    #[inline(always)]
    pub(crate) fn latest(&self, now: Timestamp) -> u64 {
        self.forget_after().map_or(u64::MAX, |after| now.plus(after).as_micros())
    }

    /// The same check, with another policy for the time that the store fails.
    pub(crate) const fn with_policy(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// The same check at another cost of one unit.
    pub fn with_cost(mut self, cost: u64) -> Self {
        self.cost = cost.min(MORE_THAN_ANY);
        self
    }

    /// The cost of one unit.
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Takes in a check of another rule with the same key. If one rule knows who vouches for the subject, somebody does.
    pub(super) fn join(&mut self, other: &Self) {
        self.add_cost(other.cost);
        self.on_failure = self.on_failure.stricter(other.on_failure);
        self.security |= other.security;
        self.anonymous &= other.anonymous;
    }

    pub(super) fn add_cost(&mut self, cost: u64) {
        self.cost = self.cost.saturating_add(cost).min(MORE_THAN_ANY);
    }
}
