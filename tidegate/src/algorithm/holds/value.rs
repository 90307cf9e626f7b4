//! The value of holds with that of their limit behind it, which `holds.lua` describes: how the ledger writes it, and how it is read.

use super::hold_list::{Hold, HoldList, HoldStatus, HoldsSummary};
use crate::Timestamp;
use crate::ledger::GateHold;

/// What a value with holds begins with, and no value of a limit.
const MARK: &[u8] = &[0, 0];
/// The bytes of a number: the high one first.
const NUMBER_BYTES: usize = 7;
/// The bytes before the holds, with the mark, and those of each hold.
const HEADER_BYTES: usize = 25;
const HOLD_BYTES: usize = 22;

/// The value of these holds of the ledger before `limit_value`, and when the last of them runs out, in microseconds. `None` without holds.
pub fn encode(holds: &[GateHold], limit_value: &[u8]) -> Option<(Vec<u8>, u64)> {
    let holds = HoldList::from_ledger(holds);
    let ends = holds.entries.last()?.at.saturating_add(holds.ttl);
    let mut value = Vec::with_capacity(HEADER_BYTES + HOLD_BYTES * holds.entries.len() + limit_value.len());
    value.extend_from_slice(MARK);
    // The next operation computes what is held since the start of its period.
    for number in [holds.ttl, 0, 0] {
        push_number(&mut value, number);
    }
    value.extend_from_slice(&(holds.entries.len() as u16).to_be_bytes());
    for Hold { at, owner, status } in holds.entries {
        let (units, status) = match status {
            HoldStatus::Open(units) => (units, 0),
            HoldStatus::Committed(units) => (units, 1),
            HoldStatus::Released | HoldStatus::Absent => (0, 2),
        };
        for number in [at, owner, units] {
            push_number(&mut value, number);
        }
        value.push(status);
    }
    value.extend_from_slice(limit_value);
    Some((value, ends))
}

/// The value of the limit in a value, with or without holds. `None` if the value is cut off.
pub fn limit_value(value: &[u8]) -> Option<&[u8]> {
    if value.starts_with(MARK) { split(value).map(|(_, _, limit)| limit) } else { Some(value) }
}

/// The open holds in a value. `None` if its numbers contradict each other. A value without holds has none.
pub fn stored_summary(value: &[u8], now: Timestamp) -> Option<HoldsSummary> {
    if !value.starts_with(MARK) || value.len() < HEADER_BYTES {
        return Some(HoldsSummary::default());
    }
    let (ttl, entries, _) = split(value)?;
    let entries = entries.chunks_exact(HOLD_BYTES).map(parse_hold).collect::<Option<_>>()?;
    Some(HoldList { ttl, held: 0, since: 0, entries }.summary(now))
}

/// The time to live of the holds, their bytes, and the value of the limit. `None` if the value is cut off.
fn split(value: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (header, rest) = value.split_at_checked(HEADER_BYTES)?;
    let count = number(&header[HEADER_BYTES - 2..]) as usize;
    let (entries, limit) = rest.split_at_checked(HOLD_BYTES * count)?;
    Some((number(&header[MARK.len()..][..NUMBER_BYTES]), entries, limit))
}

fn parse_hold(entry: &[u8]) -> Option<Hold> {
    let numbers = [0, 1, 2].map(|index| number(&entry[NUMBER_BYTES * index..][..NUMBER_BYTES]));
    let [at, owner, units] = numbers;
    let status = match entry[3 * NUMBER_BYTES] {
        0 => HoldStatus::Open(units),
        1 => HoldStatus::Committed(units),
        2 => HoldStatus::Released,
        _ => return None,
    };
    Some(Hold { at, owner, status })
}

fn push_number(value: &mut Vec<u8>, number: u64) {
    value.extend_from_slice(&number.to_be_bytes()[8 - NUMBER_BYTES..]);
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
