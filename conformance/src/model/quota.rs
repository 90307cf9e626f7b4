//! The quota: what was used in the latest period and in the one before it, and the debt at the end of each. Periods pass one after the
//! other, and each pays up to the hard limit of the debt.

use tidegate::Timestamp;
use tidegate::limits::Periods;
use tidegate::spi::MAX_AMOUNT;
use tidegate::spi::algorithm::quota::Quota as QuotaLimit;

use super::{ModelRequest, Place, first};

/// A hundred years of 365.25 days, in hours.
const HUNDRED_YEARS_HOURS: u64 = 876_600;

/// The units used in the period `index` and the debt beyond them, and both for the period before.
#[derive(Clone, Debug)]
pub struct Quota {
    pub(super) amount: u64,
    pub(super) hard: u64,
    periods: Periods,
    index: u64,
    used: u64,
    debt: u64,
    before: u64,
    debt_before: u64,
}

impl Quota {
    pub(super) fn new(limit: &QuotaLimit) -> Self {
        let (amount, hard) = (limit.amount(), limit.amount() + limit.grace());
        Self { amount, hard, periods: limit.periods(), index: 0, used: 0, debt: 0, before: 0, debt_before: 0 }
    }

    /// What is used belongs to a date, whatever the zone.
    pub(super) fn set_limit(&mut self, limit: &QuotaLimit) {
        let Self { amount, hard, periods, .. } = Self::new(limit);
        *self = Self { amount, hard, periods, ..*self };
    }

    fn index_at(&self, now: u64) -> u64 {
        if now <= Timestamp::MAX.as_micros() {
            return self.periods.bounds_at(Timestamp::from_micros(now)).index;
        }
        first(1 << 27, |index| self.periods.start_of(index + 1) > now)
    }

    fn is_empty(&self) -> bool {
        self.counts() == (0, 0, 0, 0)
    }

    const fn counts(&self) -> (u64, u64, u64, u64) {
        (self.used, self.debt, self.before, self.debt_before)
    }

    /// The largest debt: it lasts for a hundred of the longest years.
    fn most(&self) -> u64 {
        let periods = u128::from(HUNDRED_YEARS_HOURS / self.periods.max_hours());
        (u128::from(self.hard) * periods).min(u128::from(MAX_AMOUNT)) as u64
    }

    /// Adds units to the debt, and lets the period pay what it can.
    fn owe(&mut self, units: u64) {
        self.debt = self.debt.saturating_add(units);
        let paid = self.debt.min(self.hard.saturating_sub(self.used));
        self.used += paid;
        self.debt = (self.debt - paid).min(self.most());
    }

    fn begin_next_period(&mut self) {
        (self.before, self.debt_before) = (self.used, self.debt);
        (self.used, self.debt) = (0, 0);
        self.index += 1;
        self.owe(self.debt_before);
    }

    /// The same quota at `now`, after the periods since.
    fn at(&self, now: u64) -> Self {
        let (index, mut later) = (self.index_at(now), self.clone());
        if self.is_empty() {
            later.index = index;
        }
        (later.debt, later.debt_before) = (self.debt.min(self.most()), self.debt_before.min(self.most()));
        later.owe(0);
        if later.index + 2 < index {
            // All but the last two of them, which pay debt and leave nothing else behind.
            let paid = u128::from(index - 2 - later.index) * u128::from(self.hard);
            later.debt = u128::from(later.debt).saturating_sub(paid) as u64;
            later.used = 0;
            later.index = index - 2;
        }
        while later.index < index {
            later.begin_next_period();
        }
        later
    }

    pub(super) fn settle(&mut self, now: u64) -> bool {
        let index = self.index_at(now);
        // Another calendar may be two periods ahead: dates are, at times.
        let rebase = !self.is_empty() && self.index > index + 2;
        if rebase {
            (self.index, self.before, self.debt_before) = (index, 0, 0);
            // Even a denied request writes it, with a debt that has an end.
            *self = self.at(now);
        }
        rebase
    }

    pub(super) fn start(&self, now: u64) -> u64 {
        self.periods.start_of(self.index_at(now))
    }

    /// The period before, if an earlier instant is in it; else the one that counts at `now`.
    pub(super) fn place_of(&self, now: u64, earlier: u64) -> Place {
        let index = self.index_at(now);
        let is_before = earlier < self.start(now) && earlier >= self.periods.start_of(index - 1);
        if is_before && self.at(now).index == index { (index - 1).into() } else { Place::default() }
    }

    pub(super) fn used(&self, now: u64) -> u64 {
        self.at(now).used
    }

    pub(super) fn is_in_debt(&self, now: u64) -> bool {
        self.at(now).debt > 0
    }

    pub(super) fn fits(&self, request: ModelRequest) -> bool {
        let Self { used, debt, .. } = self.at(request.now);
        let is_free = request.cost == 0;
        debt == 0 && (is_free || u128::from(used) + u128::from(request.cost) <= u128::from(self.hard))
    }

    pub(super) fn spend(&mut self, now: u64, cost: u64) -> Place {
        *self = self.at(now);
        self.used += cost;
        self.index.into()
    }

    /// Records a charge; whether that changed anything.
    pub(super) fn charge(&mut self, now: u64, cost: u64, place: Place) -> bool {
        let start = self.at(now);
        let (mut after, mut late) = (start.clone(), cost);
        if place.at + 1 == u128::from(start.index) {
            late = cost.saturating_sub(self.hard.saturating_sub(start.before));
            after.before += cost - late;
            after.debt_before = start.debt_before.saturating_add(late).min(self.most());
        }
        after.owe(late);
        self.replace(&start, after)
    }

    pub(super) fn refund(&mut self, now: u64, cost: u64, place: Place) -> bool {
        let mut settled = self.clone();
        settled.settle(now);
        let start = settled.at(now);
        let (mut after, mut back) = (start.clone(), cost);
        if place.at + 1 == u128::from(start.index) {
            back = cost.min(start.debt_before);
            after.debt_before -= back;
            after.before = start.before.saturating_sub(cost - back);
        } else if place.at != u128::from(start.index) {
            return false;
        }
        after.debt = start.debt.saturating_sub(back);
        after.used = start.used.saturating_sub(back.saturating_sub(start.debt));
        self.replace(&start, after)
    }

    fn replace(&mut self, start: &Self, after: Self) -> bool {
        let changed = start.counts() != after.counts();
        if changed {
            *self = after;
        }
        changed
    }

    pub(super) fn is_fresh(&self, now: u64) -> bool {
        self.used(now) == 0
    }
}
