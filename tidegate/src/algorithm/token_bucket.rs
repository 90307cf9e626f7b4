//! The token bucket: a burst up to the capacity, then the sustained rate.
//!
//! With capacity C and a refill of r tokens in p microseconds, for every interval (s, t] however chosen:
//!
//! ```text
//! admitted(s, t)  ≤  C + (t − s) · r / p
//! ```
//!
//! Error bound: none. A request is admitted if and only if the inequality holds for every s up to now, counted in exact
//! fractions of a microsecond.
//!
//! The state is one moment: when the bucket will be full again. A cost of c moves it c·p/r further; it may lie at most
//! C·p/r (the burst window) ahead of now. A state before now is as good as none, and a state further ahead than the burst
//! window, which only a clock that was set back or a lowered limit can leave, is brought back to it and so written:
//! the bucket is empty then, and refills from there.

use super::{Applied, Moment, Op, Outcome, Standing, Take, span_micros};
use crate::limit::{LONGEST_SPAN, LimitError};
use crate::{Rate, Timestamp};

/// The parameters of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    capacity: u64,
    refill: Rate,
    /// p/r: the time in which one token comes.
    emission: Moment,
    /// C·p/r: the time from empty to full.
    burst: Moment,
}

/// When the bucket is full again.
pub type State = Moment;

impl TokenBucket {
    pub(crate) fn new(field: &'static str, capacity: u64, refill: Rate) -> Result<Self, LimitError> {
        LimitError::check_amount(field, capacity)?;
        let burst = u128::from(capacity) * u128::from(refill.period_micros()) / u128::from(refill.amount());
        if burst > u128::from(LONGEST_SPAN) {
            let longest = u128::from(LONGEST_SPAN) * u128::from(refill.amount()) / u128::from(refill.period_micros());
            let reason = "at this rate (from empty to full may take 100 years)";
            return Err(LimitError::too_large(field, capacity, longest as u64, reason));
        }
        let mut bucket = Self { capacity, refill, emission: Moment::default(), burst: Moment::default() };
        bucket.emission = bucket.exact_span(1);
        bucket.burst = bucket.exact_span(capacity);
        Ok(bucket)
    }

    /// The most tokens it holds.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// How fast tokens come back.
    pub const fn refill(&self) -> Rate {
        self.refill
    }

    /// C·p/r: how far ahead of now the moment of being full may lie.
    pub const fn burst(&self) -> Moment {
        self.burst
    }

    /// The time in which `cost` tokens come; for more than the capacity, that of one token more than it.
    #[inline(always)]
    pub fn span(&self, cost: u64) -> Moment {
        if cost == 1 { self.emission } else { self.exact_span(cost.min(self.capacity + 1)) }
    }

    fn exact_span(&self, tokens: u64) -> Moment {
        let rate = self.refill.amount();
        if let Some(shares) = tokens.checked_mul(self.refill.period_micros()) {
            return Moment { micros: shares / rate, part: shares % rate };
        }
        let (shares, rate) = (u128::from(tokens) * u128::from(self.refill.period_micros()), u128::from(rate));
        Moment { micros: (shares / rate) as u64, part: (shares % rate) as u64 }
    }

    /// How many tokens come in `span`, and at most `most`.
    #[inline(always)]
    fn tokens_in(&self, span: Moment, cost: Moment, most: u64) -> u64 {
        let rate = self.refill.amount();
        let fits = |moment: Moment| moment.micros.checked_mul(rate)?.checked_add(moment.part);
        if let (Some(span), Some(cost)) = (fits(span), fits(cost)) {
            return span.checked_div(cost).unwrap_or(most).min(most);
        }
        let shares = |moment: Moment| u128::from(moment.micros) * u128::from(rate) + u128::from(moment.part);
        let tokens = shares(span).checked_div(shares(cost)).unwrap_or(u128::from(most));
        u64::try_from(tokens).unwrap_or(u64::MAX).min(most)
    }

    #[inline(always)]
    fn ceiling(&self, now: Timestamp) -> Moment {
        Moment { micros: now.as_micros() + self.burst.micros, part: self.burst.part }
    }

    /// The state as it counts now, and whether it had to be brought back to the burst window.
    #[inline(always)]
    pub(super) fn settle(&self, state: Option<State>, now: Timestamp) -> (Moment, bool) {
        let Some(mut full) = state else {
            return (Moment::whole(now.as_micros()), false);
        };
        if full.part >= self.refill.amount() {
            full = Moment::whole(full.micros + 1); // written under another rate: round, never in the caller's favour
        }
        if full.micros < now.as_micros() {
            (Moment::whole(now.as_micros()), false)
        } else if full > self.ceiling(now) {
            (self.ceiling(now), true)
        } else {
            (full, false)
        }
    }
}

/// Decides `op` on `state`. Twin: `token_bucket.lua`.
#[inline(always)]
pub fn apply(state: Option<State>, limit: &TokenBucket, now: Timestamp, op: Op) -> Applied<State> {
    let rate = limit.refill.amount();
    let (full, rebased) = limit.settle(state, now);
    let slack = limit.ceiling(now).minus(full, rate);
    match op {
        Op::Take(take) if take.total() == 0 => Applied::admitted(None),
        Op::Take(take) => {
            let need = limit.span(take.total());
            if need <= slack {
                Applied::admitted(Some(full.plus(need, rate)))
            } else {
                Applied::denied(rebased.then_some(full))
            }
        }
        Op::Charge { cost } => {
            let need = limit.span(cost).min(slack);
            Applied::changed((need > Moment::default()).then(|| full.plus(need, rate)))
        }
        Op::Refund { cost, .. } => {
            let owed = full.minus(Moment::whole(now.as_micros()), rate);
            let back = limit.span(cost).min(owed);
            Applied::changed((back > Moment::default()).then(|| full.minus(back, rate)))
        }
    }
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `token_bucket.lua`.
#[inline(always)]
pub fn room(state: Option<State>, limit: &TokenBucket, now: Timestamp, take: Take) -> u64 {
    let (full, _) = limit.settle(state, now);
    let slack = limit.ceiling(now).minus(full, limit.refill.amount());
    limit.tokens_in(slack, limit.span(take.cost), take.units)
}

/// What a caller is told, from the state that was found.
#[inline(always)]
pub fn outcome(state: Option<State>, limit: &TokenBucket, now: Timestamp, standing: Standing) -> Outcome {
    let rate = limit.refill.amount();
    let (mut full, _) = limit.settle(state, now);
    let need = limit.span(standing.take.total());
    let slack = limit.ceiling(now).minus(full, rate);
    let short = if need > slack { need.minus(slack, rate) } else { Moment::default() };
    let retry = (!standing.admitted && standing.take.total() <= limit.capacity).then(|| span_micros(short.ceil()));
    if standing.consumed {
        full = full.plus(need, rate);
    }
    let slack = limit.ceiling(now).minus(full, rate);
    Outcome {
        remaining: limit.tokens_in(slack, limit.emission, limit.capacity),
        retry_after: retry,
        reset_after: span_micros(full.ceil() - now.as_micros()),
        ..standing.outcome(limit.capacity)
    }
}

/// The first instant at which `state` is as good as none.
#[inline(always)]
pub fn expiry(state: State) -> u64 {
    state.ceil()
}
