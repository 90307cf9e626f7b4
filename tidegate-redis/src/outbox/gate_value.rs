//! The states of quotas as the scripts take them from the ledger, and as they are found in the store. `quota.lua` and `holds.lua` describe
//! the format of values.

use tidegate::Limit;
use tidegate::limits::{Period, Periods};
use tidegate::spi::algorithm::holds::MAX_RESERVATIONS;
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::algorithm::{self, State};
use tidegate::spi::{GateHold, GateHoldStatus, GateState, MAX_AMOUNT};

/// A state is kept for so much longer: its time zone is not known, and local times are up to 26 hours apart.
const ZONE_MARGIN_MICROS: u64 = 26 * 3_600_000_000;

/// What a value with holds begins with.
const HOLDS_MARK: [u8; 2] = [0, 0];
/// The bytes before the entries of holds, with the mark, and of each entry.
const HOLDS_HEADER_BYTES: usize = 25;
const HOLD_BYTES: usize = 22;

/// The value of a state without its holds, empty for one that uses nothing, and when it expires, in microseconds.
pub(super) fn limit_value(state: &GateState) -> (Vec<u8>, u64) {
    let QuotaState { used, debt, previous, carried, .. } = state.state;
    if used == 0 && debt == 0 && previous == 0 && carried == 0 {
        return (Vec::new(), 0);
    }
    let period = state.key.parse().map_or(Period::Year, |(_, period, _)| period);
    let limit = Limit::quota(state.hard_limit.clamp(1, MAX_AMOUNT), Periods::utc(period));
    // A quota of any amount in these bounds is valid.
    let expiry = limit.map_or(0, |limit| algorithm::expiry(&State::from(state.state), &limit));
    (state.state.encode().into_bytes(), expiry.saturating_add(ZONE_MARGIN_MICROS))
}

/// The value of a state with its holds, and when it expires, in microseconds. All holds of a key share the time to live: the longest one.
pub(super) fn value_with_holds(state: &GateState) -> (Vec<u8>, u64) {
    let (limit_value, expiry) = limit_value(state);
    let holds = &state.holds[state.holds.len().saturating_sub(MAX_RESERVATIONS)..];
    let Some(newest) = holds.iter().map(|hold| hold.at.as_micros()).max() else { return (limit_value, expiry) };
    let ttl = |hold: &GateHold| hold.expires_at.as_micros().saturating_sub(hold.at.as_micros());
    let ttl = holds.iter().map(ttl).max().unwrap_or_default();
    let mut value = Vec::with_capacity(HOLDS_HEADER_BYTES + HOLD_BYTES * holds.len() + limit_value.len());
    value.extend_from_slice(&HOLDS_MARK);
    // The next operation computes what is held since the start of its period.
    for number in [ttl, 0, 0] {
        push_number(&mut value, number);
    }
    value.extend_from_slice(&(holds.len() as u16).to_be_bytes());
    let mut in_order: Vec<&GateHold> = holds.iter().collect();
    in_order.sort_by_key(|hold| hold.at);
    for hold in in_order {
        let (units, status) = match hold.status {
            GateHoldStatus::Open => (hold.units, 0),
            GateHoldStatus::Committed => (hold.units, 1),
            GateHoldStatus::Released => (0, 2),
        };
        for number in [hold.at.as_micros(), hold.owner, units] {
            push_number(&mut value, number);
        }
        value.push(status);
    }
    value.extend_from_slice(&limit_value);
    (value, expiry.max(newest.saturating_add(ttl)))
}

/// Seven bytes, the high one first.
fn push_number(value: &mut Vec<u8>, number: u64) {
    value.extend_from_slice(&number.to_be_bytes()[1..]);
}

/// A value that no version of this store has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnreadableValue;

/// The state of the quota in a value, whatever is held beside it. `None` for a value with holds only.
pub(super) fn decode_value(value: &[u8]) -> Result<Option<QuotaState>, UnreadableValue> {
    let text = if value.starts_with(&HOLDS_MARK) { after_holds(value).ok_or(UnreadableValue)? } else { value };
    if text.is_empty() && !value.is_empty() {
        return Ok(None);
    }
    QuotaState::decode(text).map(Some).ok_or(UnreadableValue)
}

