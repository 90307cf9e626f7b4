//! The sliding log: the list of what was admitted, and when.

use tidegate::spi::algorithm::sliding_log::SlidingLog;

use super::{ModelRequest, Place, too_far_ahead};

/// (instant, cost), in order.
#[derive(Clone, Debug)]
pub struct Log {
    pub(super) limit: u64,
    window: u64,
    admitted: Vec<(u64, u64)>,
}

impl Log {
    pub(super) fn new(limit: &SlidingLog) -> Self {
        Self { limit: limit.limit(), window: limit.window().as_micros() as u64, admitted: Vec::new() }
    }

    fn newest(&self) -> u64 {
        self.admitted.iter().map(|(at, _)| *at).max().unwrap_or(0)
    }

    /// Now, or the newest entry if the clock is slightly behind it.
    fn current(&self, now: u64) -> u64 {
        now.max(self.newest())
    }

    fn counted(&self, now: u64) -> u64 {
        let now = self.current(now);
        self.admitted.iter().filter(|(at, _)| at + self.window > now).map(|(_, cost)| cost).sum()
    }

    pub(super) fn settle(&mut self, now: u64) -> bool {
        let rebase = too_far_ahead(self.newest(), now);
        if rebase {
            for (at, _) in &mut self.admitted {
                *at = (*at).min(now);
            }
        }
        rebase
    }

    pub(super) fn fits(&self, request: ModelRequest) -> bool {
        u128::from(self.counted(request.now)) + u128::from(request.cost) <= u128::from(self.limit)
    }

    pub(super) fn spend(&mut self, now: u64, cost: u64) -> Place {
        let now = self.current(now);
        self.write(now);
        self.admitted.push((now, cost));
        now.into()
    }

    pub(super) fn refund(&mut self, now: u64, cost: u64, place: Place) -> bool {
        let current = self.current(now);
        if too_far_ahead(self.newest(), now) || place.at + u128::from(self.window) <= u128::from(current) {
            return false;
        }
        let at_place: u64 =
            self.admitted.iter().filter(|(at, _)| u128::from(*at) == place.at).map(|(_, cost)| cost).sum();
        if at_place == 0 || cost == 0 {
            return false;
        }
        self.write(current);
        let kept = at_place.saturating_sub(cost);
        self.admitted.retain(|(at, _)| u128::from(*at) != place.at);
        if kept > 0 {
            self.admitted.push((place.at as u64, kept));
            self.admitted.sort_unstable();
        }
        true
    }

    /// A write removes expired entries.
    fn write(&mut self, now: u64) {
        let window = self.window;
        self.admitted.retain(|(at, _)| at + window > now);
    }

    pub(super) fn is_fresh(&self, now: u64) -> bool {
        self.counted(now) == 0
    }
}
