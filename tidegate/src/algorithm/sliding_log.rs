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

use super::lua::{LuaFunction, LuaInput};
use super::value::parse_list;
use super::{CLOCK_MARGIN_MICROS, DecidedTake, Effect, Kind, Op, Outcome, State, Take, TakePosition};
use crate::Timestamp;
use crate::limit::{LimitError, MAX_LOG_LIMIT, whole_micros};

/// The parameters of a sliding log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    window: u64,
}

/// The state of a sliding log: all of it, or what a script replies in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlidingLogState {
    /// The log.
    Entries(LogEntries),
    /// Its summary for one cost.
    Summary(SlidingLogSummary),
}

/// The log: (instant in microseconds, cost), oldest first, and the sum of the costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEntries {
    entries: VecDeque<(u64, u64)>,
    used: u64,
}

/// A change of [`LogEntries`]: removes the oldest entries, optionally merges the entries from `at` on into one, and
/// adds or removes units at `at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogChange {
    evict: u32,
    rebase: bool,
    at: u64,
    add: u64,
    remove: u64,
}

/// What an outcome needs of a log.
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
    fn summary(&self, state: Option<&SlidingLogState>, now: Timestamp, cost: u64) -> SlidingLogSummary {
        let state = match state {
            None => return SlidingLogSummary::default(),
            Some(SlidingLogState::Summary(summary)) => return *summary,
            Some(SlidingLogState::Entries(state)) => state,
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
    fn outdated(&self, state: &LogEntries, now: u64) -> (usize, u64) {
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

impl LogEntries {
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

    fn commit(&mut self, change: &LogChange) {
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

impl Kind for SlidingLog {
    type State<'s> = &'s SlidingLogState;
    type Change = LogChange;

    const LUA: LuaFunction = LuaFunction {
        number: 4,
        name: "sliding_log",
        text: include_str!("sliding_log.lua"),
        needs: "",
        numbers: 4,
        refund_numbers: 0,
    };

    fn state(state: &State) -> Option<&SlidingLogState> {
        if let State::Log(state) = state { Some(state) } else { None }
    }

    fn create(change: LogChange) -> State {
        let mut entries = LogEntries::default();
        entries.commit(&change);
        State::Log(Box::new(SlidingLogState::Entries(entries)))
    }

    fn edit(state: &mut State, change: LogChange) {
        if let State::Log(state) = state
            && let SlidingLogState::Entries(entries) = &mut **state
        {
            entries.commit(&change);
        }
    }

    fn apply(&self, state: Option<&SlidingLogState>, now: Timestamp, op: Op) -> Effect<LogChange> {
        let state = match state {
            None => None,
            Some(SlidingLogState::Entries(entries)) => Some(entries),
            Some(SlidingLogState::Summary(_)) => return Effect::denied(None),
        };
        let newest = state.map_or(0, LogEntries::newest);
        let now = current(newest, now);
        let (evict, used) = state.map_or((0, 0), |state| self.outdated(state, now));
        let left = self.limit.saturating_sub(used);
        // A log has at most one entry for each unit of the limit, so the cast is lossless.
        let change = LogChange { evict: evict as u32, rebase: newest > now, at: now, add: 0, remove: 0 };
        match op {
            Op::Take(take) if take.total() == 0 => Effect::admitted(None),
            Op::Take(take) if take.total() <= left => Effect::admitted(Some(LogChange { add: take.total(), ..change })),
            Op::Take(_) => Effect::denied(change.rebase.then_some(change)),
            Op::Charge { cost, .. } | Op::Fill { cost } => {
                let counted = cost.min(left);
                Effect::admitted((counted > 0).then_some(LogChange { add: counted, ..change }))
            }
            Op::Refund { cost, position } => {
                let at = position.index();
                let refundable = state.and_then(|state| {
                    let index = state.entries.binary_search_by_key(&at, |(at, _)| *at).ok()?;
                    (index >= evict).then(|| state.entries[index].1.min(cost))
                });
                let back = refundable.filter(|back| *back > 0 && !change.rebase);
                Effect::admitted(back.map(|back| LogChange { at, remove: back, ..change }))
            }
            // Nothing of it is held.
            Op::Renew { .. } | Op::Hold(_) | Op::Strike => Effect::denied(None),
        }
    }

    fn room(&self, state: Option<&SlidingLogState>, now: Timestamp, take: Take) -> u64 {
        let left = self.limit.saturating_sub(self.summary(state, now, 0).used);
        left.checked_div(take.cost).unwrap_or(take.units).min(take.units)
    }

    fn outcome(&self, state: Option<&SlidingLogState>, now: Timestamp, decided: DecidedTake) -> Outcome {
        let total = decided.take.total();
        let SlidingLogSummary { mut used, mut newest, blocker } = self.summary(state, now, total);
        if decided.consumed && total > 0 {
            used += total;
            newest = current(newest, now);
        }
        let after = |at: u64| Duration::from_micros((at + self.window).saturating_sub(now.as_micros()));
        Outcome {
            remaining: self.limit.saturating_sub(used),
            retry_after: (!decided.admitted && total <= self.limit).then(|| after(blocker)),
            reset_after: if used > 0 { after(newest) } else { Duration::ZERO },
            ..decided.outcome(self.limit)
        }
    }

    fn position(&self, state: Option<&SlidingLogState>, now: Timestamp, _: Take) -> TakePosition {
        let newest = match state {
            None => 0,
            Some(SlidingLogState::Entries(entries)) => entries.newest(),
            Some(SlidingLogState::Summary(summary)) => summary.newest,
        };
        TakePosition::from_index(current(newest, now))
    }

    /// 0 for a log that is empty.
    fn expiry(&self, state: &SlidingLogState) -> u64 {
        let (used, newest) = match state {
            SlidingLogState::Entries(entries) => (entries.used, entries.newest()),
            SlidingLogState::Summary(summary) => (summary.newest, summary.newest),
        };
        if used > 0 { newest + self.window } else { 0 }
    }

    /// The summary that is replied.
    fn decode(&self, value: &[u8]) -> Option<State> {
        let [used, newest, blocker] = <[u64; 3]>::try_from(parse_list(value)?).ok()?;
        Some(State::Log(Box::new(SlidingLogState::Summary(SlidingLogSummary { used, newest, blocker }))))
    }

    fn push_numbers(&self, input: LuaInput, _: impl FnOnce() -> Timestamp, mut push: impl FnMut(f64)) {
        for number in [input.cost, input.position.index(), self.limit, self.window] {
            push(number as f64);
        }
    }
}
