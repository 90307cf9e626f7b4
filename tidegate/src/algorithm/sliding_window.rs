//! The sliding window counter: a number of units in any window, estimated from counts per slice.
//!
//! With a limit of L in a window of W, cut into S slices of length W/S, at the fraction x of a slice:
//!
//! ```text
//! estimate  =  this slice + the S − 1 before it + ⌈ the one before those · (1 − x) ⌉
//! ```
//!
//! A cost c is admitted if and only if estimate + c ≤ L. One slice is the classic estimate from two windows.
//!
//! Error bound, for the exact count N(T) of what was admitted, and not given back, in the last T before a decision:
//!
//! ```text
//! N(W − W/S)  ≤  estimate  ≤  N(W + W/S)
//! ```
//!
//! so it never admits more than L in any W − W/S, never refuses what an exact log over W + W/S would admit, and in any W
//! it admits at most L plus the units of one slice.
//!
//! The state is the index of the newest slice and the counts from it backwards. A refund subtracts from the slice of its take, as
//! long as that counts.

use std::time::Duration;

use smallvec::SmallVec;

use super::lua::{LuaFunction, LuaInput};
use super::value::{NUMBER_BOUND, parse_list};
use super::{CLOCK_MARGIN_MICROS, DecidedTake, Effect, Kind, Op, Outcome, State, Take, TakePosition};
use crate::Timestamp;
use crate::limit::{LimitError, MAX_SLICES, whole_micros};

/// The parameters of a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    limit: u64,
    slice: u64,
    slices: u64,
}

/// Counts per slice, newest first, without the zeros at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingWindowState {
    index: u64,
    counts: SmallVec<[u64; 7]>,
}

/// A state at one instant.
struct CurrentSlices {
    state: SlidingWindowState,
    elapsed: u64,
    rebased: bool,
}

impl SlidingWindow {
    pub(crate) fn new(limit: u64, window: Duration, slices: u64) -> Result<Self, LimitError> {
        LimitError::check_amount("sliding_window.limit", limit)?;
        let window = whole_micros("sliding_window.window", window)?;
        if slices == 0 {
            let reason = "(the classic estimate from two windows)";
            return Err(LimitError::too_small("sliding_window.slices", 0, 1, reason));
        }
        if slices > MAX_SLICES {
            let reason = "(each is counted at every decision)";
            return Err(LimitError::too_large("sliding_window.slices", slices, MAX_SLICES, reason));
        }
        if !window.is_multiple_of(slices) {
            let fits = |slices: &u64| window.is_multiple_of(*slices);
            let near = (1..slices).rev().find(fits).into_iter().chain((slices..=MAX_SLICES).find(fits));
            let near: Vec<String> = near.map(|slices| slices.to_string()).collect();
            let problem = format!(
                "{slices} slices do not divide {:?} into whole microseconds; take {}",
                Duration::from_micros(window),
                near.join(" or ")
            );
            return Err(LimitError::new("sliding_window.slices", problem));
        }
        Ok(Self { limit, slice: window / slices, slices })
    }

    /// Units allowed in a window.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The length of the window.
    pub const fn window(&self) -> Duration {
        Duration::from_micros(self.window_micros())
    }

    /// The length of a slice.
    pub const fn slice(&self) -> Duration {
        Duration::from_micros(self.slice)
    }

    pub(crate) const fn window_micros(&self) -> u64 {
        self.slice * self.slices
    }

    /// The number of slices in a window.
    pub const fn slices(&self) -> u64 {
        self.slices
    }

    fn normalize(&self, state: Option<&SlidingWindowState>, now: Timestamp) -> CurrentSlices {
        let index = now.as_micros() / self.slice;
        let elapsed = now.as_micros() % self.slice;
        // A state without counts is equivalent to none.
        let Some(state) = state.filter(|state| !state.counts.is_empty()) else {
            return CurrentSlices {
                state: SlidingWindowState { index, ..SlidingWindowState::default() },
                elapsed,
                rebased: false,
            };
        };
        if state.index <= index {
            return CurrentSlices { state: self.advanced_to(state, index), elapsed, rebased: false };
        }
        if state.index * self.slice - now.as_micros() <= CLOCK_MARGIN_MICROS {
            return CurrentSlices { state: state.clone(), elapsed: 0, rebased: false };
        }
        CurrentSlices { state: state.rebased_to(index), elapsed, rebased: true }
    }

