//! Percent-escapes in paths: which bytes need one, and the normal form of the others.

/// Appends a segment with the escapes of the normal form. (The crate `percent-encoding` decodes all escapes or none.)
pub(super) fn push_normalized(normal: &mut String, segment: &[u8]) {
    let mut bytes = segment;
    while let [first, rest @ ..] = bytes {
        let (value, after) = split_escape(bytes).unwrap_or((*first, rest));
        push_byte(normal, value);
        bytes = after;
    }
}

/// Appends a byte of a decoded segment, escaped if it needs to be.
pub(super) fn push_byte(normal: &mut String, value: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    if needs_no_escape(value) {
        normal.push(char::from(value));
    } else {
        normal.extend(['%', char::from(HEX[usize::from(value >> 4)]), char::from(HEX[usize::from(value & 15)])]);
    }
}

/// The byte of an escape such as `%2F` at the start of `bytes`, and what follows it.
pub(super) fn split_escape(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let [b'%', high, low, after @ ..] = bytes else {
        return None;
    };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    Some(((digit(high)? * 16 + digit(low)?) as u8, after))
}

/// Decodes every escape once. A `%` without two hexadecimal digits stays.
pub(super) fn decode(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text;
    while let [first, rest @ ..] = bytes {
        let (value, after) = split_escape(bytes).unwrap_or((*first, rest));
        decoded.push(value);
        bytes = after;
    }
    decoded
}

/// Whether this byte is allowed in a segment without an escape (RFC 3986, `pchar`). Most servers treat its escape as the
/// same.
pub(super) fn needs_no_escape(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte)
}
