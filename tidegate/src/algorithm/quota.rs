//! The quota: a number of units in each calendar period, with grace above it, and debt that is carried over.
//!
//! With an amount of A, a grace of G and a hard limit of H = A + G, in periods that begin at s(k), for every period k:
//!
//! ```text
//! taken(s(k), s(k+1))  ≤  H - used(k)       used(k): what is carried into the period k
//! used(k+1)            =  max(0, used(k) + taken(k) + charged(k) - refunded(k) - H)
//! ```
//!
//! So without charges at most H units are admitted in each period, exactly; error bound: none within a period, and 2·H in an
//! interval that straddles a boundary. A charge is never refused. What it uses above H is debt: it is carried into the next periods, and
//! while a period is in debt even a cost of 0 is denied. Over n periods, taken + charged - refunded is at most n·H plus the debt that
//! is left. A debt lasts for at most 100 years.
//!
//! The state is the index of a period, the units used in it with those carried into it, and the units used in the period
//! before. A charge or a refund of a take in that period counts there, and changes what is carried over from it. A refund of an older
//! take gives nothing back, and a charge for one counts now.
//!
//! The index means the same in all time zones and with all anchors, so a changed zone or anchor keeps what is used.

use std::time::Duration;

use super::{CLOCK_MARGIN_MICROS, DecidedTake, Op, OpResult, Outcome, Take, TakePosition};
use crate::limit::{LimitError, MAX_AMOUNT, MAX_WINDOW_MICROS};
use crate::periods::until;
use crate::{Periods, Timestamp};

/// The parameters of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    amount: u64,
    grace: u64,
    periods: Periods,
}

/// The units used in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaState {
    /// The index of the period.
    pub index: u64,
    /// Units used in it, with the debt that was carried into it. More than the hard limit is debt.
    pub used: u64,
    /// Units used in the period before, likewise.
    pub previous: u64,
}

impl Quota {
    pub(crate) fn new(amount: u64, grace: u64, periods: Periods) -> Result<Self, LimitError> {
        LimitError::check_amount("quota.amount", amount)?;
        LimitError::check_amount("quota.grace", grace)?;
        if amount + grace > MAX_AMOUNT {
            let problem = format!("{amount} with a grace of {grace} is above the largest amount, {MAX_AMOUNT}");
            return Err(LimitError::new("quota.grace", problem));
        }
        Ok(Self { amount, grace, periods })
    }

    /// Units in each period, without grace: the soft limit.
    pub const fn amount(&self) -> u64 {
        self.amount
    }

    /// Units above the amount that are admitted, and marked.
    pub const fn grace(&self) -> u64 {
        self.grace
    }

    /// The amount with grace: the most units that are admitted in a period.
    pub const fn hard_limit(&self) -> u64 {
        self.amount + self.grace
    }

    /// The periods.
    pub const fn periods(&self) -> Periods {
        self.periods
    }

    /// The position of a take or charge at `at`.
    pub fn position_at(&self, at: Timestamp) -> TakePosition {
        TakePosition::from_index(self.periods.bounds_at(at).index)
    }

    /// The most units that count as used: a larger debt would last for more than 100 years.
    fn max_used(&self) -> u64 {
        let periods = MAX_WINDOW_MICROS / self.periods.max_micros() + 1;
        self.hard_limit().saturating_mul(periods).min(MAX_AMOUNT)
    }

    /// The state at `now`, and whether it was rebased.
    pub(super) fn normalize(&self, state: Option<QuotaState>, now: Timestamp) -> (QuotaState, bool) {
        let bounds = self.periods.bounds_at(now);
        let index = bounds.index;
        let Some(state) = state else { return (QuotaState { index, ..QuotaState::default() }, false) };
        let max = self.max_used();
        let state = QuotaState { used: state.used.min(max), previous: state.previous.min(max), ..state };
        if state.index > index {
            let is_near = state.index == index + 1 && bounds.starts[2] - now.as_micros() <= CLOCK_MARGIN_MICROS;
            let is_empty = state.used == 0 && state.previous == 0;
            if is_near && !is_empty {
                return (state, false);
            }
            return (QuotaState { index, used: state.used, previous: 0 }, !is_empty);
        }
        // Each period that has passed takes up to the hard limit off what was used.
        let after = |periods: u64| state.used.saturating_sub(self.hard_limit().saturating_mul(periods));
        match index - state.index {
            0 => (state, false),
            passed => (QuotaState { index, used: after(passed), previous: after(passed - 1) }, false),
        }
    }

    fn admits(&self, state: QuotaState, cost: u64) -> bool {
        state.used.saturating_add(cost) <= self.hard_limit()
    }

    /// What is carried over from a period in which so many units were used.
    fn carried(&self, used: u64) -> u64 {
        used.saturating_sub(self.hard_limit())
    }

    /// The number of periods after which nothing is left of so many units.
    fn periods_to_clear(&self, used: u64) -> u64 {
        if self.hard_limit() == 0 { 0 } else { used.div_ceil(self.hard_limit()) }
    }

