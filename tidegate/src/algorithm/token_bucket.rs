//! The token bucket: bursts up to a capacity, then a sustained rate.
//!
//! With capacity C and a refill of r tokens in p microseconds, for every interval (s, t]:
//!
//! ```text
//! admitted(s, t)  ≤  C + (t − s) · r / p
//! ```
//!
//! Error bound: none. A request is admitted if and only if the inequality holds for every s up to now, counted in exact
//! fractions of a microsecond.
//!
//! The state is the instant at which the bucket is full again. A cost of c moves it c·p/r later; it may lie at most C·p/r
//! (the burst window) after now. A state before now is equivalent to none. A state beyond the burst window, which only a
//! clock set back or a lowered limit can leave, is rebased to its end and written: the bucket is then empty.

use std::time::Duration;

use super::{DecidedTake, FractionalMicros, Op, OpResult, Outcome, Take};
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

/// The instant at which the bucket is full again.
pub type TokenBucketState = FractionalMicros;

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
    pub(super) fn normalize(&self, state: Option<TokenBucketState>, now: Timestamp) -> (FractionalMicros, bool) {
        let Some(mut full) = state else {
            return (FractionalMicros::whole(now.as_micros()), false);
        };
        if full.part >= self.refill.amount() {
            full = FractionalMicros::whole(full.micros + 1); // written under another rate: rounded up, against the caller
        }
        if full.micros < now.as_micros() {
            (FractionalMicros::whole(now.as_micros()), false)
        } else if full > self.ceiling(now) {
            (self.ceiling(now), true)
        } else {
            (full, false)
        }
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
    let (full, rebased) = limit.normalize(state, now);
    let slack = limit.ceiling(now).minus(full, rate);
    match op {
        Op::Take(take) if take.total() == 0 => OpResult::admitted(None),
        Op::Take(take) => {
            let need = limit.span(take.total());
            if need <= slack {
                OpResult::admitted(Some(full.plus(need, rate)))
            } else {
                OpResult::denied(rebased.then_some(full))
            }
        }
        Op::Charge { cost } => {
            let need = limit.span(cost).min(slack);
            OpResult::admitted((need > FractionalMicros::default()).then(|| full.plus(need, rate)))
        }
        Op::Refund { cost, .. } => {
            let debt = full.minus(FractionalMicros::whole(now.as_micros()), rate);
            let back = limit.span(cost).min(debt);
            OpResult::admitted((back > FractionalMicros::default()).then(|| full.minus(back, rate)))
        }
    }
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `token_bucket.lua`.
#[inline(always)]
pub fn room(state: Option<TokenBucketState>, limit: &TokenBucket, now: Timestamp, take: Take) -> u64 {
    let (full, _) = limit.normalize(state, now);
    let slack = limit.ceiling(now).minus(full, limit.refill.amount());
    limit.tokens_in(slack, limit.span(take.cost), take.units)
}

/// The outcome for the caller, from the state before the decision.
#[inline(always)]
pub fn outcome(state: Option<TokenBucketState>, limit: &TokenBucket, now: Timestamp, decided: DecidedTake) -> Outcome {
    let rate = limit.refill.amount();
    let (mut full, _) = limit.normalize(state, now);
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

/// The first instant, in microseconds, at which `state` is equivalent to none.
#[inline(always)]
pub fn expiry(state: TokenBucketState) -> u64 {
    state.ceil()
}
