//! The text form of bytes. Rules match and count by texts, and HTTP has bytes.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The character that begins an escape. It stands for itself if it is doubled.
const ESCAPE: char = char::REPLACEMENT_CHARACTER;

/// The text form of any bytes. Different bytes have different texts, so that two keys are never counted as one.
///
/// UTF-8 is its own text. A byte that is not part of UTF-8 becomes U+FFFD and two hexadecimal digits, and U+FFFD itself is doubled.
///
/// ```
/// use tidegate::attributes::bytes_to_text;
///
/// assert_eq!(bytes_to_text("café".as_bytes()), "café");
/// assert_eq!(bytes_to_text(b"caf\xe9"), "caf\u{fffd}e9");
/// ```
pub fn bytes_to_text(bytes: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(bytes) {
        Ok(text) if !text.contains(ESCAPE) => Cow::Borrowed(text),
        _ => Cow::Owned(escape(bytes)),
    }
}

/// A letter without its case, as Unicode defines it: one letter or several. Two names are the same for servers that ignore case if their
/// letters are the same without it.
///
/// ```
/// use tidegate::attributes::fold_case;
///
/// let fold = |text: &str| text.chars().flat_map(fold_case).collect::<String>();
/// assert_eq!(fold("\u{212a}I\u{17f}S"), "kiss");
/// assert_eq!(fold("STRAẞE"), fold("straße"));
/// ```
pub fn fold_case(letter: char) -> impl Iterator<Item = char> {
    // In lower case first: the capital `ẞ` has no other upper case, and `ß` has `SS`.
    letter.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            text.push(character);
            text.extend((character == ESCAPE).then_some(ESCAPE));
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{ESCAPE}{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bytes of a text form.
    fn to_bytes(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(ESCAPE) {
            bytes.extend_from_slice(before.as_bytes());
            rest = if let Some(after) = after.strip_prefix(ESCAPE) {
                bytes.extend_from_slice(ESCAPE.to_string().as_bytes());
                after
            } else {
                bytes.push(u8::from_str_radix(&after[..2], 16).unwrap());
                &after[2..]
            };
        }
        bytes.extend_from_slice(rest.as_bytes());
        bytes
    }

    #[test]
    fn keys_that_differ_only_in_invalid_utf8_have_different_texts() {
        let keys: [&[u8]; 8] = [
            b"k\xff",
            b"k\xfe",
            b"k\xff\xff",
            b"k\xc3",
            b"k\xc3\xa9",
            "k\u{fffd}".as_bytes(),
            "k\u{fffd}ff".as_bytes(),
            b"kff",
        ];
        for (index, key) in keys.iter().enumerate() {
            for other in &keys[..index] {
                assert_ne!(bytes_to_text(key), bytes_to_text(other), "{key:?} {other:?}");
            }
        }
    }

    #[test]
    fn an_ordinary_value_is_not_copied() {
        assert!(matches!(bytes_to_text("clé 1".as_bytes()), Cow::Borrowed("clé 1")));
    }

    proptest! {
        #[test]
        fn different_bytes_have_different_texts(bytes in proptest::collection::vec(
            prop_oneof![any::<u8>(), Just(0xef), Just(0xbf), Just(0xbd), Just(b'f')], 0..12)) {
            prop_assert_eq!(to_bytes(&bytes_to_text(&bytes)), bytes);
        }
    }
}
