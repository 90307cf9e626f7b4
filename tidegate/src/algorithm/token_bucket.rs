//! The token bucket: bursts up to a capacity, then a sustained rate.
//!
//! With capacity C and a refill of r tokens in p microseconds, for every interval (s, t]:
//!
//! ```text
//! admitted(s, t)  ≤  C + (t − s) · r / p          (admitted: and not given back)
//! ```
//!
//! Error bound: none. Without refunds, a request is admitted if and only if the inequality holds for every s up to now, counted
//! in exact fractions of a microsecond.
//!
//! The state is the instant at which the bucket is full again. A cost of c moves it c·p/r later; it may lie at most C·p/r
//! (the burst window) after now. A state before now is equivalent to none. A state beyond the burst window, which only a
//! clock set back or a lowered limit can leave, is rebased to its end and written: the bucket is then empty.
//!
//! # Refunds
//!
//! Tokens that have refilled since the take are not given back again. A take at time a, after which the bucket is full again
//! at f, is missing from the bucket until
//!
//! ```text
//! max(a + c · p / r,  f − returned since a)
//! ```
//!
//! and a refund at u gives back at most the time left until then. The second bound is that of a queue: the bucket refills its
//! takes in their order, this one until f, and everything returned since the take may have been ahead of it. The first bound
//! holds whatever was returned: by itself, the take is missing for as long as its own refill lasts. The refund of the last take
//! moves no other and is not counted as returned. Without the term *returned*, a client that takes, refunds and takes again would
//! collect receipts that all end late, and give back at once more than the bucket holds. So the state counts what was returned,
//! from the first refund until no receipt from before can be worth anything.

use std::time::Duration;

use super::lua::{LuaFunction, LuaInput};
use super::value::{parse_moment, split_list};
use super::{DecidedTake, Effect, FractionalMicros, Kind, Op, Outcome, State, Take, TakePosition};
use crate::limit::{LimitError, MAX_WINDOW_MICROS};
use crate::{Rate, Timestamp};

/// The parameters of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    capacity: u64,
    refill: Rate,
    /// p/r: the time to refill one token.
    emission: FractionalMicros,
    /// C·p/r: the time to refill from empty to full.
    burst: FractionalMicros,
}

/// Maximum of [`TokenBucketState::returned`]. From there on it no longer tells refunds apart, and a refund gives back only what
/// the take by itself is missing.
pub(super) const MAX_RETURNED_MICROS: u64 = 1 << 52;

/// The longest delay of a token bucket is its refill period times this, 2^63: longer than any delay. `holds.lua` needs the period.
const DELAY_FACTOR: f64 = (1_u64 << 63) as f64;

/// The state of a token bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBucketState {
    /// The instant at which the bucket is full again.
    pub full: FractionalMicros,
    /// The microseconds by which refunds have moved takes behind them, each rounded up. 0 for most.
    pub returned: u64,
}

impl TokenBucket {
    pub(crate) fn new(field: &'static str, capacity: u64, refill: Rate) -> Result<Self, LimitError> {
        LimitError::check_amount(field, capacity)?;
        let burst = u128::from(capacity) * u128::from(refill.period_micros()) / u128::from(refill.amount());
        if burst > u128::from(MAX_WINDOW_MICROS) {
            let max = u128::from(MAX_WINDOW_MICROS) * u128::from(refill.amount()) / u128::from(refill.period_micros());
            let reason = "at this rate (from empty to full may take 100 years)";
            return Err(LimitError::too_large(field, capacity, max as u64, reason));
        }
        let mut bucket =
            Self { capacity, refill, emission: FractionalMicros::default(), burst: FractionalMicros::default() };
        bucket.emission = bucket.exact_span(1);
        bucket.burst = bucket.exact_span(capacity);
        Ok(bucket)
    }

    /// The maximum number of tokens.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The refill rate.
    pub const fn refill(&self) -> Rate {
        self.refill
    }

    /// C·p/r: the time to refill from empty to full.
    pub const fn burst(&self) -> FractionalMicros {
        self.burst
    }

    /// The time to refill `cost` tokens. A cost above the capacity counts as one token more than the capacity.
    #[inline(always)]
    pub fn span(&self, cost: u64) -> FractionalMicros {
        if cost == 1 { self.emission } else { self.exact_span(cost.min(self.capacity + 1)) }
    }

