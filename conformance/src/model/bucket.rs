//! The token bucket and the leaky bucket, by the inequality that defines them.
//!
//! Time is counted in shares of 1/r µs, in which p shares bring one token. After admitted costs c₁ … cₙ at t₁ … tₙ the
//! bucket is full at max over k of tₖ + (cₖ + … + cₙ)·p, and a request fits if that moment, moved by its own cost, lies at
//! most C·p after now.

use tidegate::spi::algorithm::token_bucket::TokenBucket;

use super::{ModelRequest, Place};

/// What was admitted: (instant, tokens), in the order of admission. Refunds are negative.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub(super) capacity: u64,
    rate: i128,
    period: i128,
    leaky: bool,
    admitted: Vec<(u64, i128)>,
}

impl Bucket {
    pub(super) fn new(limit: &TokenBucket, leaky: bool) -> Self {
        Self {
            capacity: limit.capacity(),
            rate: i128::from(limit.refill().amount()),
            period: limit.refill().period().as_micros().cast_signed(),
            leaky,
            admitted: Vec::new(),
        }
    }

    /// When the bucket is full again, in shares. None if nothing was ever admitted.
    pub(super) fn slot(&self) -> Option<u128> {
        let from = |k: usize| {
            let tokens: i128 = self.admitted[k..].iter().map(|(_, tokens)| tokens).sum();
            i128::from(self.admitted[k].0) * self.rate + tokens * self.period
        };
        (0..self.admitted.len()).map(from).max().map(|slot| slot as u128)
    }

    fn full(&self, now: u64) -> i128 {
        let now = i128::from(now) * self.rate;
        self.slot().map_or(now, |slot| slot.cast_signed().max(now))
    }

    fn latest(&self, now: u64) -> i128 {
        i128::from(now) * self.rate + i128::from(self.capacity) * self.period
    }

    pub(super) fn fits(&self, request: ModelRequest) -> bool {
        let waits = self.leaky && self.delay(request.now) > request.max_delay;
        !waits && self.full(request.now) + i128::from(request.cost) * self.period <= self.latest(request.now)
    }

    /// The time until the next free slot, rounded up to microseconds.
    pub(super) fn delay(&self, now: u64) -> u64 {
        if !self.leaky {
            return 0;
        }
        let shares = self.full(now) - i128::from(now) * self.rate;
        shares.unsigned_abs().div_ceil(self.rate.unsigned_abs()) as u64
    }

    /// Clamps the deficit to an empty bucket: more than that was written under another clock.
    pub(super) fn settle(&mut self, now: u64) -> bool {
        let rebase = self.full(now) > self.latest(now);
        if rebase {
            self.empty(now);
        }
        rebase
    }

    fn empty(&mut self, now: u64) {
        self.admitted = vec![(now, i128::from(self.capacity))];
    }

    pub(super) fn spend(&mut self, now: u64, cost: u64) -> Place {
        self.admitted.push((now, i128::from(cost)));
        self.slot().unwrap_or_default()
    }

    pub(super) fn charge(&mut self, now: u64, cost: u64) -> bool {
        if cost == 0 || self.full(now) == self.latest(now) {
            return false;
        }
        self.admitted.push((now, i128::from(cost)));
        if self.full(now) > self.latest(now) {
            self.empty(now);
        }
        true
    }

    /// Refunds tokens. A leaky bucket refunds only its last place in the queue.
    pub(super) fn refund(&mut self, now: u64, cost: u64, place: Place) -> bool {
        if self.leaky && self.slot() != Some(place) {
            return false;
        }
        if !self.leaky {
            self.settle(now);
        }
        if cost == 0 || self.is_fresh(now) && !self.leaky {
            return false;
        }
        self.admitted.push((now, -i128::from(cost)));
        self.admitted.push((now, 0)); // never above full
        true
    }

    pub(super) fn is_fresh(&self, now: u64) -> bool {
        self.full(now) == i128::from(now) * self.rate
    }
}
