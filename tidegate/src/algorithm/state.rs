//! `State`: the state of one key, for every kind of limit; its changes, and the view of it that outcomes are computed from.

use super::concurrency::{ConcurrencyChange, ConcurrencyState, ConcurrencySummary};
use super::fixed_window::FixedWindowState;
use super::holds::{HoldEvent, HoldsChange, StateWithHolds};
use super::penalty::PenaltyState;
use super::quota::QuotaState;
use super::sliding_log::{SlidingLogChange, SlidingLogState, SlidingLogSummary};
use super::sliding_window::SlidingWindowState;
use super::token_bucket::TokenBucketState;
use super::{FractionalMicros, Take};
use crate::{Limit, Timestamp};

/// The state of one key.
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

/// A change of a state. For all but the log and the leases it is the new state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Token bucket and leaky bucket.
    Bucket(TokenBucketState),
    /// Fixed window.
    Window(FixedWindowState),
    /// Sliding log.
    Log(SlidingLogChange),
    /// Sliding window.
    Slices(Box<SlidingWindowState>),
    /// Concurrency.
    Leases(ConcurrencyChange),
    /// Quota.
    Quota(QuotaState),
    /// Progressive penalty.
    Penalty(PenaltyState),
    /// Any of the others, or none, with holds of reservations beside it.
    Holds(Box<HoldsChange>),
}

/// The parts of a state that an outcome needs. For all but the log and the leases it is the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateView<'s> {
    /// No state.
    Fresh,
    /// Token bucket and leaky bucket.
    Bucket(TokenBucketState),
    /// Fixed window.
    Window(FixedWindowState),
    /// Sliding log.
    Log(SlidingLogSummary),
    /// Sliding window.
    Slices(&'s SlidingWindowState),
    /// Concurrency.
    Leases(ConcurrencySummary),
    /// Quota.
    Quota(QuotaState),
    /// Progressive penalty.
    Penalty(PenaltyState),
}

impl Change {
    /// The new state of a quota, if it changes.
    pub(crate) fn quota(&self) -> Option<QuotaState> {
        match self {
            Self::Quota(state) => Some(*state),
            Self::Holds(change) => change.inner_change().and_then(Self::quota),
            _ => None,
        }
    }

    /// The hold that is made or ended, if any.
    pub(crate) fn hold(&self) -> Option<HoldEvent> {
        if let Self::Holds(change) = self { change.event() } else { None }
    }
}

impl State {
    /// The state after `change` without a previous state.
    #[inline(always)]
    pub fn new(change: Change) -> Self {
        match change {
            Change::Bucket(TokenBucketState { full, returned: 0 }) => Self::Bucket(full),
            Change::Bucket(state) => Self::RefundedBucket(Box::new(state)),
            Change::Window(window) => Self::Window(window),
            Change::Slices(slices) => Self::Slices(slices),
            Change::Quota(state) => state.into(),
            Change::Penalty(state) => Self::Penalty(state),
            Change::Log(change) => {
                let mut log = SlidingLogState::default();
                log.commit(&change);
                Self::Log(Box::new(log))
            }
            Change::Leases(change) => {
                let mut leases = ConcurrencyState::default();
                leases.commit(&change);
                Self::Leases(Box::new(leases))
            }
            Change::Holds(change) => Self::after_holds(StateWithHolds::default(), *change),
        }
    }

    /// Applies `change`.
    #[inline(always)]
    pub fn commit(&mut self, change: Change) {
        match (change, self) {
            (Change::Log(change), Self::Log(log)) => log.commit(&change),
            (Change::Leases(change), Self::Leases(leases)) => leases.commit(&change),
            (Change::Holds(change), state) => state.commit_holds(*change),
            (change, state) => *state = Self::new(change),
        }
    }

    #[cold]
    fn commit_holds(&mut self, change: HoldsChange) {
        let before = match std::mem::replace(self, Self::Bucket(FractionalMicros::default())) {
            Self::WithHolds(state) => *state,
            inner => StateWithHolds::around(Some(inner)),
        };
        *self = Self::after_holds(before, change);
    }