/// The state of the limit in a value with holds.
fn after_holds(value: &[u8]) -> Option<&[u8]> {
    let count = value.get(HOLDS_HEADER_BYTES - 2..HOLDS_HEADER_BYTES)?;
    let count = usize::from(u16::from_be_bytes(count.try_into().ok()?));
    value.get(HOLDS_HEADER_BYTES + HOLD_BYTES * count..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::Timestamp;
    use tidegate::spi::algorithm::holds::{HoldsSummary, stored_summary};
    use tidegate::spi::{AccountKey, Subject};

    const NOW: u64 = 1_800_000_000_000_000;
    const HOUR: u64 = 3_600_000_000;

    fn state(state: QuotaState, holds: Vec<GateHold>) -> GateState {
        let key = AccountKey { partition: 1, stem: "api:u1d.x".to_owned(), subject: Subject::from_hash(1) };
        GateState { key, state, hard_limit: 10, holds }
    }

    fn hold(owner: u64, at: u64, ttl: u64, units: u64, status: GateHoldStatus) -> GateHold {
        GateHold { owner, at: Timestamp::from_micros(at), expires_at: Timestamp::from_micros(at + ttl), units, status }
    }

    #[test]
    fn values_are_read_as_they_were_written() {
        let states = [
            QuotaState { index: 20_833, used: 5, ..QuotaState::default() },
            QuotaState { index: 20_833, used: 10, debt: 7, previous: 3, carried: 2 },
            QuotaState { index: 20_833, previous: 3, ..QuotaState::default() },
        ];
        for quota in states {
            let holds = vec![hold(9, NOW, HOUR, 4, GateHoldStatus::Open)];
            assert_eq!(decode_value(&limit_value(&state(quota, holds.clone())).0), Ok(Some(quota)));
            assert_eq!(decode_value(&value_with_holds(&state(quota, holds)).0), Ok(Some(quota)));
        }
        let empty = state(QuotaState { index: 5, ..QuotaState::default() }, Vec::new());
        assert_eq!(value_with_holds(&empty), (Vec::new(), 0));
        for unreadable in [&b""[..], b"12", b"\0\0", b"x00020833"] {
            assert_eq!(decode_value(unreadable), Err(UnreadableValue), "{unreadable:?}");
        }
    }

    #[test]
    fn holds_of_the_ledger_share_the_longest_time_to_live() {
        let holds = vec![
            hold(1, NOW, HOUR, 4, GateHoldStatus::Open),
            hold(2, NOW + 5, 2 * HOUR, 3, GateHoldStatus::Open),
            hold(3, NOW + 6, HOUR, 8, GateHoldStatus::Committed),
        ];
        let (value, expiry) = value_with_holds(&state(QuotaState::default(), holds));
        assert_eq!(expiry, NOW + 6 + 2 * HOUR);
        assert_eq!(decode_value(&value), Ok(None));
        let summary = stored_summary(&value, Timestamp::from_micros(NOW + 7));
        assert_eq!(summary, Some(HoldsSummary { reservations: 2, units: 7, oldest_ends: NOW + 2 * HOUR }));
    }

    #[test]
    fn only_the_newest_holds_are_kept() {
        let holds = (0..1030).map(|owner| hold(owner + 1, NOW + owner, HOUR, 1, GateHoldStatus::Open)).collect();
        let (value, _) = value_with_holds(&state(QuotaState::default(), holds));
        let summary = stored_summary(&value, Timestamp::from_micros(NOW)).unwrap();
        assert_eq!((summary.reservations, summary.oldest_ends), (1024, NOW + 6 + HOUR));
    }

    #[test]
    fn a_state_is_kept_until_no_time_zone_needs_it() {
        let days = Periods::utc(Period::Day);
        let quota =
            QuotaState { index: days.bounds_at(Timestamp::from_micros(NOW)).index, used: 5, ..QuotaState::default() };
        let end_of_next_day = days.start_of(quota.index + 2);
        assert!(limit_value(&state(quota, Vec::new())).1 >= end_of_next_day + 26 * HOUR);
    }
}
