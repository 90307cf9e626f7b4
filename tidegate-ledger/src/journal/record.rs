//! The bytes of a journal: records that a checksum protects. Only this file knows them.
//!
//! ```text
//! segment  = "TGJRNL01" record*
//! record   = marker (4 bytes) length (4) checksum of length and payload (8) payload
//! payload  = 1 entry*            entries, which were appended together
//!          │ 2 id*               ids of entries that are in the ledger
//! entry    = length (2) fields   numbers are little endian; the text of the key stem is last
//! id       = generation (8) partition (2) millis (8) sequence (8)
//! ```
//!
//! The marker makes the search for a record after damaged bytes quick. A new field needs a new version in the header of the segment.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use tidegate::Timestamp;
use tidegate::spi::{EntryId, EntryKind, OutboxEntry, Subject};

/// The header of a segment, with the version of its records.
pub(super) const SEGMENT_HEADER: [u8; 8] = *b"TGJRNL01";

/// Bytes before the payload of a record.
const RECORD_HEADER_BYTES: usize = 16;

/// A longer payload is damaged. It is far above what one decision writes.
const MAX_PAYLOAD_BYTES: usize = 16 << 20;

/// Ids in one record.
pub(super) const MAX_IDS: usize = 10_000;

const MARKER: [u8; 4] = [0xA7, b't', b'g', b'j'];
const ENTRIES: u8 = 1;
const ACKNOWLEDGED: u8 = 2;

/// A record as bytes, with the place of each entry in it.
#[derive(Debug, Default)]
pub(super) struct Frame {
    pub(super) bytes: Vec<u8>,
    pub(super) spans: Vec<(EntryId, RecordSpan)>,
}

/// The place of an entry: in a frame, or in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordSpan {
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// What a record contains.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Payload {
    /// The ids of entries and their places from the start of the record.
    Entries(Vec<(EntryId, RecordSpan)>),
    /// Ids of entries that are in the ledger.
    Acknowledged(Vec<EntryId>),
}

/// Bytes that are read from the front.
struct Reader<'a>(&'a [u8]);

/// The record of these entries. `None` if they are too many for one.
pub(super) fn frame_entries(entries: &[OutboxEntry]) -> Option<Frame> {
    let mut frame = Frame { bytes: vec![0; RECORD_HEADER_BYTES], spans: Vec::with_capacity(entries.len()) };
    frame.bytes.push(ENTRIES);
    for entry in entries {
        let length_at = frame.bytes.len();
        frame.bytes.extend_from_slice(&[0; 2]);
        push_entry(&mut frame.bytes, entry);
        let length = frame.bytes.len() - length_at - 2;
        frame.bytes[length_at..length_at + 2].copy_from_slice(&u16::try_from(length).ok()?.to_le_bytes());
        frame.spans.push((entry.id, RecordSpan { offset: length_at as u64 + 2, length: length as u32 }));
    }
    frame.seal().then_some(frame)
}

/// The record of these ids, at most [`MAX_IDS`].
pub(super) fn frame_ids(ids: &[EntryId]) -> Vec<u8> {
    let mut frame = Frame { bytes: vec![0; RECORD_HEADER_BYTES], spans: Vec::new() };
    frame.bytes.push(ACKNOWLEDGED);
    for id in ids.iter().take(MAX_IDS) {
        push_id(&mut frame.bytes, *id);
    }
    frame.seal();
    frame.bytes
}

/// The record at the start of `bytes`, and its length. `None` if there is no whole and undamaged one.
pub(super) fn read_record(bytes: &[u8]) -> Option<(Payload, usize)> {
    let rest = bytes.strip_prefix(&MARKER)?;
    let length = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?);
    let checksum = u64::from_le_bytes(rest.get(4..12)?.try_into().ok()?);
    let end = RECORD_HEADER_BYTES.checked_add(length as usize)?;
    let payload = bytes.get(RECORD_HEADER_BYTES..end)?;
    (payload.len() <= MAX_PAYLOAD_BYTES && checksum == payload_checksum(payload)).then_some(())?;
    Some((read_payload(payload)?, end))
}

/// Whether any whole and undamaged record begins in `bytes`.
pub(super) fn contains_record(bytes: &[u8]) -> bool {
    let starts = bytes.windows(MARKER.len()).enumerate().filter(|(_, window)| *window == MARKER);
    starts.into_iter().any(|(start, _)| read_record(&bytes[start..]).is_some())
}

