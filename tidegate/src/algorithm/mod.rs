//! The limits: each [`Kind`] has one file, with its twin in Lua beside it. Its heart is one pure function.
//!
//! ```text
//! apply(state, limit, now, op)  →  admitted, change
//! ```
//!
//! Nothing here reads a clock, takes a lock or does I/O. The memory store calls the Rust functions under a lock, the Redis
//! store runs the Lua functions in a script. A third, naive model in the `conformance` crate checks that both give the same
//! results, step by step.
//!
//! For every limit:
//!
//! - Amounts are integers below 2^52 and times are whole microseconds, both exact in Rust and in Lua.
//! - A denied request consumes nothing. A cost of 0 consumes nothing and creates no state.
//! - `state = None` is a fresh state. A state past its [`expiry`] is equivalent to none.
//! - A clock that steps back never gives anything back. A state up to [`CLOCK_MARGIN`] ahead of now counts as current until the
//!   clock has caught up; that of a quota, up to one period. A state further ahead is *rebased*: moved to now with everything
//!   consumed still consumed. Even a denied request writes a rebased state, which ends the lock-out that a clock jump would leave.

mod calendar;
pub mod concurrency;
pub mod fixed_window;
mod fractional_micros;
pub mod holds;
mod kind;
pub mod leaky_bucket;
pub mod lua;
mod op;
pub mod penalty;
pub mod quota;
pub mod sliding_log;
pub mod sliding_window;
mod state;
pub mod token_bucket;
mod value;

pub(crate) use calendar::Calendar;
pub use fractional_micros::FractionalMicros;
pub(crate) use holds::StateWithHolds;
pub(crate) use kind::Kind;
pub(crate) use op::Effect;
pub use op::{AdjustmentOutcome, HoldOp, Op, OpResult, Take, TakePosition};
pub use state::State;

use std::time::Duration;

use crate::limit::with_kind;
use crate::{Limit, Timestamp};

/// How far a clock may step back without anything being forgotten. Keys are kept this much longer than their state is needed.
pub const CLOCK_MARGIN: Duration = Duration::from_micros(CLOCK_MARGIN_MICROS);

pub(crate) const CLOCK_MARGIN_MICROS: u64 = 2_000_000;

/// The result of one check for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether this check, alone, admits the request.
    pub admitted: bool,
    /// The largest cost that it can ever admit; for a quota, without grace.
    pub limit: u64,
    /// The largest cost that it would admit right after this decision; for a quota, without grace.
    pub remaining: u64,
    /// The shortest time after which the same request passes if nothing else happens; `None` if it never passes.
    pub retry_after: Option<Duration>,
    /// The time until its state is equivalent to a fresh one; for a quota, until a period without units used or carried over.
    pub reset_after: Duration,
    /// How long the request must wait for its slot (leaky bucket only).
    pub delay: Duration,
    /// Whether it is admitted by the grace of a quota: more than its amount is used.
    pub in_grace: bool,
}

impl Outcome {
    /// Whether the request is denied and no waiting helps: its cost is above the limit.
    pub const fn is_permanent(&self) -> bool {
        !self.admitted && self.retry_after.is_none()
    }
}

/// A take after the decision on its plan: the input of every `outcome` function.
#[derive(Clone, Copy, Debug)]
pub struct DecidedTake {
    /// The take, with the units that were granted, or one if none were.
    pub take: Take,
    /// Whether this check, alone, admits it.
    pub admitted: bool,
    /// Whether it was consumed.
    pub consumed: bool,
}

impl DecidedTake {
    const fn outcome(&self, limit: u64) -> Outcome {
        Outcome {
            admitted: self.admitted,
            limit,
            remaining: limit,
            retry_after: None,
            reset_after: Duration::ZERO,
            delay: Duration::ZERO,
            in_grace: false,
        }
    }
}

