//! The fixed window: so many units in each window of the clock, counted from the Unix epoch, or of the calendar.
//!
//! With a limit of L in windows that begin at s(k), for every window k:
//!
//! ```text
//! admitted(s(k), s(k+1))  ≤  L
//! s(k) = kW for windows of a length W; for months and years, the first instant of the k-th since 1970, in UTC
//! ```
//!
//! Error bound against a rolling window: an interval of length W that straddles a boundary may see up to 2·L, L just
//! before it and L just after it. That is the price of the simplest limit; where it matters, take a sliding one.
//!
//! The state is the index of a window and what was counted in it.

use super::{Applied, Calendar, MARGIN_MICROS, Op, Outcome, Standing, Take, span_micros};
use crate::limit::{LimitError, whole_micros};
use crate::{Timestamp, Window};
use std::time::Duration;

/// The parameters of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u64,
    calendar: Calendar,
}

/// What was counted in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Which window: the number of whole windows (spans, months or years) since the epoch.
    pub index: u64,
    /// Units counted in it.
    pub count: u64,
}

impl FixedWindow {
    pub(crate) fn new(limit: u64, window: Window) -> Result<Self, LimitError> {
        LimitError::check_amount("fixed_window.limit", limit)?;
        Ok(Self { limit, calendar: window.calendar(|span| whole_micros("fixed_window.window", span))? })
    }

    /// Units allowed in a window.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a window lasts.
    pub const fn window(&self) -> Window {
        Window::of(self.calendar)
    }

    /// The length of a window in microseconds; of months and years, that of the longest.
    pub const fn window_micros(&self) -> u64 {
        self.calendar.longest()
    }

    /// The number of months in a window of the calendar; none for one that is a span.
    pub const fn months(&self) -> Option<u32> {
        self.calendar.months()
    }

    /// The window as `fixed_window.lua` takes it: microseconds, or minus the number of months.
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

    /// The state as it counts now, and whether it was rebased.
    #[inline(always)]
    pub(super) fn settle(&self, state: Option<State>, now: Timestamp) -> (State, bool) {
        let index = self.calendar.index_of(now);
        // Without a count it is as good as none, whatever window it was written in.
        match state.filter(|state| state.count > 0) {
            Some(state) if state.index > index && self.start_of(state.index) - now.as_micros() > MARGIN_MICROS => {
                (State { index, ..state }, true)
            }
            Some(state) if state.index >= index => (state, false),
            _ => (State { index, count: 0 }, false),
        }
    }

    const fn left(&self, state: State) -> u64 {
        self.limit.saturating_sub(state.count)
    }
}

/// Decides `op` on `state`. Twin: `fixed_window.lua`.
pub fn apply(state: Option<State>, limit: &FixedWindow, now: Timestamp, op: Op) -> Applied<State> {
    let (settled, rebased) = limit.settle(state, now);
    let left = limit.left(settled);
    let with = |count: u64| Some(State { count, ..settled });
    match op {
        Op::Take(take) if take.total() == 0 => Applied::admitted(None),
        Op::Take(take) if take.total() <= left => Applied::admitted(with(settled.count + take.total())),
        Op::Take(_) => Applied::denied(if rebased { with(settled.count) } else { None }),
        Op::Charge { cost } => {
            let counted = cost.min(left);
            Applied::changed(if counted > 0 { with(settled.count + counted) } else { None })
        }
        Op::Refund { cost, place } => {
            let back = if settled.index == place.position() { cost.min(settled.count) } else { 0 };
            Applied::changed(if back > 0 { with(settled.count - back) } else { None })
        }
    }
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `fixed_window.lua`.
pub fn room(state: Option<State>, limit: &FixedWindow, now: Timestamp, take: Take) -> u64 {
    let (settled, _) = limit.settle(state, now);
    limit.left(settled).checked_div(take.cost).unwrap_or(take.units).min(take.units)
}

/// What a caller is told, from the state that was found.
pub fn outcome(state: Option<State>, limit: &FixedWindow, now: Timestamp, standing: Standing) -> Outcome {
    let (mut settled, _) = limit.settle(state, now);
    if standing.consumed {
        settled.count += standing.take.total();
    }
    let end = span_micros(limit.start_of(settled.index + 1) - now.as_micros());
    Outcome {
        remaining: limit.left(settled),
        retry_after: (!standing.admitted && standing.take.total() <= limit.limit).then_some(end),
        reset_after: if settled.count > 0 { end } else { Duration::ZERO },
        ..standing.outcome(limit.limit)
    }
}

/// The first instant at which `state` is as good as none.
pub fn expiry(state: State, limit: &FixedWindow) -> u64 {
    limit.start_of(state.index + 1)
}