    /// The state at the start of slice `index`.
    fn advanced_to(&self, state: &SlidingWindowState, index: u64) -> SlidingWindowState {
        let passed = index - state.index;
        if passed > self.slices {
            return SlidingWindowState { index, ..SlidingWindowState::default() };
        }
        let mut counts: SmallVec<[u64; 7]> = SmallVec::from_elem(0, passed as usize);
        counts.extend(state.counts.iter().copied().take((self.slices + 1 - passed) as usize));
        SlidingWindowState { index, counts }.trimmed()
    }

    /// The units in the slices that count in full, and in the oldest slice, which counts in part.
    fn split(&self, counts: &[u64]) -> (u64, u64) {
        let whole = counts.iter().take(self.slices as usize).sum();
        (whole, counts.get(self.slices as usize).copied().unwrap_or(0))
    }

    fn estimate(&self, counts: &[u64], elapsed: u64) -> u64 {
        let (whole, oldest) = self.split(counts);
        let weighted = u128::from(oldest) * u128::from(self.slice - elapsed);
        whole + weighted.div_ceil(u128::from(self.slice)) as u64
    }

    fn left(&self, current: &CurrentSlices) -> u64 {
        self.limit.saturating_sub(self.estimate(&current.state.counts, current.elapsed))
    }

    /// The first instant, in microseconds, at which `cost` fits. The cost must be at most the limit.
    fn fits_at(&self, current: &CurrentSlices, cost: u64) -> u64 {
        let mut start = current.state.index * self.slice;
        let mut elapsed = current.elapsed;
        for passed in 0..=self.slices {
            let later = self.advanced_to(&current.state, current.state.index + passed);
            let (whole, oldest) = self.split(&later.counts);
            if let Some(room) = (self.limit - cost).checked_sub(whole) {
                // ⌈oldest·(slice − e)/slice⌉ ≤ room holds from this e on:
                let covered = (u128::from(room) * u128::from(self.slice)).checked_div(u128::from(oldest));
                let e = covered.map_or(0, |covered| u128::from(self.slice).saturating_sub(covered)) as u64;
                if e.max(elapsed) < self.slice {
                    return start + e.max(elapsed);
                }
            }
            start += self.slice;
            elapsed = 0;
        }
        start
    }
}

impl SlidingWindowState {
    /// A state with the counts of slice `index` and of the slices before it, newest first.
    pub fn new(index: u64, counts: impl IntoIterator<Item = u64>) -> Self {
        Self { index, counts: counts.into_iter().collect() }.trimmed()
    }

    /// The same counts, with those of slices after `index` moved into that slice.
    fn rebased_to(&self, index: u64) -> Self {
        let ahead = usize::try_from(self.index - index).unwrap_or(usize::MAX).min(self.counts.len());
        let kept = self.counts.get(ahead + 1..).unwrap_or_default();
        let mut counts: SmallVec<[u64; 7]> = SmallVec::new();
        counts.push(self.counts.iter().take(ahead.saturating_add(1)).sum());
        counts.extend_from_slice(kept);
        Self { index, counts }
    }

    fn trimmed(mut self) -> Self {
        while self.counts.last() == Some(&0) {
            self.counts.pop();
        }
        self
    }

    /// The same counts, with `count` in the slice that is `age` slices old.
    fn with_count(mut self, age: usize, count: u64) -> Self {
        if self.counts.len() <= age {
            self.counts.resize(age + 1, 0);
        }
        self.counts[age] = count;
        self.trimmed()
    }

    fn count(&self, age: usize) -> u64 {
        self.counts.get(age).copied().unwrap_or(0)
    }
}

