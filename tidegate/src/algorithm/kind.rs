//! `Kind`: what a kind of limit is made of. Each variant of [`Limit`] has one, in one file with its Lua twin beside it.
//!
//! [`with_kind`](crate::limit::with_kind) is the only place that names all of them.

use super::lua::{LuaFunction, LuaInput};
use super::{DecidedTake, Effect, Op, Outcome, State, Take, TakePosition};
use crate::Timestamp;

/// A kind of limit: pure functions of its parameters, a state and the time.
pub(crate) trait Kind {
    /// The state of a key: a copy of a small one, a reference to a long one.
    type State<'s>: Copy;
    /// What an operation makes of the state: a new one, or an edit of a long one.
    type Change;

    /// The twin in Lua.
    const LUA: LuaFunction;

    /// The state of this kind. `None` for another one: the name of a key contains the kind, so that does not occur.
    fn state(state: &State) -> Option<Self::State<'_>>;

    /// The state after `change` without a previous one.
    fn create(change: Self::Change) -> State;

    /// Applies `change`.
    #[inline(always)]
    fn edit(state: &mut State, change: Self::Change) {
        *state = Self::create(change);
    }

    /// Decides `op` on `state`. Without a state, it is a fresh one. No operation here is a [`HoldOp`](super::HoldOp).
    fn apply(&self, state: Option<Self::State<'_>>, now: Timestamp, op: Op) -> Effect<Self::Change>;

    /// The largest number of units, up to those of `take`, that would be admitted.
    fn room(&self, state: Option<Self::State<'_>>, now: Timestamp, take: Take) -> u64;

    /// The outcome for the caller, from the state before the decision.
    fn outcome(&self, state: Option<Self::State<'_>>, now: Timestamp, decided: DecidedTake) -> Outcome;

    /// Where a take that is admitted on `state` is consumed, for a later refund.
    fn position(&self, state: Option<Self::State<'_>>, now: Timestamp, take: Take) -> TakePosition;

    /// The first instant, in microseconds, at which `state` is equivalent to none.
    fn expiry(&self, state: Self::State<'_>) -> u64;

    /// The first instant, in microseconds, of the period of the clock or the calendar that counts now. 0 without periods.
    fn period_start(&self, _state: Option<Self::State<'_>>, _now: Timestamp) -> u64 {
        0
    }

    /// Where a charge counts for what was held at `at`, before the [period](Self::period_start) of now. `None` if nowhere.
    fn late_position(&self, _state: Option<Self::State<'_>>, _now: Timestamp, _at: u64) -> Option<TakePosition> {
        None
    }

    /// Reads what the twin writes as a value, or replies in its place. `None` if no version of this library writes that.
    fn decode(&self, value: &[u8]) -> Option<State>;

    /// Passes the arguments of the twin after `units` to `push`: cost, position and parameters.
    fn push_numbers(&self, input: LuaInput, now: impl FnOnce() -> Timestamp, push: impl FnMut(f64));
}
