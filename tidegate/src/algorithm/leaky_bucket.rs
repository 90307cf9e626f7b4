//! The leaky bucket: a constant output rate, whatever comes in; what comes early waits for its slot.
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
//! slots; a delay is told in whole microseconds, rounded up, so an output may come up to 1 µs after its slot.
//!
//! It is a token bucket of Q + 1 tokens whose debt is served as a delay: the state is the next free slot.

use super::{Applied, Moment, Op, Outcome, Standing, Take, span_micros, token_bucket};
use crate::limit::{LimitError, MAX_AMOUNT};
use crate::{Rate, Timestamp};
use token_bucket::TokenBucket;

/// The parameters of a leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucket {
    bucket: TokenBucket,
}

/// The next free slot.
pub type State = Moment;

impl LeakyBucket {
    pub(crate) fn new(drain: Rate, queue: u64) -> Result<Self, LimitError> {
        if queue >= MAX_AMOUNT {
            return Err(LimitError::too_large("leaky_bucket.queue", queue, MAX_AMOUNT - 1, "(2^52 - 2)"));
        }
        TokenBucket::new("leaky_bucket.queue + 1", queue + 1, drain).map(|bucket| Self { bucket })
    }

    /// How many units may wait.
    pub const fn queue(&self) -> u64 {
        self.bucket.capacity() - 1
    }

    /// How fast units leave.
    pub const fn drain(&self) -> Rate {
        self.bucket.refill()
    }

    /// The token bucket of `queue + 1` tokens that decides for it.
    pub const fn bucket(&self) -> &TokenBucket {
        &self.bucket
    }

    /// How long a request of now would wait for its slot.
    fn wait(&self, state: Option<State>, now: Timestamp) -> u64 {
        self.bucket.settle(state, now).0.ceil() - now.as_micros()
    }
}

/// Decides `op` on `state`. Twin: `leaky_bucket.lua`.
pub fn apply(state: Option<State>, limit: &LeakyBucket, now: Timestamp, op: Op) -> Applied<State> {
    match op {
        Op::Take(take) if take.total() > 0 && limit.wait(state, now) > take.longest_delay => {
            let (slot, rebased) = limit.bucket.settle(state, now);
            Applied::denied(rebased.then_some(slot))
        }
        // Only the last place can be given back: behind any other one, somebody was already told to wait.
        Op::Refund { place, .. } if state != Some(place.moment()) => Applied::changed(None),
        Op::Refund { cost, place } => {
            let (slot, span, floor) = (place.moment(), limit.bucket.span(cost), Moment::whole(now.as_micros()));
            let freed = if slot > span { slot.minus(span, limit.drain().amount()) } else { floor };
            Applied::changed(Some(freed.max(floor)))
        }
        op => token_bucket::apply(state, &limit.bucket, now, op),
    }
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `leaky_bucket.lua`.
pub fn room(state: Option<State>, limit: &LeakyBucket, now: Timestamp, take: Take) -> u64 {
    if take.cost > 0 && limit.wait(state, now) > take.longest_delay {
        return 0;
    }
    token_bucket::room(state, &limit.bucket, now, take)
}

/// What a caller is told, from the state that was found.
pub fn outcome(state: Option<State>, limit: &LeakyBucket, now: Timestamp, standing: Standing) -> Outcome {
    let mut outcome = token_bucket::outcome(state, &limit.bucket, now, standing);
    let Take { cost, longest_delay, .. } = standing.take;
    let wait = limit.wait(state, now);
    if standing.admitted && cost > 0 {
        outcome.delay = span_micros(wait);
    }
    if !standing.admitted && wait > longest_delay && standing.take.total() <= limit.bucket.capacity() {
        let room_for_delay = span_micros(wait - longest_delay);
        outcome.retry_after = Some(outcome.retry_after.unwrap_or_default().max(room_for_delay));
    }
    if outcome.reset_after > span_micros(longest_delay) {
        outcome.remaining = 0; // whoever came now would have to wait longer than this caller can
    }
    outcome
}

/// The first instant at which `state` is as good as none.
pub fn expiry(state: State) -> u64 {
    state.ceil()
}
