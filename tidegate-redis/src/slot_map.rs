//! `SlotMap`: which server of a cluster owns which slot; and `slot_of`, the slot of a partition.

use std::collections::BTreeSet;

use redis::Value;
use tidegate::spi::PARTITIONS;

use crate::address::Address;

/// The number of slots of every cluster.
const SLOT_COUNT: u16 = 16_384;

/// The slot of each partition.
static PARTITION_SLOTS: [u16; PARTITIONS as usize] = partition_slots();

/// The owners of the slots, by ranges in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotMap {
    /// First slot, last slot, and the primary that owns them.
    ranges: Vec<(u16, u16, Address)>,
}

/// The slot of all keys of `partition`.
pub(crate) fn slot_of(partition: u16) -> u16 {
    PARTITION_SLOTS[usize::from(partition % PARTITIONS)]
}

impl SlotMap {
    /// Parses the reply of the server at `sender` to `CLUSTER SLOTS`. `None` if it is malformed.
    pub(crate) fn parse(reply: &Value, sender: &Address) -> Option<Self> {
        let Value::Array(rows) = reply else { return None };
        let mut ranges = Vec::with_capacity(rows.len());
        for row in rows {
            let Value::Array(fields) = row else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = fields.as_slice() else {
                return None;
            };
            let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
            let host = match host {
                // A server that does not announce its address is at the address that was queried.
                Value::Nil => sender.host.clone(),
                Value::BulkString(host) if host.is_empty() || host == b"?" => sender.host.clone(),
                Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
                _ => return None,
            };
            let address = Address { host, port: u16::try_from(*port).ok()? };
            let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
            if first > last || last >= SLOT_COUNT {
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
        let mut unique = BTreeSet::new();
        let addresses = self.ranges.iter().map(|(_, _, address)| address);
        addresses.filter(|address| unique.insert((&address.host, address.port))).collect()
    }
}

/// Redis Cluster's key hash (CRC16, polynomial 0x1021) of the two characters of each partition's hash tag.
const fn partition_slots() -> [u16; PARTITIONS as usize] {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let mut slots = [0; PARTITIONS as usize];
    let mut partition = 0;
    while partition < slots.len() {
        let tag = [DIGITS[partition >> 5], DIGITS[partition & 31]];
        slots[partition] = crc16(tag) % SLOT_COUNT;
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
    fn slots_in_a_range_have_its_owner_and_slots_in_a_gap_have_none() {
        let sender = Address { host: "10.0.0.1".into(), port: 7 };
        let host = |host: &str| Value::BulkString(host.as_bytes().to_vec());
        let rows = [row(9, 20, host("10.0.0.2"), 8), row(0, 5, Value::Nil, 7), row(30, 30, host(""), 9)];
        let map = SlotMap::parse(&Value::Array(rows.to_vec()), &sender).unwrap();
        let owner = |slot| map.owner(slot).map(ToString::to_string);
        assert_eq!(owner(0).as_deref(), Some("10.0.0.1:7"));
        assert_eq!(owner(20).as_deref(), Some("10.0.0.2:8"));
        assert_eq!(owner(30).as_deref(), Some("10.0.0.1:9"));
        assert_eq!([6, 8, 21, 31, 16_383].map(owner), [const { None }; 5]);
        assert_eq!(map.primaries().len(), 3);
        assert_eq!(SlotMap::default().owner(0), None);
    }

    #[test]
    fn a_malformed_reply_is_rejected() {
        let sender = Address { host: "h".into(), port: 7 };
        for row in [row(5, 4, Value::Nil, 7), row(0, 16_384, Value::Nil, 7), row(0, 1, Value::Nil, 70_000), Value::Nil]
        {
            assert_eq!(SlotMap::parse(&Value::Array(vec![row]), &sender), None);
        }
    }

    /// The replies of a real server to `CLUSTER KEYSLOT` for these tags; the conformance tests compare all of them.
    #[test]
    fn slots_match_those_of_a_real_server() {
        assert_eq!((slot_of(0), slot_of(1023)), (13_254, 15_534));
    }
}
