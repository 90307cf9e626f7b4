//! `AccountBalances`: the sums of an account's periods, and the debt that is carried from one to the next.
//!
//! With the consumption N(k) of a period k, its hard limit H(k), the debt F(k) that resets forgave in it, and the last period j before k
//! with entries:
//!
//! ```text
//! C(k) = max(0, max(0, C(j) + N(j) - H(j) · (k - j)) - F(k))     C of the first period is 0
//! ```

use std::collections::BTreeMap;

use tidegate::spi::algorithm::quota::QuotaState;

/// The sums of one period of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    /// N(k): the sum of the amounts. Below 0 only if more was given back than the ledger has seen consumed.
    pub(crate) consumed: i64,
    /// C(k): the debt that was carried into the period.
    pub(crate) carried: i64,
    /// F(k).
    pub(crate) forgiven: i64,
    /// H(k): the largest hard limit of the entries.
    pub(crate) hard_limit: i64,
    /// Single entries that are older may be gone, in microseconds.
    pub(crate) rolled_before: i64,
}

/// A row of the table of balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BalanceRow {
    pub(crate) account: i64,
    pub(crate) period: i64,
    pub(crate) balance: Balance,
}

/// What an entry adds to the sums of its period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BalanceChange {
    pub(crate) amount: i64,
    pub(crate) forgiven: i64,
    pub(crate) hard_limit: i64,
}

/// The last period before those that change, and all periods from there on.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccountBalances {
    periods: BTreeMap<i64, Balance>,
    /// The periods as they are stored.
    stored: BTreeMap<i64, Balance>,
    /// The first period that changed.
    first_changed: Option<i64>,
}

impl Balance {
    /// The debt of this period's end that is left at the beginning of the period `periods` later.
    fn carried_after(&self, periods: i64) -> i64 {
        self.carried.saturating_add(self.consumed).saturating_sub(self.hard_limit.saturating_mul(periods)).max(0)
    }
}

impl AccountBalances {
    pub(crate) fn new(rows: impl IntoIterator<Item = (i64, Balance)>) -> Self {
        let periods: BTreeMap<_, _> = rows.into_iter().collect();
        Self { stored: periods.clone(), periods, first_changed: None }
    }

    pub(crate) fn get(&self, period: i64) -> Option<&Balance> {
        self.periods.get(&period)
    }

    pub(crate) fn last_period(&self) -> Option<i64> {
        self.periods.last_key_value().map(|(period, _)| *period)
    }

    /// The hard limit of the period, or of the last one before it, or of the first one after it.
    pub(crate) fn hard_limit_near(&self, period: i64) -> Option<i64> {
        let before = self.periods.range(..=period).next_back();
        before.or_else(|| self.periods.range(period..).next()).map(|(_, balance)| balance.hard_limit)
    }

    /// The debt that is carried into a period, whether or not it has entries.
    pub(crate) fn carried_into(&self, period: i64) -> i64 {
        let forgiven = self.get(period).map_or(0, |balance| balance.forgiven);
        let before = self.periods.range(..period).next_back();
        let carried = before.map_or(0, |(earlier, balance)| balance.carried_after(period.saturating_sub(*earlier)));
        carried.saturating_sub(forgiven).max(0)
    }

    /// Adds an entry. Call [`carry`](Self::carry) after the last one.
    pub(crate) fn add(&mut self, period: i64, change: BalanceChange) {
        let balance = self.periods.entry(period).or_default();
        balance.consumed = balance.consumed.saturating_add(change.amount);
        balance.forgiven = balance.forgiven.saturating_add(change.forgiven);
        balance.hard_limit = balance.hard_limit.max(change.hard_limit);
        self.first_changed = Some(self.first_changed.map_or(period, |first| first.min(period)));
    }

