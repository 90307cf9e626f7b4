//! `PlanReply` and `Reply`: the replies of the scripts, and the verdicts that the library's functions compute from them.
//! `decide_batch.lua` describes the format.
//!
//! A script returns only the time, which checks admitted, and the states that it read. Rust applies the same functions again to compute
//! remaining, retry, reset and delay, so these are defined in one place. It also computes what each of several equal plans, sent as
//! one plan of several units, would have received alone.

mod adjust_reply;
mod found_states;
mod numbers;
mod reply_errors;

use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;
use tidegate::spi::algorithm::{CLOCK_MARGIN, State, StoredState};
use tidegate::spi::{Check, HoldRefusal, Plan, Role, Verdict};
use tidegate::{StoreError, Timestamp};

use crate::args::micros;
pub(crate) use adjust_reply::{AdjustReply, parse_adjust};
use found_states::{apply_take, set_limit_state, strike, take};
pub(crate) use numbers::parse_stream_id;
use numbers::{is_state_byte, parse_number, take_holds, take_number, take_stream_id};
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
    states: SmallVec<[(bool, StoredState); 1]>,
    details: SmallVec<[CheckDetails; 1]>,
    /// Why a reservation was refused.
    refusal: Option<HoldRefusal>,
    /// Whether the reservation was made before, so that no place in a queue was taken.
    is_repeated_reservation: bool,
    /// The entries that were written for the ledger: the index of the check, and the time and sequence of the entry.
    entries: Vec<(usize, (u64, u64))>,
}

/// How a check was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
struct CheckDetails {
    /// On the overflow bucket.
    overflowed: bool,
    /// On a key that does not exist, on a full server: nothing was written.
    stateless: bool,
    /// A shadow check whose state is unreadable.
    unreadable: bool,
    /// A penalty that was struck.
    struck: bool,
    /// The units that earlier plans of the batch took from the state in the reply.
    taken: u64,
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

/// The reply to a plan if the outbox of its ledger is full, and nothing was decided.
const OUTBOX_FULL: &[u8] = b"%";

impl PlanReply {
    pub(crate) fn new(now: Timestamp, repeat: Repeat, text: &[u8]) -> Self {
        Self { now, repeat, text: SmallVec::from_slice(text) }
    }

    /// The time of the script, if the periods of a quota did not contain it: nothing was decided.
    pub(crate) fn stale_at(&self) -> Option<Timestamp> {
        (self.text[..] == *STALE).then_some(self.now)
    }

    /// The generation that was found for each check with a ledger, or 0, if one of them was another than in the plan: nothing was decided.
    pub(crate) fn found_generations(&self) -> Option<SmallVec<[u64; 2]>> {
        let list = self.text.strip_prefix(b"?")?;
        list.split(|byte| *byte == b',').map(parse_number).collect()
    }

    /// The lists of holds that the checks were decided beside.
    pub(crate) fn hold_lists(&self) -> impl Iterator<Item = HoldList> {
        let text: &[u8] = if self.text.contains(&b'h') { &self.text } else { &[] };
        let (mut checks, mut is_overflow) = (0_usize, false);
        text.iter().enumerate().filter_map(move |(at, byte)| match byte.to_ascii_lowercase() {
            letter if is_check_letter(letter) => {
                (checks, is_overflow) = (checks + 1, matches!(letter, b's' | b'o'));
                None
            }
            b'h' => {
                let ([_, ends, entries], _) = take_holds(&text[at..])?;
                let lasts = Duration::from_micros(ends.saturating_sub(self.now.as_micros()));
                Some(HoldList { check: checks.checked_sub(1)?, is_overflow, entries, lasts })
            }
            _ => None,
        })
    }

