//! Operations on the states that a script has found.

use tidegate::spi::algorithm::{self, Op, State, Take};
use tidegate::spi::{Check, Plan};
use tidegate::{StoreError, Timestamp};

use super::malformed;

/// Takes `units` of `check` from `state`. An error if it does not have them, or is a summary.
pub(super) fn take(
    plan: &Plan<'_>,
    check: &Check<'_>,
    now: Timestamp,
    state: &mut Option<State>,
    units: u64,
) -> Result<(), StoreError> {
    let take = Op::Take(plan.take(check, units));
    let result = algorithm::apply(require_whole(state)?, check.gate().limit(), now, take);
    result.admitted.then_some(()).ok_or_else(malformed)
}

/// Strikes the penalty of `check`, and returns whether it still admits.
pub(super) fn strike(check: &Check<'_>, now: Timestamp, state: &mut Option<State>) -> Result<bool, StoreError> {
    let limit = check.gate().limit();
    if !algorithm::apply(state, limit, now, Op::Strike).changes {
        return Err(malformed());
    }
    Ok(algorithm::decide(state.as_ref(), limit, now, Op::Take(Take::one(0))).admitted)
}

/// An error for the summary of a log or of leases: takes from these are never counted.
pub(super) fn require_whole(state: &mut Option<State>) -> Result<&mut Option<State>, StoreError> {
    if state.as_ref().is_some_and(State::is_summary) { Err(malformed()) } else { Ok(state) }
}

/// The first instant, in microseconds, at which `state` is equivalent to none; now if nothing counts in it. `None` if there is none, which
/// may be beside no holds.
pub(super) fn expiry(state: Option<&State>, check: &Check<'_>, now: Timestamp) -> Option<u64> {
    let state = state?;
    match (algorithm::expiry(state, check.gate().limit()), state) {
        (0, State::WithHolds(_)) if !state.is_summary() => None,
        (0, _) => Some(now.as_micros()),
        (expiry, _) => Some(expiry),
    }
}