    fn after_holds(mut state: StateWithHolds, change: HoldsChange) -> Self {
        state.commit(change);
        state.into_inner().unwrap_or_else(|state| Self::WithHolds(Box::new(state)))
    }

    /// The view of `state` for `take`. Holds are not part of it.
    #[inline(always)]
    pub fn view<'s>(state: Option<&'s Self>, limit: &Limit, now: Timestamp, take: Take) -> StateView<'s> {
        match (state, limit) {
            (Some(Self::Bucket(full)), _) => StateView::Bucket((*full).into()),
            (Some(Self::RefundedBucket(state)), _) => StateView::Bucket(**state),
            (Some(Self::Window(window)), _) => StateView::Window(*window),
            (Some(Self::Log(log)), Limit::SlidingLog(limit)) => {
                StateView::Log(limit.summary(Some(log), now, take.total()))
            }
            (Some(Self::Slices(slices)), _) => StateView::Slices(slices),
            (Some(Self::Leases(leases)), Limit::Concurrency(limit)) => {
                StateView::Leases(limit.summary(Some(leases), now, take.owner))
            }
            (Some(state @ (Self::Quota { .. } | Self::QuotaWithDebt(_))), _) => {
                state.quota().map_or(StateView::Fresh, StateView::Quota)
            }
            (Some(Self::Penalty(state)), _) => StateView::Penalty(*state),
            (Some(Self::WithHolds(state)), _) => Self::view(state.inner(), limit, now, take),
            _ => StateView::Fresh,
        }
    }

    #[inline(always)]
    pub(super) fn bucket(&self) -> Option<TokenBucketState> {
        match self {
            Self::Bucket(full) => Some((*full).into()),
            Self::RefundedBucket(state) => Some(**state),
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn slot(&self) -> Option<FractionalMicros> {
        self.bucket().map(|state| state.full)
    }

    pub(super) fn window(&self) -> Option<FixedWindowState> {
        if let Self::Window(window) = self { Some(*window) } else { None }
    }

    pub(super) fn log(&self) -> Option<&SlidingLogState> {
        if let Self::Log(log) = self { Some(log) } else { None }
    }

    pub(super) fn slices(&self) -> Option<&SlidingWindowState> {
        if let Self::Slices(slices) = self { Some(slices) } else { None }
    }

    pub(super) fn leases(&self) -> Option<&ConcurrencyState> {
        if let Self::Leases(leases) = self { Some(leases) } else { None }
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

    pub(crate) fn penalty(&self) -> Option<PenaltyState> {
        if let Self::Penalty(state) = self { Some(*state) } else { None }
    }
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

impl<'s> StateView<'s> {
    #[inline(always)]
    pub(super) fn bucket(&self) -> Option<TokenBucketState> {
        if let Self::Bucket(state) = self { Some(*state) } else { None }
    }

    #[inline(always)]
    pub(super) fn slot(&self) -> Option<FractionalMicros> {
        self.bucket().map(|state| state.full)
    }

    pub(super) fn window(&self) -> Option<FixedWindowState> {
        if let Self::Window(window) = self { Some(*window) } else { None }
    }

    pub(super) fn log(&self) -> SlidingLogSummary {
        if let Self::Log(summary) = self { *summary } else { SlidingLogSummary::default() }
    }

    pub(super) fn slices(&self) -> Option<&'s SlidingWindowState> {
        if let Self::Slices(slices) = self { Some(*slices) } else { None }
    }

    pub(super) fn leases(&self) -> ConcurrencySummary {
        if let Self::Leases(summary) = self { *summary } else { ConcurrencySummary::default() }
    }

    pub(super) fn quota(&self) -> Option<QuotaState> {
        if let Self::Quota(state) = self { Some(*state) } else { None }
    }

    pub(super) fn penalty(&self) -> Option<PenaltyState> {
        if let Self::Penalty(state) = self { Some(*state) } else { None }
    }
}
