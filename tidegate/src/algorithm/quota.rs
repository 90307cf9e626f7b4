//! The quota: a number of units in each calendar period, with grace above it, and debt that is carried over.
//!
//! With an amount of A, a grace of G and a hard limit of H = A + G, in periods that begin at s(k), for every period k:
//!
//! ```text
//! taken(s(k), s(k+1))  ≤  H - paid(k)       paid(k) = min(debt(k), H): what the period k pays of the debt carried into it
//! debt(k+1)            =  debt(k) - paid(k) + charged(k) beyond H - refunded(k) of that
//! ```
//!
//! So without charges at most H units are admitted in each period, exactly; error bound: none within a period, and 2·H in an
//! interval that straddles a boundary. A charge is never refused. What it uses above H is debt: it is carried into the next periods, and
//! while a period is in debt even a cost of 0 is denied. Over n periods, taken + charged - refunded is at most n·H plus the debt that
//! is left. A debt lasts for at most 100 years.
//!
//! The state is the index of a period, the units used of its allowance, the debt beyond, and both at the end of the period before. A
//! charge or a refund of a take in that period counts there, and changes what was carried over from it. A refund of an older take
//! gives nothing back, and a charge for one counts now.
//!
//! Units that were taken are never debt. After H was lowered, more of them may be used than H: then nothing but a cost of 0 passes until
//! the period ends. After H was raised, the period pays more of its debt at once.
//!
//! The index means the same in all time zones and with all anchors, so a changed zone or anchor keeps what is used. Two calendars that
//! are used at the same time may be up to two periods apart. So a state that far ahead counts as current; were it moved back, the
//! other calendar would move it ahead again and forgive what is used. A state further ahead is rebased.
//!
//! A denial in debt writes the same state again. After H was lowered, the debt lasts longer than the state was to be kept.
//!
//! Neither a denied request that counts (`CountEach`) nor a charge to an overflow bucket makes debt ([`Op::Fill`]): a
//! subject that is denied could add to its debt without end, and others who share the bucket would pay it.

use std::time::Duration;

use super::lua::{LuaFunction, LuaInput};
use super::value::{split_list, split_number};
use super::{DecidedTake, Effect, Kind, Op, Outcome, State, Take, TakePosition};
use crate::Timestamp;
use crate::limit::{LimitError, MAX_AMOUNT, MAX_WINDOW_MICROS};
use crate::limits::Periods;
use crate::periods::until;

/// How many periods one calendar may be ahead of another. Local times are up to 26 hours apart, so dates up to two days, and so are months
/// which begin on the first and on the last day.
const MAX_LEAD: u64 = 2;

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
    /// Units used of its allowance, with what it pays of the debt that was carried into it. More than the hard limit if that was lowered.
    pub used: u64,
    /// Units charged beyond the allowance. The next periods pay them.
    pub debt: u64,
    /// Units used in the period before, likewise.
    pub previous: u64,
    /// The debt that was carried over from the period before.
    pub carried: u64,
}

impl QuotaState {
    /// The value that stores keep, as `quota.lua` writes it.
    pub fn encode(self) -> String {
        let Self { index, used, debt, previous, carried } = self;
        match (debt, carried, previous) {
            (0, 0, 0) => format!("{used}{index:08}"),
            (0, 0, _) => format!("{used}{index:08},{previous}"),
            _ => format!("{used}{index:08},{previous},{debt},{carried}"),
        }
    }