/// The entry in these bytes, which are those of its [`RecordSpan`].
pub(super) fn read_entry(bytes: &[u8]) -> Option<OutboxEntry> {
    let mut reader = Reader(bytes);
    Some(OutboxEntry {
        id: reader.id()?,
        kind: EntryKind::from_number(u8::from_le_bytes(reader.take()?))?,
        at: reader.timestamp()?,
        period: reader.number()?,
        amount: reader.number()?.cast_signed(),
        late_amount: reader.number()?.cast_signed(),
        held: reader.number()?,
        owner: reader.number()?,
        expires_at: reader.timestamp()?,
        hard_limit: reader.number()?,
        subject: Subject::from_hash(u128::from_le_bytes(reader.take()?)),
        stem: std::str::from_utf8(reader.0).ok()?.to_owned(),
    })
}

fn read_payload(payload: &[u8]) -> Option<Payload> {
    let (kind, rest) = payload.split_first()?;
    let mut reader = Reader(rest);
    match *kind {
        ENTRIES => {
            let mut entries = Vec::new();
            while !reader.0.is_empty() {
                let length = u16::from_le_bytes(reader.take()?);
                let offset = RECORD_HEADER_BYTES + payload.len() - reader.0.len();
                let (bytes, rest) = reader.0.split_at_checked(usize::from(length))?;
                reader.0 = rest;
                let span = RecordSpan { offset: offset as u64, length: u32::from(length) };
                entries.push((Reader(bytes).id()?, span));
            }
            Some(Payload::Entries(entries))
        }
        ACKNOWLEDGED => {
            let mut ids = Vec::new();
            while !reader.0.is_empty() {
                ids.push(reader.id()?);
            }
            Some(Payload::Acknowledged(ids))
        }
        _ => None,
    }
}

fn push_entry(bytes: &mut Vec<u8>, entry: &OutboxEntry) {
    push_id(bytes, entry.id);
    bytes.push(entry.kind.number());
    for number in [entry.at.as_micros(), entry.period, entry.amount.cast_unsigned(), entry.late_amount.cast_unsigned()]
    {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    for number in [entry.held, entry.owner, entry.expires_at.as_micros(), entry.hard_limit] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&entry.subject.hash().to_le_bytes());
    bytes.extend_from_slice(entry.stem.as_bytes());
}

fn push_id(bytes: &mut Vec<u8>, id: EntryId) {
    bytes.extend_from_slice(&id.generation.to_le_bytes());
    bytes.extend_from_slice(&id.partition.to_le_bytes());
    bytes.extend_from_slice(&id.millis.to_le_bytes());
    bytes.extend_from_slice(&id.sequence.to_le_bytes());
}

fn payload_checksum(payload: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(&(payload.len() as u64).to_le_bytes());
    hasher.write(payload);
    hasher.finish()
}

// === impl Frame ===

impl Frame {
    /// Writes the header of the record. Returns whether the payload is short enough.
    fn seal(&mut self) -> bool {
        let (header, payload) = self.bytes.split_at_mut(RECORD_HEADER_BYTES);
        header[..4].copy_from_slice(&MARKER);
        header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[8..].copy_from_slice(&payload_checksum(payload).to_le_bytes());
        payload.len() <= MAX_PAYLOAD_BYTES
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn timestamp(&mut self) -> Option<Timestamp> {
        self.number().map(Timestamp::from_micros)
    }

    fn id(&mut self) -> Option<EntryId> {
        let generation = self.number()?;
        let partition = u16::from_le_bytes(self.take()?);
        Some(EntryId { generation, partition, millis: self.number()?, sequence: self.number()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum is right, so that the bytes behind it are read.
    #[test]
    fn no_bytes_make_the_reader_panic() {
        bolero::check!().with_type::<(bool, Vec<u8>)>().for_each(|(is_sealed, bytes)| {
            let mut frame = Frame { bytes: vec![0; RECORD_HEADER_BYTES], spans: Vec::new() };
            frame.bytes.extend_from_slice(bytes);
            if *is_sealed {
                frame.seal();
            }
            if let Some((Payload::Entries(entries), length)) = read_record(&frame.bytes) {
                assert!(length <= frame.bytes.len());
                for (_, span) in entries {
                    let start = span.offset as usize;
                    assert!(frame.bytes.get(start..start + span.length as usize).is_some());
                }
            }
            let _ = (contains_record(&frame.bytes), read_entry(bytes));
        });
    }
}
