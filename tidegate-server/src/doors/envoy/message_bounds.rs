//! Counts the parts of a message before it is decoded. A descriptor or an entry without content has two bytes in a message, and forty times
//! as many in memory.

use bytes::Buf as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::messages::{Entry, RateLimitDescriptor, RateLimitRequest};
use super::service::{MAX_DESCRIPTORS, MAX_ENTRIES};

/// The descriptors of a request.
const DESCRIPTORS_FIELD: u32 = 2;

/// The entries of a descriptor.
const ENTRIES_FIELD: u32 = 1;

/// If a message has more descriptors or entries than a request may have: an invalid request for the same reason, in place of it.
pub(crate) fn oversized(message: &[u8]) -> Option<RateLimitRequest> {
    let mut has_many_entries = false;
    let descriptors = count(message, DESCRIPTORS_FIELD, |descriptor| {
        has_many_entries |= count(descriptor, ENTRIES_FIELD, |_| {}) > MAX_ENTRIES;
    });
    let descriptors = if descriptors > MAX_DESCRIPTORS {
        vec![RateLimitDescriptor::default(); MAX_DESCRIPTORS + 1]
    } else if has_many_entries {
        let entries = vec![Entry::default(); MAX_ENTRIES + 1];
        vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }]
    } else {
        return None;
    };
    Some(RateLimitRequest { domain: "oversized".to_owned(), descriptors, ..RateLimitRequest::default() })
}

/// How often a field with a message occurs, as far as the bytes are valid. Calls `found` with each.
fn count(mut message: &[u8], field: u32, mut found: impl FnMut(&[u8])) -> usize {
    let mut count = 0;
    while message.has_remaining() {
        let Ok((number, wire_type)) = decode_key(&mut message) else { break };
        if number == field && wire_type == WireType::LengthDelimited {
            let length = decode_varint(&mut message).ok().and_then(|length| usize::try_from(length).ok());
            let Some((value, rest)) = length.and_then(|length| message.split_at_checked(length)) else { break };
            found(value);
            (count, message) = (count + 1, rest);
        } else if skip_field(wire_type, number, &mut message, DecodeContext::default()).is_err() {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn message(descriptors: usize, entries: usize) -> Vec<u8> {
        let entries = vec![Entry { key: "k".into(), value: "v".into() }; entries];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }; descriptors];
        let request = RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 7 };
        request.encode_to_vec()
    }

    #[test]
    fn a_message_with_too_many_descriptors_or_entries_is_replaced_by_a_small_one() {
        for (descriptors, entries) in [(0, 0), (1, 1), (MAX_DESCRIPTORS, 1), (1, MAX_ENTRIES)] {
            assert_eq!(oversized(&message(descriptors, entries)), None, "{descriptors} {entries}");
        }
        for descriptors in [MAX_DESCRIPTORS + 1, 10_000] {
            assert_eq!(oversized(&message(descriptors, 0)).unwrap().descriptors.len(), MAX_DESCRIPTORS + 1);
        }
        for entries in [MAX_ENTRIES + 1, 10_000] {
            let request = oversized(&message(2, entries)).unwrap();
            assert_eq!((request.descriptors.len(), request.descriptors[0].entries.len()), (1, MAX_ENTRIES + 1));
        }
    }

    #[test]
    fn a_malformed_message_is_left_to_the_decoder() {
        let message = message(2, 2);
        for end in 0..message.len() {
            assert_eq!(oversized(&message[..end]), None, "{end}");
        }
        for message in [&[0xff; 64][..], &[0x0f], &[0x12, 0xff], &[0x13, 0x13, 0x14]] {
            assert_eq!(oversized(message), None, "{message:?}");
        }
    }
}
