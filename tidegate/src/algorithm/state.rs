//! `State`: the state of one key, for every kind of limit.

use super::concurrency::ConcurrencyState;
use super::fixed_window::FixedWindowState;
use super::holds::{self, StateWithHolds};
use super::kind::Kind;
use super::penalty::PenaltyState;
use super::quota::QuotaState;
use super::sliding_log::SlidingLogState;
use super::sliding_window::SlidingWindowState;
use super::token_bucket::TokenBucketState;
use super::{FractionalMicros, Op, OpResult};
use crate::limit::with_kind;
use crate::{Limit, Timestamp};

/// The state of one key.
///
/// A script replies with the summary of a log, of leases and of holds. Outcomes are the same, but takes from a summary of a log or of
/// leases are denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Token bucket without refunds: the instant at which it is full again; and leaky bucket: the next free slot.
    Bucket(FractionalMicros),
    /// Token bucket with refunds, boxed so that a table entry of another bucket stays small.
    RefundedBucket(Box<TokenBucketState>),
    /// Fixed window.
    Window(FixedWindowState),
    /// Sliding log, boxed so that a table entry of a bucket stays small.
    Log(Box<SlidingLogState>),
    /// Sliding window, boxed likewise.
    Slices(Box<SlidingWindowState>),
    /// Concurrency, boxed likewise.
    Leases(Box<ConcurrencyState>),
    /// Quota without debt, with an index of four bytes so that a table entry of another limit stays small.
    Quota {
        /// The index of the period.
        index: u32,
        /// Units used in it.
        used: u64,
        /// Units used in the period before.
        previous: u64,
    },
    /// Quota with debt, boxed likewise.
    QuotaWithDebt(Box<QuotaState>),
    /// Progressive penalty.
    Penalty(PenaltyState),
    /// Any of the others, or none, with holds of reservations beside it.
    WithHolds(Box<StateWithHolds>),
}

impl State {
    /// The state after `op` on a fresh one; `None` if `op` changes nothing.
    #[inline(always)]
    pub fn new(limit: &Limit, now: Timestamp, op: Op) -> Option<Self> {
        #[inline(always)]
        fn create<K: Kind>(kind: &K, now: Timestamp, op: Op) -> Option<State> {
            kind.apply(None, now, op).change.map(K::create)
        }
        match op {
            Op::Hold(_) => holds::create(limit, now, op),
            _ => with_kind!(limit, kind => create(kind, now, op)),
        }
    }

    /// Applies `op`.
    #[inline(always)]
    pub fn apply(&mut self, limit: &Limit, now: Timestamp, op: Op) -> OpResult {
        #[inline(always)]
        fn apply<K: Kind>(kind: &K, state: &mut State, now: Timestamp, op: Op) -> OpResult {
            let effect = kind.apply(K::state(state), now, op);
            let result = effect.result();
            if let Some(change) = effect.change {
                K::edit(state, change);
            }
            result
        }
        if matches!(self, Self::WithHolds(_)) || matches!(op, Op::Hold(_)) {
            return holds::apply(self, limit, now, op);
        }
        with_kind!(limit, kind => apply(kind, self, now, op))
    }

    /// Decodes the state of a `limit` from a value that its Lua function has written, or the summary in its place. `None` if no version of
    /// this library writes that.
    pub fn decode(limit: &Limit, value: &[u8]) -> Option<Self> {
        with_kind!(limit, kind => kind.decode(value))
    }

    /// Whether it says too little to decide on: the summary of a log or of leases.
    pub fn is_summary(&self) -> bool {
        match self {
            Self::Log(log) => matches!(**log, SlidingLogState::Summary(_)),
            Self::Leases(leases) => matches!(**leases, ConcurrencyState::Summary(_)),
            Self::WithHolds(state) => state.inner().is_some_and(Self::is_summary),
            _ => false,
        }
    }

    /// How long, in microseconds, a store keeps it after it no longer affects decisions: a token bucket with refunds is remembered for
    /// receipts from before.
    pub fn extra_life_micros(&self, limit: &Limit) -> u64 {
        match (self, limit) {
            (Self::RefundedBucket(state), Limit::TokenBucket(limit)) => limit.expiry(**state) - state.full.ceil(),
            _ => 0,
        }
    }

    pub(crate) fn quota(&self) -> Option<QuotaState> {
        match self {
            Self::WithHolds(state) => state.inner().and_then(Self::quota),
            Self::Quota { index, used, previous } => {
                Some(QuotaState { index: (*index).into(), used: *used, previous: *previous, ..QuotaState::default() })
            }
            Self::QuotaWithDebt(state) => Some(**state),
            _ => None,
        }
    }
}
