//! The limits: one pure function each, with its twin in Lua in the file beside it.
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
pub mod leaky_bucket;
pub mod lua;
mod op;
pub mod penalty;
pub mod quota;
pub mod sliding_log;
pub mod sliding_window;
mod state;
mod stored_state;
pub mod token_bucket;

pub(crate) use calendar::Calendar;
pub use fractional_micros::FractionalMicros;
pub(crate) use holds::StateWithHolds;
pub use op::{AdjustmentOutcome, HoldOp, Op, OpResult, Take, TakePosition};
pub use state::{Change, State, StateView};
pub use stored_state::StoredState;

use std::time::Duration;

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

/// Decides `op` on `state`.
#[inline(always)]
pub fn apply(state: Option<&State>, limit: &Limit, now: Timestamp, op: Op) -> OpResult<Change> {
    if matches!(state, Some(State::WithHolds(_))) || matches!(op, Op::Hold(_)) {
        return holds::apply(state, limit, now, op);
    }
    match limit {
        Limit::TokenBucket(limit) => {
            token_bucket::apply(state.and_then(State::bucket), limit, now, op).map(Change::Bucket)
        }
        Limit::LeakyBucket(limit) => {
            leaky_bucket::apply(state.and_then(State::slot), limit, now, op).map(|slot| Change::Bucket(slot.into()))
        }
        Limit::FixedWindow(limit) => {
            fixed_window::apply(state.and_then(State::window), limit, now, op).map(Change::Window)
        }
        Limit::SlidingLog(limit) => sliding_log::apply(state.and_then(State::log), limit, now, op).map(Change::Log),
        Limit::SlidingWindow(limit) => sliding_window::apply(state.and_then(State::slices), limit, now, op)
            .map(|slices| Change::Slices(Box::new(slices))),
        Limit::Concurrency(limit) => {
            concurrency::apply(state.and_then(State::leases), limit, now, op).map(Change::Leases)
        }
        Limit::Quota(limit) => quota::apply(state.and_then(State::quota), limit, now, op).map(Change::Quota),
        Limit::Penalty(penalty) => {
            penalty::apply(state.and_then(State::penalty), penalty, now, op).map(Change::Penalty)
        }
    }
}

/// The largest number of units, up to `take.units`, that would be admitted.
pub fn room(state: Option<&State>, limit: &Limit, now: Timestamp, take: Take) -> u64 {
    if let Some(State::WithHolds(state)) = state {
        return holds::room(state, limit, now, take);
    }
    match limit {
        Limit::TokenBucket(limit) => token_bucket::room(state.and_then(State::bucket), limit, now, take),
        Limit::LeakyBucket(limit) => leaky_bucket::room(state.and_then(State::slot), limit, now, take),
        Limit::FixedWindow(limit) => fixed_window::room(state.and_then(State::window), limit, now, take),
        Limit::SlidingLog(limit) => sliding_log::room(state.and_then(State::log), limit, now, take),
        Limit::SlidingWindow(limit) => sliding_window::room(state.and_then(State::slices), limit, now, take),
        Limit::Concurrency(limit) => concurrency::room(state.and_then(State::leases), limit, now, take),
        Limit::Quota(limit) => quota::room(state.and_then(State::quota), limit, now, take),
        Limit::Penalty(penalty) => penalty::room(state.and_then(State::penalty), penalty, now, take),
    }
}

/// The same operation, but a charge makes no debt: it consumes at most what is left. So a denied request counts where each check counts on
/// its own, since its client could add to the debt without end; and so do charges to an overflow bucket, since others share it.
pub fn without_debt(state: Option<&State>, limit: &Limit, now: Timestamp, op: Op) -> Op {
    match (limit, op) {
        (Limit::Quota(_), Op::Charge { cost, .. }) => {
            // Like any charge, it does not depend on what others hold.
            let cost = room(holds::limit_state(state), limit, now, Take::new(1, cost));
            Op::Charge { cost, position: TakePosition::default() }
        }
        _ => op,
    }
}

