//! The sliding log: a number of units in any window, exactly. Every admitted request is kept.
//!
//! With a limit of L in a window of W, for every instant t:
//!
//! ```text
//! admitted(t − W, t]  ≤  L          (admitted: and not given back)
//! ```
//!
//! Error bound: none, whatever the costs. A request at t counts until just before t + W.
//!
//! The state is the log, oldest first, with the sum of its costs, so that a decision touches only the entries that have
//! left the window since the last one. Requests in the same microsecond share an entry. A refund subtracts from the entry of its
//! take, as long as that is in the window.

use std::collections::VecDeque;
use std::time::Duration;

use super::{CLOCK_MARGIN_MICROS, DecidedTake, Op, OpResult, Outcome, Take};
use crate::Timestamp;
use crate::limit::{LimitError, MAX_LOG_LIMIT, whole_micros};

/// The parameters of a sliding log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    window: u64,
}

/// The log: (instant in microseconds, cost), oldest first, and the sum of the costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingLogState {
    entries: VecDeque<(u64, u64)>,
    used: u64,
}

/// A change of a [`SlidingLogState`]: removes the oldest entries, optionally merges the entries from `at` on into one, and
/// adds or removes units at `at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingLogChange {
    evict: u32,
    rebase: bool,
    at: u64,
    add: u64,
    remove: u64,
}

/// The parts of a log that an outcome needs. Scripts reply with this instead of the whole log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingLogSummary {
    /// Units in the window.
    pub used: u64,
    /// The instant of the newest entry in microseconds; 0 if there is none.
    pub newest: u64,
    /// For a denied request, the instant of the entry that must leave the window before it fits; otherwise 0.
    pub blocker: u64,
}

impl SlidingLog {
    pub(crate) fn new(limit: u64, window: Duration) -> Result<Self, LimitError> {
        if limit > MAX_LOG_LIMIT {
            let reason = "(it keeps every request; use sliding_window)";
            return Err(LimitError::too_large("sliding_log.limit", limit, MAX_LOG_LIMIT, reason));
        }
        Ok(Self { limit, window: whole_micros("sliding_log.window", window)? })
    }

    /// Units allowed in any window.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The length of the window.
    pub const fn window(&self) -> Duration {
        Duration::from_micros(self.window)
    }

    pub(crate) const fn window_micros(&self) -> u64 {
        self.window
    }

    /// The summary of the log for a request of `cost` at `now`.
    pub(crate) fn summary(&self, state: Option<&SlidingLogState>, now: Timestamp, cost: u64) -> SlidingLogSummary {
        let Some(state) = state else {
            return SlidingLogSummary::default();
        };
        let now = current(state.newest(), now);
        let (evict, used) = self.outdated(state, now);
        let mut excess = used.saturating_add(cost).saturating_sub(self.limit);
        let mut blocker = 0;
        if cost <= self.limit {
            for (at, cost) in state.entries.range(evict..) {
                if excess == 0 {
                    break;
                }
                blocker = (*at).min(now);
                excess = excess.saturating_sub(*cost);
            }
        }
        let newest = if evict < state.entries.len() { state.newest().min(now) } else { 0 };
        SlidingLogSummary { used, newest, blocker }
    }

    /// The number of entries that have left the window, and the units still in it.
    fn outdated(&self, state: &SlidingLogState, now: u64) -> (usize, u64) {
        let (mut evict, mut used) = (0, state.used);
        for (at, cost) in &state.entries {
            if at + self.window > now {
                break;
            }
            evict += 1;
            used -= cost;
        }
        (evict, used)
    }
}

impl SlidingLogState {
    fn newest(&self) -> u64 {
        self.entries.back().map_or(0, |(at, _)| *at)
    }

    fn push(&mut self, at: u64, cost: u64) {
        match self.entries.back_mut() {
            Some((last, sum)) if *last == at => *sum += cost,
            _ => self.entries.push_back((at, cost)),
        }
        self.used += cost;
    }

