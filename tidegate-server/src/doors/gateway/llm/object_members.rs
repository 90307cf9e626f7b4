//! Finds a member of a JSON object as a range of its text, so that it can be changed and all others stay as the client wrote them.

use std::borrow::Cow;
use std::ops::Range;

use tidegate::attributes::fold_case;

/// Why a member was not found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MemberError {
    /// The text is no object.
    NoObject,
    /// Two servers may read two values: the name comes twice, or in other letters, which some take for the same.
    Repeated,
}

/// The value of the member `name`, which is in lower case, of the object that begins at `start` in `text`, which must be valid JSON.
pub(super) fn find_member(text: &[u8], start: usize, name: &str) -> Result<Option<Range<usize>>, MemberError> {
    let mut at = skip_space(text, start);
    if text.get(at) != Some(&b'{') {
        return Err(MemberError::NoObject);
    }
    let mut found = None;
    loop {
        // After `{` or `,`.
        at = skip_space(text, at + 1);
        if text.get(at) != Some(&b'"') {
            return Ok(found);
        }
        let end = value_end(text, at);
        let key = decode(&text[at..end]).ok_or(MemberError::NoObject)?;
        at = skip_space(text, end);
        at = skip_space(text, at + 1);
        let end = value_end(text, at);
        if is_folded_to(&key, name) {
            if found.is_some() || key != name {
                return Err(MemberError::Repeated);
            }
            found = Some(at..end);
        }
        at = skip_space(text, end);
        if text.get(at) != Some(&b',') {
            return Ok(found);
        }
    }
}

/// Whether the object that begins at `start` has no members.
pub(super) fn is_empty_object(text: &[u8], start: usize) -> bool {
    text.get(skip_space(text, start + 1)) == Some(&b'}')
}

/// Whether a key is the name, which is in lower case, but for the case of its letters, as Unicode defines it.
fn is_folded_to(key: &str, name: &str) -> bool {
    key.chars().flat_map(fold_case).eq(name.chars())
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
    fn a_member_is_found_as_it_is_written() {
        let text = r#" { "a" : 1 , "b":"x,\"}" ,"c":{"d":[1,{"e":"]"}]},"\u0073tream":true, "f": null}"#;
        let find = |name: &str| find_member(text.as_bytes(), 0, name).map(|found| found.map(|range| &text[range]));
        for (name, value) in
            [("a", "1"), ("b", r#""x,\"}""#), ("c", r#"{"d":[1,{"e":"]"}]}"#), ("stream", "true"), ("f", "null")]
        {
            assert_eq!(find(name), Ok(Some(value)), "{name}");
        }
        assert_eq!((find("d"), find("")), (Ok(None), Ok(None)));
        assert_eq!(find_member(b"{}", 0, "a"), Ok(None));
        assert!([&b"[1]"[..], b"", b"7"].iter().all(|text| find_member(text, 0, "a") == Err(MemberError::NoObject)));
        assert!(is_empty_object(b"{ }", 0) && !is_empty_object(b"{\"a\":1}", 0));
    }

    #[test]
    fn a_member_that_servers_read_differently_is_repeated() {
        for text in [
            r#"{"kiss":1,"kiss":1}"#,
            r#"{"Kiss":1}"#,
            r#"{"kiss":1,"KISS":2}"#,
            r#"{"kis\u0073":1,"kiss":2}"#,
            "{\"\u{212a}i\u{17f}s\":1}",
        ] {
            assert_eq!(find_member(text.as_bytes(), 0, "kiss"), Err(MemberError::Repeated), "{text}");
        }
        assert_eq!(find_member(r#"{"kisses":1,"kis":2}"#.as_bytes(), 0, "kiss"), Ok(None));
    }

    /// The text has been validated before, but nothing may panic.
    #[test]
    fn broken_text_does_not_panic() {
        let text = r#"{"a":"\u0073","b":{"c":[1,2]},"d":"\\"}"#;
        for end in 0..text.len() {
            let _ = find_member(&text.as_bytes()[..end], 0, "b");
            let _ = find_member(&text.as_bytes()[end..], 0, "b");
        }
        for text in ["{\"", "{\"\\", "{\"a", "{\"a\"", "{\"a\":", "{,", "{\"a\":}", "{\"a\",\"b\""] {
            let _ = find_member(text.as_bytes(), 0, "b");
        }
    }
}
