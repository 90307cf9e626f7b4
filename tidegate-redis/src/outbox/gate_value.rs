//! The states of quotas as the scripts take them from the ledger, and as they are found in the store. `quota.lua` and `holds.lua` describe
//! the format of values.

use tidegate::spi::GateState;
use tidegate::spi::algorithm::holds;
use tidegate::spi::algorithm::quota::QuotaState;

/// The value of a state without its holds, empty for one that uses nothing, and when it expires, in microseconds.
pub(super) fn limit_value(state: &GateState) -> (Vec<u8>, u64) {
    let text = if state.state.is_empty() { String::new() } else { state.state.encode() };
    (text.into_bytes(), state.expiry())
}

/// The value of a state with its holds, and when it expires, in microseconds. All holds of a key share the time to live: the longest one.
pub(super) fn value_with_holds(state: &GateState) -> (Vec<u8>, u64) {
    let (limit_value, expiry) = limit_value(state);
    match holds::encode(&state.holds, &limit_value) {
        Some((value, ends)) => (value, expiry.max(ends)),
        None => (limit_value, expiry),
    }
}

/// A value that no version of this store has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnreadableValue;

/// The state of the quota in a value, whatever is held beside it. `None` for a value with holds only.
pub(super) fn decode_value(value: &[u8]) -> Result<Option<QuotaState>, UnreadableValue> {
    let text = holds::limit_value(value).ok_or(UnreadableValue)?;
    if text.is_empty() && !value.is_empty() {
        return Ok(None);
    }
    QuotaState::decode(text).map(Some).ok_or(UnreadableValue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::Timestamp;
    use tidegate::limits::{Period, Periods};
    use tidegate::spi::algorithm::holds::{HoldsSummary, stored_summary};
    use tidegate::spi::{AccountKey, GateHold, GateHoldStatus, Subject};

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
