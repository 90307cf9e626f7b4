//! Operations on the states that a script has found.

use tidegate::spi::algorithm::{self, Change, Op, OpResult, State, StoredState, Take};
use tidegate::spi::{Check, Plan};
use tidegate::{Limit, StoreError, Timestamp};

use super::malformed;

/// `state` after `units` of `check` were taken. An error if it does not have them, or is a summary.
pub(super) fn take(
    plan: &Plan<'_>,
    check: &Check<'_>,
    now: Timestamp,
    state: StoredState,
    units: u64,
) -> Result<StoredState, StoreError> {
    let mut state = state;
    let result = apply_take(&state, check.gate().limit(), now, plan.take(check, units))?;
    if let Some(change) = result.change {
        set_limit_state(&mut state, State::new(change));
    }
    result.admitted.then_some(state).ok_or_else(malformed)
}

/// Decides a take on `state`. The change is that of the limit.
pub(super) fn apply_take(
    state: &StoredState,
    limit: &Limit,
    now: Timestamp,
    take: Take,
) -> Result<OpResult<Change>, StoreError> {
    let StoredState::WithHolds { inner, held, .. } = state else {
        return Ok(algorithm::apply(known_state(state)?, limit, now, Op::Take(take)));
    };
    let inner = known_state(inner)?;
    let alone = algorithm::apply(inner, limit, now, Op::Take(take));
    let with_held = Op::Take(Take::one(take.total().saturating_add(*held)));
    let is_denied_by_holds =
        alone.admitted && take.total() > 0 && !algorithm::apply(inner, limit, now, with_held).admitted;
    Ok(if is_denied_by_holds { OpResult { admitted: false, change: None } } else { alone })
}

/// Sets the state of the limit. Holds beside it stay.
pub(super) fn set_limit_state(state: &mut StoredState, limit_state: State) {
    match state {
        StoredState::WithHolds { inner, .. } => **inner = StoredState::State(limit_state),
        state => *state = StoredState::State(limit_state),
    }
}

/// The penalty of `check` after a strike on `state`: whether it still admits, and the new state.
pub(super) fn strike(
    check: &Check<'_>,
    now: Timestamp,
    state: &StoredState,
) -> Result<(bool, StoredState), StoreError> {
    let limit = check.gate().limit();
    let struck = state.after_strike(limit, now).ok_or_else(malformed)?;
    let admitted = algorithm::apply(known_state(&struck)?, limit, now, Op::Take(Take::one(0))).admitted;
    Ok((admitted, struck))
}

/// The state, if there is one. An error for a log or leases: of these, the reply has only a summary, and takes from them are never
/// counted.
pub(super) fn known_state(state: &StoredState) -> Result<Option<&State>, StoreError> {
    match state {
        StoredState::Fresh => Ok(None),
        StoredState::State(state) => Ok(Some(state)),
        StoredState::Log(_) | StoredState::Leases(_) | StoredState::WithHolds { .. } => Err(malformed()),
    }
}
