//! Numbers in the text of a reply.

/// The number at the start of `text`, and the rest.
pub(super) fn take_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let (digits, rest) = text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count());
    Some((parse_number(digits)?, rest))
}

pub(super) fn parse_number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The time and sequence of an id of a stream at the start of `text`, such as `1700000000000-0`, and the rest.
pub(super) fn take_stream_id(text: &[u8]) -> Option<((u64, u64), &[u8])> {
    let (millis, rest) = take_number(text)?;
    let (sequence, rest) = take_number(rest.strip_prefix(b"-")?)?;
    Some(((millis, sequence), rest))
}

/// The time and sequence in the text of an id of a stream.
pub(crate) fn parse_stream_id(text: &[u8]) -> Option<(u64, u64)> {
    take_stream_id(text).filter(|(_, rest)| rest.is_empty()).map(|(id, _)| id)
}
