//! The fixed window: what was admitted in the latest window, and which one that is.

use std::sync::LazyLock;

use tidegate::spi::algorithm::fixed_window::FixedWindow;

use super::{ModelRequest, Place, too_far_ahead};

/// The costs that were admitted in the window `index`.
#[derive(Clone, Debug)]
pub struct Window {
    pub(super) limit: u64,
    length: Length,
    index: u64,
    admitted: Vec<u64>,
}

/// How long the windows are.
#[derive(Clone, Copy, Debug)]
enum Length {
    Micros(u64),
    Months(usize),
}

/// The start of each month from January 1970 on, computed month by month.
static MONTH_STARTS: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let (mut starts, mut day) = (Vec::new(), 0);
    for year in 1970..2500 {
        let leap = year % 400 == 0 || (year % 4 == 0 && year % 100 != 0);
        for days in [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            starts.push(day * 86_400_000_000);
            day += days;
        }
    }
    starts
});

impl Length {
    /// The index of the window that contains an instant.
    fn index_at(self, now: u64) -> u64 {
        match self {
            Self::Micros(length) => now / length,
            Self::Months(months) => ((MONTH_STARTS.partition_point(|start| *start <= now) - 1) / months) as u64,
        }
    }

    /// The start of a window.
    fn start_of(self, index: u64) -> u64 {
        match self {
            Self::Micros(length) => index * length,
            Self::Months(months) => MONTH_STARTS[index as usize * months],
        }
    }
}

impl Window {
    pub(super) fn new(limit: &FixedWindow) -> Self {
        let length = match limit.window() {
            tidegate::Window::MONTH => Length::Months(1),
            tidegate::Window::YEAR => Length::Months(12),
            _ => Length::Micros(limit.window().duration().unwrap_or_default().as_micros() as u64),
        };
        Self { limit: limit.limit(), length, index: 0, admitted: Vec::new() }
    }

    /// The current window: that of now, or the latest one if the clock is slightly behind it.
    fn current(&self, now: u64) -> u64 {
        let index = self.length.index_at(now);
        if self.is_empty() { index } else { index.max(self.index) }
    }

    /// An empty count makes the window index irrelevant.
    fn is_empty(&self) -> bool {
        self.admitted.iter().all(|cost| *cost == 0)
    }

    fn counted(&self, now: u64) -> u64 {
        if self.index == self.current(now) { self.admitted.iter().sum() } else { 0 }
    }

    /// The start of the current window.
    pub(super) fn start(&self, now: u64) -> u64 {
        self.length.start_of(self.current(now))
    }

    pub(super) fn settle(&mut self, now: u64) -> bool {
        let rebase = !self.is_empty() && too_far_ahead(self.length.start_of(self.index), now);
        if rebase {
            self.index = self.length.index_at(now);
        }
        rebase
    }

    pub(super) fn fits(&self, request: ModelRequest) -> bool {
        u128::from(self.counted(request.now)) + u128::from(request.cost) <= u128::from(self.limit)
    }

    pub(super) fn spend(&mut self, now: u64, cost: u64) -> Place {
        let current = self.current(now);
        if current != self.index {
            (self.index, self.admitted) = (current, Vec::new());
        }
        self.admitted.push(cost);
        current.into()
    }

    pub(super) fn refund(&mut self, now: u64, cost: u64, place: Place) -> bool {
        self.settle(now);
        let counted = self.counted(now);
        if u128::from(self.current(now)) != place.at || counted == 0 || cost == 0 {
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
