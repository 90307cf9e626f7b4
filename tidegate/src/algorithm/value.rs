//! Numbers in the values that the Lua functions write.

use super::FractionalMicros;

/// All numbers in values are below this. A larger one was not written by this library.
pub(super) const NUMBER_BOUND: u64 = 1 << 53;

/// The instant that a bucket's value starts with.
pub(super) fn parse_moment(bytes: &[u8]) -> Option<FractionalMicros> {
    let (part, micros) = split_number(bytes, 16)?;
    Some(FractionalMicros { micros, part })
}

/// The number before the last `width` digits (0 if there is none), and the number in these digits.
pub(super) fn split_number(bytes: &[u8], width: usize) -> Option<(u64, u64)> {
    let (head, tail) = bytes.split_at_checked(bytes.len().checked_sub(width)?)?;
    Some((if head.is_empty() { 0 } else { parse_number(head)? }, parse_number(tail)?))
}

/// Numbers that are separated by commas.
pub(super) fn parse_list(bytes: &[u8]) -> Option<Vec<u64>> {
    bytes.split(|byte| *byte == b',').map(parse_number).collect()
}

/// The number before the first comma, as text, and the list after it.
pub(super) fn split_list(bytes: &[u8]) -> Option<(&[u8], Vec<u64>)> {
    match bytes.iter().position(|byte| *byte == b',') {
        Some(comma) => Some((&bytes[..comma], parse_list(&bytes[comma + 1..])?)),
        None => Some((bytes, Vec::new())),
    }
}

pub(super) fn parse_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|number| *number < NUMBER_BOUND)
}
