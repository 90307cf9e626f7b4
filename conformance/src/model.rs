//! The naive model: the *definition* of every limit, written to be obviously right rather than fast.
//!
//! It keeps lists of what was admitted and computes every number by searching for it: `remaining` is the largest cost
//! that fits, `retry_after` the smallest time after which the request fits, `reset_after` the smallest time after which
//! the state equals a fresh one. No formula of the implementation is used here.

mod bucket;
mod holds;
mod leases;
mod penalty;
mod quota;
mod store;
mod windows;

pub use store::ModelStore;

use std::time::Duration;

use tidegate::Limit;
use tidegate::spi::algorithm::{CLOCK_MARGIN, concurrency};
use tidegate::spi::{MAX_AMOUNT, Outcome};

use bucket::Bucket;
use leases::Leases;
use penalty::Penalty;
use quota::Quota;
use windows::Windows;

/// The longest time after which a request may fit, or a state be a fresh one, in microseconds.
const MAX_WAIT: u64 = u64::MAX >> 11;

/// The history of one subject under one limit.
#[derive(Clone, Debug)]
pub enum Model {
    Bucket(Bucket),
    /// Fixed window, sliding window and sliding log.
    Windows(Windows),
    Leases(Leases),
    Quota(Quota),
    Penalty(Penalty),
}

/// Where a take was recorded, so that a refund finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// A window, a slice, an instant, an owner, the slot after a place in a queue, or the instant at which a token bucket would be full again
    /// if it had been full before the take.
    pub at: u128,
    /// When a token bucket is full again after the take.
    pub full: u128,
    /// What refunds had returned to a token bucket before the take, in microseconds.
    pub returned: u64,
}

