//! The fixed window: what was admitted in the latest window, and which one that is.

use tidegate::algorithm::fixed_window::FixedWindow;

use super::{Ask, Place, too_far_ahead};

/// The costs that were admitted in the window `index`.
#[derive(Clone, Debug)]
pub struct Window {
    pub(super) limit: u64,
    length: u64,
    index: u64,
    admitted: Vec<u64>,
}

impl Window {
    pub(super) fn new(limit: &FixedWindow) -> Self {
        Self { limit: limit.limit(), length: limit.window_micros(), index: 0, admitted: Vec::new() }
    }

    /// The window that counts: the one of now, or the latest one, if the clock is a little behind it.
    fn current(&self, now: u64) -> u64 {
        if self.is_empty() { now / self.length } else { (now / self.length).max(self.index) }
    }

    /// Without a count it does not matter in which window nothing was counted.
    fn is_empty(&self) -> bool {
        self.admitted.iter().all(|cost| *cost == 0)
    }

    fn counted(&self, now: u64) -> u64 {
        if self.index == self.current(now) { self.admitted.iter().sum() } else { 0 }
    }

    pub(super) fn settle(&mut self, now: u64) -> bool {
        let rebase = !self.is_empty() && too_far_ahead(self.index * self.length, now);
        if rebase {
            self.index = now / self.length;
        }
        rebase
    }

    pub(super) fn fits(&self, ask: Ask) -> bool {
        u128::from(self.counted(ask.now)) + u128::from(ask.cost) <= u128::from(self.limit)
    }

    pub(super) fn spend(&mut self, now: u64, cost: u64) -> Place {
        let current = self.current(now);
        if current != self.index {
            (self.index, self.admitted) = (current, Vec::new());
        }
        self.admitted.push(cost);
        u128::from(current)
    }

    pub(super) fn refund(&mut self, now: u64, cost: u64, place: Place) -> bool {
        self.settle(now);
        let counted = self.counted(now);
        if u128::from(self.current(now)) != place || counted == 0 || cost == 0 {
            return false;
        }
        self.index = self.current(now);
        self.admitted = vec![counted.saturating_sub(cost)];
        true
    }

    pub(super) fn is_fresh(&self, now: u64) -> bool {
        self.counted(now) == 0
    }
}
