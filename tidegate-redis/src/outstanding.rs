//! The open holds of reservations, read without a script: nothing depends on them, so they need not be of one instant.

use futures_util::future::join_all;
use redis::Value;
use tidegate::spi::algorithm::holds::{HoldsSummary, stored_summary};
use tidegate::spi::{Check, OutstandingHolds, Plan};
use tidegate::{StoreError, Timestamp};

use crate::args::key_name;
use crate::call::Call;
use crate::reply::{malformed, unreadable};
use crate::slot_map::slot_of;
use crate::store::RedisStore;

impl RedisStore {
    /// The open holds under the key of each check.
    pub(crate) async fn read_holds(&self, plan: &Plan<'_>) -> Result<OutstandingHolds, StoreError> {
        let slot = plan.checks().first().map_or(0, slot);
        let now = match self.injected_now() {
            Some(now) => now,
            None => {
                parse_time(&self.router.send(slot, &Call::command(redis::cmd("TIME"), self.call_timeouts())).await?)?
            }
        };
        let read = plan.checks().iter().enumerate().map(async |(index, check)| {
            if !check.gate().limit().keeps_holds() {
                return Ok(HoldsSummary::default());
            }
            let mut command = redis::cmd("GET");
            command.arg(key_name(self.options.namespace.as_str(), check.key()));
            match self.router.send(self::slot(check), &Call::command(command, self.call_timeouts())).await? {
                Value::Nil => Ok(HoldsSummary::default()),
                Value::BulkString(value) => stored_summary(&value, now).ok_or_else(|| unreadable(index as u64 + 1)),
                _ => Err(malformed()),
            }
        });
        Ok(OutstandingHolds { now, checks: join_all(read).await.into_iter().collect::<Result<_, StoreError>>()? })
    }
}

fn slot(check: &Check<'_>) -> u16 {
    slot_of(check.key().partition())
}

/// The reply of `TIME`: seconds and microseconds.
fn parse_time(reply: &Value) -> Result<Timestamp, StoreError> {
    let number = |value: &Value| match value {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let Value::Array(fields) = reply else { return Err(malformed()) };
    let [seconds, micros] = fields.as_slice() else { return Err(malformed()) };
    let micros = number(seconds).zip(number(micros)).and_then(|(s, us)| s.checked_mul(1_000_000)?.checked_add(us));
    micros.filter(|micros| *micros < 1 << 53).map(Timestamp::from_micros).ok_or_else(malformed)
}
