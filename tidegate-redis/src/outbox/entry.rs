//! The entries of an outbox, as the scripts append them to its stream.

use redis::Value;
use tidegate::Timestamp;
use tidegate::spi::{EntryId, EntryKind, OutboxEntry, Subject};

use super::keys::SUBJECT_BYTES;

/// The packed doubles before the name.
const NUMBERS: usize = 10;

/// Decodes an entry of the stream of a partition: its id, and one field. `None` if no version of this store has written it.
pub(super) fn decode_entry(partition: u16, entry: &Value) -> Option<OutboxEntry> {
    let Value::Array(parts) = entry else { return None };
    let [Value::BulkString(id), Value::Array(fields)] = parts.as_slice() else { return None };
    let [_, Value::BulkString(bytes)] = fields.as_slice() else { return None };
    let (millis, sequence) = std::str::from_utf8(id).ok()?.split_once('-')?;
    let (numbers, name) = bytes.split_at_checked(8 * NUMBERS)?;
    let (stem, subject) = name.split_at_checked(name.len().checked_sub(SUBJECT_BYTES)?)?;
    let number = |index: usize| -> Option<f64> {
        let bytes = numbers.get(8 * index..8 * index + 8)?;
        let number = f64::from_le_bytes(bytes.try_into().ok()?);
        (number.abs() < (1_u64 << 53) as f64 && number.fract() == 0.0).then_some(number)
    };
    let unsigned = |index: usize| number(index).filter(|number| *number >= 0.0).map(|number| number as u64);
    let signed = |index: usize| number(index).map(|number| number as i64);
    Some(OutboxEntry {
        kind: EntryKind::from_number(u8::try_from(unsigned(0)?).ok()?)?,
        at: Timestamp::from_micros(unsigned(1)?),
        period: unsigned(2)?,
        amount: signed(3)?,
        late_amount: signed(4)?,
        held: unsigned(5)?,
        owner: unsigned(6)?,
        expires_at: Timestamp::from_micros(unsigned(7)?),
        hard_limit: unsigned(8)?,
        id: EntryId {
            generation: unsigned(9)?,
            partition,
            millis: millis.parse().ok()?,
            sequence: sequence.parse().ok()?,
        },
        stem: std::str::from_utf8(stem).ok()?.to_owned(),
        subject: Subject::from_hash(u128::from_be_bytes(subject.try_into().ok()?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, numbers: [f64; NUMBERS], name: &[u8]) -> Value {
        let bytes = [&numbers.map(f64::to_le_bytes).concat(), name].concat();
        let field = Value::Array(vec![Value::BulkString(b"e".to_vec()), Value::BulkString(bytes)]);
        Value::Array(vec![Value::BulkString(id.as_bytes().to_vec()), field])
    }

    #[test]
    fn entries_are_decoded_or_rejected_as_a_whole() {
        let name = [&b"api:u1mo"[..], &[0; 15], &[7]].concat();
        let numbers = [4.0, 1.8e15, 679.0, -5.0, -2.0, 0.0, 9e15, 0.0, 100.0, 77.0];
        let decoded = decode_entry(3, &entry("1800000000000-2", numbers, &name)).unwrap();
        assert_eq!(decoded.id.to_string(), "77.3.1800000000000-2");
        assert_eq!((decoded.kind, decoded.amount, decoded.late_amount), (EntryKind::Release, -5, -2));
        assert_eq!((decoded.period, decoded.owner, decoded.hard_limit), (679, 9_000_000_000_000_000, 100));
        assert_eq!((decoded.stem.as_str(), decoded.subject), ("api:u1mo", Subject::from_hash(7)));
        let with = |index: usize, number: f64| {
            let mut numbers = numbers;
            numbers[index] = number;
            entry("1-1", numbers, &name)
        };
        let wrong_numbers = [(0, 8.0), (0, -1.0), (1, f64::NAN), (2, 0.5), (3, 1e16), (9, f64::INFINITY)];
        for value in wrong_numbers.map(|(index, number)| with(index, number)) {
            assert_eq!(decode_entry(3, &value), None, "{value:?}");
        }
        for value in [entry("1", numbers, &name), entry("1-1", numbers, &name[..15]), Value::Nil] {
            assert_eq!(decode_entry(3, &value), None, "{value:?}");
        }
    }
}
