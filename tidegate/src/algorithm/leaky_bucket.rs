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

use super::lua::{LuaFunction, LuaInput};
use super::token_bucket::{TokenBucket, TokenBucketState};
use super::value::parse_moment;
use super::{DecidedTake, Effect, FractionalMicros, Kind, Op, Outcome, State, Take, TakePosition};
use crate::limit::{LimitError, MAX_AMOUNT};
use crate::{Rate, Timestamp};

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

impl Kind for LeakyBucket {
    type State<'s> = LeakyBucketState;
    type Change = LeakyBucketState;

    const LUA: LuaFunction = LuaFunction {
        number: 2,
        name: "leaky_bucket",
        text: include_str!("leaky_bucket.lua"),
        needs: include_str!("token_bucket.lua"),
        numbers: 8,
        refund_numbers: 0,
    };

    fn state(state: &State) -> Option<LeakyBucketState> {
        TokenBucket::state(state).map(|state| state.full)
    }

    fn create(change: LeakyBucketState) -> State {
        State::Bucket(change)
    }

    fn apply(&self, state: Option<LeakyBucketState>, now: Timestamp, op: Op) -> Effect<LeakyBucketState> {
        match op {
            Op::Take(take) if take.total() > 0 && self.wait(state, now) > take.max_delay_micros => {
                let (slot, rebased) = self.normalize(state, now);
                Effect::denied(rebased.then_some(slot))
            }
            // Only the last place can be refunded: a later request already waits behind any other. An empty queue has forgotten it.
            Op::Refund { position, .. } if state != Some(position.slot()) => {
                Effect { admitted: self.wait(state, now) == 0, change: None }
            }
            Op::Refund { cost, position } => {
                let (slot, span, floor) =
                    (position.slot(), self.bucket.span(cost), FractionalMicros::whole(now.as_micros()));
                let freed = if slot > span { slot.minus(span, self.drain().amount()) } else { floor };
                Effect::admitted(Some(freed.max(floor)))
            }
            op => self.bucket.apply(state.map(TokenBucketState::from), now, op).map(|state| state.full),
        }
    }

    fn room(&self, state: Option<LeakyBucketState>, now: Timestamp, take: Take) -> u64 {
        if take.cost > 0 && self.wait(state, now) > take.max_delay_micros {
            return 0;
        }
        self.bucket.room(state.map(TokenBucketState::from), now, take)
    }

    fn outcome(&self, state: Option<LeakyBucketState>, now: Timestamp, decided: DecidedTake) -> Outcome {
        let mut outcome = self.bucket.outcome(state.map(TokenBucketState::from), now, decided);
        let Take { cost, max_delay_micros, .. } = decided.take;
        let wait = self.wait(state, now);
        if decided.admitted && cost > 0 {
            outcome.delay = Duration::from_micros(wait);
        }
        if !decided.admitted && wait > max_delay_micros && decided.take.total() <= self.bucket.capacity() {
            // The time until the delay is acceptable.
            let excess_wait = Duration::from_micros(wait - max_delay_micros);
            outcome.retry_after = Some(outcome.retry_after.unwrap_or_default().max(excess_wait));
        }
        if outcome.reset_after > Duration::from_micros(max_delay_micros) {
            outcome.remaining = 0; // another request would have to wait longer than this caller accepts
        }
        outcome
    }

    fn position(&self, state: Option<LeakyBucketState>, now: Timestamp, take: Take) -> TakePosition {
        let taken = self.bucket.apply(state.map(TokenBucketState::from), now, Op::Take(take)).change;
        taken.map_or_else(TakePosition::default, |state| TakePosition::from_slot(state.full))
    }

    fn expiry(&self, state: LeakyBucketState) -> u64 {
        state.ceil()
    }

    fn decode(&self, value: &[u8]) -> Option<State> {
        parse_moment(value).map(State::Bucket)
    }

    fn push_numbers(&self, input: LuaInput, _: impl FnOnce() -> Timestamp, mut push: impl FnMut(f64)) {
        self.bucket.push_bucket_numbers(input.cost, &mut push);
        push(input.max_delay());
        push(input.position.slot().micros as f64);
        push(input.position.slot().part as f64);
    }
}