    /// Carries debt over anew from the first changed period on.
    pub(crate) fn carry(&mut self) {
        let Some(first) = self.first_changed else { return };
        let following: Vec<i64> = self.periods.range(first..).map(|(period, _)| *period).collect();
        for period in following {
            let carried = self.carried_into(period);
            if let Some(balance) = self.periods.get_mut(&period) {
                balance.carried = carried;
            }
        }
    }

    /// The periods that differ from what is stored.
    pub(crate) fn changed(&self) -> impl Iterator<Item = (i64, Balance)> {
        let changed = |(period, balance): &(&i64, &Balance)| self.stored.get(period) != Some(balance);
        self.periods.iter().filter(changed).map(|(period, balance)| (*period, *balance))
    }

    /// The state of the gate in the last period, and its hard limit. Needs the last two periods with entries.
    pub(crate) fn gate(&self) -> (QuotaState, u64) {
        let Some((&index, last)) = self.periods.last_key_value() else { return (QuotaState::default(), 0) };
        let total = last.carried.saturating_add(last.consumed).max(0);
        let used = total.min(last.hard_limit);
        // In the period before, idle or not, its allowance paid what was owed or used.
        let previous = self.periods.range(..index).next_back().map_or(0, |(&earlier, balance)| {
            let owed = match index - 1 - earlier {
                0 => balance.carried.saturating_add(balance.consumed).max(0),
                idle => balance.carried_after(idle),
            };
            owed.min(balance.hard_limit)
        });
        let state = QuotaState {
            index: index.unsigned_abs(),
            used: used.unsigned_abs(),
            debt: (total - used).unsigned_abs(),
            previous: previous.unsigned_abs(),
            carried: last.carried.unsigned_abs(),
        };
        (state, last.hard_limit.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balances(entries: &[(i64, i64)]) -> AccountBalances {
        let mut balances = AccountBalances::default();
        for &(period, amount) in entries {
            balances.add(period, BalanceChange { amount, forgiven: 0, hard_limit: 10 });
        }
        balances.carry();
        balances
    }

    #[test]
    fn idle_periods_pay_debt_and_count_as_used_in_the_period_before() {
        let balances = balances(&[(1, 37), (4, 1)]);
        let expected = QuotaState { index: 4, used: 8, debt: 0, previous: 10, carried: 7 };
        assert_eq!(balances.gate(), (expected, 10));
        assert_eq!([2, 3, 5].map(|period| balances.carried_into(period)), [27, 17, 0]);
    }

    #[test]
    fn what_was_used_in_the_period_before_is_bounded_by_its_limit() {
        let state = balances(&[(1, 14), (2, 3)]).gate().0;
        assert_eq!(state, QuotaState { index: 2, used: 7, debt: 0, previous: 10, carried: 4 });
    }

    #[test]
    fn a_late_amount_changes_the_debt_of_every_period_after_it() {
        let mut balances = balances(&[(1, 8), (2, 9), (3, 10)]);
        balances.add(1, BalanceChange { amount: 5, forgiven: 0, hard_limit: 10 });
        balances.carry();
        assert_eq!([1, 2, 3].map(|period| balances.get(period).unwrap().carried), [0, 3, 2]);
        assert_eq!(balances.gate().0, QuotaState { index: 3, used: 10, debt: 2, previous: 10, carried: 2 });
    }

    #[test]
    fn forgiven_debt_stays_forgiven_when_its_period_changes() {
        let mut balances = balances(&[(1, 15), (2, 1)]);
        balances.add(2, BalanceChange { amount: -1, forgiven: 5, hard_limit: 0 });
        balances.carry();
        assert_eq!(balances.gate().0, QuotaState { index: 2, previous: 10, ..QuotaState::default() });
        for (amount, carried) in [(-3, 0), (5, 2)] {
            balances.add(1, BalanceChange { amount, forgiven: 0, hard_limit: 0 });
            balances.carry();
            assert_eq!(balances.get(2).unwrap().carried, carried);
        }
    }
}