/// The outcome for the caller, from the state before the decision.
#[inline(always)]
pub fn outcome(view: &StateView<'_>, limit: &Limit, now: Timestamp, decided: DecidedTake) -> Outcome {
    match limit {
        Limit::TokenBucket(limit) => token_bucket::outcome(view.bucket(), limit, now, decided),
        Limit::LeakyBucket(limit) => leaky_bucket::outcome(view.slot(), limit, now, decided),
        Limit::FixedWindow(limit) => fixed_window::outcome(view.window(), limit, now, decided),
        Limit::SlidingLog(limit) => sliding_log::outcome(view.log(), limit, now, decided),
        Limit::SlidingWindow(limit) => sliding_window::outcome(view.slices(), limit, now, decided),
        Limit::Concurrency(limit) => concurrency::outcome(view.leases(), limit, now, decided),
        Limit::Quota(limit) => quota::outcome(view.quota(), limit, now, decided),
        Limit::Penalty(penalty) => penalty::outcome(view.penalty(), penalty, now, decided),
    }
}

/// Where a take is consumed, for a later refund.
#[inline(always)]
pub fn position(view: &StateView<'_>, limit: &Limit, now: Timestamp, take: Take) -> TakePosition {
    match limit {
        Limit::TokenBucket(limit) => token_bucket::position(view.bucket(), limit, now, take),
        Limit::LeakyBucket(limit) => token_bucket::apply(view.bucket(), limit.bucket(), now, Op::Take(take))
            .change
            .map_or_else(TakePosition::default, |state| TakePosition::from_slot(state.full)),
        Limit::FixedWindow(limit) => TakePosition::from_index(limit.normalize(view.window(), now).0.index),
        Limit::SlidingLog(_) => TakePosition::from_index(sliding_log::current(view.log().newest, now)),
        Limit::SlidingWindow(limit) => TakePosition::from_index(limit.normalize(view.slices(), now).state.index),
        Limit::Concurrency(_) => TakePosition::from_index(take.owner),
        Limit::Quota(limit) => TakePosition::from_index(limit.normalize(view.quota(), now).0.index),
        // It consumes nothing.
        Limit::Penalty(_) => TakePosition::default(),
    }
}

/// The first instant, in microseconds, of the window that counts now. 0 for limits without windows of the clock or the calendar.
fn period_start(state: Option<&State>, limit: &Limit, now: Timestamp) -> u64 {
    match limit {
        Limit::FixedWindow(limit) => {
            let (window, _) = limit.normalize(state.and_then(State::window), now);
            limit.start_of(window.index)
        }
        Limit::Quota(limit) => limit.start_at(now),
        _ => 0,
    }
}

/// The charge of a cost that was reserved at `at`. `since` is the [start](period_start) of the current window. `None` if the window in
/// which it was reserved is over.
fn charge_at(state: Option<&State>, limit: &Limit, now: Timestamp, cost: u64, at: u64, since: u64) -> Option<Op> {
    let position = match limit {
        Limit::FixedWindow(_) if at < since => return None,
        Limit::Quota(quota) if at < since => quota.late_position(state.and_then(State::quota), now, at),
        _ => TakePosition::default(),
    };
    Some(Op::Charge { cost, position })
}

/// The first instant, in microseconds, at which `state` is equivalent to none.
#[inline(always)]
pub fn expiry(state: &State, limit: &Limit) -> u64 {
    match (state, limit) {
        (State::Bucket(full), _) => full.ceil(),
        (State::RefundedBucket(state), Limit::TokenBucket(limit)) => token_bucket::expiry(**state, limit),
        (State::Window(window), Limit::FixedWindow(limit)) => fixed_window::expiry(*window, limit),
        (State::Log(log), Limit::SlidingLog(limit)) => sliding_log::expiry(log, limit),
        (State::Slices(slices), Limit::SlidingWindow(limit)) => sliding_window::expiry(slices, limit),
        (State::Leases(leases), Limit::Concurrency(limit)) => concurrency::expiry(leases, limit),
        (state @ (State::Quota { .. } | State::QuotaWithDebt(_)), Limit::Quota(limit)) => {
            state.quota().map_or(0, |state| quota::expiry(state, limit))
        }
        (State::Penalty(state), Limit::Penalty(penalty)) => penalty::expiry(*state, penalty),
        (State::WithHolds(state), _) => state.expiry(limit),
        // Unreachable: the name of a key contains the kind of limit. Such a state counts as expired.
        _ => 0,
    }
}