    fn exact_span(&self, tokens: u64) -> FractionalMicros {
        let rate = self.refill.amount();
        if let Some(parts) = tokens.checked_mul(self.refill.period_micros()) {
            return FractionalMicros { micros: parts / rate, part: parts % rate };
        }
        let (parts, rate) = (u128::from(tokens) * u128::from(self.refill.period_micros()), u128::from(rate));
        FractionalMicros { micros: (parts / rate) as u64, part: (parts % rate) as u64 }
    }

    /// The number of costs of `cost` that fit into `span`, at most `max`.
    #[inline(always)]
    fn tokens_in(&self, span: FractionalMicros, cost: FractionalMicros, max: u64) -> u64 {
        let rate = self.refill.amount();
        let checked_parts = |span: FractionalMicros| span.micros.checked_mul(rate)?.checked_add(span.part);
        if let (Some(span), Some(cost)) = (checked_parts(span), checked_parts(cost)) {
            return span.checked_div(cost).unwrap_or(max).min(max);
        }
        let parts = |span: FractionalMicros| u128::from(span.micros) * u128::from(rate) + u128::from(span.part);
        let tokens = parts(span).checked_div(parts(cost)).unwrap_or(u128::from(max));
        u64::try_from(tokens).unwrap_or(u64::MAX).min(max)
    }

    /// The latest state that a take may leave: the end of the burst window.
    #[inline(always)]
    fn ceiling(&self, now: Timestamp) -> FractionalMicros {
        FractionalMicros { micros: now.as_micros() + self.burst.micros, part: self.burst.part }
    }

    /// The span of the cost, the rate, and the burst window.
    pub(super) fn push_bucket_numbers(&self, cost: u64, push: &mut impl FnMut(f64)) {
        let span = self.span(cost);
        for number in [span.micros, span.part, self.refill.amount(), self.burst.micros, self.burst.part] {
            push(number as f64);
        }
    }

    /// The state at `now`, and whether it was rebased to the end of the burst window.
    #[inline(always)]
    pub(super) fn normalize(&self, state: Option<TokenBucketState>, now: Timestamp) -> (TokenBucketState, bool) {
        let Some(TokenBucketState { mut full, mut returned }) = state else {
            return (TokenBucketState::from(FractionalMicros::whole(now.as_micros())), false);
        };
        if full.part >= self.refill.amount() {
            full = FractionalMicros::whole(full.micros + 1); // written under another rate: rounded up, against the caller
        }
        let mut rebased = false;
        if full.micros < now.as_micros() {
            if returned > 0 && self.expiry(TokenBucketState { full, returned }) <= now.as_micros() {
                returned = 0;
            }
            full = FractionalMicros::whole(now.as_micros());
        } else if full > self.ceiling(now) {
            (full, rebased) = (self.ceiling(now), true);
        }
        (TokenBucketState { full, returned }, rebased)
    }

    /// Until when a part of a take is missing from the bucket.
    fn missing_until(&self, position: TakePosition, returned: u64) -> FractionalMicros {
        let [mut alone, mut in_order] = [position.slot(), position.full()];
        for moment in [&mut alone, &mut in_order] {
            if moment.part >= self.refill.amount() {
                moment.part = 0; // taken under another rate: rounded down, against the caller
            }
        }
        match returned.checked_sub(position.returned()) {
            Some(since) if returned < MAX_RETURNED_MICROS && since <= in_order.micros => {
                in_order.micros -= since;
                alone.max(in_order)
            }
            // It has returned less than before the take, so it has forgotten the take.
            _ => alone,
        }
    }
}

impl From<FractionalMicros> for TokenBucketState {
    #[inline(always)]
    fn from(full: FractionalMicros) -> Self {
        Self { full, returned: 0 }
    }
}

impl From<TokenBucketState> for State {
    #[inline(always)]
    fn from(state: TokenBucketState) -> Self {
        if state.returned == 0 { Self::Bucket(state.full) } else { Self::RefundedBucket(Box::new(state)) }
    }
}

impl Kind for TokenBucket {
    type State<'s> = TokenBucketState;
    type Change = TokenBucketState;

    const LUA: LuaFunction = LuaFunction {
        number: 1,
        name: "token_bucket",
        text: include_str!("token_bucket.lua"),
        needs: "",
        numbers: 6,
        refund_numbers: 5,
    };

