//! The fixed window, the sliding window and the sliding log: which slice of time each admitted unit fell into.
//!
//! A fixed window is one slice. A sliding window counts its slices and, of the one before them, the part that it still covers. The slices
//! of a log are microseconds.

use std::sync::LazyLock;

use tidegate::Limit;

use super::{ModelRequest, Place, too_far_ahead};

/// (slice, cost), and the slice of the last write.
#[derive(Clone, Debug)]
pub struct Windows {
    pub(super) amount: u64,
    kind: Kind,
    length: Length,
    /// Slices that count in full: the current one and those before it.
    count: u64,
    written: u64,
    admitted: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fixed,
    Sliding,
    Log,
}

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
    fn slice_at(self, now: u64) -> u64 {
        match self {
            Self::Micros(length) => now / length,
            Self::Months(months) => ((MONTH_STARTS.partition_point(|start| *start <= now) - 1) / months) as u64,
        }
    }

    fn start_of(self, slice: u64) -> u64 {
        match self {
            Self::Micros(length) => slice * length,
            Self::Months(months) => MONTH_STARTS[slice as usize * months],
        }
    }
}

impl Windows {
    /// `None` for limits of other kinds.
    pub(super) fn new(limit: &Limit) -> Option<Self> {
        let (kind, amount, length, count) = match limit {
            Limit::FixedWindow(limit) => {
                let length = match limit.window() {
                    tidegate::limits::Window::MONTH => Length::Months(1),
                    tidegate::limits::Window::YEAR => Length::Months(12),
                    window => Length::Micros(window.duration()?.as_micros() as u64),
                };
                (Kind::Fixed, limit.limit(), length, 1)
            }
            Limit::SlidingWindow(limit) => {
                let length = Length::Micros(limit.slice().as_micros() as u64);
                (Kind::Sliding, limit.limit(), length, limit.slices())
            }
            Limit::SlidingLog(limit) => {
                (Kind::Log, limit.limit(), Length::Micros(1), limit.window().as_micros() as u64)
            }
            _ => return None,
        };
        Some(Self { amount, kind, length, count, written: 0, admitted: Vec::new() })
    }

    /// The slice of the last write; of a log, that of its newest entry. Without entries it is irrelevant.
    fn latest(&self) -> u64 {
        let newest = self.admitted.iter().map(|(slice, _)| *slice).max();
        newest.map_or(0, |newest| if self.kind == Kind::Log { newest } else { self.written })
    }

    /// The slice of now, or the latest one if the clock is slightly behind it.
    fn current(&self, now: u64) -> u64 {
        self.length.slice_at(now).max(self.latest())
    }

    fn in_slices(&self, counts: impl Fn(u64) -> bool) -> u128 {
        self.admitted.iter().filter(|(slice, _)| counts(*slice)).map(|(_, cost)| u128::from(*cost)).sum()
    }

    fn counted(&self, now: u64) -> u128 {
        let current = self.current(now);
        let whole = self.in_slices(|slice| current - slice < self.count);
        match self.length {
            Length::Micros(length) if self.kind == Kind::Sliding => {
                let oldest = self.in_slices(|slice| current - slice == self.count);
                let rest = length - now.saturating_sub(current * length);
                whole + (oldest * u128::from(rest)).div_ceil(u128::from(length))
            }
            _ => whole,
        }
    }

    /// Whether anything of a slice counts.
    fn is_within(&self, slice: u64, current: u64) -> bool {
        slice <= current && current - slice < self.count + u64::from(self.kind == Kind::Sliding)
    }

    /// The start of the current window, if it is one of the clock.
    pub(super) fn start(&self, now: u64) -> u64 {
        if self.kind == Kind::Fixed { self.length.start_of(self.current(now)) } else { 0 }
    }

    pub(super) fn settle(&mut self, now: u64) -> bool {
        let rebase = too_far_ahead(self.length.start_of(self.latest()), now);
        if rebase {
            self.written = self.length.slice_at(now);
            let slice = self.written;
            self.admitted.iter_mut().for_each(|(at, _)| *at = slice.min(*at));
        }
        rebase
    }

    pub(super) fn fits(&self, request: ModelRequest) -> bool {
        self.counted(request.now) + u128::from(request.cost) <= u128::from(self.amount)
    }

    pub(super) fn spend(&mut self, now: u64, cost: u64) -> Place {
        self.write(now);
        self.admitted.push((self.written, cost));
        self.written.into()
    }

    /// Records as much of the cost as fits.
    pub(super) fn charge(&mut self, now: u64, cost: u64) -> bool {
        let room = u128::from(self.amount).saturating_sub(self.counted(now));
        let fitting = room.min(cost.into()) as u64;
        if fitting > 0 {
            self.spend(now, fitting);
        }
        fitting > 0
    }

    pub(super) fn refund(&mut self, now: u64, cost: u64, place: Place) -> bool {
        // A log whose clock was set back refunds nothing.
        if self.settle(now) && self.kind == Kind::Log {
            return false;
        }
        let Ok(slice) = u64::try_from(place.at) else { return false };
        let units = self.in_slices(|own| own == slice) as u64;
        if !self.is_within(slice, self.current(now)) || units == 0 || cost == 0 {
            return false;
        }
        self.write(now);
        self.admitted.retain(|(own, _)| *own != slice);
        if units > cost {
            self.admitted.push((slice, units - cost));
        }
        true
    }

    /// A write removes what does not count any more.
    fn write(&mut self, now: u64) {
        let current = self.current(now);
        let kept = self.admitted.iter().copied().filter(|(slice, _)| self.is_within(*slice, current)).collect();
        (self.written, self.admitted) = (current, kept);
    }

    pub(super) fn is_fresh(&self, now: u64) -> bool {
        self.counted(now) == 0
    }
}
