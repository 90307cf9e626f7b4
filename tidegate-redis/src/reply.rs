//! `PlanReply` and `Reply`: the replies of the scripts, and the verdicts that the library's functions compute from them.
//! The contract of `decide_batch.lua` has the grammar of a reply, which [`ResultText`] parses.
//!
//! A script returns only the time, which checks admitted, and the states that it read. Rust applies the same functions again to compute
//! remaining, retry, reset and delay, so these are defined in one place. It also computes what each of several equal plans, sent as
//! one plan of several units, would have received alone.

mod adjust_reply;
mod found_states;
mod grammar;
mod numbers;
mod reply_errors;

use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;
use tidegate::spi::algorithm::holds::StateWithHolds;
use tidegate::spi::algorithm::{self, CLOCK_MARGIN, Op, State};
use tidegate::spi::{Check, HoldRefusal, Plan, Role, Verdict};
use tidegate::{StoreError, Timestamp};

use crate::args::micros;
pub(crate) use adjust_reply::{AdjustReply, parse_adjust};
use found_states::{expiry, require_whole, strike, take};
use grammar::{CheckLetter, CheckText, DecidedText, HoldsText, ResultText};
pub(crate) use numbers::parse_stream_id;
use reply_errors::outbox_full;
pub(crate) use reply_errors::{malformed, rebuilding, stale, unreadable};

/// The part of a script's reply that answers one plan. It borrows nothing, and is small enough to be copied.
#[derive(Clone, Debug)]
pub(crate) struct PlanReply {
    now: Timestamp,
    repeat: Repeat,
    text: SmallVec<[u8; 64]>,
}

/// Equal plans are decided as one plan of several units: the plan with this index, of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeat {
    pub(crate) index: u64,
    pub(crate) count: u64,
}

/// A list of holds that a check was decided beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldList {
    /// The index of the check.
    pub(crate) check: usize,
    /// Whether it is that of the overflow bucket.
    pub(crate) is_overflow: bool,
    /// The number of holds and remembered ends.
    pub(crate) entries: u64,
    /// How long the last one lasts.
    pub(crate) lasts: Duration,
}

/// The decoded reply to a plan.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The script's time.
    pub(crate) now: Timestamp,
    granted: u64,
    /// For each check, whether it admits, and the state it was decided on.
    states: SmallVec<[FoundState; 1]>,
    details: SmallVec<[CheckDetails; 1]>,
    /// Why a reservation was refused.
    refusal: Option<HoldRefusal>,
    /// Whether the reservation was made before, so that no place in a queue was taken.
    is_repeated_reservation: bool,
    /// The entries that were written for the ledger: the index of the check, and the time and sequence of the entry.
    entries: Vec<(usize, (u64, u64))>,
}

/// Whether a check admits, and the state that it was decided on.
type FoundState = (bool, Option<State>);

/// How a check was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CheckDetails {
    letter: CheckLetter,
    /// The milliseconds that a state with a maximum TTL had left.
    ttl_millis: Option<u64>,
}

/// Splits the reply of a script into its time and one text for each of `count` plans. The last texts may be missing, but there
/// are never more.
pub(crate) fn split_reply(reply: &Value, count: usize) -> Result<(Timestamp, Vec<&[u8]>), StoreError> {
    let Value::BulkString(bytes) = reply else { return Err(malformed()) };
    let (now, texts) = bytes.split_first_chunk().ok_or_else(malformed)?;
    let now = f64::from_le_bytes(*now);
    let is_microseconds = now >= 0.0 && now < (1_u64 << 53) as f64;
    let mut parts = texts.split(|byte| *byte == b';');
    // Every text is preceded by its semicolon.
    let is_empty_before_first = parts.next().is_some_and(<[u8]>::is_empty);
    let texts: Vec<&[u8]> = parts.collect();
    if !is_microseconds || !is_empty_before_first || texts.len() > count {
        return Err(malformed());
    }
    Ok((Timestamp::from_micros(now as u64), texts))
}

/// The reply to a plan if the periods of a quota did not contain the time of the script, and nothing was decided.
pub(crate) const STALE: &[u8] = b"~";

impl PlanReply {
    pub(crate) fn new(now: Timestamp, repeat: Repeat, text: &[u8]) -> Self {
        Self { now, repeat, text: SmallVec::from_slice(text) }
    }

    /// The time of the script, if the periods of a quota did not contain it: nothing was decided.
    pub(crate) fn stale_at(&self) -> Option<Timestamp> {
        matches!(ResultText::parse(&self.text), Some(ResultText::Stale)).then_some(self.now)
    }

    /// The generation that was found for each check with a ledger, or 0, if one of them was another than in the plan: nothing was decided.
    pub(crate) fn found_generations(&self) -> Option<SmallVec<[u64; 2]>> {
        match ResultText::parse(&self.text)? {
            ResultText::OtherGenerations(found) => Some(found),
            _ => None,
        }
    }

