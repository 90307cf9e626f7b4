//! The operations on the state of a limit (`Op`) and their results (`OpResult`).

use std::time::Duration;

use super::FractionalMicros;
use crate::plan::LeaseOwner;

/// An operation on the state of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Admits the request if its cost is left.
    Take(Take),
    /// Consumes a cost that has already occurred: at most what is left, or any amount of a quota, as debt. It is never refused.
    Charge {
        /// The cost to consume.
        cost: u64,
        /// For when: a quota counts it in the period of this take, if that is the current one or the one before. The default is now.
        /// Other limits count it now.
        position: TakePosition,
    },
    /// Consumes at most what is left, so it makes no debt. A denied request that counts does so, since its client could add to the debt
    /// without end; and so do charges to an overflow bucket, since others share it.
    Fill {
        /// The cost to consume.
        cost: u64,
    },
    /// Gives back what a take consumed, as far as it is still missing. It never exceeds the limit.
    Refund {
        /// The cost to give back, at most the one that was consumed.
        cost: u64,
        /// Where it was consumed.
        position: TakePosition,
    },
    /// Holds the slot of a concurrency limit for another lease. Refused if it is no longer held. Nothing under other limits.
    Renew {
        /// Whose slot it is.
        position: TakePosition,
        /// The weight with which a slot that is absent is taken again, if it fits; 0 if it must not be.
        weight: u64,
    },
    /// Counts a denial by the limits of the rule. Nothing during a block, and under other limits than a penalty.
    Strike,
    /// Makes or ends the hold of a reservation.
    Hold(HoldOp),
}

/// An operation on the hold of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldOp {
    /// Holds the cost of the take for its owner, if it is left. A hold that exists with the same cost is admitted unchanged.
    Reserve {
        /// The take, with an owner.
        take: Take,
        /// How long the hold lasts unless it ends before, in microseconds.
        ttl_micros: u64,
    },
    /// Ends the hold and charges the actual cost. Refused if there is no open hold, unless it was committed with the same cost.
    Commit {
        /// The actual cost.
        cost: u64,
        /// Whose hold it is.
        position: TakePosition,
    },
    /// Ends the hold and charges nothing. Refused if there is no open hold, unless it was released.
    Release {
        /// Whose hold it is.
        position: TakePosition,
    },
}

/// What became of an operation that is never denied: a charge, a refund, a renewal or the end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdjustmentOutcome {
    /// It was applied, as far as the state allows.
    Applied,
    /// The hold had ended in the same way before. Nothing was changed.
    Repeated,
    /// The hold had ended in another way before. Nothing was changed.
    Differs,
    /// There is no such slot or hold: it was never taken, has run out, was released, or was given up because the limit was lowered. Or what a
    /// refund would give back stays taken. Nothing was changed.
    NotFound,
}

/// A request for `units` times `cost`, all of it or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Take {
    /// The cost of one unit.
    pub cost: u64,
    /// The number of units.
    pub units: u64,
    /// The longest acceptable delay in microseconds; `u64::MAX` for any.
    pub(crate) max_delay_micros: u64,
    /// The owner of a slot that is taken; 0 for none.
    pub(crate) owner: u64,
}

/// Where a take was consumed: a time in a bucket, a queue slot, a window, slice or log entry, or by whom a slot is held. Opaque
/// outside this module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakePosition {
    slot: FractionalMicros,
    full: FractionalMicros,
    returned: u64,
}

/// The result of an [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpResult {
    /// Whether a take is admitted, or a slot renewed. False for the refund of a place in a queue that has others behind it, and of a slot
    /// that is not held. Otherwise true.
    pub admitted: bool,
    /// Whether it changes the state. A denied take does if the state was rebased.
    pub changes: bool,
}

/// What an [`Op`] does: the result, and the change to write, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect<C> {
    pub(super) admitted: bool,
    pub(super) change: Option<C>,
}

impl Op {
    /// The same operation, but a charge makes no debt.
    pub const fn without_debt(self) -> Self {
        match self {
            Self::Charge { cost, .. } => Self::Fill { cost },
            op => op,
        }
    }
}

impl Take {
    /// A take of several units, with any delay.
    pub const fn new(cost: u64, units: u64) -> Self {
        Self { cost, units, max_delay_micros: u64::MAX, owner: 0 }
    }

    /// A take of one unit, with any delay.
    pub const fn one(cost: u64) -> Self {
        Self::new(cost, 1)
    }

    /// Sets the longest acceptable delay.
    pub fn with_max_delay(mut self, max_delay: Duration) -> Self {
        self.max_delay_micros = u64::try_from(max_delay.as_micros()).unwrap_or(u64::MAX);
        self
    }

    /// Sets the owner of the slot that is taken from a concurrency limit.
    pub const fn with_owner(mut self, owner: LeaseOwner) -> Self {
        self.owner = owner.number();
        self
    }

    /// The owner of the slot that is taken, as a number; 0 for none.
    pub const fn owner_number(&self) -> u64 {
        self.owner
    }