    /// Reads such a value. `None` if no version of this library writes it.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let (digits, more) = split_list(value)?;
        let (used, index) = split_number(digits, 8)?;
        let (previous, debt, carried) = match more[..] {
            [] => (0, 0, 0),
            [previous] => (previous, 0, 0),
            [previous, debt, carried] => (previous, debt, carried),
            _ => return None,
        };
        Some(Self { index, used, debt, previous, carried })
    }

    /// The state in the period `index` if nothing is consumed until then, under a quota with this amount and grace. Unchanged if that
    /// period is not a later one.
    pub fn rolled_to(self, index: u64, hard_limit: u64) -> Self {
        let Some(passed) = index.checked_sub(self.index).filter(|passed| *passed > 0) else { return self };
        let (used, debt) = after(self, passed, hard_limit);
        let (previous, carried) = after(self, passed - 1, hard_limit);
        Self { index, used, debt, previous, carried }
    }

    /// Whether nothing is used or owed.
    pub const fn is_empty(self) -> bool {
        matches!(self, Self { index: _, used: 0, debt: 0, previous: 0, carried: 0 })
    }
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

    /// The largest debt: more would last for more than 100 years.
    fn max_debt(&self) -> u64 {
        self.hard_limit().saturating_mul(MAX_WINDOW_MICROS / self.periods.max_micros()).min(MAX_AMOUNT)
    }

    /// The part of so many units that fits beside those that are used.
    fn fitting(&self, units: u64, used: u64) -> u64 {
        units.min(self.hard_limit().saturating_sub(used))
    }

    /// The state at `now`, and whether it was rebased.
    pub(crate) fn normalize(&self, state: Option<QuotaState>, now: Timestamp) -> (QuotaState, bool) {
        let index = self.periods.bounds_at(now).index;
        let Some(state) = state.filter(|state| !state.is_empty()) else {
            return (QuotaState { index, ..QuotaState::default() }, false);
        };
        let state = self.bounded(state);
        if state.index > index + MAX_LEAD {
            return (QuotaState { index, previous: 0, carried: 0, ..state }, true);
        }
        (state.rolled_to(index, self.hard_limit()), false)
    }

    /// The state under this limit: its debt has an end, and after the limit was raised its period pays more of it.
    fn bounded(&self, state: QuotaState) -> QuotaState {
        let (used, debt) = (state.used.min(MAX_AMOUNT), state.debt.min(self.max_debt()));
        let paid = self.fitting(debt, used);
        QuotaState {
            used: used + paid,
            debt: debt - paid,
            previous: state.previous.min(MAX_AMOUNT),
            carried: state.carried.min(self.max_debt()),
            ..state
        }
    }

    const fn admits(&self, state: QuotaState, cost: u64) -> bool {
        state.debt == 0 && (cost == 0 || state.used.saturating_add(cost) <= self.hard_limit())
    }

    /// The number of periods that pay so many units.
    fn periods_to_pay(&self, units: u64) -> u64 {
        if self.hard_limit() == 0 { 0 } else { units.div_ceil(self.hard_limit()) }
    }

    fn charge(&self, mut state: QuotaState, cost: u64, position: TakePosition) -> QuotaState {
        let (mut now, max) = (cost, self.max_debt());
        if position.is_before(state.index) {
            let fitting = self.fitting(cost, state.previous);
            now = cost - fitting;
            state.previous += fitting;
            state.carried = state.carried.saturating_add(now).min(max);
        }
        let fitting = self.fitting(now, state.used);
        state.used += fitting;
        state.debt = state.debt.saturating_add(now - fitting).min(max);
        state
    }

    fn refund(mut state: QuotaState, cost: u64, position: TakePosition) -> QuotaState {
        let mut now = cost;
        if position.is_before(state.index) {
            now = cost.min(state.carried);
            state.carried -= now;
            state.previous = state.previous.saturating_sub(cost - now);
        } else if position.index() != state.index {
            return state;
        }
        let of_debt = now.min(state.debt);
        state.debt -= of_debt;
        state.used = state.used.saturating_sub(now - of_debt);
        state
    }
}

/// Units used and debt after so many further periods, each of which pays up to the hard limit.
fn after(state: QuotaState, periods: u64, hard_limit: u64) -> (u64, u64) {
    let Some(earlier) = periods.checked_sub(1) else { return (state.used, state.debt) };
    let owed = state.debt.saturating_sub(hard_limit.saturating_mul(earlier));
    let paid = owed.min(hard_limit);
    (paid, owed - paid)
}

impl From<QuotaState> for State {
    fn from(state: QuotaState) -> Self {
        let QuotaState { index, used, debt: 0, previous, carried: 0 } = state else {
            return Self::QuotaWithDebt(Box::new(state));
        };
        // The periods of dates that exist have indexes below 2^27.
        Self::Quota { index: u32::try_from(index).unwrap_or(u32::MAX), used, previous }
    }
}

impl Kind for Quota {
    type State<'s> = QuotaState;
    type Change = QuotaState;

    const LUA: LuaFunction = LuaFunction {
        number: 8,
        name: "quota",
        text: include_str!("quota.lua"),
        needs: "",
        numbers: 8,
        refund_numbers: 0,
    };

    fn state(state: &State) -> Option<QuotaState> {
        match state {
            State::Quota { index, used, previous } => {
                Some(QuotaState { index: (*index).into(), used: *used, previous: *previous, ..QuotaState::default() })
            }
            State::QuotaWithDebt(state) => Some(**state),
            _ => None,
        }
    }