impl From<u64> for Place {
    fn from(at: u64) -> Self {
        Self { at: u128::from(at), ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ModelRequest {
    pub now: u64,
    pub cost: u64,
    /// The longest accepted delay, in microseconds.
    pub max_delay: u64,
    /// The owner of a slot; 0 for none.
    pub owner: u64,
}

impl Model {
    pub fn new(limit: &Limit) -> Self {
        match limit {
            Limit::TokenBucket(limit) => Self::Bucket(Bucket::new(limit, false)),
            Limit::LeakyBucket(limit) => Self::Bucket(Bucket::new(limit.bucket(), true)),
            Limit::Concurrency(limit) => Self::Leases(Leases::new(limit)),
            Limit::Quota(limit) => Self::Quota(Quota::new(limit)),
            Limit::Penalty(penalty) => Self::Penalty(Penalty::new(penalty)),
            limit => Self::Windows(Windows::new(limit).expect("a limit that the model has")),
        }
    }

    /// Follows a concurrency limit or a quota that was changed: their amounts, and the time zone and anchor, are not part of the state.
    pub fn set_limit(&mut self, limit: &Limit) {
        match (self, limit) {
            (Self::Leases(model), Limit::Concurrency(limit)) => model.amount = limit.max(),
            (Self::Quota(model), Limit::Quota(limit)) => model.set_limit(limit),
            _ => {}
        }
    }

    /// Whether the request fits. The model must be settled.
    pub fn fits(&self, request: ModelRequest) -> bool {
        match self {
            // Even a request without a cost is denied during a block.
            Self::Penalty(model) => !model.is_blocked(request.now),
            // So it is while a quota is in debt.
            Self::Quota(model) => model.fits(request),
            _ if request.cost == 0 => true,
            Self::Bucket(model) => model.fits(request),
            Self::Windows(model) => model.fits(request),
            Self::Leases(model) => model.fits(request),
        }
    }

    /// Whether a quota owes units: then even a denied request writes its state.
    pub fn is_in_debt(&self, now: u64) -> bool {
        matches!(self, Self::Quota(model) if model.is_in_debt(now))
    }

    /// Moves records that lie too far in the future to now; true if there were any.
    pub fn settle(&mut self, now: u64) -> bool {
        match self {
            Self::Bucket(model) => model.settle(now),
            Self::Windows(model) => model.settle(now),
            Self::Leases(model) => model.settle(now),
            Self::Quota(model) => model.settle(now),
            Self::Penalty(model) => model.settle(now),
        }
    }

    /// Records a request of `owner` that fits, and returns where.
    pub fn spend(&mut self, now: u64, cost: u64, owner: u64) -> Place {
        match self {
            Self::Bucket(model) => model.spend(now, cost),
            Self::Windows(model) => model.spend(now, cost),
            Self::Leases(model) => model.spend(now, cost, owner),
            Self::Quota(model) => model.spend(now, cost),
            Self::Penalty(_) => Place::default(),
        }
    }

    /// Records a denial of the rule that the penalty belongs to; whether it is a strike.
    pub fn strike(&mut self, now: u64) -> bool {
        if let Self::Penalty(model) = self { model.strike(now) } else { false }
    }

    /// Records a denied request that counts all the same, as much of it as fits.
    pub fn charge_denied(&mut self, now: u64, cost: u64) -> bool {
        let cost =
            if let Self::Quota(model) = self { cost.min(model.hard.saturating_sub(model.used(now))) } else { cost };
        self.charge(now, cost, Place::default())
    }

    /// Records the cost of what was reserved at `made_at`, in the window of that instant. Others share an overflow bucket, so it has no
    /// debt.
    pub fn charge_reserved(&mut self, now: u64, cost: u64, made_at: u64, in_overflow: bool) {
        let mut settled = self.clone();
        settled.settle(now);
        match &settled {
            Self::Windows(model) if made_at < model.start(now) => {}
            Self::Quota(_) if in_overflow => drop(self.charge_denied(now, cost)),
            Self::Quota(model) => drop(self.charge(now, cost, model.place_of(now, made_at))),
            _ => drop(self.charge(now, cost, Place::default())),
        }
    }

    /// Records a charge, as much of it as fits, or all of it under a quota; whether there was anything.
    pub fn charge(&mut self, now: u64, cost: u64, place: Place) -> bool {
        self.change(|model| {
            model.settle(now);
            match model {
                Self::Bucket(model) => model.charge(now, cost),
                Self::Windows(model) => model.charge(now, cost),
                Self::Quota(model) => model.charge(now, cost, place),
                // What has occurred holds no slot, and is no denial.
                Self::Leases(_) | Self::Penalty(_) => false,
            }
        })
    }

    /// Refunds what was recorded at `place`; whether there was anything.
    pub fn refund(&mut self, now: u64, cost: u64, place: Place) -> bool {
        self.change(|model| match model {
            Self::Bucket(model) => model.refund(now, cost, place),
            Self::Windows(model) => model.refund(now, cost, place),
            Self::Leases(model) => model.refund(now, cost, place),
            Self::Quota(model) => model.refund(now, cost, place),
            Self::Penalty(_) => false,
        })
    }

    /// Keeps a change that says that there was anything to change.
    fn change(&mut self, change: impl FnOnce(&mut Self) -> bool) -> bool {
        let mut changed = self.clone();
        let is_changed = change(&mut changed);
        if is_changed {
            *self = changed;
        }
        is_changed
    }

    /// The start of the window of the clock that counts now; 0 for limits without one. The model must be settled.
    pub fn window_start(&self, now: u64) -> u64 {
        match self {
            Self::Windows(model) => model.start(now),
            Self::Quota(model) => model.start(now),
            _ => 0,
        }
    }

    /// Holds a slot for another lease, and returns whether it is held. An absent slot is taken again with this weight, unless it is 0.
    pub fn renew(&mut self, now: u64, place: Place, retaken: u64) -> bool {
        if let Self::Leases(model) = self { model.renew(now, place, retaken) } else { false }
    }

    /// Whether `place` is in a queue and has others behind it.
    pub fn is_stuck(&self, now: u64, place: Place) -> bool {
        matches!(self, Self::Bucket(model) if model.is_stuck(now, place))
    }

    /// The largest cost that fits, by bisection; under a quota, without grace.
    fn remaining(&self, now: u64, max_delay: u64) -> u64 {
        let max = self.amount();
        if let Self::Quota(model) = self {
            return max.saturating_sub(model.used(now));
        }
        // During a block not even a cost of 0 fits.
        max - first(max, |less| self.fits(ModelRequest { now, cost: max - less, max_delay, owner: 0 }))
    }

    /// The outcome of a request that was `admitted` or not, before which the state was `before`, and is this now. Reservations hold `held`
    /// units beside it, which count as consumed.
    pub fn outcome(&self, before: &Self, held: u64, request: ModelRequest, admitted: bool) -> Outcome {
        let ModelRequest { now, cost, max_delay, .. } = request;
        let mut full = self.clone();
        if held > 0 {
            full.spend(now, held, 0);
        }
        let is_used_up = |model: &Quota| (model.amount + 1..=model.hard).contains(&model.used(now));
        Outcome {
            admitted,
            limit: self.amount(),
            remaining: full.remaining(now, max_delay),
            retry_after: if admitted { None } else { self.retry_after(request) },
            reset_after: Duration::from_micros(first(MAX_WAIT, |wait| full.is_fresh(now + wait))),
            delay: match before {
                Self::Bucket(model) if admitted && cost > 0 => Duration::from_micros(model.delay(now)),
                _ => Duration::ZERO,
            },
            in_grace: matches!(&full, Self::Quota(model) if admitted && is_used_up(model)),
        }
    }

    fn retry_after(&self, request: ModelRequest) -> Option<Duration> {
        let later = |wait: u64| ModelRequest { now: request.now + wait, ..request };
        // Others may release, or end their reservations, at any time.
        let is_any_time = matches!(self, Self::Leases(_)) || self.fits(request);
        let retry = || Duration::from_micros(first(MAX_WAIT, |wait| self.fits(later(wait))));
        (request.cost <= self.max_cost()).then(|| if is_any_time { concurrency::RETRY } else { retry() })
    }

    fn is_fresh(&self, now: u64) -> bool {
        match self {
            Self::Bucket(model) => model.is_fresh(now),
            Self::Windows(model) => model.is_fresh(now),
            Self::Leases(model) => model.is_fresh(now),
            Self::Quota(model) => model.is_fresh(now),
            Self::Penalty(model) => model.is_fresh(now),
        }
    }

    /// The largest cost that ever fits.
    fn max_cost(&self) -> u64 {
        if let Self::Quota(model) = self { model.hard } else { self.amount() }
    }

    fn amount(&self) -> u64 {
        match self {
            Self::Bucket(model) => model.capacity,
            Self::Windows(model) => model.amount,
            Self::Leases(model) => model.amount,
            Self::Quota(model) => model.amount,
            Self::Penalty(_) => MAX_AMOUNT,
        }
    }
}

/// The smallest number up to `max` for which `holds` is true, or `max`. `holds` must be monotonic.
fn first(max: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Whether a record at `at` lies so far ahead of `now` that the clock must have been set back.
fn too_far_ahead(at: u64, now: u64) -> bool {
    at > now && u128::from(at - now) > CLOCK_MARGIN.as_micros()
}
