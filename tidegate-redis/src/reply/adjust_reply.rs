//! `AdjustReply`: the reply of `adjust.lua`.

use redis::Value;
use tidegate::spi::algorithm::AdjustmentOutcome;
use tidegate::{StoreError, Timestamp};

use super::malformed;
use super::numbers::{parse_stream_id, take_number};

/// The reply of `adjust.lua`.
#[derive(Debug)]
pub(crate) struct AdjustReply {
    /// The script's time.
    pub(crate) now: Timestamp,
    /// Whether a bundled place in a queue has others behind it, so that nothing bundled was given back.
    pub(crate) stays_taken: bool,
    /// Whether the periods of a quota did not contain this time, so that nothing was changed.
    pub(crate) is_stale: bool,
    /// The indexes of the adjustments whose partition has another generation, and that generation, or 0. If there is one, nothing was changed.
    pub(crate) generations: Vec<(usize, u64)>,
    /// The indexes of the adjustments that created a state.
    pub(crate) created: Vec<usize>,
    /// The indexes of the renewals and releases whose slot was not held, of places in queues that stay taken, and of holds that are not
    /// there.
    pub(crate) refused: Vec<usize>,
    /// The indexes of the holds that had ended before, and whether it was in the same way.
    pub(crate) ended_before: Vec<(usize, AdjustmentOutcome)>,
    /// The entries that were written for the ledger.
    pub(crate) entries: Vec<AdjustEntry>,
}

/// An entry that was written for the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdjustEntry {
    /// The index of the adjustment.
    pub(crate) index: usize,
    pub(crate) generation: u64,
    /// The time and sequence.
    pub(crate) id: (u64, u64),
}

/// How the script marks the index of a hold that had ended in the same way before; twice of it in another way.
const ENDED_BEFORE: u64 = 1_000_000;

/// Parses the reply of `adjust.lua`.
pub(crate) fn parse_adjust(reply: &Value) -> Result<AdjustReply, StoreError> {
    let Value::Array(fields) = reply else { return Err(malformed()) };
    let [now, stays_taken, indexes @ ..] = fields.as_slice() else { return Err(malformed()) };
    if number(stays_taken)? == 3 {
        return other_generations(Timestamp::from_micros(number(now)?), indexes);
    }
    let mut reply = AdjustReply {
        now: Timestamp::from_micros(number(now)?),
        stays_taken: number(stays_taken)? == 1,
        is_stale: number(stays_taken)? == 2,
        generations: Vec::new(),
        created: Vec::new(),
        refused: Vec::new(),
        ended_before: Vec::new(),
        entries: Vec::new(),
    };
    for index in indexes {
        if let Value::BulkString(text) = index {
            reply.entries.push(parse_entry(text).ok_or_else(malformed)?);
            continue;
        }
        let Value::Int(index) = index else { return Err(malformed()) };
        // Lua counts from 1.
        let number = index.unsigned_abs().saturating_sub(1);
        match (*index < 0, number / ENDED_BEFORE) {
            (false, _) => reply.created.push(number as usize),
            (true, 0) => reply.refused.push(number as usize),
            (true, 1) => reply.ended_before.push(((number - ENDED_BEFORE) as usize, AdjustmentOutcome::Repeated)),
            (true, 2) => reply.ended_before.push(((number - 2 * ENDED_BEFORE) as usize, AdjustmentOutcome::Differs)),
            _ => return Err(malformed()),
        }
    }
    Ok(reply)
}

impl AdjustReply {
    /// Whether the adjustments were applied.
    pub(crate) const fn is_applied(&self) -> bool {
        !self.is_stale && self.generations.is_empty()
    }
}

/// The reply if partitions have other generations: pairs of an index, from 1, and the generation.
fn other_generations(now: Timestamp, pairs: &[Value]) -> Result<AdjustReply, StoreError> {
    let pair = |pair: &[Value]| match pair {
        [index, generation] => {
            let index = number(index)?.checked_sub(1).ok_or_else(malformed)?;
            Ok((index as usize, number(generation)?))
        }
        _ => Err(malformed()),
    };
    let generations: Vec<_> = pairs.chunks(2).map(pair).collect::<Result<_, _>>()?;
    if generations.is_empty() {
        return Err(malformed());
    }
    Ok(AdjustReply {
        now,
        stays_taken: false,
        is_stale: false,
        generations,
        created: Vec::new(),
        refused: Vec::new(),
        ended_before: Vec::new(),
        entries: Vec::new(),
    })
}

fn parse_entry(text: &[u8]) -> Option<AdjustEntry> {
    let (index, rest) = take_number(text.strip_prefix(b"l")?)?;
    let (generation, rest) = take_number(rest.strip_prefix(b",")?)?;
    let id = parse_stream_id(rest.strip_prefix(b",")?)?;
    Some(AdjustEntry { index: usize::try_from(index.checked_sub(1)?).ok()?, generation, id })
}

fn number(value: &Value) -> Result<u64, StoreError> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| malformed()),
        _ => Err(malformed()),
    }
}
