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

use super::{DecidedTake, FractionalMicros, Op, OpResult, Outcome, Take, TakePosition};
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
            if returned > 0 && expiry(TokenBucketState { full, returned }, self) <= now.as_micros() {
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

/// Decides `op` on `state`. Twin: `token_bucket.lua`.
#[inline(always)]
pub fn apply(
    state: Option<TokenBucketState>,
    limit: &TokenBucket,
    now: Timestamp,
    op: Op,
) -> OpResult<TokenBucketState> {
    let rate = limit.refill.amount();
    let (TokenBucketState { full, returned }, rebased) = limit.normalize(state, now);
    let slack = limit.ceiling(now).minus(full, rate);
    let with = |full: FractionalMicros| TokenBucketState { full, returned };
    match op {
        Op::Take(take) if take.total() == 0 => OpResult::admitted(None),
        Op::Take(take) => {
            let need = limit.span(take.total());
            if need <= slack {
                OpResult::admitted(Some(with(full.plus(need, rate))))
            } else {
                OpResult::denied(rebased.then_some(with(full)))
            }
        }
        Op::Charge { cost, .. } => {
            let need = limit.span(cost).min(slack);
            OpResult::admitted((need > FractionalMicros::default()).then(|| with(full.plus(need, rate))))
        }
        // Nothing of it is held.
        Op::Renew { .. } | Op::Hold(_) => OpResult::denied(None),
        Op::Refund { cost, position } => {
            let now = FractionalMicros::whole(now.as_micros());
            let missing = limit.missing_until(position, returned).saturating_minus(now, rate);
            let back = limit.span(cost).min(full.minus(now, rate)).min(missing);
            // The last take has no other behind it that would move.
            let is_last = (position.full(), position.returned()) == (full, returned);
            let moved = if is_last { 0 } else { back.ceil() };
            OpResult::admitted((back > FractionalMicros::default()).then(|| TokenBucketState {
                full: full.minus(back, rate),
                returned: returned.saturating_add(moved).min(MAX_RETURNED_MICROS),
            }))
        }
    }
}

/// Where a take that is admitted on `state` is consumed.
#[inline(always)]
pub(super) fn position(
    state: Option<TokenBucketState>,
    limit: &TokenBucket,
    now: Timestamp,
    take: Take,
) -> TakePosition {
    let rate = limit.refill.amount();
    let (TokenBucketState { full, returned }, _) = limit.normalize(state, now);
    let need = limit.span(take.total());
    let alone = FractionalMicros::whole(now.as_micros()).plus(need, rate);
    TakePosition::from_bucket(alone, full.plus(need, rate), returned)
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `token_bucket.lua`.
#[inline(always)]
pub fn room(state: Option<TokenBucketState>, limit: &TokenBucket, now: Timestamp, take: Take) -> u64 {
    let (TokenBucketState { full, .. }, _) = limit.normalize(state, now);
    let slack = limit.ceiling(now).minus(full, limit.refill.amount());
    limit.tokens_in(slack, limit.span(take.cost), take.units)
}

/// The outcome for the caller, from the state before the decision.
#[inline(always)]
pub fn outcome(state: Option<TokenBucketState>, limit: &TokenBucket, now: Timestamp, decided: DecidedTake) -> Outcome {
    let rate = limit.refill.amount();
    let (TokenBucketState { mut full, .. }, _) = limit.normalize(state, now);
    let need = limit.span(decided.take.total());
    let slack = limit.ceiling(now).minus(full, rate);
    let shortfall = if need > slack { need.minus(slack, rate) } else { FractionalMicros::default() };
    let retry =
        (!decided.admitted && decided.take.total() <= limit.capacity).then(|| Duration::from_micros(shortfall.ceil()));
    if decided.consumed {
        full = full.plus(need, rate);
    }
    // A reply that contradicts its own state, such as one that a proxy garbled, must not panic.
    let slack = limit.ceiling(now).saturating_minus(full, rate);
    Outcome {
        remaining: limit.tokens_in(slack, limit.emission, limit.capacity),
        retry_after: retry,
        reset_after: Duration::from_micros(full.ceil() - now.as_micros()),
        ..decided.outcome(limit.capacity)
    }
}

/// The first instant, in microseconds, at which `state` is equivalent to none. A bucket with refunds is remembered after it is full
/// again, until every take from before the last refund would have refilled by itself.
#[inline(always)]
pub fn expiry(state: TokenBucketState, limit: &TokenBucket) -> u64 {
    state.full.ceil() + state.returned.min(limit.burst.ceil())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let after = apply(Some(state), &ten(), now, Op::Take(take));
        assert!(after.admitted);
        (after.change.unwrap(), position(Some(state), &ten(), now, take))
    }

    fn refund(state: TokenBucketState, now: Timestamp, cost: u64, position: TakePosition) -> Option<TokenBucketState> {
        apply(Some(state), &ten(), now, Op::Refund { cost, position }).change
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
            let after = apply(Some(empty), &bucket, at(1), op).change;
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
            assert_eq!(expiry(state(full, returned), &ten()), START + end * SECOND);
        }
        // Full again after 4 s; remembered until 7 s.
        let returned = |now| take(state(4, 3), now, 1).0.returned / SECOND;
        assert_eq!([returned(at(3)), returned(at(4)), returned(at(5)), returned(at(7))], [3, 3, 3, 0]);
        assert_eq!(take(state(4, 3), Timestamp::from_micros(START + 7 * SECOND - 1), 1).0.returned, 3 * SECOND);
    }
}