    /// The lists of holds that the checks were decided beside.
    pub(crate) fn hold_lists(&self) -> impl Iterator<Item = HoldList> {
        // Few replies have any.
        let has_holds = self.text.contains(&b'h');
        let mut text = match has_holds.then(|| ResultText::parse(&self.text)).flatten() {
            Some(ResultText::Decided(decided)) => decided.checks,
            _ => &[],
        };
        let checks = std::iter::from_fn(move || {
            let (check, rest) = CheckText::take(text)?;
            text = rest;
            Some(check)
        });
        checks.enumerate().filter_map(|(check, CheckText { letter, holds, .. })| {
            let HoldsText { ends, entries, .. } = holds?;
            let lasts = Duration::from_micros(ends.saturating_sub(self.now.as_micros()));
            Some(HoldList { check, is_overflow: letter.overflowed, entries, lasts })
        })
    }

    /// Decodes the reply to `plan`, which must be the plan that was sent.
    pub(crate) fn into_reply(self, plan: &Plan<'_>) -> Result<Reply, StoreError> {
        let is_reservation = plan.reservation().is_some();
        match ResultText::parse(&self.text).ok_or_else(malformed)? {
            ResultText::Stale => Err(stale()),
            ResultText::OtherGenerations(_) => Err(rebuilding()),
            ResultText::OutboxFull => Err(outbox_full()),
            ResultText::Unreadable(check) => Reply::unreadable(plan, self.now, check),
            ResultText::AlreadyEnded if is_reservation => Ok(Reply::refused(plan, self.now, HoldRefusal::AlreadyEnded)),
            ResultText::KeyReused if is_reservation => Ok(Reply::refused(plan, self.now, HoldRefusal::KeyReused)),
            ResultText::Decided(decided) if is_reservation || !decided.is_repeat => {
                Reply::decided(plan, self.now, self.repeat, &decided)
            }
            _ => Err(malformed()),
        }
    }
}

/// Decoding
impl Reply {
    /// The reply to a plan that was decided.
    fn decided(plan: &Plan<'_>, now: Timestamp, repeat: Repeat, decided: &DecidedText<'_>) -> Result<Self, StoreError> {
        let DecidedText { is_repeat: is_repeated_reservation, granted, checks: mut text } = *decided;
        let (mut states, mut details, mut entries) = (SmallVec::new(), SmallVec::new(), Vec::new());
        for (index, check) in plan.checks().iter().enumerate() {
            let (found, rest) = CheckText::take(text).ok_or_else(malformed)?;
            let mut state = decode_state(check, &found)?;
            if found.taken > 0 {
                take(plan, check, now, &mut state, found.taken)?;
            }
            states.push((found.letter.admitted, state));
            // A penalty without a state admits the request, and needs none.
            let stateless = found.letter.stateless && !check.gate().is_penalty();
            let letter = CheckLetter { stateless, ..found.letter };
            details.push(CheckDetails { letter, ttl_millis: found.ttl_millis });
            entries.extend(found.entry.map(|id| (index, id)));
            text = rest;
        }
        let max_units = plan.max_units().max(repeat.count);
        if !text.is_empty() || granted.is_some() != (max_units > 1) || granted > Some(max_units) {
            return Err(malformed());
        }
        let all = granted.unwrap_or_default();
        let reply = Self { now, granted: all, states, details, refusal: None, is_repeated_reservation, entries };
        if repeat.count > 1 {
            return reply.into_repeat(plan, repeat);
        }
        let granted = granted.unwrap_or_else(|| plan.granted(|index| u64::from(reply.states[index].0)));
        Self { granted, ..reply }.with_strikes(plan)
    }

    /// The reply if the state of the check with this number, from 1, is unreadable: an error, unless it is a shadow check.
    fn unreadable(plan: &Plan<'_>, now: Timestamp, check: u64) -> Result<Self, StoreError> {
        match plan.checks() {
            [only] if only.gate().role() == Role::Shadow => {
                let letter = CheckLetter { unreadable: true, ..CheckLetter::default() };
                let details = CheckDetails { letter, ttl_millis: None };
                Ok(Self {
                    now,
                    granted: plan.granted(|_| 0),
                    states: SmallVec::from_buf([(false, None)]),
                    details: SmallVec::from_buf([details]),
                    refusal: None,
                    is_repeated_reservation: false,
                    entries: Vec::new(),
                })
            }
            _ => Err(unreadable(check)),
        }
    }

    /// The reply to a reservation that was refused.
    fn refused(plan: &Plan<'_>, now: Timestamp, refusal: HoldRefusal) -> Self {
        let states = plan.checks().iter().map(|_| (false, None)).collect();
        let details = plan.checks().iter().map(|_| CheckDetails::default()).collect();
        let entries = Vec::new();
        Self { now, granted: 0, states, details, refusal: Some(refusal), is_repeated_reservation: false, entries }
    }

    /// The reply with penalties as their strikes have left them.
    fn with_strikes(mut self, plan: &Plan<'_>) -> Result<Self, StoreError> {
        let struck = self
            .states
            .iter_mut()
            .zip(&self.details)
            .zip(plan.checks())
            .filter(|((_, detail), _)| detail.letter.struck);
        for (((admitted, state), _), check) in struck {
            *admitted = strike(check, self.now, state)?;
        }
        Ok(self)
    }

