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

use super::lua::{LuaFunction, LuaInput};
use super::value::{NUMBER_BOUND, split_number};
use super::{CLOCK_MARGIN_MICROS, Calendar, DecidedTake, Effect, Kind, Op, Outcome, State, Take, TakePosition};
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

impl Kind for FixedWindow {
    type State<'s> = FixedWindowState;
    type Change = FixedWindowState;

    const LUA: LuaFunction = LuaFunction {
        number: 3,
        name: "fixed_window",
        text: include_str!("fixed_window.lua"),
        needs: "",
        numbers: 4,
        refund_numbers: 0,
    };

    fn state(state: &State) -> Option<FixedWindowState> {
        if let State::Window(state) = state { Some(*state) } else { None }
    }

    fn create(change: FixedWindowState) -> State {
        State::Window(change)
    }

    fn apply(&self, state: Option<FixedWindowState>, now: Timestamp, op: Op) -> Effect<FixedWindowState> {
        let (current, rebased) = self.normalize(state, now);
        let left = self.left(current);
        let with = |count: u64| Some(FixedWindowState { count, ..current });
        match op {
            Op::Take(take) if take.total() == 0 => Effect::admitted(None),
            Op::Take(take) if take.total() <= left => Effect::admitted(with(current.count + take.total())),
            Op::Take(_) => Effect::denied(if rebased { with(current.count) } else { None }),
            Op::Charge { cost, .. } | Op::Fill { cost } => {
                let counted = cost.min(left);
                Effect::admitted(if counted > 0 { with(current.count + counted) } else { None })
            }
            Op::Refund { cost, position } => {
                let back = if current.index == position.index() { cost.min(current.count) } else { 0 };
                Effect::admitted(if back > 0 { with(current.count - back) } else { None })
            }
            // Nothing of it is held.
            Op::Renew { .. } | Op::Hold(_) | Op::Strike => Effect::denied(None),
        }
    }

    fn room(&self, state: Option<FixedWindowState>, now: Timestamp, take: Take) -> u64 {
        let (current, _) = self.normalize(state, now);
        self.left(current).checked_div(take.cost).unwrap_or(take.units).min(take.units)
    }

    fn outcome(&self, state: Option<FixedWindowState>, now: Timestamp, decided: DecidedTake) -> Outcome {
        let (mut current, _) = self.normalize(state, now);
        if decided.consumed {
            current.count += decided.take.total();
        }
        let end = Duration::from_micros(self.start_of(current.index + 1) - now.as_micros());
        Outcome {
            remaining: self.left(current),
            retry_after: (!decided.admitted && decided.take.total() <= self.limit).then_some(end),
            reset_after: if current.count > 0 { end } else { Duration::ZERO },
            ..decided.outcome(self.limit)
        }
    }

    fn position(&self, state: Option<FixedWindowState>, now: Timestamp, _: Take) -> TakePosition {
        TakePosition::from_index(self.normalize(state, now).0.index)
    }

    fn expiry(&self, state: FixedWindowState) -> u64 {
        self.start_of(state.index + 1)
    }

    fn period_start(&self, state: Option<FixedWindowState>, now: Timestamp) -> u64 {
        self.start_of(self.normalize(state, now).0.index)
    }

    fn decode(&self, value: &[u8]) -> Option<State> {
        let width = if self.window_micros() < 1_000_000 { 16 } else { 10 };
        let (count, index) = split_number(value, width)?;
        (self.start_of(index) < NUMBER_BOUND).then_some(State::Window(FixedWindowState { index, count }))
    }

    fn push_numbers(&self, input: LuaInput, _: impl FnOnce() -> Timestamp, mut push: impl FnMut(f64)) {
        for number in [input.cost, input.position.index(), self.limit] {
            push(number as f64);
        }
        push(self.calendar.number() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2^53 microseconds end in June 2255.
    #[test]
    fn calendar_windows_are_decoded_up_to_the_largest_number() {
        for (window, last) in [(Window::MONTH, 285 * 12 + 5), (Window::YEAR, 285)] {
            let limit = FixedWindow::new(9, window).unwrap();
            let decode = |index: u64| limit.decode(format!("7{index:010}").as_bytes());
            let expected = State::Window(FixedWindowState { index: last, count: 7 });
            assert_eq!((decode(last), decode(last + 1), decode(9_999_999_999)), (Some(expected), None, None));
        }
    }
}
