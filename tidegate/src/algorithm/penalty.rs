//! The progressive penalty: blocks a subject that a rule denies again and again, each time for longer.
//!
//! It stands beside the limits of a rule, with a state of its own. Each denial by a limit of the rule is a *strike*. With `after`,
//! `block`, `factor` and `max`, for the k-th strike of a row, at the time t(k):
//!
//! ```text
//! b(k) = 0                                        for k < after
//! b(k) = min(block · factor^(k - after), max)     for k ≥ after
//! admitted(t(k), t(k) + b(k))  =  0
//! t(k+1)  ≥  t(k) + b(k)                          a request during a block is denied, and is no strike
//! t(k+1)  <  t(k) + b(k) + max                    otherwise the row is forgotten, and that strike is the first of a new one
//! ```
//!
//! So good behaviour is a time `max` after the last strike and its block without another strike. The retry of a denial is neither
//! before the end of the block nor before the limits admit the request: a client that is alone under its subject and waits as long as
//! it is told is never denied twice in a row.
//!
//! A strike needs a decision on the subject's own state:
//!
//! | no strike | why |
//! |---|---|
//! | a peek | it changes nothing |
//! | a denial by another rule of the plan | the subject did nothing that this rule forbids |
//! | a denial during a block | the length of a block is then known when it begins |
//! | a denial by an overflow bucket | others share it: a flood of new subjects would block them all |
//! | a request that another denial answered first, such as a known one | this rule did not judge it |
//!
//! A check of a penalty has no cost: it consumes nothing, is never refunded, and denies even a request without a cost during a block.
//! The state is the number of strikes in the row, and the time t(k) + b(k).

use std::time::Duration;

use super::lua::{LuaFunction, LuaInput};
use super::value::split_number;
use super::{CLOCK_MARGIN_MICROS, DecidedTake, Effect, Kind, Op, Outcome, State, Take, TakePosition};
use crate::Timestamp;
use crate::limit::{LimitError, MAX_AMOUNT, whole_micros};

/// The largest number of strikes before the first block.
pub const MAX_AFTER: u64 = 100;

/// The largest factor between two blocks.
pub const MAX_FACTOR: u64 = 1_000;

/// The longest block: 10 years of 365.25 days.
pub const MAX_BLOCK: Duration = Duration::from_secs(315_576_000);

/// Strikes are counted up to this number. The longest block is reached before: 52 doublings exceed every `max`.
pub(super) const MAX_STRIKES: u64 = 900;

/// The parameters of a progressive penalty.
///
/// ```
/// use std::time::Duration;
/// use tidegate::limits::Penalty;
///
/// let penalty = Penalty::new(3, Duration::from_secs(60), 2, Duration::from_secs(3600))?;
/// let blocks = [1, 2, 3, 4, 5, 9].map(|strike| penalty.block_after(strike).as_secs());
/// assert_eq!(blocks, [0, 0, 60, 120, 240, 3600]);
/// # Ok::<(), tidegate::limits::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    after: u64,
    /// Microseconds.
    block: u64,
    factor: u64,
    /// Microseconds.
    max: u64,
}

/// The strikes of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PenaltyState {
    /// The number of strikes.
    pub strikes: u64,
    /// The end of the block of the last strike, in microseconds; the time of the strike if it began none.
    pub ends: u64,
}

impl Penalty {
    /// Blocks a subject for `block` at the strike number `after`, then `factor` times longer at each further strike, up to `max`.
    pub fn new(after: u64, block: Duration, factor: u64, max: Duration) -> Result<Self, LimitError> {
        let check = |field, value: u64, bound: u64, bounds: &str| match value {
            value if (1..=bound).contains(&value) => Ok(value),
            value => Err(LimitError::new(field, format!("{value} is out of range: {bounds}"))),
        };
        let factors = "`factor` is 1 to 1,000; 1 keeps all blocks equally long";
        let penalty = Self {
            after: check("penalty.after", after, MAX_AFTER, "`after` is 1 to 100")?,
            block: whole_micros("penalty.block", block)?,
            factor: check("penalty.factor", factor, MAX_FACTOR, factors)?,
            max: whole_micros("penalty.max", max)?,
        };
        if max > MAX_BLOCK {
            return Err(LimitError::new("penalty.max", format!("{max:?} is longer than 10 years, the maximum")));
        }
        if penalty.block > penalty.max {
            return Err(LimitError::new("penalty.max", format!("{max:?} is shorter than the first block, {block:?}")));
        }
        Ok(penalty)
    }

    /// The strike that begins the first block.
    pub const fn after(&self) -> u64 {
        self.after
    }

    /// The length of the first block.
    pub const fn block(&self) -> Duration {
        Duration::from_micros(self.block)
    }

    /// How many times longer each further block is.
    pub const fn factor(&self) -> u64 {
        self.factor
    }

    /// The longest block, and how long a subject must behave well to be forgotten.
    pub const fn max(&self) -> Duration {
        Duration::from_micros(self.max)
    }