    fn charge(&self, state: QuotaState, cost: u64, position: TakePosition) -> QuotaState {
        let max = self.max_used();
        if !position.is_before(state.index) {
            return QuotaState { used: state.used.saturating_add(cost).min(max), ..state };
        }
        let previous = state.previous.saturating_add(cost).min(max);
        let more = self.carried(previous) - self.carried(state.previous);
        QuotaState { used: state.used.saturating_add(more).min(max), previous, ..state }
    }

    fn refund(&self, state: QuotaState, cost: u64, position: TakePosition) -> QuotaState {
        if position.index() == state.index {
            return QuotaState { used: state.used.saturating_sub(cost), ..state };
        }
        if !position.is_before(state.index) {
            return state;
        }
        let previous = state.previous.saturating_sub(cost);
        let less = self.carried(state.previous) - self.carried(previous);
        QuotaState { used: state.used.saturating_sub(less), previous, ..state }
    }
}

/// Decides `op` on `state`. Twin: `quota.lua`.
pub fn apply(state: Option<QuotaState>, limit: &Quota, now: Timestamp, op: Op) -> OpResult<QuotaState> {
    let (current, rebased) = limit.normalize(state, now);
    let changed = |after: QuotaState| (after != current).then_some(after);
    match op {
        Op::Take(take) if limit.admits(current, take.total()) => {
            OpResult::admitted(changed(QuotaState { used: current.used + take.total(), ..current }))
        }
        Op::Take(_) => OpResult::denied(rebased.then_some(current)),
        Op::Charge { cost, position } => OpResult::admitted(changed(limit.charge(current, cost, position))),
        Op::Refund { cost, position } => OpResult::admitted(changed(limit.refund(current, cost, position))),
        // Nothing of it is held.
        Op::Renew { .. } | Op::Hold(_) => OpResult::denied(None),
    }
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `quota.lua`.
pub fn room(state: Option<QuotaState>, limit: &Quota, now: Timestamp, take: Take) -> u64 {
    let (current, _) = limit.normalize(state, now);
    match limit.hard_limit().checked_sub(current.used) {
        Some(left) => left.checked_div(take.cost).unwrap_or(take.units).min(take.units),
        None => 0,
    }
}

/// The outcome for the caller, from the state before the decision.
pub fn outcome(state: Option<QuotaState>, limit: &Quota, now: Timestamp, decided: DecidedTake) -> Outcome {
    let (mut current, _) = limit.normalize(state, now);
    let cost = decided.take.total();
    if decided.consumed {
        current.used += cost;
    }
    let start_after = |periods: u64| until(limit.periods.start_of(current.index + periods), now);
    // The first period in which what is left of the debt and the cost fit together.
    let retry = || start_after((limit.periods_to_clear(current.used + cost)).saturating_sub(1).max(1));
    Outcome {
        remaining: limit.amount.saturating_sub(current.used),
        retry_after: (!decided.admitted && cost <= limit.hard_limit()).then(retry),
        reset_after: match current.used {
            0 => Duration::ZERO,
            used => start_after(limit.periods_to_clear(used)),
        },
        in_grace: decided.admitted && current.used > limit.amount,
        ..decided.outcome(limit.amount)
    }
}

/// An instant, in microseconds, at which `state` is equivalent to none: after as many of the longest periods as the debt lasts, and the
/// one in which the last of it can still be refunded.
pub fn expiry(state: QuotaState, limit: &Quota) -> u64 {
    let periods = limit.periods_to_clear(state.used.min(limit.max_used())) + 1;
    limit.periods.start_of(state.index).saturating_add(periods * limit.periods.max_micros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Period;

    const DAY: Duration = Duration::from_secs(86_400);
    /// 2026-03-10 12:00 UTC.
    const NOON: Timestamp = Timestamp::from_micros(1_773_144_000_000_000);

    /// A quota by day in UTC and its state.
    struct Daily(Quota, Option<QuotaState>);

    impl Daily {
        fn new(amount: u64, grace: u64) -> Self {
            Self(Quota::new(amount, grace, Periods::utc(Period::Day)).unwrap(), None)
        }

        fn apply(&mut self, now: Timestamp, op: Op) -> bool {
            let result = apply(self.1, &self.0, now, op);
            self.1 = result.change.or(self.1);
            result.admitted
        }

        fn take(&mut self, now: Timestamp, cost: u64) -> Outcome {
            let (before, take) = (self.1, Take::one(cost));
            let admitted = self.apply(now, Op::Take(take));
            outcome(before, &self.0, now, DecidedTake { take, admitted, consumed: admitted })
        }

        fn charge(&mut self, now: Timestamp, cost: u64, at: Timestamp) {
            let position = self.0.position_at(at);
            self.apply(now, Op::Charge { cost, position });
        }

        fn refund(&mut self, now: Timestamp, cost: u64, at: Timestamp) {
            let position = self.0.position_at(at);
            self.apply(now, Op::Refund { cost, position });
        }

        fn used(&self, now: Timestamp) -> (u64, u64) {
            let (state, _) = self.0.normalize(self.1, now);
            (state.used, state.previous)
        }
    }

    #[test]
    fn grace_admits_above_the_amount_and_is_marked() {
        let mut quota = Daily::new(100, 20);
        let outcome = quota.take(NOON, 100);
        assert_eq!((outcome.admitted, outcome.limit, outcome.remaining, outcome.in_grace), (true, 100, 0, false));
        let outcome = quota.take(NOON, 20);
        assert_eq!((outcome.admitted, outcome.remaining, outcome.in_grace), (true, 0, true));
        let outcome = quota.take(NOON, 1);
        assert_eq!((outcome.admitted, outcome.in_grace), (false, false));
        assert_eq!((outcome.retry_after, outcome.reset_after), (Some(DAY / 2), DAY / 2));
        assert!(quota.take(NOON, 0).admitted, "it is not in debt");
        assert_eq!(quota.take(NOON, 121).retry_after, None);
    }

    #[test]
    fn debt_is_carried_over_until_the_periods_have_paid_it() {
        let mut quota = Daily::new(100, 0);
        quota.charge(NOON, 250, NOON);
        let outcome = quota.take(NOON, 0);
        assert_eq!((outcome.admitted, outcome.retry_after), (false, Some(DAY / 2 + DAY)));
        assert_eq!(outcome.reset_after, DAY / 2 + 2 * DAY);
        let tomorrow = NOON.plus(DAY);
        assert_eq!(quota.used(tomorrow), (150, 250));
        assert!(!quota.take(tomorrow, 0).admitted);
        let third = NOON.plus(2 * DAY);
        assert_eq!(quota.used(third), (50, 150));
        assert!(quota.take(third, 50).admitted && !quota.take(third, 1).admitted);
    }

    #[test]
    fn a_late_charge_and_a_late_refund_count_in_the_period_before() {
        let tomorrow = NOON.plus(DAY);
        let mut quota = Daily::new(100, 0);
        assert!(quota.take(NOON, 90).admitted && quota.take(tomorrow, 30).admitted);
        quota.charge(tomorrow, 25, NOON);
        assert_eq!(quota.used(tomorrow), (45, 115), "the 15 that exceed the period are debt");
        quota.refund(tomorrow, 10, NOON);
        assert_eq!(quota.used(tomorrow), (35, 105));
        quota.refund(tomorrow, 50, NOON);
        assert_eq!(quota.used(tomorrow), (30, 55), "what is no longer debt was not used today");
        let third = NOON.plus(2 * DAY);
        quota.refund(third, 10, NOON);
        assert_eq!(quota.used(third), (0, 30), "it is too late");
        quota.charge(third, 7, NOON);
        assert_eq!(quota.used(third), (7, 30), "it counts now");
    }

    #[test]
    fn a_state_ahead_of_now_is_kept_within_the_margin_and_rebased_beyond() {
        let mut quota = Daily::new(100, 0);
        let midnight = NOON.plus(DAY / 2);
        assert!(quota.take(midnight, 60).admitted);
        let just_before = Timestamp::from_micros(midnight.as_micros() - CLOCK_MARGIN_MICROS);
        assert!(!quota.take(just_before, 41).admitted);
        assert_eq!(quota.used(just_before), (60, 0));
        assert!(!quota.take(NOON, 41).admitted, "all that is used stays used");
        assert_eq!(quota.1.unwrap().index + 1, quota.0.periods.bounds_at(midnight).index);
    }

    #[test]
    fn the_parameters_are_bounded() {
        let periods = Periods::utc(Period::Month);
        let field = |amount, grace| Quota::new(amount, grace, periods).unwrap_err().field();
        assert!(Quota::new(MAX_AMOUNT, 0, periods).is_ok());
        assert_eq!((field(MAX_AMOUNT + 1, 0), field(MAX_AMOUNT, 1)), ("quota.amount", "quota.grace"));
        assert_eq!(field(0, u64::MAX), "quota.grace");
    }

    #[test]
    fn a_debt_ends_within_a_hundred_years_even_if_the_limit_is_lowered() {
        // In 1971: instants end in 2112.
        let start = Timestamp::from_micros(31_536_000_000_000);
        for period in Period::ALL {
            let big = Quota::new(MAX_AMOUNT, 0, Periods::utc(period)).unwrap();
            let charge = Op::Charge { cost: MAX_AMOUNT, position: TakePosition::default() };
            let state = apply(None, &big, start, charge).change.unwrap();
            let small = Quota::new(1, 0, big.periods).unwrap();
            let ends = expiry(state, &small);
            assert!(ends < start.as_micros() + MAX_WINDOW_MICROS + 3 * big.periods.max_micros(), "{period}");
            assert_eq!(small.normalize(Some(state), Timestamp::from_micros(ends)).0.used, 0, "{period}");
            let none = Quota::new(0, 0, big.periods).unwrap();
            assert!(apply(Some(state), &none, start, Op::Take(Take::one(0))).admitted);
        }
    }
}
