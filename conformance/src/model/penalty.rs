//! The progressive penalty: the strikes of the current row, one by one.

use tidegate::spi::algorithm::penalty::Penalty as Parameters;

use super::too_far_ahead;

/// The times of the strikes of a row.
#[derive(Clone, Debug)]
pub struct Penalty {
    parameters: Parameters,
    strikes: Vec<u64>,
}

impl Penalty {
    pub(super) const fn new(parameters: &Parameters) -> Self {
        Self { parameters: *parameters, strikes: Vec::new() }
    }

    fn max(&self) -> u64 {
        self.parameters.max().as_micros() as u64
    }

    /// The length of the block that the last strike began: one multiplication for each strike after the first block.
    fn block(&self) -> u64 {
        let after = self.parameters.after() as usize;
        if self.strikes.len() < after {
            return 0;
        }
        let mut length = self.parameters.block().as_micros();
        for _ in after..self.strikes.len() {
            length = (length * u128::from(self.parameters.factor())).min(u128::from(self.max()));
        }
        length as u64
    }

    fn end(&self) -> Option<u64> {
        Some(self.strikes.last()? + self.block())
    }

    /// Moves strikes that lie too far in the future to now.
    pub(super) fn settle(&mut self, now: u64) -> bool {
        let is_ahead = self.strikes.last().is_some_and(|at| too_far_ahead(*at, now));
        if is_ahead {
            self.strikes.iter_mut().for_each(|at| *at = now.min(*at));
        }
        is_ahead
    }

    pub(super) fn is_fresh(&self, now: u64) -> bool {
        self.end().is_none_or(|end| end + self.max() <= now)
    }

    pub(super) fn is_blocked(&self, now: u64) -> bool {
        !self.is_fresh(now) && self.block() > 0 && self.end().is_some_and(|end| now < end)
    }

    /// Records a strike, unless the subject is blocked; whether it did.
    pub(super) fn strike(&mut self, now: u64) -> bool {
        if self.is_blocked(now) {
            return false;
        }
        if self.is_fresh(now) {
            self.strikes.clear();
        }
        // A clock that is slightly behind the last strike has stood still.
        let at = self.strikes.last().map_or(now, |last| now.max(*last));
        self.strikes.push(at);
        true
    }
}
