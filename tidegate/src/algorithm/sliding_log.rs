//! The sliding log: so many units in any window, exactly, because every admitted request is kept.
//!
//! With a limit of L in a window of W, for every instant t:
//!
//! ```text
//! admitted(t − W, t]  ≤  L
//! ```
//!
//! Error bound: none, whatever the costs. A request at t counts until just before t + W.
//!
//! The state is the log, oldest first, with the sum of its costs, so that a decision touches only the entries that have
//! left the window since the last one. Requests of one microsecond share an entry.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Applied, MARGIN_MICROS, Op, Outcome, Standing, Take, span_micros};
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
pub struct State {
    entries: VecDeque<(u64, u64)>,
    used: u64,
}

/// How a [`State`] changes: old entries leave; then, `at` an instant, those ahead of it are gathered, and units added or
/// removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    evict: u32,
    gather: bool,
    at: u64,
    add: u64,
    remove: u64,
}

/// What an outcome needs to know of a log: the script replies with this instead of the log itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Units in the window.
    pub used: u64,
    /// The instant of the newest entry, 0 if there is none.
    pub newest: u64,
    /// For a request that does not fit: the instant of the entry that must leave before it does. Otherwise 0.
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

    /// The length of the window in microseconds.
    pub const fn window_micros(&self) -> u64 {
        self.window
    }

    /// What the log says about a request of `cost` units at `now`.
    pub(crate) fn summary(&self, state: Option<&State>, now: Timestamp, cost: u64) -> Summary {
        let Some(state) = state else {
            return Summary::default();
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
        Summary { used, newest, blocker }
    }

    /// How many entries have left the window, and the units that are still in it.
    fn outdated(&self, state: &State, now: u64) -> (usize, u64) {
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

impl State {
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

    /// Carries out what [`apply`] decided.
    pub(crate) fn commit(&mut self, edit: &Edit) {
        for (_, cost) in self.entries.drain(..(edit.evict as usize).min(self.entries.len())) {
            self.used -= cost;
        }
        if edit.gather {
            let first = self.entries.partition_point(|(at, _)| *at < edit.at);
            let ahead: u64 = self.entries.drain(first..).map(|(_, cost)| cost).sum();
            self.used -= ahead;
            self.push(edit.at, ahead);
        }
        if edit.add > 0 {
            self.push(edit.at, edit.add);
        }
        if edit.remove > 0
            && let Ok(found) = self.entries.binary_search_by_key(&edit.at, |(at, _)| *at)
        {
            self.entries[found].1 -= edit.remove;
            self.used -= edit.remove;
            if self.entries[found].1 == 0 {
                self.entries.remove(found);
            }
        }
    }
}

/// The instant that counts as now: a log written a little ahead of the clock stays current until the clock catches up.
pub(crate) fn current(newest: u64, now: Timestamp) -> u64 {
    let now = now.as_micros();
    if newest > now && newest - now <= MARGIN_MICROS { newest } else { now }
}

/// Decides `op` on `state`. Twin: `sliding_log.lua`.
pub fn apply(state: Option<&State>, limit: &SlidingLog, now: Timestamp, op: Op) -> Applied<Edit> {
    let newest = state.map_or(0, State::newest);
    let now = current(newest, now);
    let (evict, used) = state.map_or((0, 0), |state| limit.outdated(state, now));
    let left = limit.limit.saturating_sub(used);
    // A log has at most one entry for each unit of the largest limit.
    let edit = Edit { evict: evict as u32, gather: newest > now, at: now, add: 0, remove: 0 };
    match op {
        Op::Take(take) if take.total() == 0 => Applied::admitted(None),
        Op::Take(take) if take.total() <= left => Applied::admitted(Some(Edit { add: take.total(), ..edit })),
        Op::Take(_) => Applied::denied(edit.gather.then_some(edit)),
        Op::Charge { cost } => {
            let counted = cost.min(left);
            Applied::changed((counted > 0).then_some(Edit { add: counted, ..edit }))
        }
        Op::Refund { cost, place } => {
            let at = place.position();
            let found = state.and_then(|state| {
                let found = state.entries.binary_search_by_key(&at, |(at, _)| *at).ok()?;
                (found >= evict).then(|| state.entries[found].1.min(cost))
            });
            let back = found.filter(|back| *back > 0 && !edit.gather);
            Applied::changed(back.map(|back| Edit { at, remove: back, ..edit }))
        }
    }
}

/// The largest number of units, up to those of `take`, that would be admitted. Twin: `ROOM` in `sliding_log.lua`.
pub fn room(state: Option<&State>, limit: &SlidingLog, now: Timestamp, take: Take) -> u64 {
    let left = limit.limit.saturating_sub(limit.summary(state, now, 0).used);
    left.checked_div(take.cost).unwrap_or(take.units).min(take.units)
}

/// What a caller is told, from the summary of the log that was found.
pub fn outcome(found: Summary, limit: &SlidingLog, now: Timestamp, standing: Standing) -> Outcome {
    let Summary { mut used, mut newest, blocker } = found;
    let total = standing.take.total();
    if standing.consumed && total > 0 {
        used += total;
        newest = current(newest, now);
    }
    let after = |at: u64| span_micros((at + limit.window).saturating_sub(now.as_micros()));
    Outcome {
        remaining: limit.limit.saturating_sub(used),
        retry_after: (!standing.admitted && total <= limit.limit).then(|| after(blocker)),
        reset_after: if used > 0 { after(newest) } else { Duration::ZERO },
        ..standing.outcome(limit.limit)
    }
}

/// The first instant at which `state` is as good as none.
pub fn expiry(state: &State, limit: &SlidingLog) -> u64 {
    if state.used > 0 { state.newest() + limit.window } else { 0 }
}
