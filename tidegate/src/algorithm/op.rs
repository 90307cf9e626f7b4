//! What can be asked of a state (`Op`), and what comes of it (`Applied`).

use super::Moment;

/// What to do with the state of one limit.
///
/// Leases will add renewing and releasing; a match outside this crate must expect more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Admit the request if there is room for it.
    Take(Take),
    /// Count a cost that has already happened: it empties the limit at most, and is never refused.
    Charge {
        /// The cost to add.
        cost: u64,
    },
    /// Give back what a take consumed, if its place is still there; never above full.
    Refund {
        /// What was consumed.
        cost: u64,
        /// Where it went.
        place: Place,
    },
}

/// A request for `units` times `cost`, all of it or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// The cost of one unit.
    pub cost: u64,
    /// How many units.
    pub units: u64,
    /// The longest delay the caller can hold the request for, in microseconds.
    pub longest_delay: u64,
}

/// Where a take went: the queue slot, the window, the slice or the log entry. Opaque outside the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place(Moment);

/// What came of an [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied<C> {
    /// Whether the request is admitted (an op that is no request always is).
    pub admitted: bool,
    /// What to write, if anything: for a denied take this is a state that had to be rebased.
    pub change: Option<C>,
}

impl Take {
    /// A single request of `cost` that may wait for as long as it takes.
    pub const fn one(cost: u64) -> Self {
        Self { cost, units: 1, longest_delay: u64::MAX }
    }

    /// The cost of all units together.
    pub const fn total(&self) -> u64 {
        self.cost.saturating_mul(self.units)
    }
}

impl Place {
    /// A window or slice by its index, or a log entry by its instant.
    pub const fn at(position: u64) -> Self {
        Self(Moment::whole(position))
    }

    /// A place in a queue, by the slot after it.
    pub const fn before(slot: Moment) -> Self {
        Self(slot)
    }

    /// As a position: the index of a window or slice, or the instant of a log entry.
    pub const fn position(self) -> u64 {
        self.0.micros
    }

    /// As a moment: the slot after the one taken.
    pub const fn moment(self) -> Moment {
        self.0
    }
}

impl<C> Applied<C> {
    pub(super) const fn admitted(change: Option<C>) -> Self {
        Self { admitted: true, change }
    }

    pub(super) const fn denied(change: Option<C>) -> Self {
        Self { admitted: false, change }
    }

    pub(super) const fn changed(change: Option<C>) -> Self {
        Self { admitted: true, change }
    }

    pub(super) fn map<D>(self, into: impl FnOnce(C) -> D) -> Applied<D> {
        Applied { admitted: self.admitted, change: self.change.map(into) }
    }
}
