//! What the scripts reply, and the verdict that the library makes of it.

use redis::Value;
use tidegate::algorithm::Found;
use tidegate::{Check, Plan, StoreError, StoreErrorKind, Timestamp, Verdict};

/// The reply of `decide_one.lua`: eight bytes of now, negative if denied, and what was found.
pub(crate) fn verdict_of_one(plan: &Plan<'_>, reply: &Value) -> Result<Verdict, StoreError> {
    let (Value::BulkString(bytes), [check]) = (reply, plan.checks()) else { return Err(senseless()) };
    let Some((now, found)) = bytes.split_first_chunk() else { return Err(senseless()) };
    let now = f64::from_le_bytes(*now);
    let found = if found.is_empty() { Found::Fresh } else { decode(check, found)? };
    // A shadow check alone cannot deny, whatever it says.
    let admitted = now.is_sign_positive();
    let granted = plan.granted(|_| u64::from(admitted));
    Ok(Verdict::replay(plan, Timestamp::from_micros(now.abs() as u64), true, granted, &[(admitted, found)]))
}

/// The reply of `decide.lua`, to decide (`consume`) or to peek.
pub(crate) fn verdict(plan: &Plan<'_>, consume: bool, reply: &Value) -> Result<Verdict, StoreError> {
    let Value::Array(fields) = reply else { return Err(senseless()) };
    let [now, bits, granted, found @ ..] = fields.as_slice() else { return Err(senseless()) };
    let (now, bits, granted) = (number(now)?, number(bits)?, number(granted)?);
    if found.len() != plan.checks().len() {
        return Err(senseless());
    }
    let mut states = Vec::with_capacity(found.len());
    for (index, (check, found)) in plan.checks().iter().zip(found).enumerate() {
        let state = match found {
            Value::Nil => Found::Fresh,
            Value::BulkString(bytes) => decode(check, bytes)?,
            _ => return Err(senseless()),
        };
        states.push((bits >> index & 1 == 1, state));
    }
    Ok(Verdict::replay(plan, Timestamp::from_micros(now), consume, granted, &states))
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
