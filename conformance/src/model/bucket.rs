//! The token bucket and the leaky bucket, by the inequality that defines them.
//!
//! Time is counted in shares of 1/r µs, in which p shares bring one token. After admitted costs c₁ … cₙ at t₁ … tₙ the
//! bucket is full at max over k of tₖ + (cₖ + … + cₙ)·p, and a request fits if that moment, moved by its own cost, lies at
//! most C·p after now.
//!
//! A refund strikes shares from the list, at most those that are known to be missing still: for a take at t that left the bucket
//! full at f, until t + c·p, and until f less everything that was struck since.

use tidegate::spi::algorithm::token_bucket::TokenBucket;

use super::{ModelRequest, Place};

/// The maximum that a bucket counts as returned.
const MAX_RETURNED: u64 = 1 << 52;

/// What was admitted: (instant, shares), in the order of admission. Refunds are negative.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub(super) capacity: u64,
    rate: i128,
    period: i128,
    leaky: bool,
    admitted: Vec<(u64, i128)>,
    /// The microseconds that refunds have returned, each rounded up.
    returned: u64,
}

impl Bucket {
    pub(super) fn new(limit: &TokenBucket, leaky: bool) -> Self {
        Self {
            capacity: limit.capacity(),
            rate: i128::from(limit.refill().amount()),
            period: limit.refill().period().as_micros().cast_signed(),
            leaky,
            admitted: Vec::new(),
            returned: 0,
        }
    }

    /// When the bucket is full again, in shares. None if nothing was ever admitted.
    pub(super) fn slot(&self) -> Option<u128> {
        let from = |k: usize| {
            let shares: i128 = self.admitted[k..].iter().map(|(_, shares)| shares).sum();
            i128::from(self.admitted[k].0) * self.rate + shares
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
        self.admitted = vec![(now, i128::from(self.capacity) * self.period)];
    }

    pub(super) fn spend(&mut self, now: u64, cost: u64) -> Place {
        let shares = self.push(now, i128::from(cost));
        let slot = self.slot().unwrap_or_default();
        if self.leaky {
            return Place { at: slot, ..Place::default() };
        }
        let alone = i128::from(now) * self.rate + shares;
        Place { at: alone as u128, full: slot, returned: self.returned }
    }

    /// Records tokens, and returns them in shares.
    fn push(&mut self, now: u64, tokens: i128) -> i128 {
        self.returned = self.returned_at(now);
        self.admitted.push((now, tokens * self.period));
        tokens * self.period
    }

    /// What counts as returned: nothing, once the bucket has been full for as long as a take from before a refund could have been
    /// missing.
    fn returned_at(&self, now: u64) -> u64 {
        let rate = self.rate as u128;
        let burst = (u128::from(self.capacity) * self.period as u128).div_ceil(rate);
        let remembered = self.slot().unwrap_or(0).div_ceil(rate) + u128::from(self.returned).min(burst);
        if remembered <= u128::from(now) { 0 } else { self.returned }
    }

    pub(super) fn charge(&mut self, now: u64, cost: u64) -> bool {
        if cost == 0 || self.full(now) == self.latest(now) {
            return false;
        }
        self.push(now, i128::from(cost));
        if self.full(now) > self.latest(now) {
            self.empty(now);
        }
        true
    }

    /// Refunds tokens. A leaky bucket refunds only its last place in the queue.
    pub(super) fn refund(&mut self, now: u64, cost: u64, place: Place) -> bool {
        if self.leaky {
            if self.slot() != Some(place.at) || cost == 0 {
                return false;
            }
            self.strike(now, i128::from(cost) * self.period);
            return true;
        }
        self.settle(now);
        let start = i128::from(now) * self.rate;
        let returned = self.returned_at(now);
        let mut missing_until = place.at.cast_signed();
        if returned >= place.returned && returned < MAX_RETURNED {
            let since = i128::from(returned - place.returned) * self.rate;
            missing_until = missing_until.max(place.full.cast_signed() - since);
        }
        let back = (i128::from(cost) * self.period).min(self.full(now) - start).min(missing_until - start);
        if back <= 0 {
            return false;
        }
        let is_last = (self.full(now), returned) == (place.full.cast_signed(), place.returned);
        self.strike(now, back);
        // The last take has no other behind it that would move.
        let micros = back.unsigned_abs().div_ceil(self.rate.unsigned_abs()) as u64;
        self.returned = if is_last { returned } else { (returned + micros).min(MAX_RETURNED) };
        true
    }

    fn strike(&mut self, now: u64, shares: i128) {
        self.admitted.push((now, -shares));
        self.admitted.push((now, 0)); // never above full
    }

    /// Whether `place` is in a queue and has others behind it.
    pub(super) fn is_stuck(&self, now: u64, place: Place) -> bool {
        self.leaky && self.slot() != Some(place.at) && !self.is_fresh(now)
    }

    pub(super) fn is_fresh(&self, now: u64) -> bool {
        self.full(now) == i128::from(now) * self.rate
    }
}
