//! The fixed window: a number of units in each window. Windows are aligned to the Unix epoch, or are calendar months or years.
//!
//! With a limit of L in windows that begin at s(k), for every window k:
//!
//! ```text
//! admitted(s(k), s(k+1))  ≤  L          (admitted: and not given back)
//! s(k) = kW for windows of a length W; for months and years, the first instant of the k-th since 1970, in UTC
//! ```
//!
//! Error bound against a rolling window: an interval of length W that straddles a boundary may see up to 2·L, L just
//! before it and L just after it. Use a sliding limit where this matters.
//!
//! The state is the index of a window and the units counted in it. A refund subtracts from the window of its take, as long as that is
//! the current one.

use super::{CLOCK_MARGIN_MICROS, Calendar, DecidedTake, Op, OpResult, Outcome, Take};
use crate::Timestamp;
use crate::limit::{LimitError, whole_micros};
use crate::limits::Window;
use std::time::Duration;

/// The parameters of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u64,
    calendar: Calendar,
}

/// The units counted in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindowState {
    /// The number of windows since the epoch before this one.
    pub index: u64,
    /// Units counted in it.
    pub count: u64,
}

impl FixedWindow {
    pub(crate) fn new(limit: u64, window: Window) -> Result<Self, LimitError> {
        LimitError::check_amount("fixed_window.limit", limit)?;
        Ok(Self { limit, calendar: window.calendar(|span| whole_micros("fixed_window.window", span))? })
    }

    /// Units allowed in each window.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window.
    pub const fn window(&self) -> Window {
        Window::from_calendar(self.calendar)
    }

    /// The length of the window in microseconds; for months and years, that of the longest.
    pub(crate) const fn window_micros(&self) -> u64 {
        self.calendar.max_micros()
    }

    /// The number of calendar months in the window; `None` for a fixed length.
    pub const fn months(&self) -> Option<u32> {
        self.calendar.months()
    }

    /// The window as an argument of `fixed_window.lua`: microseconds, or the negative number of months.
    pub const fn window_number(&self) -> i64 {
        self.calendar.number()
    }

    pub(crate) const fn calendar(&self) -> Calendar {
        self.calendar
    }

    /// The first instant of a window, in microseconds.
    #[inline(always)]
    pub(super) const fn start_of(&self, index: u64) -> u64 {
        self.calendar.start_of(index)
    }

    /// The state at `now`, and whether it was rebased.
    #[inline(always)]
    pub(super) fn normalize(&self, state: Option<FixedWindowState>, now: Timestamp) -> (FixedWindowState, bool) {
        let index = self.calendar.index_of(now);
        // A state without a count is equivalent to none.
        match state.filter(|state| state.count > 0) {
            Some(state)
                if state.index > index && self.start_of(state.index) - now.as_micros() > CLOCK_MARGIN_MICROS =>
            {
                (FixedWindowState { index, ..state }, true)
            }
            Some(state) if state.index >= index => (state, false),
            _ => (FixedWindowState { index, count: 0 }, false),
        }
    }

    const fn left(&self, state: FixedWindowState) -> u64 {
        self.limit.saturating_sub(state.count)
    }
}

/// Decides `op` on `state`. Twin: `fixed_window.lua`.
pub fn apply(
    state: Option<FixedWindowState>,
    limit: &FixedWindow,
    now: Timestamp,
    op: Op,
) -> OpResult<FixedWindowState> {
    let (current, rebased) = limit.normalize(state, now);
    let left = limit.left(current);
    let with = |count: u64| Some(FixedWindowState { count, ..current });
    match op {
        Op::Take(take) if take.total() == 0 => OpResult::admitted(None),
        Op::Take(take) if take.total() <= left => OpResult::admitted(with(current.count + take.total())),
        Op::Take(_) => OpResult::denied(if rebased { with(current.count) } else { None }),
        Op::Charge { cost, .. } => {
            let counted = cost.min(left);
            OpResult::admitted(if counted > 0 { with(current.count + counted) } else { None })
        }
        // Nothing of it is held.
        Op::Renew { .. } | Op::Hold(_) => OpResult::denied(None),
        Op::Refund { cost, position } => {
            let back = if current.index == position.index() { cost.min(current.count) } else { 0 };
            OpResult::admitted(if back > 0 { with(current.count - back) } else { None })
        }
    }
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `fixed_window.lua`.
pub fn room(state: Option<FixedWindowState>, limit: &FixedWindow, now: Timestamp, take: Take) -> u64 {
    let (current, _) = limit.normalize(state, now);
    limit.left(current).checked_div(take.cost).unwrap_or(take.units).min(take.units)
}

/// The outcome for the caller, from the state before the decision.
pub fn outcome(state: Option<FixedWindowState>, limit: &FixedWindow, now: Timestamp, decided: DecidedTake) -> Outcome {
    let (mut current, _) = limit.normalize(state, now);
    if decided.consumed {
        current.count += decided.take.total();
    }
    let end = Duration::from_micros(limit.start_of(current.index + 1) - now.as_micros());
    Outcome {
        remaining: limit.left(current),
        retry_after: (!decided.admitted && decided.take.total() <= limit.limit).then_some(end),
        reset_after: if current.count > 0 { end } else { Duration::ZERO },
        ..decided.outcome(limit.limit)
    }
}

/// The first instant, in microseconds, at which `state` is equivalent to none.
pub fn expiry(state: FixedWindowState, limit: &FixedWindow) -> u64 {
    limit.start_of(state.index + 1)
}