impl Kind for SlidingWindow {
    type State<'s> = &'s SlidingWindowState;
    type Change = SlidingWindowState;

    const LUA: LuaFunction = LuaFunction {
        number: 5,
        name: "sliding_window",
        text: include_str!("sliding_window.lua"),
        needs: "",
        numbers: 5,
        refund_numbers: 0,
    };

    fn state(state: &State) -> Option<&SlidingWindowState> {
        if let State::Slices(state) = state { Some(state) } else { None }
    }

    fn create(change: SlidingWindowState) -> State {
        State::Slices(Box::new(change))
    }

    fn edit(state: &mut State, change: SlidingWindowState) {
        if let State::Slices(state) = state {
            **state = change;
        }
    }

    fn apply(&self, state: Option<&SlidingWindowState>, now: Timestamp, op: Op) -> Effect<SlidingWindowState> {
        let current = self.normalize(state, now);
        let left = self.left(&current);
        let CurrentSlices { state, rebased, .. } = current;
        let count = state.count(0);
        match op {
            Op::Take(take) if take.total() == 0 => Effect::admitted(None),
            Op::Take(take) if take.total() <= left => Effect::admitted(Some(state.with_count(0, count + take.total()))),
            Op::Take(_) => Effect::denied(rebased.then_some(state)),
            Op::Charge { cost, .. } | Op::Fill { cost } => {
                let counted = cost.min(left);
                Effect::admitted((counted > 0).then(|| state.with_count(0, count + counted)))
            }
            Op::Refund { cost, position } => {
                let age = state.index.checked_sub(position.index()).filter(|age| *age <= self.slices);
                let Some(age) = age.map(|age| age as usize) else {
                    return Effect::admitted(None);
                };
                let count = state.count(age);
                Effect::admitted((count > 0 && cost > 0).then(|| state.with_count(age, count.saturating_sub(cost))))
            }
            // Nothing of it is held.
            Op::Renew { .. } | Op::Hold(_) | Op::Strike => Effect::denied(None),
        }
    }

    fn room(&self, state: Option<&SlidingWindowState>, now: Timestamp, take: Take) -> u64 {
        let left = self.left(&self.normalize(state, now));
        left.checked_div(take.cost).unwrap_or(take.units).min(take.units)
    }

    fn outcome(&self, state: Option<&SlidingWindowState>, now: Timestamp, decided: DecidedTake) -> Outcome {
        let mut current = self.normalize(state, now);
        let total = decided.take.total();
        let retry = (!decided.admitted && total <= self.limit)
            .then(|| Duration::from_micros(self.fits_at(&current, total) - now.as_micros()));
        if decided.consumed && total > 0 {
            let count = current.state.count(0);
            current.state = current.state.with_count(0, count + total);
        }
        Outcome {
            remaining: self.left(&current),
            retry_after: retry,
            reset_after: Duration::from_micros(self.expiry(&current.state).saturating_sub(now.as_micros())),
            ..decided.outcome(self.limit)
        }
    }

    fn position(&self, state: Option<&SlidingWindowState>, now: Timestamp, _: Take) -> TakePosition {
        TakePosition::from_index(self.normalize(state, now).state.index)
    }

    fn expiry(&self, state: &SlidingWindowState) -> u64 {
        match state.counts.iter().position(|count| *count > 0) {
            Some(age) => (state.index - age as u64 + self.slices + 1) * self.slice,
            None => 0,
        }
    }

    fn decode(&self, value: &[u8]) -> Option<State> {
        let numbers = parse_list(value)?;
        let (index, counts) = numbers.split_first()?;
        index.checked_mul(self.slice).filter(|start| *start < NUMBER_BOUND)?;
        Some(State::Slices(Box::new(SlidingWindowState { index: *index, counts: counts.into() })))
    }

    fn push_numbers(&self, input: LuaInput, _: impl FnOnce() -> Timestamp, mut push: impl FnMut(f64)) {
        for number in [input.cost, input.position.index(), self.limit, self.slice, self.slices] {
            push(number as f64);
        }
    }
}
