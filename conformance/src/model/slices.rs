//! The sliding window: which slice each admitted unit fell into, and the estimate as its documentation states it.

use tidegate::spi::algorithm::sliding_window::SlidingWindow;

use super::{ModelRequest, Place, too_far_ahead};

/// (slice, cost), and the slice of the last write.
#[derive(Clone, Debug)]
pub struct Slices {
    pub(super) limit: u64,
    length: u64,
    count: u64,
    written: u64,
    admitted: Vec<(u64, u64)>,
}

impl Slices {
    pub(super) fn new(limit: &SlidingWindow) -> Self {
        let (length, count) = (limit.slice().as_micros() as u64, limit.slices());
        Self { limit: limit.limit(), length, count, written: 0, admitted: Vec::new() }
    }

    /// The current slice and the time since its start; the start of the last written slice if the clock is behind it.
    fn current(&self, now: u64) -> (u64, u64) {
        let slice = now / self.length;
        if self.written > slice && !self.is_empty() { (self.written, 0) } else { (slice, now % self.length) }
    }

    /// An empty count makes the slice of the last write irrelevant.
    fn is_empty(&self) -> bool {
        self.admitted.iter().all(|(_, cost)| *cost == 0)
    }

    fn in_slice(&self, slice: Option<u64>) -> u128 {
        let matching = self.admitted.iter().filter(|(at, _)| Some(*at) == slice);
        matching.map(|(_, cost)| u128::from(*cost)).sum()
    }

    fn estimate(&self, now: u64) -> u128 {
        let (current, elapsed) = self.current(now);
        let whole: u128 = (0..self.count).map(|age| self.in_slice(current.checked_sub(age))).sum();
        let oldest = self.in_slice(current.checked_sub(self.count));
        whole + (oldest * u128::from(self.length - elapsed)).div_ceil(u128::from(self.length))
    }

    pub(super) fn settle(&mut self, now: u64) -> bool {
        let rebase = !self.is_empty() && too_far_ahead(self.written * self.length, now);
        if rebase {
            let slice = now / self.length;
            for (at, _) in &mut self.admitted {
                *at = (*at).min(slice);
            }
            self.written = slice;
        }
        rebase
    }

    pub(super) fn fits(&self, request: ModelRequest) -> bool {
        self.estimate(request.now) + u128::from(request.cost) <= u128::from(self.limit)
    }

    pub(super) fn spend(&mut self, now: u64, cost: u64) -> Place {
        self.write(now);
        self.admitted.push((self.written, cost));
        self.written.into()
    }

    pub(super) fn refund(&mut self, now: u64, cost: u64, place: Place) -> bool {
        self.settle(now);
        let (current, _) = self.current(now);
        let Ok(slice) = u64::try_from(place.at) else { return false };
        let units = self.in_slice(Some(slice));
        if slice > current || current - slice > self.count || units == 0 || cost == 0 {
            return false;
        }
        self.write(now);
        self.admitted.retain(|(at, _)| *at != slice);
        self.admitted.push((slice, units.saturating_sub(u128::from(cost)) as u64));
        true
    }

    /// A write removes slices that have left the window.
    fn write(&mut self, now: u64) {
        (self.written, _) = self.current(now);
        let (written, slices) = (self.written, self.count);
        self.admitted.retain(|(at, _)| at + slices >= written);
    }

    pub(super) fn is_fresh(&self, now: u64) -> bool {
        self.estimate(now) == 0
    }
}
