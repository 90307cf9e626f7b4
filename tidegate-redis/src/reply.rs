//! `Reply`: parses the replies of the scripts, and computes the verdict from them with the library's functions.

use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;
use tidegate::spi::algorithm::{CLOCK_MARGIN, StoredState};
use tidegate::spi::{Check, Plan, Verdict};
use tidegate::{StoreError, StoreErrorKind, Timestamp};

use crate::args::micros;

/// The reply of a script to a plan.
pub(crate) struct Reply {
    /// The script's time.
    pub(crate) now: Timestamp,
    granted: u64,
    /// For each check, whether it admits, and the state it was decided on.
    states: SmallVec<[(bool, StoredState); 1]>,
    /// For each check of a plan with overflow routes: -1 if the overflow bucket decided, otherwise the milliseconds that a
    /// state with a maximum TTL had left.
    marks: SmallVec<[i64; 1]>,
}

/// Parsing
impl Reply {
    /// Parses the reply of `decide_one.lua`, or with `has_routes` that of `decide_anonymous.lua`.
    pub(crate) fn parse_single(plan: &Plan<'_>, has_routes: bool, reply: &Value) -> Result<Self, StoreError> {
        let (Value::BulkString(bytes), [check]) = (reply, plan.checks()) else { return Err(malformed()) };
        let (now, mut state) = take_double(bytes)?;
        let mut marks = SmallVec::new();
        if has_routes {
            let (mark, rest) = take_double(state)?;
            (marks, state) = (SmallVec::from_buf([mark as i64]), rest);
        }
        let state = if state.is_empty() { StoredState::Fresh } else { decode(check, state)? };
        // The sign of now says whether the check admits. A single shadow check grants the request either way.
        let admitted = now.is_sign_positive();
        let granted = plan.granted(|_| u64::from(admitted));
        Ok(Self {
            now: Timestamp::from_micros(now.abs() as u64),
            granted,
            states: SmallVec::from_buf([(admitted, state)]),
            marks,
        })
    }

    /// Parses the reply of `decide.lua`, to a decision or a peek.
    pub(crate) fn parse_plan(plan: &Plan<'_>, has_routes: bool, reply: &Value) -> Result<Self, StoreError> {
        let Value::Array(fields) = reply else { return Err(malformed()) };
        let [now, bits, granted, rest @ ..] = fields.as_slice() else { return Err(malformed()) };
        let (now, bits, granted) = (number(now)?, number(bits)?, number(granted)?);
        let checks = plan.checks().len();
        if rest.len() != if has_routes { 2 * checks } else { checks } {
            return Err(malformed());
        }
        let (values, marks) = rest.split_at(checks);
        let mut states = Vec::with_capacity(checks);
        for (index, (check, value)) in plan.checks().iter().zip(values).enumerate() {
            let state = match value {
                Value::Nil => StoredState::Fresh,
                Value::BulkString(bytes) => decode(check, bytes)?,
                _ => return Err(malformed()),
            };
            states.push((bits >> index & 1 == 1, state));
        }
        let mark = |mark: &Value| if let Value::Int(mark) = mark { Ok(*mark) } else { Err(malformed()) };
        let marks = marks.iter().map(mark).collect::<Result<Vec<i64>, _>>()?;
        let (states, marks) = (states.into_iter().collect(), marks.into_iter().collect());
        Ok(Self { now: Timestamp::from_micros(now), granted, states, marks })
    }
}

/// Evaluating
impl Reply {
    /// The verdict on `plan`.
    pub(crate) fn verdict(&self, plan: &Plan<'_>) -> Verdict {
        let mut verdict = Verdict::replay(plan, self.now, self.granted, &self.states);
        for (check, mark) in verdict.checks_mut().iter_mut().zip(&self.marks) {
            check.overflowed = *mark < 0;
        }
        verdict
    }

    /// The state that the check at `index` was decided on.
    pub(crate) fn state(&self, index: usize) -> Option<&StoredState> {
        self.states.get(index).map(|(_, state)| state)
    }

    /// How long the store still keeps the state of the check at `index`, if it has a maximum TTL.
    pub(crate) fn remaining_ttl(&self, index: usize) -> Option<Duration> {
        self.marks.get(index).and_then(|millis| u64::try_from(*millis).ok()).map(Duration::from_millis)
    }

    /// When the key of a check would have expired before this decision, in microseconds. `None` if there was no key.
    pub(crate) fn previous_expiry(&self, index: usize, check: &Check<'_>) -> Option<u64> {
        let expiry = self.states.get(index)?.1.expiry(check.gate().limit(), self.now)?;
        let remaining = self.marks.get(index).filter(|_| check.forget_after().is_some());
        Some(match remaining.and_then(|millis| u64::try_from(*millis).ok()) {
            Some(millis) => self.now.as_micros().saturating_add(millis.saturating_mul(1_000)),
            None => expiry.saturating_add(micros(CLOCK_MARGIN)),
        })
    }
}

/// Parses the reply of `adjust.lua`: its time, and the indexes of the adjustments that created a state.
pub(crate) fn parse_adjust(reply: &Value) -> Result<(Timestamp, Vec<usize>), StoreError> {
    let Value::Array(fields) = reply else { return Err(malformed()) };
    let [now, created @ ..] = fields.as_slice() else { return Err(malformed()) };
    // Lua counts from 1.
    let indexes = created.iter().map(|index| number(index).map(|index| (index as usize).saturating_sub(1)));
    Ok((Timestamp::from_micros(number(now)?), indexes.collect::<Result<_, _>>()?))
}

fn take_double(bytes: &[u8]) -> Result<(f64, &[u8]), StoreError> {
    let (number, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
    Ok((f64::from_le_bytes(*number), rest))
}

/// Decodes a state. The script has read it without an error, so one that cannot be decoded is a malformed reply.
fn decode(check: &Check<'_>, bytes: &[u8]) -> Result<StoredState, StoreError> {
    StoredState::decode(check.gate().limit(), bytes).ok_or_else(malformed)
}

fn number(value: &Value) -> Result<u64, StoreError> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| malformed()),
        _ => Err(malformed()),
    }
}

/// The error for a key whose value no version of this store has written. `check` counts from 1.
pub(crate) fn unreadable(check: usize) -> StoreError {
    let message = format!(
        "the value under the key of check {check} is not one that this version writes; it was left as it is. \
         Delete it, upgrade this instance, or give the store a prefix of its own"
    );
    StoreError::new(StoreErrorKind::Unreadable, message)
}

fn malformed() -> StoreError {
    let message = "the reply of the script is malformed; is there a proxy in front of the server?";
    StoreError::new(StoreErrorKind::Unexpected, message).with_possibly_applied()
}
