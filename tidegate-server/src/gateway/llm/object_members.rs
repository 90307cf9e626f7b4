//! The members of a JSON object as ranges of its text, so that one can be changed and all others stay as the client wrote them.

use std::borrow::Cow;
use std::ops::Range;

/// A member of an object.
#[derive(Debug)]
pub(super) struct Member<'t> {
    pub(super) name: Cow<'t, str>,
    /// Where its value is.
    pub(super) value: Range<usize>,
}

/// The members of the object that begins at `start` in `text`, which must be valid JSON. `None` if there is no object.
pub(super) fn members(text: &[u8], start: usize) -> Option<Vec<Member<'_>>> {
    let mut at = skip_space(text, start);
    if text.get(at) != Some(&b'{') {
        return None;
    }
    let mut members = Vec::new();
    loop {
        // After `{` or `,`.
        at = skip_space(text, at + 1);
        if text.get(at) != Some(&b'"') {
            return members.is_empty().then_some(members);
        }
        let end = value_end(text, at);
        let name = &text[at..end];
        at = skip_space(text, end);
        at = skip_space(text, at + 1);
        let end = value_end(text, at);
        members.push(Member { name: decode(name)?, value: at..end });
        at = skip_space(text, end);
        if text.get(at) != Some(&b',') {
            return Some(members);
        }
    }
}

/// A string without its escapes.
fn decode(string: &[u8]) -> Option<Cow<'_, str>> {
    let inner = string.get(1..string.len().checked_sub(1)?)?;
    if inner.contains(&b'\\') {
        return serde_json::from_slice(string).ok().map(Cow::Owned);
    }
    str::from_utf8(inner).ok().map(Cow::Borrowed)
}

fn skip_space(text: &[u8], start: usize) -> usize {
    let rest = text.get(start..).unwrap_or_default();
    start + rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count()
}

/// The end of the value that begins at `start`.
fn value_end(text: &[u8], start: usize) -> usize {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (index, byte) in text.iter().enumerate().skip(start) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => {
                in_string = !in_string;
                if !in_string && depth == 0 {
                    return index + 1;
                }
            }
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b',' | b' ' | b'\t' | b'\n' | b'\r' | b'}' | b']' if depth == 0 => return index,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return index + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_as_they_are_written() {
        let text = r#" { "a" : 1 , "b":"x,\"}" ,"c":{"d":[1,{"e":"]"}]},"\u0073tream":true, "f": null}"#;
        let found: Vec<_> = members(text.as_bytes(), 0)
            .unwrap()
            .into_iter()
            .map(|member| (member.name.into_owned(), &text[member.value]))
            .collect();
        let expected =
            [("a", "1"), ("b", r#""x,\"}""#), ("c", r#"{"d":[1,{"e":"]"}]}"#), ("stream", "true"), ("f", "null")];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(members(b"{}", 0).unwrap().len(), 0);
        assert!(members(b"[1]", 0).is_none() && members(b"", 0).is_none());
    }

    /// The text has been validated before, but nothing may panic.
    #[test]
    fn broken_text_does_not_panic() {
        let text = r#"{"a":"\u0073","b":{"c":[1,2]},"d":"\\"}"#;
        for end in 0..text.len() {
            let _ = members(&text.as_bytes()[..end], 0);
            let _ = members(&text.as_bytes()[end..], 0);
        }
        for text in ["{\"", "{\"\\", "{\"a", "{\"a\"", "{\"a\":", "{,", "{\"a\":}", "{\"a\",\"b\""] {
            let _ = members(text.as_bytes(), 0);
        }
    }
}