/// Decides `op` on `state`, and changes nothing.
#[inline(always)]
pub fn decide(state: Option<&State>, limit: &Limit, now: Timestamp, op: Op) -> OpResult {
    #[inline(always)]
    fn decide<K: Kind>(kind: &K, state: Option<&State>, now: Timestamp, op: Op) -> OpResult {
        kind.apply(state.and_then(K::state), now, op).result()
    }
    if matches!(state, Some(State::WithHolds(_))) || matches!(op, Op::Hold(_)) {
        return holds::decide(state, limit, now, op).result();
    }
    with_kind!(limit, kind => decide(kind, state, now, op))
}

/// Decides `op` on `state`, and changes it, or makes one.
pub fn apply(state: &mut Option<State>, limit: &Limit, now: Timestamp, op: Op) -> OpResult {
    let Some(state) = state else {
        let result = decide(None, limit, now, op);
        *state = State::new(limit, now, op);
        return result;
    };
    state.apply(limit, now, op)
}

/// The largest number of units, up to `take.units`, that would be admitted.
pub fn room(state: Option<&State>, limit: &Limit, now: Timestamp, take: Take) -> u64 {
    fn room<K: Kind>(kind: &K, state: Option<&State>, now: Timestamp, take: Take) -> u64 {
        kind.room(state.and_then(K::state), now, take)
    }
    if let Some(State::WithHolds(state)) = state {
        return holds::room(state, limit, now, take);
    }
    with_kind!(limit, kind => room(kind, state, now, take))
}

/// The outcome for the caller, from the state before the decision. Holds are not part of it.
#[inline(always)]
pub fn outcome(state: Option<&State>, limit: &Limit, now: Timestamp, decided: DecidedTake) -> Outcome {
    #[inline(always)]
    fn outcome<K: Kind>(kind: &K, state: Option<&State>, now: Timestamp, decided: DecidedTake) -> Outcome {
        kind.outcome(state.and_then(K::state), now, decided)
    }
    let state = holds::limit_state(state);
    with_kind!(limit, kind => outcome(kind, state, now, decided))
}

/// Where a take is consumed, for a later refund.
#[inline(always)]
pub fn position(state: Option<&State>, limit: &Limit, now: Timestamp, take: Take) -> TakePosition {
    #[inline(always)]
    fn position<K: Kind>(kind: &K, state: Option<&State>, now: Timestamp, take: Take) -> TakePosition {
        kind.position(state.and_then(K::state), now, take)
    }
    let state = holds::limit_state(state);
    with_kind!(limit, kind => position(kind, state, now, take))
}

/// The first instant, in microseconds, at which `state` is equivalent to none.
#[inline(always)]
pub fn expiry(state: &State, limit: &Limit) -> u64 {
    #[inline(always)]
    fn expiry<K: Kind>(kind: &K, state: &State) -> u64 {
        // A state of another kind counts as expired.
        K::state(state).map_or(0, |state| kind.expiry(state))
    }
    if let State::WithHolds(state) = state {
        return state.expiry(limit);
    }
    with_kind!(limit, kind => expiry(kind, state))
}

/// The first instant, in microseconds, of the period that counts now. 0 for limits without periods of the clock or the calendar.
fn period_start(state: Option<&State>, limit: &Limit, now: Timestamp) -> u64 {
    fn period_start<K: Kind>(kind: &K, state: Option<&State>, now: Timestamp) -> u64 {
        kind.period_start(state.and_then(K::state), now)
    }
    with_kind!(limit, kind => period_start(kind, state, now))
}

/// Where a charge counts for what was held at `at`, before the [period](period_start) of now. `None` if nowhere.
fn late_position(state: Option<&State>, limit: &Limit, now: Timestamp, at: u64) -> Option<TakePosition> {
    fn late_position<K: Kind>(kind: &K, state: Option<&State>, now: Timestamp, at: u64) -> Option<TakePosition> {
        kind.late_position(state.and_then(K::state), now, at)
    }
    with_kind!(limit, kind => late_position(kind, state, now, at))
}