    /// The longest acceptable delay; `None` for any.
    pub const fn max_delay(&self) -> Option<Duration> {
        match self.max_delay_micros {
            u64::MAX => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    /// The cost of all units together.
    pub const fn total(&self) -> u64 {
        self.cost.saturating_mul(self.units)
    }
}

impl TakePosition {
    /// The index of a window or slice, or the instant of a log entry in microseconds.
    pub const fn from_index(index: u64) -> Self {
        Self::from_slot(FractionalMicros::whole(index))
    }

    /// A place in the queue of a leaky bucket, identified by the slot after it: the state that the take has left.
    pub const fn from_slot(slot: FractionalMicros) -> Self {
        Self { slot, full: FractionalMicros::whole(0), returned: 0 }
    }

    /// A take from a token bucket: the instant at which a bucket that was full before it would be full again; the instant at
    /// which this bucket is full again; and the microseconds that refunds had returned until then.
    pub const fn from_bucket(alone: FractionalMicros, full: FractionalMicros, returned: u64) -> Self {
        Self { slot: alone, full, returned }
    }

    /// The same take from a quota with a ledger, under a [generation](crate::spi::EntryId::generation) of its partition.
    pub const fn in_generation(self, generation: u64) -> Self {
        Self { full: FractionalMicros { micros: generation, ..self.full }, ..self }
    }

    /// The generation of a take from a quota with a ledger; 0 for one without. Meaningless for other positions.
    pub const fn generation(self) -> u64 {
        self.full.micros
    }

    /// The slot of `owner`.
    pub const fn from_owner(owner: LeaseOwner) -> Self {
        Self::from_index(owner.number())
    }

    /// The hold of `owner`, which lasts for `ttl_micros`. If it is `keyed`, its end is remembered as long as it would have lasted.
    pub const fn from_hold(owner: LeaseOwner, ttl_micros: u64, keyed: bool) -> Self {
        let slot = FractionalMicros { micros: owner.number(), part: keyed as u64 };
        Self { slot, full: FractionalMicros::whole(ttl_micros), returned: 0 }
    }

    /// The same hold, made in the period of a quota with this index.
    pub const fn in_period(self, index: u64) -> Self {
        Self { full: FractionalMicros { part: index, ..self.full }, ..self }
    }

    /// Where a charge belongs that comes after the end of a hold: in the period in which the hold was made.
    pub(crate) const fn hold_period(self) -> Self {
        Self::from_index(self.full.part)
    }

    /// Whether the end of a hold is remembered. Meaningless for other positions.
    pub const fn is_keyed_hold(self) -> bool {
        self.slot.part == 1
    }

    /// How long a hold lasts, in microseconds. Meaningless for other positions.
    pub const fn hold_ttl_micros(self) -> u64 {
        self.full.micros
    }

    /// The same slot or hold, in an overflow bucket of the limit.
    pub const fn in_overflow_bucket(self, number: u32) -> Self {
        Self { returned: number as u64 + 1, ..self }
    }

    /// The overflow bucket of a slot or hold, if it is in one. Meaningless for other positions.
    pub fn overflow_bucket(self) -> Option<u32> {
        u32::try_from(self.returned.checked_sub(1)?).ok()
    }

    /// The index of a window or slice, the instant of a log entry in microseconds, or the owner of a slot or hold.
    pub const fn index(self) -> u64 {
        self.slot.micros
    }

    /// Whether it is in the period before the one with this index.
    pub(super) const fn is_before(self, index: u64) -> bool {
        matches!(index.checked_sub(1), Some(before) if before == self.index())
    }

    /// The slot after the place in the queue, for a leaky bucket. For a token bucket, the instant at which it would be full again
    /// if it had been full before the take.
    pub const fn slot(self) -> FractionalMicros {
        self.slot
    }

    /// The instant at which a token bucket is full again after the take.
    pub const fn full(self) -> FractionalMicros {
        self.full
    }

    /// The microseconds that refunds had returned to a token bucket before the take.
    pub const fn returned(self) -> u64 {
        self.returned
    }
}

impl<C> Effect<C> {
    pub(super) const fn admitted(change: Option<C>) -> Self {
        Self { admitted: true, change }
    }

    pub(super) const fn denied(change: Option<C>) -> Self {
        Self { admitted: false, change }
    }

    pub(super) const fn result(&self) -> OpResult {
        OpResult { admitted: self.admitted, changes: self.change.is_some() }
    }

    pub(super) fn map<D>(self, into: impl FnOnce(C) -> D) -> Effect<D> {
        Effect { admitted: self.admitted, change: self.change.map(into) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_take_knows_the_longest_delay_that_it_accepts() {
        let delay = Duration::from_micros(3_000_001);
        assert_eq!(Take::one(1).max_delay(), None, "any");
        assert_eq!(Take::one(1).with_max_delay(delay).max_delay(), Some(delay));
    }
}