    /// Applies a change that [`apply`] returned.
    pub(crate) fn commit(&mut self, change: &SlidingLogChange) {
        for (_, cost) in self.entries.drain(..(change.evict as usize).min(self.entries.len())) {
            self.used -= cost;
        }
        if change.rebase {
            let first = self.entries.partition_point(|(at, _)| *at < change.at);
            let ahead: u64 = self.entries.drain(first..).map(|(_, cost)| cost).sum();
            self.used -= ahead;
            self.push(change.at, ahead);
        }
        if change.add > 0 {
            self.push(change.at, change.add);
        }
        if change.remove > 0
            && let Ok(index) = self.entries.binary_search_by_key(&change.at, |(at, _)| *at)
        {
            self.entries[index].1 -= change.remove;
            self.used -= change.remove;
            if self.entries[index].1 == 0 {
                self.entries.remove(index);
            }
        }
    }
}

/// The instant that counts as now: that of the newest entry if the clock is slightly behind it.
pub(crate) fn current(newest: u64, now: Timestamp) -> u64 {
    let now = now.as_micros();
    if newest > now && newest - now <= CLOCK_MARGIN_MICROS { newest } else { now }
}

/// Decides `op` on `state`. Twin: `sliding_log.lua`.
pub fn apply(
    state: Option<&SlidingLogState>,
    limit: &SlidingLog,
    now: Timestamp,
    op: Op,
) -> OpResult<SlidingLogChange> {
    let newest = state.map_or(0, SlidingLogState::newest);
    let now = current(newest, now);
    let (evict, used) = state.map_or((0, 0), |state| limit.outdated(state, now));
    let left = limit.limit.saturating_sub(used);
    // A log has at most one entry for each unit of the limit, so the cast is lossless.
    let change = SlidingLogChange { evict: evict as u32, rebase: newest > now, at: now, add: 0, remove: 0 };
    match op {
        Op::Take(take) if take.total() == 0 => OpResult::admitted(None),
        Op::Take(take) if take.total() <= left => {
            OpResult::admitted(Some(SlidingLogChange { add: take.total(), ..change }))
        }
        Op::Take(_) => OpResult::denied(change.rebase.then_some(change)),
        Op::Charge { cost, .. } => {
            let counted = cost.min(left);
            OpResult::admitted((counted > 0).then_some(SlidingLogChange { add: counted, ..change }))
        }
        // Nothing of it is held.
        Op::Renew { .. } | Op::Hold(_) => OpResult::denied(None),
        Op::Refund { cost, position } => {
            let at = position.index();
            let refundable = state.and_then(|state| {
                let index = state.entries.binary_search_by_key(&at, |(at, _)| *at).ok()?;
                (index >= evict).then(|| state.entries[index].1.min(cost))
            });
            let back = refundable.filter(|back| *back > 0 && !change.rebase);
            OpResult::admitted(back.map(|back| SlidingLogChange { at, remove: back, ..change }))
        }
    }
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `sliding_log.lua`.
pub fn room(state: Option<&SlidingLogState>, limit: &SlidingLog, now: Timestamp, take: Take) -> u64 {
    let left = limit.limit.saturating_sub(limit.summary(state, now, 0).used);
    left.checked_div(take.cost).unwrap_or(take.units).min(take.units)
}

/// The outcome for the caller, from the summary of the log before the decision.
pub fn outcome(summary: SlidingLogSummary, limit: &SlidingLog, now: Timestamp, decided: DecidedTake) -> Outcome {
    let SlidingLogSummary { mut used, mut newest, blocker } = summary;
    let total = decided.take.total();
    if decided.consumed && total > 0 {
        used += total;
        newest = current(newest, now);
    }
    let after = |at: u64| Duration::from_micros((at + limit.window).saturating_sub(now.as_micros()));
    Outcome {
        remaining: limit.limit.saturating_sub(used),
        retry_after: (!decided.admitted && total <= limit.limit).then(|| after(blocker)),
        reset_after: if used > 0 { after(newest) } else { Duration::ZERO },
        ..decided.outcome(limit.limit)
    }
}

/// The first instant, in microseconds, at which `state` is equivalent to none.
pub fn expiry(state: &SlidingLogState, limit: &SlidingLog) -> u64 {
    if state.used > 0 { state.newest() + limit.window } else { 0 }
}