    /// The reply to one of several equal plans, from the reply to all of them: the states found, and the units granted. Every
    /// plan is one unit, so those before it have taken as many units as were granted to them.
    fn into_repeat(self, plan: &Plan<'_>, repeat: Repeat) -> Result<Self, StoreError> {
        let Self { now, granted, mut states, mut details, entries, .. } = self;
        let granted_before = repeat.index.min(granted);
        let is_granted = repeat.index < granted;
        for (check, ((admitted, state), detail)) in plan.checks().iter().zip(states.iter_mut().zip(&mut details)) {
            if granted_before > 0 {
                take(plan, check, now, state, granted_before)?;
            }
            let (limit, one) = (check.gate().limit(), Op::Take(plan.take(check, 1)));
            let admits = algorithm::decide(require_whole(state)?.as_ref(), limit, now, one).admitted;
            *admitted = is_granted || admits;
            if repeat.index == 0 {
                continue;
            }
            // A state that had to be rebased was written by the first denial.
            if granted == 0 && !admits {
                algorithm::apply(state, limit, now, one);
            }
            let ends = expiry(state.as_ref(), check, now).filter(|_| !detail.letter.overflowed);
            detail.ttl_millis = ends.and_then(|ends| ttl_millis(check, ends, now));
        }
        let (granted, is_repeated_reservation) = (u64::from(is_granted), false);
        Ok(Self { now, granted, states, details, refusal: None, is_repeated_reservation, entries })
    }
}

/// Evaluating
impl Reply {
    /// The same if the plan is what a reservation took that was made before, and that has no owner to be found by.
    pub(crate) fn into_taken_before(mut self) -> Self {
        (self.granted, self.is_repeated_reservation) = (1, true);
        self.states.iter_mut().for_each(|(admitted, _)| *admitted = true);
        self
    }

    /// The verdict on `plan`.
    pub(crate) fn verdict(&self, plan: &Plan<'_>) -> Verdict {
        if let Some(refusal) = self.refusal {
            return Verdict::refused(self.now, refusal);
        }
        let mut verdict = Verdict::replay(plan, self.now, self.granted, &self.states, self.is_repeated_reservation);
        for (check, CheckDetails { letter, .. }) in verdict.checks_mut().iter_mut().zip(&self.details) {
            check.overflowed = letter.overflowed;
            check.stateless = letter.stateless;
            check.skipped = letter.unreadable;
            check.consumed &= !letter.stateless;
            if letter.unreadable {
                (check.outcome.remaining, check.outcome.retry_after) = (0, None);
            }
        }
        verdict.with_repeat(self.is_repeated_reservation)
    }

    /// Whether any units were granted.
    pub(crate) const fn has_granted(&self) -> bool {
        self.granted > 0
    }

    /// The entries that were written for the ledger: the index of the check, and the time and sequence of the entry.
    pub(crate) fn entries(&self) -> &[(usize, (u64, u64))] {
        &self.entries
    }

    /// The state that the check at `index` was decided on, if there was one.
    pub(crate) fn state(&self, index: usize) -> Option<&State> {
        self.states.get(index)?.1.as_ref()
    }

    /// How long the store still keeps the state of the check at `index`, if it has a maximum TTL.
    pub(crate) fn remaining_ttl(&self, index: usize) -> Option<Duration> {
        self.details.get(index)?.ttl_millis.map(Duration::from_millis)
    }

    /// When the key of a check would have expired before this decision, in microseconds. `None` if there was no key.
    pub(crate) fn previous_expiry(&self, index: usize, check: &Check<'_>) -> Option<u64> {
        let expiry = expiry(self.state(index), check, self.now)?;
        let ttl = self.details.get(index).filter(|_| check.forget_after().is_some());
        Some(match ttl.and_then(|details| details.ttl_millis) {
            Some(millis) => self.now.as_micros().saturating_add(millis.saturating_mul(1_000)),
            None => expiry.saturating_add(micros(CLOCK_MARGIN)),
        })
    }
}

/// The state that `check` was decided on. The script has read it, so one that is not of its limit is a malformed reply.
fn decode_state(check: &Check<'_>, found: &CheckText<'_>) -> Result<Option<State>, StoreError> {
    let limit = check.gate().limit();
    let decode = || State::decode(limit, found.state).ok_or_else(malformed);
    let state = if found.state.is_empty() { None } else { Some(decode()?) };
    match found.holds {
        None => Ok(state),
        Some(HoldsText { held, ends, .. }) if limit.keeps_holds() && held < 1 << 53 && ends < 1 << 54 => {
            Ok(Some(State::WithHolds(Box::new(StateWithHolds::from_reply(state, held, ends)))))
        }
        Some(_) => Err(malformed()),
    }
}

/// The TTL that the key of `check` has after a state was written that ends at `ends`, with the margin for the clock.
fn ttl_millis(check: &Check<'_>, ends: u64, now: Timestamp) -> Option<u64> {
    let max_ttl = micros(check.forget_after()?);
    let left = ends.saturating_sub(now.as_micros());
    Some(left.min(max_ttl).saturating_add(micros(CLOCK_MARGIN)) / 1_000)
}
