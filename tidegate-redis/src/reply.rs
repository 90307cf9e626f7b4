//! What the scripts reply, and the verdict that the library makes of it.

use redis::Value;
use tidegate::spi::algorithm::{Found, MARGIN_MICROS};
use tidegate::spi::{Check, Few, Plan, Verdict};
use tidegate::{StoreError, StoreErrorKind, Timestamp};

/// What a script says about a plan.
pub(crate) struct Reply {
    /// Its time.
    pub(crate) now: Timestamp,
    granted: u64,
    /// For each check, whether it admits, and what was found.
    found: Few<(bool, Found)>,
    /// For each check, if strangers are treated in another way: -1 if an overflow bucket decided, otherwise how many
    /// milliseconds a state that is forgotten early had left.
    marks: Few<i64>,
}

/// Reading
impl Reply {
    /// The reply of `decide_one.lua`: eight bytes of now, negative if denied, and what was found. After now, that of
    /// `decide_stranger.lua` has eight more.
    pub(crate) fn to_one(plan: &Plan<'_>, strangers: bool, reply: &Value) -> Result<Self, StoreError> {
        let (Value::BulkString(bytes), [check]) = (reply, plan.checks()) else { return Err(senseless()) };
        let (now, mut found) = double(bytes)?;
        let mut marks = Few::default();
        if strangers {
            let (mark, rest) = double(found)?;
            (marks, found) = (Few::One(mark as i64), rest);
        }
        let found = if found.is_empty() { Found::Fresh } else { decode(check, found)? };
        // A shadow check alone cannot deny, whatever it says.
        let admitted = now.is_sign_positive();
        let granted = plan.granted(|_| u64::from(admitted));
        Ok(Self { now: Timestamp::from_micros(now.abs() as u64), granted, found: Few::One((admitted, found)), marks })
    }

    /// The reply of `decide.lua`, to decide or to peek.
    pub(crate) fn to_any(plan: &Plan<'_>, strangers: bool, reply: &Value) -> Result<Self, StoreError> {
        let Value::Array(fields) = reply else { return Err(senseless()) };
        let [now, bits, granted, rest @ ..] = fields.as_slice() else { return Err(senseless()) };
        let (now, bits, granted) = (number(now)?, number(bits)?, number(granted)?);
        let checks = plan.checks().len();
        if rest.len() != if strangers { 2 * checks } else { checks } {
            return Err(senseless());
        }
        let (found, marks) = rest.split_at(checks);
        let mut states = Vec::with_capacity(checks);
        for (index, (check, found)) in plan.checks().iter().zip(found).enumerate() {
            let state = match found {
                Value::Nil => Found::Fresh,
                Value::BulkString(bytes) => decode(check, bytes)?,
                _ => return Err(senseless()),
            };
            states.push((bits >> index & 1 == 1, state));
        }
        let mark = |mark: &Value| if let Value::Int(mark) = mark { Ok(*mark) } else { Err(senseless()) };
        let marks = marks.iter().map(mark).collect::<Result<Vec<i64>, _>>()?;
        let (found, marks) = (states.into_iter().collect(), marks.into_iter().collect());
        Ok(Self { now: Timestamp::from_micros(now), granted, found, marks })
    }
}

/// Making sense of it
impl Reply {
    /// What the store says to `plan`, which it was told to decide (`consume`) or to peek at.
    pub(crate) fn verdict(&self, plan: &Plan<'_>, consume: bool) -> Verdict {
        let mut verdict = Verdict::replay(plan, self.now, consume, self.granted, &self.found);
        for (judged, mark) in verdict.judged.iter_mut().zip(&self.marks) {
            judged.overflowed = *mark < 0;
        }
        verdict
    }

    /// When the key of a check would have expired, in microseconds; none if there was none.
    pub(crate) fn expiry_before(&self, index: usize, check: &Check<'_>) -> Option<u64> {
        let expiry = self.found.get(index)?.1.expiry(check.gate().limit(), self.now)?;
        let left = self.marks.get(index).filter(|_| check.forget_after().is_some());
        Some(match left.and_then(|left| u64::try_from(*left).ok()) {
            Some(left) => self.now.as_micros().saturating_add(left.saturating_mul(1_000)),
            None => expiry.saturating_add(MARGIN_MICROS),
        })
    }
}

/// The reply of `adjust.lua`: its time, and the places of those that created a state.
pub(crate) fn adjusted(reply: &Value) -> Result<(Timestamp, Vec<usize>), StoreError> {
    let Value::Array(fields) = reply else { return Err(senseless()) };
    let [now, created @ ..] = fields.as_slice() else { return Err(senseless()) };
    // Counted from 1 there.
    let places = created.iter().map(|place| number(place).map(|place| (place as usize).saturating_sub(1)));
    Ok((Timestamp::from_micros(number(now)?), places.collect::<Result<_, _>>()?))
}

fn double(bytes: &[u8]) -> Result<(f64, &[u8]), StoreError> {
    let (number, rest) = bytes.split_first_chunk().ok_or_else(senseless)?;
    Ok((f64::from_le_bytes(*number), rest))
}

fn decode(check: &Check<'_>, found: &[u8]) -> Result<Found, StoreError> {
    // The script has read it, and may have written since.
    Found::decode(check.gate().limit(), found).ok_or_else(senseless)
}

fn number(value: &Value) -> Result<u64, StoreError> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| senseless()),
        _ => Err(senseless()),
    }
}

/// A value under one of our keys that no version so far has written.
pub(crate) fn unreadable(check: usize) -> StoreError {
    let message = format!(
        "the value under the key of check {check} is not one that this version writes; it was left as it is. \
         Delete it, upgrade this instance, or give the store a prefix of its own"
    );
    StoreError::new(StoreErrorKind::Unreadable, message)
}

fn senseless() -> StoreError {
    let message = "the reply of the script makes no sense; is something between us and the server?";
    StoreError::new(StoreErrorKind::Unexpected, message).possibly_applied()
}
