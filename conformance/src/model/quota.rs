//! The quota: what was used in the latest period and in the one before it. Periods pass one after the other, and each takes the hard
//! limit off what was used.

use tidegate::spi::MAX_AMOUNT;
use tidegate::spi::algorithm::quota::Quota as QuotaLimit;
use tidegate::{Periods, Timestamp};

use super::{ModelRequest, Place, first, too_far_ahead};

/// A hundred years of 365.25 days, in hours.
const HUNDRED_YEARS_HOURS: u64 = 876_600;

/// The units used in the period `index` and in the one before.
#[derive(Clone, Debug)]
pub struct Quota {
    pub(super) amount: u64,
    pub(super) hard: u64,
    periods: Periods,
    index: u64,
    used: u64,
    before: u64,
}

impl Quota {
    pub(super) fn new(limit: &QuotaLimit) -> Self {
        let (amount, hard) = (limit.amount(), limit.amount() + limit.grace());
        Self { amount, hard, periods: limit.periods(), index: 0, used: 0, before: 0 }
    }

    /// What is used belongs to a date, whatever the zone.
    pub(super) fn set_limit(&mut self, limit: &QuotaLimit) {
        let Self { index, used, before, .. } = *self;
        *self = Self { index, used, before, ..Self::new(limit) };
    }

    /// The index of the period that contains an instant.
    fn index_at(&self, now: u64) -> u64 {
        if now <= Timestamp::MAX.as_micros() {
            return self.periods.bounds_at(Timestamp::from_micros(now)).index;
        }
        first(1 << 27, |index| self.periods.start_of(index + 1) > now)
    }

    fn is_empty(&self) -> bool {
        self.used == 0 && self.before == 0
    }

    /// The most that can be used: its debt lasts for a hundred of the longest years.
    fn most(&self) -> u64 {
        let periods = u128::from(HUNDRED_YEARS_HOURS / self.periods.max_hours() + 1);
        (u128::from(self.hard) * periods).min(u128::from(MAX_AMOUNT)) as u64
    }

    /// The same quota at `now`, after the periods since.
    fn at(&self, now: u64) -> Self {
        let (index, mut later) = (self.index_at(now), self.clone());
        if self.is_empty() {
            later.index = index;
        }
        let passed = u128::from(index.saturating_sub(later.index));
        if passed > 0 {
            // All but the last of them, and then the last.
            let less = (passed - 1) * u128::from(self.hard);
            later.before = u128::from(self.used).saturating_sub(less) as u64;
            later.used = later.before.saturating_sub(self.hard);
            later.index = index;
        }
        later
    }

    pub(super) fn settle(&mut self, now: u64) -> bool {
        let index = self.index_at(now);
        let is_ahead = !self.is_empty() && self.index > index;
        let rebase = is_ahead && (self.index > index + 1 || too_far_ahead(self.periods.start_of(self.index), now));
        if rebase {
            (self.index, self.before) = (index, 0);
        }
        rebase
    }

    /// The first instant of the period that counts at `now`.
    pub(super) fn start(&self, now: u64) -> u64 {
        self.periods.start_of(self.at(now).index)
    }

    /// The period before, if an earlier instant is in it; else the one that counts at `now`.
    pub(super) fn place_of(&self, now: u64, earlier: u64) -> Place {
        let index = self.at(now).index;
        let is_before = earlier < self.start(now) && earlier >= self.periods.start_of(index - 1);
        if is_before { (index - 1).into() } else { Place::default() }
    }

    pub(super) fn used(&self, now: u64) -> u64 {
        self.at(now).used
    }

    pub(super) fn fits(&self, request: ModelRequest) -> bool {
        u128::from(self.used(request.now)) + u128::from(request.cost) <= u128::from(self.hard)
    }

    pub(super) fn spend(&mut self, now: u64, cost: u64) -> Place {
        *self = self.at(now);
        self.used += cost;
        self.index.into()
    }

    /// Records a charge; whether that changed anything.
    pub(super) fn charge(&mut self, now: u64, cost: u64, place: Place) -> bool {
        let start = self.at(now);
        let mut after = start.clone();
        if place.at + 1 == u128::from(start.index) {
            after.before = start.before.saturating_add(cost).min(self.most());
            after.used += after.debt_before() - start.debt_before();
        } else {
            after.used = start.used.saturating_add(cost);
        }
        after.used = after.used.min(self.most());
        self.replace(&start, after)
    }

    pub(super) fn refund(&mut self, now: u64, cost: u64, place: Place) -> bool {
        self.settle(now);
        let start = self.at(now);
        let mut after = start.clone();
        if place.at == u128::from(start.index) {
            after.used = start.used.saturating_sub(cost);
        } else if place.at + 1 == u128::from(start.index) {
            after.before = start.before.saturating_sub(cost);
            after.used = start.used.saturating_sub(start.debt_before() - after.debt_before());
        }
        self.replace(&start, after)
    }

    fn replace(&mut self, start: &Self, after: Self) -> bool {
        let changed = (start.used, start.before) != (after.used, after.before);
        if changed {
            *self = after;
        }
        changed
    }

    fn debt_before(&self) -> u64 {
        self.before.saturating_sub(self.hard)
    }

    pub(super) fn is_fresh(&self, now: u64) -> bool {
        self.used(now) == 0
    }
}