    #[inline(always)]
    fn state(state: &State) -> Option<TokenBucketState> {
        match state {
            State::Bucket(full) => Some((*full).into()),
            State::RefundedBucket(state) => Some(**state),
            _ => None,
        }
    }

    #[inline(always)]
    fn create(change: TokenBucketState) -> State {
        change.into()
    }

    #[inline(always)]
    fn apply(&self, state: Option<TokenBucketState>, now: Timestamp, op: Op) -> Effect<TokenBucketState> {
        let rate = self.refill.amount();
        let (TokenBucketState { full, returned }, rebased) = self.normalize(state, now);
        let slack = self.ceiling(now).minus(full, rate);
        let with = |full: FractionalMicros| TokenBucketState { full, returned };
        match op {
            Op::Take(take) if take.total() == 0 => Effect::admitted(None),
            Op::Take(take) => {
                let need = self.span(take.total());
                if need <= slack {
                    Effect::admitted(Some(with(full.plus(need, rate))))
                } else {
                    Effect::denied(rebased.then_some(with(full)))
                }
            }
            Op::Charge { cost, .. } | Op::Fill { cost } => {
                let need = self.span(cost).min(slack);
                Effect::admitted((need > FractionalMicros::default()).then(|| with(full.plus(need, rate))))
            }
            Op::Refund { cost, position } => {
                let now = FractionalMicros::whole(now.as_micros());
                let missing = self.missing_until(position, returned).saturating_minus(now, rate);
                let back = self.span(cost).min(full.minus(now, rate)).min(missing);
                // The last take has no other behind it that would move.
                let is_last = (position.full(), position.returned()) == (full, returned);
                let moved = if is_last { 0 } else { back.ceil() };
                Effect::admitted((back > FractionalMicros::default()).then(|| TokenBucketState {
                    full: full.minus(back, rate),
                    returned: returned.saturating_add(moved).min(MAX_RETURNED_MICROS),
                }))
            }
            // Nothing of it is held.
            Op::Renew { .. } | Op::Hold(_) | Op::Strike => Effect::denied(None),
        }
    }

    #[inline(always)]
    fn room(&self, state: Option<TokenBucketState>, now: Timestamp, take: Take) -> u64 {
        let (TokenBucketState { full, .. }, _) = self.normalize(state, now);
        let slack = self.ceiling(now).minus(full, self.refill.amount());
        self.tokens_in(slack, self.span(take.cost), take.units)
    }

    #[inline(always)]
    fn outcome(&self, state: Option<TokenBucketState>, now: Timestamp, decided: DecidedTake) -> Outcome {
        let rate = self.refill.amount();
        let (TokenBucketState { mut full, .. }, _) = self.normalize(state, now);
        let need = self.span(decided.take.total());
        let slack = self.ceiling(now).minus(full, rate);
        let shortfall = if need > slack { need.minus(slack, rate) } else { FractionalMicros::default() };
        let retry = (!decided.admitted && decided.take.total() <= self.capacity)
            .then(|| Duration::from_micros(shortfall.ceil()));
        if decided.consumed {
            full = full.plus(need, rate);
        }
        // A reply that contradicts its own state, such as one that a proxy garbled, must not panic.
        let slack = self.ceiling(now).saturating_minus(full, rate);
        Outcome {
            remaining: self.tokens_in(slack, self.emission, self.capacity),
            retry_after: retry,
            reset_after: Duration::from_micros(full.ceil() - now.as_micros()),
            ..decided.outcome(self.capacity)
        }
    }

    #[inline(always)]
    fn position(&self, state: Option<TokenBucketState>, now: Timestamp, take: Take) -> TakePosition {
        let rate = self.refill.amount();
        let (TokenBucketState { full, returned }, _) = self.normalize(state, now);
        let need = self.span(take.total());
        let alone = FractionalMicros::whole(now.as_micros()).plus(need, rate);
        TakePosition::from_bucket(alone, full.plus(need, rate), returned)
    }

    /// A bucket with refunds is remembered after it is full again, until every take from before the last refund would have refilled by
    /// itself.
    #[inline(always)]
    fn expiry(&self, state: TokenBucketState) -> u64 {
        state.full.ceil() + state.returned.min(self.burst.ceil())
    }

    fn decode(&self, value: &[u8]) -> Option<State> {
        let (moment, more) = split_list(value)?;
        let returned = match more[..] {
            [] => 0,
            [returned @ 1..=MAX_RETURNED_MICROS] => returned,
            _ => return None,
        };
        Some(TokenBucketState { full: parse_moment(moment)?, returned }.into())
    }