    /// Decodes the reply to `plan`, which must be the plan that was sent.
    pub(crate) fn into_reply(self, plan: &Plan<'_>) -> Result<Reply, StoreError> {
        let mut text = &self.text[..];
        if text == STALE {
            return Err(stale());
        }
        if text.starts_with(b"?") {
            return Err(rebuilding());
        }
        if text == OUTBOX_FULL {
            return Err(outbox_full());
        }
        if let Some(rest) = text.strip_prefix(b"!") {
            let check = parse_number(rest).ok_or_else(malformed)?;
            return Reply::unreadable(plan, self.now, check);
        }
        if let Some(refusal) = parse_refusal(text).filter(|_| plan.reservation().is_some()) {
            return Ok(Reply::refused(plan, self.now, refusal));
        }
        let is_repeated_reservation = plan.reservation().is_some() && text.starts_with(b"r");
        if is_repeated_reservation {
            text = &text[1..];
        }
        let mut granted = None;
        if let Some(rest) = text.strip_prefix(b"g") {
            let (number, rest) = take_number(rest).ok_or_else(malformed)?;
            (granted, text) = (Some(number), rest);
        }
        let (mut states, mut details, mut entries) = (SmallVec::new(), SmallVec::new(), Vec::new());
        for check in plan.checks() {
            let ((admitted, state), detail, rest) = parse_check(check, text).ok_or_else(malformed)?;
            let state = if detail.taken > 0 { take(plan, check, self.now, state, detail.taken)? } else { state };
            states.push((admitted, state));
            text = rest;
            if let Some(rest) = text.strip_prefix(b"l") {
                let (id, rest) = take_stream_id(rest).ok_or_else(malformed)?;
                entries.push((details.len(), id));
                text = rest;
            }
            details.push(detail);
        }
        let max_units = plan.max_units().max(self.repeat.count);
        if !text.is_empty() || granted.is_some() != (max_units > 1) || granted > Some(max_units) {
            return Err(malformed());
        }
        let reply = Reply {
            now: self.now,
            granted: granted.unwrap_or_default(),
            states,
            details,
            refusal: None,
            is_repeated_reservation,
            entries,
        };
        if self.repeat.count > 1 {
            return reply.into_repeat(plan, self.repeat);
        }
        let granted = granted.unwrap_or_else(|| plan.granted(|index| u64::from(reply.states[index].0)));
        Reply { granted, ..reply }.with_strikes(plan)
    }
}

/// Decoding
impl Reply {
    /// The reply if the state of the check with this number, from 1, is unreadable: an error, unless it is a shadow check.
    fn unreadable(plan: &Plan<'_>, now: Timestamp, check: u64) -> Result<Self, StoreError> {
        match plan.checks() {
            [only] if only.gate().role() == Role::Shadow => {
                let details = CheckDetails { unreadable: true, ..CheckDetails::default() };
                Ok(Self {
                    now,
                    granted: plan.granted(|_| 0),
                    states: SmallVec::from_buf([(false, StoredState::Fresh)]),
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
        let states = plan.checks().iter().map(|_| (false, StoredState::Fresh)).collect();
        let details = plan.checks().iter().map(|_| CheckDetails::default()).collect();
        let entries = Vec::new();
        Self { now, granted: 0, states, details, refusal: Some(refusal), is_repeated_reservation: false, entries }
    }

    /// The reply with penalties as their strikes have left them.
    fn with_strikes(mut self, plan: &Plan<'_>) -> Result<Self, StoreError> {
        let struck =
            self.states.iter_mut().zip(&self.details).zip(plan.checks()).filter(|((_, detail), _)| detail.struck);
        for ((state, _), check) in struck {
            *state = strike(check, self.now, &state.1)?;
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
                *state = take(plan, check, now, std::mem::replace(state, StoredState::Fresh), granted_before)?;
            }
            let result = apply_take(state, check.gate().limit(), now, plan.take(check, 1))?;
            *admitted = is_granted || result.admitted;
            if repeat.index == 0 {
                continue;
            }
            // A state that had to be rebased was written by the first denial.
            if let Some(change) = result.change.filter(|_| granted == 0 && !result.admitted) {
                set_limit_state(state, State::new(change));
            }
            let ends = state.expiry(check.gate().limit(), now).filter(|_| !detail.overflowed);
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
        for (check, details) in verdict.checks_mut().iter_mut().zip(&self.details) {
            check.overflowed = details.overflowed;
            check.stateless = details.stateless;
            check.skipped = details.unreadable;
            check.consumed &= !details.stateless;
            if details.unreadable {
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

    /// The state that the check at `index` was decided on.
    pub(crate) fn state(&self, index: usize) -> Option<&StoredState> {
        self.states.get(index).map(|(_, state)| state)
    }

    /// How long the store still keeps the state of the check at `index`, if it has a maximum TTL.
    pub(crate) fn remaining_ttl(&self, index: usize) -> Option<Duration> {
        self.details.get(index)?.ttl_millis.map(Duration::from_millis)
    }

    /// When the key of a check would have expired before this decision, in microseconds. `None` if there was no key.
    pub(crate) fn previous_expiry(&self, index: usize, check: &Check<'_>) -> Option<u64> {
        let expiry = self.states.get(index)?.1.expiry(check.gate().limit(), self.now)?;
        let ttl = self.details.get(index).filter(|_| check.forget_after().is_some());
        Some(match ttl.and_then(|details| details.ttl_millis) {
            Some(millis) => self.now.as_micros().saturating_add(millis.saturating_mul(1_000)),
            None => expiry.saturating_add(micros(CLOCK_MARGIN)),
        })
    }
}

/// Parses the result of a check at the start of `text`, and returns the rest.
fn parse_check<'t>(check: &Check<'_>, text: &'t [u8]) -> Option<((bool, StoredState), CheckDetails, &'t [u8])> {
    let (letter, text) = text.split_first()?;
    let (value, mut text) = text.split_at(text.iter().take_while(|byte| is_state_byte(**byte)).count());
    // The script has read the state without an error, so one that cannot be decoded is a malformed reply.
    let limit = check.gate().limit();
    let mut state = if value.is_empty() { StoredState::Fresh } else { StoredState::decode(limit, value)? };
    if text.starts_with(b"h") && limit.keeps_holds() {
        let ([held, ends, _], rest) = take_holds(text)?;
        if held >= 1 << 53 || ends >= 1 << 54 {
            return None;
        }
        (state, text) = (StoredState::WithHolds { inner: Box::new(state), held, ends }, rest);
    }
    let kind = letter.to_ascii_lowercase();
    if !is_check_letter(kind) || matches!(letter, b'u' | b'P') {
        return None;
    }
    let (mut taken, mut ttl_millis) = (0, None);
    if let Some(rest) = text.strip_prefix(b"t") {
        (taken, text) = take_number(rest)?;
    }
    if let Some(rest) = text.strip_prefix(b"m") {
        let (number, rest) = take_number(rest)?;
        (ttl_millis, text) = (Some(number), rest);
    }
    let details = CheckDetails {
        overflowed: matches!(kind, b's' | b'o'),
        // A penalty without a state admits the request, and needs none.
        stateless: matches!(kind, b'n' | b'o') && !check.gate().is_penalty(),
        unreadable: kind == b'u',
        struck: kind == b'p',
        taken,
        ttl_millis,
    };
    Some(((letter.is_ascii_lowercase(), state), details, text))
}

/// Why a reservation was refused, if `text` says so.
fn parse_refusal(text: &[u8]) -> Option<HoldRefusal> {
    match text {
        b"e" => Some(HoldRefusal::AlreadyEnded),
        b"k" => Some(HoldRefusal::KeyReused),
        _ => None,
    }
}

/// The TTL that the key of `check` has after a state was written that ends at `ends`, with the margin for the clock.
fn ttl_millis(check: &Check<'_>, ends: u64, now: Timestamp) -> Option<u64> {
    let max_ttl = micros(check.forget_after()?);
    let left = ends.saturating_sub(now.as_micros());
    Some(left.min(max_ttl).saturating_add(micros(CLOCK_MARGIN)) / 1_000)
}

/// Whether it is a small letter that begins the result of a check.
const fn is_check_letter(letter: u8) -> bool {
    matches!(letter, b'a' | b's' | b'n' | b'o' | b'u' | b'p')
}
