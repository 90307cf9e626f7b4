//! `SlotMap`: which server of a cluster owns which slot, as one of them tells. And the slot of a partition.

use std::collections::BTreeSet;

use redis::Value;
use tidegate::spi::PARTITIONS;

use crate::target::Address;

/// The number of slots of any cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of each partition.
static SLOT_OF: [u16; PARTITIONS as usize] = slot_of_each();

/// The owners of the slots, by ranges that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotMap {
    /// First and last slot, and the primary that owns them.
    ranges: Vec<(u16, u16, Address)>,
}

/// The slot that keys of `partition` lie in.
pub(crate) fn slot_of(partition: u16) -> u16 {
    SLOT_OF[usize::from(partition % PARTITIONS)]
}

impl SlotMap {
    /// Reads the answer of the server at `answering` to `CLUSTER SLOTS`.
    pub(crate) fn parse(reply: &Value, answering: &Address) -> Option<Self> {
        let Value::Array(rows) = reply else { return None };
        let mut ranges = Vec::with_capacity(rows.len());
        for row in rows {
            let Value::Array(fields) = row else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = fields.as_slice() else {
                return None;
            };
            let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
            let host = match host {
                // The server does not know its own address, or must not tell it: it is the one that we came by.
                Value::Nil => answering.host.clone(),
                Value::BulkString(host) if host.is_empty() || host == b"?" => answering.host.clone(),
                Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
                _ => return None,
            };
            let address = Address { host, port: u16::try_from(*port).ok()? };
            let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
            if first > last || last >= SLOTS {
                return None;
            }
            ranges.push((first, last, address));
        }
        ranges.sort_by_key(|(first, _, _)| *first);
        Some(Self { ranges })
    }

    /// The primary that owns `slot`, if any does.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Address> {
        let after = self.ranges.partition_point(|(first, _, _)| *first <= slot);
        let (_, last, address) = self.ranges.get(after.checked_sub(1)?)?;
        (slot <= *last).then_some(address)
    }

    /// Every primary that owns slots.
    pub(crate) fn primaries(&self) -> Vec<&Address> {
        let mut seen = BTreeSet::new();
        let addresses = self.ranges.iter().map(|(_, _, address)| address);
        addresses.filter(|address| seen.insert((&address.host, address.port))).collect()
    }
}

/// The hash of clusters, CRC16 with the polynomial 0x1021, over the two characters of each partition's tag.
const fn slot_of_each() -> [u16; PARTITIONS as usize] {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let mut slots = [0; PARTITIONS as usize];
    let mut partition = 0;
    while partition < slots.len() {
        let tag = [DIGITS[partition >> 5], DIGITS[partition & 31]];
        slots[partition] = crc16(tag) % SLOTS;
        partition += 1;
    }
    slots
}

const fn crc16(bytes: [u8; 2]) -> u16 {
    let mut crc: u16 = 0;
    let mut index = 0;
    while index < bytes.len() {
        crc ^= (bytes[index] as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        index += 1;
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = |host, port| Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
        let replica = node(Value::BulkString(b"10.9.9.9".to_vec()), 1);
        Value::Array(vec![Value::Int(first), Value::Int(last), node(host, port), replica])
    }

    #[test]
    fn owners_are_found_and_gaps_are_seen() {
        let answering = Address { host: "10.0.0.1".into(), port: 7 };
        let host = |host: &str| Value::BulkString(host.as_bytes().to_vec());
        let rows = [row(9, 20, host("10.0.0.2"), 8), row(0, 5, Value::Nil, 7), row(30, 30, host(""), 9)];
        let map = SlotMap::parse(&Value::Array(rows.to_vec()), &answering).unwrap();
        let owner = |slot| map.owner(slot).map(ToString::to_string);
        assert_eq!(owner(0).as_deref(), Some("10.0.0.1:7"));
        assert_eq!(owner(20).as_deref(), Some("10.0.0.2:8"));
        assert_eq!(owner(30).as_deref(), Some("10.0.0.1:9"));
        assert_eq!([6, 8, 21, 31, 16_383].map(owner), [const { None }; 5]);
        assert_eq!(map.primaries().len(), 3);
        assert_eq!(SlotMap::default().owner(0), None);
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_no_map() {
        let answering = Address { host: "h".into(), port: 7 };
        for row in [row(5, 4, Value::Nil, 7), row(0, 16_384, Value::Nil, 7), row(0, 1, Value::Nil, 70_000), Value::Nil]
        {
            assert_eq!(SlotMap::parse(&Value::Array(vec![row]), &answering), None);
        }
    }

    /// What a real server says to `CLUSTER KEYSLOT` of these tags; the conformance tests compare all of them.
    #[test]
    fn slots_are_those_of_a_server() {
        assert_eq!((slot_of(0), slot_of(1023)), (13_254, 15_534));
    }
}