    pub(crate) const fn max_micros(&self) -> u64 {
        self.max
    }

    /// The length of the block that a strike begins, by its number in the row, from 1; zero if it begins none.
    pub fn block_after(&self, strike: u64) -> Duration {
        Duration::from_micros(self.block_micros(strike))
    }

    fn block_micros(&self, strike: u64) -> u64 {
        let Some(further) = strike.checked_sub(self.after) else { return 0 };
        let growth = self.factor.saturating_pow(u32::try_from(further).unwrap_or(u32::MAX));
        self.block.saturating_mul(growth).min(self.max)
    }

    /// The state at `now`, and whether it was rebased.
    fn normalize(&self, state: Option<PenaltyState>, now: Timestamp) -> (PenaltyState, bool) {
        let now = now.as_micros();
        let Some(state) = state.filter(|state| state.ends + self.max > now) else {
            return (PenaltyState::default(), false);
        };
        let block = self.block_micros(state.strikes);
        if state.ends.saturating_sub(block) > now + CLOCK_MARGIN_MICROS {
            return (PenaltyState { ends: now + block, ..state }, true);
        }
        (state, false)
    }

    /// The time left of the block that `state` is in, in microseconds.
    fn left(&self, state: PenaltyState, now: Timestamp) -> u64 {
        if self.block_micros(state.strikes) == 0 { 0 } else { state.ends.saturating_sub(now.as_micros()) }
    }
}

impl Kind for Penalty {
    type State<'s> = PenaltyState;
    type Change = PenaltyState;

    const LUA: LuaFunction = LuaFunction {
        number: 7,
        name: "penalty",
        text: include_str!("penalty.lua"),
        needs: "",
        numbers: 4,
        refund_numbers: 0,
    };

    fn state(state: &State) -> Option<PenaltyState> {
        if let State::Penalty(state) = state { Some(*state) } else { None }
    }

    fn create(change: PenaltyState) -> State {
        State::Penalty(change)
    }

    /// A take is admitted unless the subject is blocked. There is nothing to charge or to give back. During a block, a strike changes
    /// nothing.
    fn apply(&self, state: Option<PenaltyState>, now: Timestamp, op: Op) -> Effect<PenaltyState> {
        let (current, rebased) = self.normalize(state, now);
        let is_blocked = self.left(current, now) > 0;
        match op {
            Op::Take(_) if is_blocked => Effect::denied(rebased.then_some(current)),
            Op::Strike if !is_blocked => {
                let strikes = (current.strikes + 1).min(MAX_STRIKES);
                // A strike up to the clock margin ahead of now counts as current.
                let ends = current.ends.max(now.as_micros()) + self.block_micros(strikes);
                Effect::admitted(Some(PenaltyState { strikes, ends }))
            }
            _ => Effect::admitted(None),
        }
    }

    fn room(&self, state: Option<PenaltyState>, now: Timestamp, take: Take) -> u64 {
        if self.apply(state, now, Op::Take(take)).admitted { take.units } else { 0 }
    }

    /// From the state before the decision, or after the strike.
    fn outcome(&self, state: Option<PenaltyState>, now: Timestamp, decided: DecidedTake) -> Outcome {
        let (current, _) = self.normalize(state, now);
        let left = self.left(current, now);
        let reset = if current.strikes > 0 { self.expiry(current).saturating_sub(now.as_micros()) } else { 0 };
        Outcome {
            remaining: if left > 0 { 0 } else { MAX_AMOUNT },
            retry_after: (!decided.admitted).then(|| Duration::from_micros(left)),
            reset_after: Duration::from_micros(reset),
            ..decided.outcome(MAX_AMOUNT)
        }
    }

    /// It consumes nothing.
    fn position(&self, _: Option<PenaltyState>, _: Timestamp, _: Take) -> TakePosition {
        TakePosition::default()
    }

    fn expiry(&self, state: PenaltyState) -> u64 {
        state.ends + self.max
    }

    fn decode(&self, value: &[u8]) -> Option<State> {
        let (strikes, ends) = split_number(value, 16).filter(|_| (17..=19).contains(&value.len()))?;
        Some(State::Penalty(PenaltyState { strikes, ends }))
    }

