//! The leaky bucket: a constant output rate. Requests that come early wait for their slot.
//!
//! With a drain of r units in p microseconds and a queue of Q, the slots of admitted requests of costs c₁, c₂, … satisfy
//!
//! ```text
//! slot(i+1)  ≥  slot(i) + c(i) · p / r          (the output never runs faster than the drain)
//! slot(i)    ≥  time of request i               (delay = slot − time)
//! delay(i) + (c(i) − 1) · p / r  ≤  Q · p / r   (one unit passes at once and up to Q wait)
//! ```
//!
//! and a request gets the earliest slot that satisfies them, or is refused if there is none. Error bound: none for the
//! slots. A delay is reported in whole microseconds, rounded up, so an output may come up to 1 µs after its slot. The same holds
//! for the requests that are admitted and not given back.
//!
//! Only the last place in the queue can be given back, since the requests behind any other have been told their delay.
//!
//! It is a token bucket of Q + 1 tokens whose debt becomes a delay: the state is the next free slot.

use std::time::Duration;

use super::{DecidedTake, FractionalMicros, Op, OpResult, Outcome, Take, token_bucket};
use crate::limit::{LimitError, MAX_AMOUNT};
use crate::{Rate, Timestamp};
use token_bucket::{TokenBucket, TokenBucketState};

/// The parameters of a leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucket {
    bucket: TokenBucket,
}

/// The next free slot.
pub type LeakyBucketState = FractionalMicros;

impl LeakyBucket {
    pub(crate) fn new(drain: Rate, queue: u64) -> Result<Self, LimitError> {
        if queue >= MAX_AMOUNT {
            return Err(LimitError::too_large("leaky_bucket.queue", queue, MAX_AMOUNT - 1, "(2^52 - 2)"));
        }
        TokenBucket::new("leaky_bucket.queue + 1", queue + 1, drain).map(|bucket| Self { bucket })
    }

    /// The number of units that may wait.
    pub const fn queue(&self) -> u64 {
        self.bucket.capacity() - 1
    }

    /// The output rate.
    pub const fn drain(&self) -> Rate {
        self.bucket.refill()
    }

    /// The token bucket of `queue + 1` tokens that makes the decisions.
    pub const fn bucket(&self) -> &TokenBucket {
        &self.bucket
    }

    /// The delay, in microseconds, of a request at `now`.
    fn wait(&self, state: Option<LeakyBucketState>, now: Timestamp) -> u64 {
        self.normalize(state, now).0.ceil() - now.as_micros()
    }

    /// The next free slot at `now`, and whether it was rebased.
    fn normalize(&self, state: Option<LeakyBucketState>, now: Timestamp) -> (FractionalMicros, bool) {
        let (TokenBucketState { full, .. }, rebased) = self.bucket.normalize(state.map(TokenBucketState::from), now);
        (full, rebased)
    }
}

/// Decides `op` on `state`. Twin: `leaky_bucket.lua`.
pub fn apply(
    state: Option<LeakyBucketState>,
    limit: &LeakyBucket,
    now: Timestamp,
    op: Op,
) -> OpResult<LeakyBucketState> {
    match op {
        Op::Take(take) if take.total() > 0 && limit.wait(state, now) > take.max_delay_micros => {
            let (slot, rebased) = limit.normalize(state, now);
            OpResult::denied(rebased.then_some(slot))
        }
        // Only the last place can be refunded: a later request already waits behind any other. An empty queue has forgotten it.
        Op::Refund { position, .. } if state != Some(position.slot()) => {
            OpResult { admitted: limit.wait(state, now) == 0, change: None }
        }
        Op::Refund { cost, position } => {
            let (slot, span, floor) =
                (position.slot(), limit.bucket.span(cost), FractionalMicros::whole(now.as_micros()));
            let freed = if slot > span { slot.minus(span, limit.drain().amount()) } else { floor };
            OpResult::admitted(Some(freed.max(floor)))
        }
        op => token_bucket::apply(state.map(TokenBucketState::from), &limit.bucket, now, op).map(|state| state.full),
    }
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `leaky_bucket.lua`.
pub fn room(state: Option<LeakyBucketState>, limit: &LeakyBucket, now: Timestamp, take: Take) -> u64 {
    if take.cost > 0 && limit.wait(state, now) > take.max_delay_micros {
        return 0;
    }
    token_bucket::room(state.map(TokenBucketState::from), &limit.bucket, now, take)
}

/// The outcome for the caller, from the state before the decision.
pub fn outcome(state: Option<LeakyBucketState>, limit: &LeakyBucket, now: Timestamp, decided: DecidedTake) -> Outcome {
    let mut outcome = token_bucket::outcome(state.map(TokenBucketState::from), &limit.bucket, now, decided);
    let Take { cost, max_delay_micros, .. } = decided.take;
    let wait = limit.wait(state, now);
    if decided.admitted && cost > 0 {
        outcome.delay = Duration::from_micros(wait);
    }
    if !decided.admitted && wait > max_delay_micros && decided.take.total() <= limit.bucket.capacity() {
        // The time until the delay is acceptable.
        let excess_wait = Duration::from_micros(wait - max_delay_micros);
        outcome.retry_after = Some(outcome.retry_after.unwrap_or_default().max(excess_wait));
    }
    if outcome.reset_after > Duration::from_micros(max_delay_micros) {
        outcome.remaining = 0; // another request would have to wait longer than this caller accepts
    }
    outcome
}

/// The first instant, in microseconds, at which `state` is equivalent to none.
pub fn expiry(state: LeakyBucketState) -> u64 {
    state.ceil()
}
