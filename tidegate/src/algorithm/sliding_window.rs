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

use super::{CLOCK_MARGIN_MICROS, DecidedTake, Op, OpResult, Outcome, Take};
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
    pub(super) index: u64,
    pub(super) counts: SmallVec<[u64; 7]>,
}

/// A state at one instant.
pub(super) struct CurrentSlices {
    pub(super) state: SlidingWindowState,
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

    pub(crate) const fn slice_micros(&self) -> u64 {
        self.slice
    }

    /// The number of slices in a window.
    pub const fn slices(&self) -> u64 {
        self.slices
    }

    pub(super) fn normalize(&self, state: Option<&SlidingWindowState>, now: Timestamp) -> CurrentSlices {
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

/// Decides `op` on `state`. Twin: `sliding_window.lua`.
pub fn apply(
    state: Option<&SlidingWindowState>,
    limit: &SlidingWindow,
    now: Timestamp,
    op: Op,
) -> OpResult<SlidingWindowState> {
    let current = limit.normalize(state, now);
    let left = limit.left(&current);
    let CurrentSlices { state, rebased, .. } = current;
    let count = state.count(0);
    match op {
        Op::Take(take) if take.total() == 0 => OpResult::admitted(None),
        Op::Take(take) if take.total() <= left => OpResult::admitted(Some(state.with_count(0, count + take.total()))),
        Op::Take(_) => OpResult::denied(rebased.then_some(state)),
        Op::Charge { cost, .. } => {
            let counted = cost.min(left);
            OpResult::admitted((counted > 0).then(|| state.with_count(0, count + counted)))
        }
        // Nothing of it is held.
        Op::Renew { .. } | Op::Hold(_) => OpResult::denied(None),
        Op::Refund { cost, position } => {
            let age = state.index.checked_sub(position.index()).filter(|age| *age <= limit.slices);
            let Some(age) = age.map(|age| age as usize) else {
                return OpResult::admitted(None);
            };
            let count = state.count(age);
            OpResult::admitted((count > 0 && cost > 0).then(|| state.with_count(age, count.saturating_sub(cost))))
        }
    }
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `sliding_window.lua`.
pub fn room(state: Option<&SlidingWindowState>, limit: &SlidingWindow, now: Timestamp, take: Take) -> u64 {
    let left = limit.left(&limit.normalize(state, now));
    left.checked_div(take.cost).unwrap_or(take.units).min(take.units)
}

/// The outcome for the caller, from the state before the decision.
pub fn outcome(
    state: Option<&SlidingWindowState>,
    limit: &SlidingWindow,
    now: Timestamp,
    decided: DecidedTake,
) -> Outcome {
    let mut current = limit.normalize(state, now);
    let total = decided.take.total();
    let retry = (!decided.admitted && total <= limit.limit)
        .then(|| Duration::from_micros(limit.fits_at(&current, total) - now.as_micros()));
    if decided.consumed && total > 0 {
        let count = current.state.count(0);
        current.state = current.state.with_count(0, count + total);
    }
    Outcome {
        remaining: limit.left(&current),
        retry_after: retry,
        reset_after: Duration::from_micros(expiry(&current.state, limit).saturating_sub(now.as_micros())),
        ..decided.outcome(limit.limit)
    }
}

/// The first instant, in microseconds, at which `state` is equivalent to none.
pub fn expiry(state: &SlidingWindowState, limit: &SlidingWindow) -> u64 {
    match state.counts.iter().position(|count| *count > 0) {
        Some(age) => (state.index - age as u64 + limit.slices + 1) * limit.slice,
        None => 0,
    }
}