    fn push_numbers(&self, _: LuaInput, _: impl FnOnce() -> Timestamp, mut push: impl FnMut(f64)) {
        for number in [self.after, self.block, self.factor, self.max] {
            push(number as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_790_000_000_000_000;

    fn penalty() -> Penalty {
        Penalty::new(3, Duration::from_secs(60), 2, Duration::from_secs(3600)).unwrap()
    }

    fn seconds(seconds: u64) -> Timestamp {
        Timestamp::from_micros(START + seconds * 1_000_000)
    }

    fn is_blocked(state: PenaltyState, now: Timestamp) -> bool {
        !penalty().apply(Some(state), now, Op::Take(Take::one(0))).admitted
    }

    fn strike(state: Option<PenaltyState>, now: Timestamp) -> Option<PenaltyState> {
        penalty().apply(state, now, Op::Strike).change
    }

    #[test]
    fn the_third_strike_begins_a_block_and_each_further_one_a_longer_block() {
        let (mut state, mut now) = (None, 0);
        for (strike_number, block) in [0, 0, 60, 120, 240, 480, 960, 1920, 3600, 3600].into_iter().enumerate() {
            let struck = strike(state, seconds(now)).unwrap();
            assert_eq!(struck.strikes, strike_number as u64 + 1);
            assert_eq!(is_blocked(struck, seconds(now)), block > 0);
            assert!(block == 0 || is_blocked(struck, seconds(now + block - 1)));
            assert!(!is_blocked(struck, seconds(now + block)));
            (state, now) = (Some(struck), now + block);
        }
    }

    #[test]
    fn a_request_during_a_block_is_no_strike() {
        let blocked = PenaltyState { strikes: 3, ends: START + 60_000_000 };
        assert_eq!(strike(Some(blocked), seconds(59)), None);
        assert_eq!(strike(Some(blocked), seconds(60)).unwrap().strikes, 4);
    }

    #[test]
    fn strikes_are_forgotten_when_none_follows_within_the_longest_block() {
        let struck = PenaltyState { strikes: 5, ends: START };
        let strikes = |now: Timestamp| strike(Some(struck), now).unwrap().strikes;
        assert_eq!(strikes(Timestamp::from_micros(START + 3_600_000_000 - 1)), 6);
        assert_eq!(strikes(seconds(3600)), 1);
        assert_eq!(penalty().expiry(struck), START + 3_600_000_000);
    }

    #[test]
    fn a_clock_that_was_set_back_restarts_the_block_but_never_shortens_it() {
        let state = PenaltyState { strikes: 3, ends: START + 1_000_000_000 };
        let denied = penalty().apply(Some(state), seconds(0), Op::Take(Take::one(1)));
        let rebased = PenaltyState { strikes: 3, ends: START + 60_000_000 };
        assert_eq!(denied, Effect { admitted: false, change: Some(rebased) });
        let within_margin = PenaltyState { strikes: 3, ends: START + 62_000_000 };
        let denied = penalty().apply(Some(within_margin), seconds(0), Op::Take(Take::one(1)));
        assert_eq!(denied, Effect { admitted: false, change: None });
    }

    #[test]
    fn raised_parameters_help_at_once() {
        let blocked = PenaltyState { strikes: 3, ends: START + 60_000_000 };
        let lenient = Penalty::new(4, Duration::from_secs(60), 2, Duration::from_secs(3600)).unwrap();
        assert!(lenient.apply(Some(blocked), seconds(0), Op::Take(Take::one(1))).admitted);
        let shorter = Penalty::new(3, Duration::from_secs(1), 2, Duration::from_secs(3600)).unwrap();
        let decided = DecidedTake { take: Take::one(1), admitted: false, consumed: false };
        let outcome = shorter.outcome(Some(blocked), seconds(0), decided);
        assert_eq!(outcome.retry_after, Some(Duration::from_secs(1)));
    }

    #[test]
    fn blocks_grow_to_the_longest_for_every_parameter() {
        let longest = Duration::from_secs(86_400 * 365);
        for (after, factor) in [(1, 1), (MAX_AFTER, 2), (1, 2), (7, 3), (MAX_AFTER, MAX_FACTOR)] {
            let penalty = Penalty::new(after, Duration::from_micros(1), factor, longest).unwrap();
            let last = penalty.block_after(MAX_STRIKES);
            assert_eq!(last, if factor == 1 { Duration::from_micros(1) } else { longest });
        }
    }

    #[test]
    fn impossible_parameters_are_refused() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(2));
        let field = |after, block, factor, max| Penalty::new(after, block, factor, max).unwrap_err().field();
        assert_eq!(field(0, short, 2, long), "penalty.after");
        assert_eq!(field(MAX_AFTER + 1, short, 2, long), "penalty.after");
        assert_eq!(field(1, Duration::ZERO, 2, long), "penalty.block");
        assert_eq!(field(1, short, 0, long), "penalty.factor");
        assert_eq!(field(1, short, MAX_FACTOR + 1, long), "penalty.factor");
        assert_eq!(field(1, long, 2, short), "penalty.max");
        assert_eq!(field(1, short, 2, MAX_BLOCK + short), "penalty.max");
        let problem = |after, block, factor| Penalty::new(after, block, factor, long).unwrap_err().to_string();
        assert_eq!(problem(101, short, 2), "penalty.after: 101 is out of range: `after` is 1 to 100");
        let equally_long = "penalty.factor: 0 is out of range: `factor` is 1 to 1,000; 1 keeps all blocks equally long";
        assert_eq!(problem(1, short, 0), equally_long);
        assert_eq!(problem(1, Duration::ZERO, 2), "penalty.block: it is zero; it must be at least 1 microsecond");
    }
}