    fn create(change: QuotaState) -> State {
        change.into()
    }

    fn apply(&self, state: Option<QuotaState>, now: Timestamp, op: Op) -> Effect<QuotaState> {
        let (current, rebased) = self.normalize(state, now);
        let changed = |after: QuotaState| (after != current).then_some(after);
        match op {
            Op::Take(take) if self.admits(current, take.total()) => {
                Effect::admitted(changed(QuotaState { used: current.used + take.total(), ..current }))
            }
            Op::Take(_) if rebased => Effect::denied(Some(current)),
            Op::Take(_) => Effect::denied(state.filter(|_| current.debt > 0)),
            Op::Charge { cost, position } => Effect::admitted(changed(self.charge(current, cost, position))),
            Op::Fill { cost } => {
                let cost = self.fitting(cost, current.used);
                Effect::admitted(changed(self.charge(current, cost, TakePosition::default())))
            }
            Op::Refund { cost, position } => Effect::admitted(changed(Self::refund(current, cost, position))),
            // Nothing of it is held.
            Op::Renew { .. } | Op::Hold(_) | Op::Strike => Effect::denied(None),
        }
    }

    fn room(&self, state: Option<QuotaState>, now: Timestamp, take: Take) -> u64 {
        let (current, _) = self.normalize(state, now);
        if current.debt > 0 {
            return 0;
        }
        let left = self.hard_limit().saturating_sub(current.used);
        left.checked_div(take.cost).unwrap_or(take.units).min(take.units)
    }

    fn outcome(&self, state: Option<QuotaState>, now: Timestamp, decided: DecidedTake) -> Outcome {
        let (mut current, _) = self.normalize(state, now);
        let cost = decided.take.total();
        if decided.consumed {
            current.used += cost;
        }
        let start_after = |periods: u64| until(self.periods.start_of(current.index + periods), now);
        // The first period in which the cost fits beside what is left of the debt.
        let retry = || start_after(self.periods_to_pay(current.debt + cost).max(1));
        Outcome {
            remaining: self.amount.saturating_sub(current.used),
            retry_after: (!decided.admitted && cost <= self.hard_limit()).then(retry),
            reset_after: match current.used {
                0 => Duration::ZERO,
                _ => start_after(self.periods_to_pay(current.debt) + 1),
            },
            // After the amount was lowered, a cost of 0 passes beyond the grace.
            in_grace: decided.admitted && current.used > self.amount && current.used <= self.hard_limit(),
            ..decided.outcome(self.amount)
        }
    }

    fn position(&self, state: Option<QuotaState>, now: Timestamp, _: Take) -> TakePosition {
        TakePosition::from_index(self.normalize(state, now).0.index)
    }

    /// After as many of the longest periods as the debt lasts, the one in which nothing is used any more, and the one in which the last
    /// of it can still be refunded.
    fn expiry(&self, state: QuotaState) -> u64 {
        let is_used = state.used > 0 || state.debt > 0;
        let periods = self.periods_to_pay(state.debt.min(self.max_debt())) + if is_used { 2 } else { 1 };
        self.periods.start_of(state.index).saturating_add(periods * self.periods.max_micros())
    }

    fn period_start(&self, _: Option<QuotaState>, now: Timestamp) -> u64 {
        self.periods.bounds_at(now).starts[1]
    }

    fn late_position(&self, state: Option<QuotaState>, now: Timestamp, at: u64) -> Option<TakePosition> {
        let bounds = self.periods.bounds_at(now);
        // A period before the last one is forgotten, and so is the last one if the state is ahead: the cost counts now.
        let is_known = at >= bounds.starts[0] && self.normalize(state, now).0.index == bounds.index;
        let before = || TakePosition::from_index(bounds.index.saturating_sub(1));
        Some(if is_known { before() } else { TakePosition::default() })
    }

    fn decode(&self, value: &[u8]) -> Option<State> {
        QuotaState::decode(value).map(State::from)
    }

    fn push_numbers(&self, input: LuaInput, now: impl FnOnce() -> Timestamp, mut push: impl FnMut(f64)) {
        for number in [input.cost, input.position.index(), self.hard_limit()] {
            push(number as f64);
        }
        self.periods.push_numbers(now(), push);
    }
}

#[cfg(test)]
mod tests;
