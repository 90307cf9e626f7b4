//! Takes, charges and refunds of a quota, period by period.

use super::*;
use crate::limits::Period;

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
        let result = self.0.apply(self.1, now, op);
        self.1 = result.change.or(self.1);
        result.admitted
    }

    fn take(&mut self, now: Timestamp, cost: u64) -> Outcome {
        let (before, take) = (self.1, Take::one(cost));
        let admitted = self.apply(now, Op::Take(take));
        self.0.outcome(before, now, DecidedTake { take, admitted, consumed: admitted })
    }

    fn charge(&mut self, now: Timestamp, cost: u64, at: Timestamp) {
        let position = self.0.position_at(at);
        self.apply(now, Op::Charge { cost, position });
    }

    fn refund(&mut self, now: Timestamp, cost: u64, at: Timestamp) {
        let position = self.0.position_at(at);
        self.apply(now, Op::Refund { cost, position });
    }

    /// The units used now and in the period before, with debt.
    fn used(&self, now: Timestamp) -> (u64, u64) {
        let (state, _) = self.0.normalize(self.1, now);
        (state.used + state.debt, state.previous + state.carried)
    }

    fn change_amount(&mut self, amount: u64) {
        self.0 = Quota::new(amount, 0, self.0.periods).unwrap();
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
fn a_lowered_amount_makes_no_debt() {
    let mut quota = Daily::new(1000, 0);
    assert!(quota.take(NOON, 500).admitted);
    quota.change_amount(100);
    let denied = quota.take(NOON, 1);
    assert_eq!((denied.admitted, denied.remaining), (false, 0));
    assert_eq!((denied.retry_after, denied.reset_after), (Some(DAY / 2), DAY / 2));
    assert!(quota.take(NOON, 0).admitted, "it is not in debt");
    let tomorrow = NOON.plus(DAY);
    assert_eq!(quota.used(tomorrow), (0, 500));
    quota.refund(tomorrow, 450, NOON);
    assert_eq!(quota.used(tomorrow), (0, 50));
    quota.charge(tomorrow, 60, NOON);
    assert_eq!(quota.used(tomorrow), (10, 110), "there was room for 50");
    assert!(quota.take(tomorrow, 90).admitted && !quota.take(tomorrow, 1).admitted);
}

#[test]
fn a_charge_after_an_amount_was_lowered_is_debt_of_its_own() {
    let mut quota = Daily::new(1000, 0);
    assert!(quota.take(NOON, 500).admitted);
    quota.change_amount(100);
    quota.charge(NOON, 130, NOON);
    let denied = quota.take(NOON, 0);
    assert_eq!((denied.admitted, denied.retry_after), (false, Some(DAY / 2 + DAY)));
    assert_eq!(denied.reset_after, DAY / 2 + 2 * DAY);
    assert_eq!(quota.used(NOON.plus(DAY)), (130, 630));
    assert!(quota.take(NOON.plus(2 * DAY), 70).admitted && !quota.take(NOON.plus(2 * DAY), 1).admitted);
    // A refund takes the debt back first.
    quota.charge(NOON.plus(2 * DAY), 40, NOON.plus(2 * DAY));
    quota.refund(NOON.plus(2 * DAY), 41, NOON.plus(2 * DAY));
    assert!(quota.take(NOON.plus(2 * DAY), 1).admitted);
}

/// A store keeps the state until the debt is paid by the amount of the last write.
#[test]
fn a_denial_in_debt_writes_the_state_again() {
    let mut quota = Daily::new(1000, 0);
    quota.charge(NOON, 2000, NOON);
    let state = quota.1;
    quota.change_amount(100);
    let denial = quota.0.apply(state, NOON.plus(DAY), Op::Take(Take::one(1)));
    assert_eq!((denial.admitted, denial.change), (false, state));
    let retry = quota.take(NOON.plus(DAY), 1).retry_after.unwrap();
    assert!(quota.0.expiry(state.unwrap()) > NOON.plus(DAY + retry).as_micros());
}

#[test]
fn a_raised_amount_pays_debt_at_once() {
    let mut quota = Daily::new(100, 0);
    quota.charge(NOON, 250, NOON);
    quota.change_amount(240);
    assert!(!quota.take(NOON, 0).admitted);
    quota.change_amount(260);
    assert!(quota.take(NOON, 10).admitted && !quota.take(NOON, 1).admitted);
    assert_eq!(quota.used(NOON.plus(DAY)), (0, 260));
}

/// So two calendars that are used at the same time cannot move a state to and fro, each time forgiving what is used.
#[test]
fn a_state_two_periods_ahead_counts_as_current_and_one_further_ahead_is_rebased() {
    let mut quota = Daily::new(100, 0);
    let later = NOON.plus(2 * DAY);
    assert!(quota.take(later, 60).admitted);
    let before = quota.1;
    assert!(!quota.take(NOON, 41).admitted);
    assert_eq!(quota.1, before);
    assert!(quota.take(NOON, 40).admitted && !quota.take(later, 1).admitted);
    assert_eq!(quota.used(later.plus(DAY)), (0, 100));
    let yesterday = Timestamp::from_micros(NOON.as_micros() - DAY.as_micros() as u64);
    assert!(!quota.take(yesterday, 1).admitted, "all that is used stays used");
    assert_eq!(quota.1.unwrap().index, quota.0.periods.bounds_at(yesterday).index);
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
        let state = big.apply(None, start, charge).change.unwrap();
        let small = Quota::new(1, 0, big.periods).unwrap();
        let ends = small.expiry(state);
        assert!(ends < start.as_micros() + MAX_WINDOW_MICROS + 3 * big.periods.max_micros(), "{period}");
        assert!(small.apply(Some(state), Timestamp::from_micros(ends), Op::Take(Take::one(1))).admitted, "{period}");
        let none = Quota::new(0, 0, big.periods).unwrap();
        assert!(none.apply(Some(state), start, Op::Take(Take::one(0))).admitted);
    }
}
