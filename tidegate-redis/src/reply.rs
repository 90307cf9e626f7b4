//! What the scripts reply, and the verdict that the library makes of it.

use redis::Value;
use tidegate::algorithm::Found;
use tidegate::{Plan, StoreError, StoreErrorKind, Timestamp, Verdict};

/// The reply of `decide_one.lua` (`single`) or `decide.lua`.
pub(crate) fn verdict(plan: &Plan<'_>, single: bool, consume: bool, reply: &Value) -> Result<Verdict, StoreError> {
    let Value::Array(fields) = reply else {
        return Err(senseless());
    };
    let (now, bits, granted, found) = match fields.as_slice() {
        [now, admitted, found] if single => {
            (number(now)?, number(admitted)?, number(admitted)?, std::slice::from_ref(found))
        }
        [now, bits, granted, found @ ..] if !single => (number(now)?, number(bits)?, number(granted)?, found),
        _ => return Err(senseless()),
    };
    if found.len() != plan.checks().len() {
        return Err(senseless());
    }
    let mut states = Vec::with_capacity(found.len());
    for (index, (check, found)) in plan.checks().iter().zip(found).enumerate() {
        let state = match found {
            Value::Nil => Found::Fresh,
            Value::BulkString(bytes) => {
                Found::decode(check.gate().limit(), bytes).ok_or_else(|| unreadable(index + 1))?
            }
            _ => return Err(senseless()),
        };
        states.push((bits >> index & 1 == 1, state));
    }
    // A shadow check alone cannot deny, whatever the script for a single check says of it.
    let granted = if single { plan.granted(|_| granted) } else { granted };
    Ok(Verdict::replay(plan, Timestamp::from_micros(now), consume, granted, &states))
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