    fn push_numbers(&self, input: LuaInput, _: impl FnOnce() -> Timestamp, mut push: impl FnMut(f64)) {
        self.push_bucket_numbers(input.cost, &mut push);
        // Exact, since it only changes the exponent; and longer than any delay.
        push(self.refill.period_micros() as f64 * DELAY_FACTOR);
        if input.is_adjustment {
            let (alone, full) = (input.position.slot(), input.position.full());
            for number in [alone.micros, alone.part, full.micros, full.part, input.position.returned()] {
                push(number as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, algorithm};

    const START: u64 = 1_790_000_000_000_000;
    const SECOND: u64 = 1_000_000;

    /// Ten tokens, one a second.
    fn ten() -> TokenBucket {
        TokenBucket::new("capacity", 10, Rate::per_second(1).unwrap()).unwrap()
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(START + seconds * SECOND)
    }

    /// A state that is full again this many seconds after the start, after refunds of so many seconds.
    fn state(full: u64, returned: u64) -> TokenBucketState {
        let full = FractionalMicros::whole(START + full * SECOND);
        TokenBucketState { full, returned: returned * SECOND }
    }

    /// Takes from `state`: the state after it, and the position.
    fn take(state: TokenBucketState, now: Timestamp, cost: u64) -> (TokenBucketState, TakePosition) {
        let take = Take::one(cost);
        let after = ten().apply(Some(state), now, Op::Take(take));
        assert!(after.admitted);
        (after.change.unwrap(), ten().position(Some(state), now, take))
    }

    fn refund(state: TokenBucketState, now: Timestamp, cost: u64, position: TakePosition) -> Option<TokenBucketState> {
        ten().apply(Some(state), now, Op::Refund { cost, position }).change
    }

    #[test]
    fn a_refund_gives_back_what_is_missing_by_the_order_of_the_takes() {
        let (after, position) = take(state(4, 0), at(0), 4);
        assert_eq!(after, state(8, 0));
        // Behind it, others have taken two tokens.
        let back = |now, cost| refund(state(10, 0), at(now), cost, position);
        assert_eq!([back(0, 4), back(0, 1), back(4, 4)], [Some(state(6, 4)), Some(state(9, 1)), Some(state(6, 4))]);
        assert_eq!([back(5, 4), back(7, 4), back(7, 1)], [Some(state(7, 3)), Some(state(9, 1)), Some(state(9, 1))]);
        assert_eq!([back(8, 4), back(9, 4)], [None, None]);
    }

    #[test]
    fn a_refund_is_bounded_by_what_the_bucket_is_missing() {
        let (_, position) = take(state(4, 0), at(0), 4);
        assert_eq!(refund(state(5, 0), at(4), 4, position), Some(state(4, 1)));
        assert_eq!(refund(state(4, 0), at(4), 4, position), None);
        assert_eq!(refund(state(2, 0), at(4), 4, position), None);
    }

    #[test]
    fn refunds_since_the_take_count_against_it_unless_the_take_alone_is_missing_longer() {
        let (_, position) = take(state(4, 2), at(0), 4);
        let back = |returned, now| {
            refund(state(10, returned), at(now), 4, position).map_or(0, |after| {
                assert_eq!(after.returned, returned * SECOND + (state(10, 0).full.micros - after.full.micros));
                (state(10, 0).full.micros - after.full.micros) / SECOND
            })
        };
        // Missing until 8 s, less what was returned since; by itself until 4 s.
        assert_eq!([back(2, 5), back(3, 5), back(4, 5), back(5, 5), back(9, 5)], [3, 2, 1, 0, 0]);
        assert_eq!([back(2, 1), back(5, 1), back(6, 1), back(9, 1), back(9, 3), back(9, 4)], [4, 4, 3, 3, 1, 0]);
        // A smaller number means that the bucket was forgotten in between.
        assert_eq!([back(1, 5), back(0, 5), back(0, 3)], [0, 0, 1]);
    }

    #[test]
    fn the_refund_of_the_last_take_leaves_no_trace() {
        for before in [state(0, 0), state(5, 0), state(5, 3)] {
            let (after, position) = take(before, at(0), 4);
            assert_eq!(refund(after, at(0), 4, position), Some(before));
            assert_eq!(refund(after, at(0), 3, position).map(|state| state.returned), Some(before.returned));
            let behind = take(after, at(0), 1).0;
            let counted = before.returned + 4 * SECOND;
            assert_eq!(refund(behind, at(0), 4, position).map(|state| state.returned), Some(counted));
            let moved = TokenBucketState { returned: after.returned + 1, ..after };
            assert_eq!(refund(moved, at(0), 4, position).map(|state| state.returned), Some(counted + 1));
        }
    }

    #[test]
    fn a_bucket_at_its_maximum_of_refunds_gives_back_what_a_take_alone_is_missing() {
        let most = TokenBucketState { returned: MAX_RETURNED_MICROS, ..state(6, 0) };
        let (after, position) = take(most, at(0), 4);
        let behind = take(TokenBucketState { full: state(0, 0).full, ..after }, at(0), 9).0;
        assert_eq!(refund(behind, at(3), 4, position), Some(TokenBucketState { full: state(8, 0).full, ..most }));
        assert_eq!(refund(behind, at(4), 4, position), None);
    }

    #[test]
    fn a_fraction_of_another_rate_is_rounded_against_the_caller() {
        let bucket = TokenBucket::new("capacity", 7, Rate::per_second(7).unwrap()).unwrap();
        let empty = TokenBucketState::from(FractionalMicros::whole(START + 2 * SECOND));
        let back = |alone: FractionalMicros, full| {
            let op = Op::Refund { cost: 7, position: TakePosition::from_bucket(alone, full, 0) };
            let after = bucket.apply(Some(empty), at(1), op).change;
            after.map(|after| empty.full.minus(after.full, 7))
        };
        let moment = |part| FractionalMicros { micros: START + SECOND + 5, part };
        let before = FractionalMicros::whole(START);
        for (part, expected) in [(0, 0), (6, 6), (7, 0), (9, 0)] {
            let expected = Some(FractionalMicros { micros: 5, part: expected });
            assert_eq!([back(moment(part), before), back(before, moment(part))], [expected, expected], "{part}");
        }
    }

    #[test]
    fn a_bucket_with_refunds_is_remembered_for_at_most_twice_its_burst_window() {
        for (full, returned, end) in [(10, 0, 10), (10, 3, 13), (10, 10, 20), (10, 11, 20), (4, 500, 14)] {
            assert_eq!(ten().expiry(state(full, returned)), START + end * SECOND);
        }
        // Full again after 4 s; remembered until 7 s.
        let returned = |now| take(state(4, 3), now, 1).0.returned / SECOND;
        assert_eq!([returned(at(3)), returned(at(4)), returned(at(5)), returned(at(7))], [3, 3, 3, 0]);
        assert_eq!(take(state(4, 3), Timestamp::from_micros(START + 7 * SECOND - 1), 1).0.returned, 3 * SECOND);
    }

    #[test]
    fn only_a_token_bucket_counts_refunds() {
        let rate = Rate::per_second(1).unwrap();
        let (token, leaky) = (Limit::token_bucket(10, rate).unwrap(), Limit::leaky_bucket(rate, 9).unwrap());
        let full = FractionalMicros { micros: 1_790_000_000_000_000, part: 7 };
        for (value, returned) in [("71790000000000000", 0), ("71790000000000000,3000000", 3_000_000)] {
            let state = State::decode(&token, value.as_bytes()).unwrap();
            assert_eq!(TokenBucket::state(&state), Some(TokenBucketState { full, returned }));
            assert_eq!(state.extra_life_micros(&token), returned);
            assert_eq!(algorithm::expiry(&state, &token), full.micros + 1 + returned);
            let of_leaky = State::decode(&leaky, value.as_bytes());
            assert_eq!(of_leaky.map(|state| state.extra_life_micros(&leaky)), (returned == 0).then_some(0));
        }
        let most = format!("71790000000000000,{MAX_RETURNED_MICROS}");
        assert_eq!(State::decode(&token, most.as_bytes()).unwrap().extra_life_micros(&token), 10_000_000);
        let more = format!("71790000000000000,{}", MAX_RETURNED_MICROS + 1);
        for value in ["71790000000000000,0", "71790000000000000,", "71790000000000000,3,4", &more] {
            assert_eq!(State::decode(&token, value.as_bytes()), None, "{value}");
        }
    }
}
