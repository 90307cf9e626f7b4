//! The limits themselves: one pure function each, with its twin in Lua in the file beside it.
//!
//! ```text
//! apply(state, limit, now, op)  →  admitted, what to write, when it stops mattering
//! ```
//!
//! Nothing here reads a clock, takes a lock or does I/O. The memory store calls the Rust function under a lock, the Redis
//! store runs the Lua function in a script, and both are held to the same answers, step by step, by a third, naive model
//! in the `conformance` crate.
//!
//! What holds for every limit:
//!
//! - Amounts are integers below 2^52 and times are whole microseconds, both exact in Rust and in Lua.
//! - A denied request consumes nothing. A cost of 0 consumes and creates nothing.
//! - `state = None` means fresh, and a state past its [`expiry`] decides like none.
//! - Time that runs backwards never gives anything back. A state written up to [`MARGIN_MICROS`] ahead of now counts as
//!   current: time stands still for it until the clock has caught up. Beyond that it is *rebased*, that is, moved to
//!   now with everything spent still spent, and so written even by a denied request, which ends the lock-out that a
//!   clock jump would otherwise leave.

mod calendar;
mod codec;
pub mod fixed_window;
pub mod leaky_bucket;
pub mod lua;
mod moment;
mod op;
pub mod sliding_log;
pub mod sliding_window;
pub mod state;
pub mod token_bucket;

pub(crate) use calendar::Calendar;
pub use codec::Found;
pub use moment::Moment;
pub use op::{Applied, Op, Place, Take};
pub use state::{Change, State, View};

use std::time::Duration;

use crate::{Limit, Timestamp};

/// How far back a clock may step without anything being forgotten: a key outlives its meaning by this much.
pub const MARGIN_MICROS: u64 = 2_000_000;

/// What one check says about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether this check, alone, admits the request.
    pub admitted: bool,
    /// The largest cost that it could ever admit.
    pub limit: u64,
    /// The largest cost that it would admit right after this decision.
    pub remaining: u64,
    /// The smallest time after which the same request passes if nothing else happens: never, for a cost above the limit.
    pub retry_after: Option<Duration>,
    /// The time until its state cannot be told from a fresh one.
    pub reset_after: Duration,
    /// How long the request must wait for its slot (leaky bucket only).
    pub delay: Duration,
}

impl Outcome {
    /// Denied, and no waiting helps: the cost is above what the limit can ever admit.
    pub const fn is_permanent(&self) -> bool {
        !self.admitted && self.retry_after.is_none()
    }
}

/// How a request stands with one check once its plan has been decided: the input of every `outcome`.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// What was asked, with the units that were granted (or one, if none were).
    pub take: Take,
    /// Whether this check, alone, admits it.
    pub admitted: bool,
    /// Whether it was written.
    pub consumed: bool,
}

impl Standing {
    const fn outcome(&self, limit: u64) -> Outcome {
        Outcome {
            admitted: self.admitted,
            limit,
            remaining: limit,
            retry_after: None,
            reset_after: Duration::ZERO,
            delay: Duration::ZERO,
        }
    }
}

/// Decides `op` on `state`.
#[inline(always)]
pub fn apply(state: Option<&State>, limit: &Limit, now: Timestamp, op: Op) -> Applied<Change> {
    match limit {
        Limit::TokenBucket(limit) => {
            token_bucket::apply(state.and_then(State::moment), limit, now, op).map(Change::Moment)
        }
        Limit::LeakyBucket(limit) => {
            leaky_bucket::apply(state.and_then(State::moment), limit, now, op).map(Change::Moment)
        }
        Limit::FixedWindow(limit) => {
            fixed_window::apply(state.and_then(State::window), limit, now, op).map(Change::Window)
        }
        Limit::SlidingLog(limit) => sliding_log::apply(state.and_then(State::log), limit, now, op).map(Change::Log),
        Limit::SlidingWindow(limit) => sliding_window::apply(state.and_then(State::slices), limit, now, op)
            .map(|slices| Change::Slices(Box::new(slices))),
    }
}

/// The largest number of units, up to `take.units`, that would be admitted.
pub fn room(state: Option<&State>, limit: &Limit, now: Timestamp, take: Take) -> u64 {
    match limit {
        Limit::TokenBucket(limit) => token_bucket::room(state.and_then(State::moment), limit, now, take),
        Limit::LeakyBucket(limit) => leaky_bucket::room(state.and_then(State::moment), limit, now, take),
        Limit::FixedWindow(limit) => fixed_window::room(state.and_then(State::window), limit, now, take),
        Limit::SlidingLog(limit) => sliding_log::room(state.and_then(State::log), limit, now, take),
        Limit::SlidingWindow(limit) => sliding_window::room(state.and_then(State::slices), limit, now, take),
    }
}

/// What a caller is told, from the state that was found before the decision was written.
#[inline(always)]
pub fn outcome(found: &View<'_>, limit: &Limit, now: Timestamp, standing: Standing) -> Outcome {
    match limit {
        Limit::TokenBucket(limit) => token_bucket::outcome(found.moment(), limit, now, standing),
        Limit::LeakyBucket(limit) => leaky_bucket::outcome(found.moment(), limit, now, standing),
        Limit::FixedWindow(limit) => fixed_window::outcome(found.window(), limit, now, standing),
        Limit::SlidingLog(limit) => sliding_log::outcome(found.log(), limit, now, standing),
        Limit::SlidingWindow(limit) => sliding_window::outcome(found.slices(), limit, now, standing),
    }
}

/// Where a consumed request went, so that a refund finds it again.
#[inline(always)]
pub fn place(found: &View<'_>, limit: &Limit, now: Timestamp, take: Take) -> Place {
    match limit {
        Limit::TokenBucket(_) => Place::default(),
        Limit::LeakyBucket(limit) => token_bucket::apply(found.moment(), limit.bucket(), now, Op::Take(take))
            .change
            .map_or_else(Place::default, Place::before),
        Limit::FixedWindow(limit) => Place::at(limit.settle(found.window(), now).0.index),
        Limit::SlidingLog(_) => Place::at(sliding_log::current(found.log().newest, now)),
        Limit::SlidingWindow(limit) => Place::at(limit.settle(found.slices(), now).slices.index),
    }
}

/// The first instant, in microseconds, at which `state` decides like none.
#[inline(always)]
pub fn expiry(state: &State, limit: &Limit) -> u64 {
    match (state, limit) {
        (State::Moment(moment), _) => token_bucket::expiry(*moment),
        (State::Window(window), Limit::FixedWindow(limit)) => fixed_window::expiry(*window, limit),
        (State::Log(log), Limit::SlidingLog(limit)) => sliding_log::expiry(log, limit),
        (State::Slices(slices), Limit::SlidingWindow(limit)) => sliding_window::expiry(slices, limit),
        // A state of another kind cannot stand at a key, whose name holds the kind; it would count for nothing.
        _ => 0,
    }
}

const fn span_micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}
