//! The sliding window counter: so many units in any window, estimated from counts per slice of it.
//!
//! With a limit of L in a window of W, cut into S slices of length W/S, an instant that lies a share x into its slice sees
//!
//! ```text
//! estimate  =  this slice + the S − 1 before it + ⌈ the one before those · (1 − x) ⌉
//! ```
//!
//! and admits a cost c if and only if estimate + c ≤ L. One slice is the classic estimate from two windows.
//!
//! Error bound, for the exact count N(T) of what was admitted in the last T before a decision:
//!
//! ```text
//! N(W − W/S)  ≤  estimate  ≤  N(W + W/S)
//! ```
//!
//! so it never admits more than L in any W − W/S, never refuses what an exact log over W + W/S would admit, and in any W
//! it admits at most L plus what one slice admitted.
//!
//! The state is the index of the newest slice and the counts from it backwards.

use std::time::Duration;

use smallvec::SmallVec;

use super::{Applied, MARGIN_MICROS, Op, Outcome, Standing, Take, span_micros};
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
pub struct State {
    /// The newest slice: the number of whole slices since the epoch.
    pub index: u64,
    /// Units counted in it, in the one before it, and so on.
    pub counts: SmallVec<[u64; 7]>,
}

/// A state as it counts now.
pub(super) struct Settled {
    pub(super) slices: State,
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

    /// The length of a slice in microseconds.
    pub const fn slice_micros(&self) -> u64 {
        self.slice
    }

    /// The number of slices in a window.
    pub const fn slices(&self) -> u64 {
        self.slices
    }

    pub(super) fn settle(&self, state: Option<&State>, now: Timestamp) -> Settled {
        let index = now.as_micros() / self.slice;
        let elapsed = now.as_micros() % self.slice;
        // Without counts it is as good as none, whatever slice it was written in.
        let Some(state) = state.filter(|state| !state.counts.is_empty()) else {
            return Settled { slices: State { index, ..State::default() }, elapsed, rebased: false };
        };
        if state.index <= index {
            return Settled { slices: self.moved_on(state, index), elapsed, rebased: false };
        }
        if state.index * self.slice - now.as_micros() <= MARGIN_MICROS {
            return Settled { slices: state.clone(), elapsed: 0, rebased: false };
        }
        Settled { slices: state.gathered_at(index), elapsed, rebased: true }
    }

    /// The state when the slice `index` has come.
    fn moved_on(&self, state: &State, index: u64) -> State {
        let passed = index - state.index;
        if passed > self.slices {
            return State { index, ..State::default() };
        }
        let mut counts: SmallVec<[u64; 7]> = SmallVec::from_elem(0, passed as usize);
        counts.extend(state.counts.iter().copied().take((self.slices + 1 - passed) as usize));
        State { index, counts }.trimmed()
    }

    /// Units in the slices that count in full, and in the one that counts in part.
    fn split(&self, counts: &[u64]) -> (u64, u64) {
        let whole = counts.iter().take(self.slices as usize).sum();
        (whole, counts.get(self.slices as usize).copied().unwrap_or(0))
    }

    fn estimate(&self, counts: &[u64], elapsed: u64) -> u64 {
        let (whole, oldest) = self.split(counts);
        let weighted = u128::from(oldest) * u128::from(self.slice - elapsed);
        whole + weighted.div_ceil(u128::from(self.slice)) as u64
    }

    fn left(&self, settled: &Settled) -> u64 {
        self.limit.saturating_sub(self.estimate(&settled.slices.counts, settled.elapsed))
    }

    /// The first instant from which `cost` fits, for a cost of at most the limit.
    fn fits_at(&self, settled: &Settled, cost: u64) -> u64 {
        let mut start = settled.slices.index * self.slice;
        let mut elapsed = settled.elapsed;
        for passed in 0..=self.slices {
            let later = self.moved_on(&settled.slices, settled.slices.index + passed);
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

impl State {
    /// The same counts with everything that lies after the slice `index` moved into it.
    fn gathered_at(&self, index: u64) -> Self {
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

    /// The same counts with `back` units changed to `count` in the slice that is `age` slices old.
    fn with(mut self, age: usize, count: u64) -> Self {
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
pub fn apply(state: Option<&State>, limit: &SlidingWindow, now: Timestamp, op: Op) -> Applied<State> {
    let settled = limit.settle(state, now);
    let left = limit.left(&settled);
    let Settled { slices, rebased, .. } = settled;
    let current = slices.count(0);
    match op {
        Op::Take(take) if take.total() == 0 => Applied::admitted(None),
        Op::Take(take) if take.total() <= left => Applied::admitted(Some(slices.with(0, current + take.total()))),
        Op::Take(_) => Applied::denied(rebased.then_some(slices)),
        Op::Charge { cost } => {
            let counted = cost.min(left);
            Applied::changed((counted > 0).then(|| slices.with(0, current + counted)))
        }
        Op::Refund { cost, place } => {
            let age = slices.index.checked_sub(place.position()).filter(|age| *age <= limit.slices);
            let Some(age) = age.map(|age| age as usize) else {
                return Applied::changed(None);
            };
            let count = slices.count(age);
            Applied::changed((count > 0 && cost > 0).then(|| slices.with(age, count.saturating_sub(cost))))
        }
    }
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `sliding_window.lua`.
pub fn room(state: Option<&State>, limit: &SlidingWindow, now: Timestamp, take: Take) -> u64 {
    let left = limit.left(&limit.settle(state, now));
    left.checked_div(take.cost).unwrap_or(take.units).min(take.units)
}

/// What a caller is told, from the state that was found.
pub fn outcome(state: Option<&State>, limit: &SlidingWindow, now: Timestamp, standing: Standing) -> Outcome {
    let mut settled = limit.settle(state, now);
    let total = standing.take.total();
    let retry = (!standing.admitted && total <= limit.limit)
        .then(|| span_micros(limit.fits_at(&settled, total) - now.as_micros()));
    if standing.consumed && total > 0 {
        let current = settled.slices.count(0);
        settled.slices = settled.slices.with(0, current + total);
    }
    Outcome {
        remaining: limit.left(&settled),
        retry_after: retry,
        reset_after: span_micros(expiry(&settled.slices, limit).saturating_sub(now.as_micros())),
        ..standing.outcome(limit.limit)
    }
}

/// The first instant at which `state` is as good as none.
pub fn expiry(state: &State, limit: &SlidingWindow) -> u64 {
    match state.counts.iter().position(|count| *count > 0) {
        Some(age) => (state.index - age as u64 + limit.slices + 1) * limit.slice,
        None => 0,
    }
}
