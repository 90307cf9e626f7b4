//! Values of query parameters and cookies, as every common server reads them, or the finding that servers read them differently.
//!
//! Accepts any text: an invalid query or cookie has no value. Values keep their bytes, as [`bytes_to_text`] writes them.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate::attributes::bytes_to_text;

use crate::repeated::MAX_REPEATED_VALUES;

/// The value of a query parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parameter<'q> {
    Missing,
    Once(Cow<'q, str>),
    Repeated {
        first: Cow<'q, str>,
        last: Cow<'q, str>,
    },
    /// Servers that separate parameters by `;` too read another value.
    Ambiguous,
}

/// The parameter of this name in a query or a form (`application/x-www-form-urlencoded`), decoded.
///
/// `+` is a space, an invalid escape stays as it is, and a name without `=` has an empty value. Names are compared without regard to
/// case and surrounding space, since some servers do so.
pub(crate) fn parameter<'q>(query: &'q str, name: &str) -> Parameter<'q> {
    let query = query.strip_prefix('?').unwrap_or(query);
    let found = find(query, name, |separator| separator == '&');
    if query.contains(';') && find(query, name, |separator| matches!(separator, '&' | ';')) != found {
        return Parameter::Ambiguous;
    }
    found
}

fn find<'q>(query: &'q str, name: &str, is_separator: fn(char) -> bool) -> Parameter<'q> {
    let values = query.split(is_separator).filter_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let is_name = !pair.is_empty() && decode_form(key).trim().eq_ignore_ascii_case(name);
        is_name.then_some(value)
    });
    let mut values = values.map(decode_form);
    match (values.next(), values.next_back()) {
        (None, _) => Parameter::Missing,
        (Some(only), None) => Parameter::Once(only),
        (Some(first), Some(last)) => Parameter::Repeated { first, last },
    }
}

/// What separates cookies for some servers.
const SEPARATORS: [char; 4] = [';', ',', ' ', '\t'];

/// The different values of the cookie of this name in a `Cookie` header, in their order, at most one more than
/// [`MAX_REPEATED_VALUES`]. Empty ones count as missing.
///
/// Servers disagree on quotes, on backslashes between them, and on percent-encoding: each value is decoded as far as any of them does,
/// so that one session has one value however it is written. Names are compared without regard to case, since some servers do so. Some
/// separate cookies by commas and space, too: where they find more cookies of this name than others do, what they find counts beside.
pub(crate) fn cookies<'q>(header: &'q str, name: &str) -> SmallVec<[Cow<'q, str>; 1]> {
    let mut values = SmallVec::new();
    let (mut count, mut has_inner_separator) = (0, false);
    for pair in header.split(';') {
        has_inner_separator |= pair.trim().contains(SEPARATORS);
        let Some((key, value)) = pair.split_once('=') else { continue };
        if key.trim().eq_ignore_ascii_case(name) {
            count += 1;
            add_cookie(&mut values, value);
        }
    }
    if has_inner_separator && loosely_separated(header, name).count() > count {
        for rest in loosely_separated(header, name) {
            // For nginx a comma ends a cookie that it skips, but not the value that it looks for.
            rest.split(';').next().into_iter().for_each(|value| add_cookie(&mut values, value));
            rest.split(SEPARATORS).next().into_iter().for_each(|value| add_cookie(&mut values, value));
            // Each value may be as long as the header.
            if values.len() > MAX_REPEATED_VALUES {
                break;
            }
        }
    }
    values
}

/// Adds a value that is new, up to one more than [`MAX_REPEATED_VALUES`].
fn add_cookie<'q>(values: &mut SmallVec<[Cow<'q, str>; 1]>, value: &'q str) {
    if values.len() > MAX_REPEATED_VALUES {
        return;
    }
    // Values must differ as subjects do, which have no surrounding space.
    match trimmed(decode_cookie(value.trim())) {
        Some(value) if !values.contains(&value) => values.push(value),
        _ => {}
    }
}

/// What follows the name and `=` of each cookie of this name, if commas and space separate cookies, too.
fn loosely_separated<'q>(header: &'q str, name: &str) -> impl Iterator<Item = &'q str> {
    let starts = header.char_indices().scan(true, |is_start, (index, character)| {
        let start = *is_start;
        *is_start = SEPARATORS.contains(&character);
        Some((index, start))
    });
    starts.filter(|(_, is_start)| *is_start).filter_map(move |(index, _)| {
        let key = header.get(index..index + name.len()).filter(|key| key.eq_ignore_ascii_case(name))?;
        Some(header[index + key.len()..].trim_start().strip_prefix('=')?.trim_start())
    })
}

/// The last cookie of this name.
pub(crate) fn last_cookie<'q>(header: &'q str, name: &str) -> Option<Cow<'q, str>> {
    let mut pairs = header.rsplit(';').filter_map(|pair| pair.split_once('='));
    let last = pairs.find(|(key, _)| key.trim().eq_ignore_ascii_case(name));
    last.and_then(|(_, value)| trimmed(decode_cookie(value.trim())))
}

/// The value without surrounding space; `None` if it is empty. A borrowed value is not copied.
pub(crate) fn trimmed(value: Cow<'_, str>) -> Option<Cow<'_, str>> {
    let value = match value {
        Cow::Borrowed(value) => Cow::Borrowed(value.trim()),
        Cow::Owned(value) => Cow::Owned(value.trim().to_owned()),
    };
    Some(value).filter(|value| !value.is_empty())
}

/// Decodes a name or a value of a form.
fn decode_form(text: &str) -> Cow<'_, str> {
    if !text.contains(['+', '%']) {
        return bytes_to_text(text.as_bytes());
    }
    let bytes: Vec<u8> = text.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
    Cow::Owned(bytes_to_text(&decode_percent(&bytes)).into_owned())
}

/// A cookie's value without quotes and escapes. Text that is no escape stays as it is.
fn decode_cookie(value: &str) -> Cow<'_, str> {
    let inner = value.strip_prefix('"').and_then(|inner| inner.strip_suffix('"'));
    match inner {
        Some(inner) if inner.contains('\\') => {
            Cow::Owned(bytes_to_text(&decode_percent(&decode_backslashes(inner.as_bytes()))).into_owned())
        }
        _ => {
            let bare = inner.unwrap_or(value);
            if bare.contains('%') {
                Cow::Owned(bytes_to_text(&decode_percent(bare.as_bytes())).into_owned())
            } else {
                Cow::Borrowed(bare)
            }
        }
    }
}

/// Decodes `%XX`.
fn decode_percent(bytes: &[u8]) -> Vec<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        let escape = match (first, after) {
            (b'%', [high, low, ..]) => digit(high).zip(digit(low)),
            _ => None,
        };
        if let Some((high, low)) = escape {
            decoded.push(high << 4 | low);
            rest = &after[2..];
        } else {
            decoded.push(*first);
            rest = after;
        }
    }
    decoded
}

/// Decodes a backslash with three octal digits, and a backslash before any other character.
fn decode_backslashes(bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        rest = match (first, after) {
            (b'\\', [high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', after @ ..]) => {
                decoded.push((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'));
                after
            }
            (b'\\', [escaped, after @ ..]) => {
                decoded.push(*escaped);
                after
            }
            _ => {
                decoded.push(*first);
                after
            }
        };
    }
    decoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn once(query: &str, name: &str) -> Option<String> {
        match parameter(query, name) {
            Parameter::Once(value) => Some(value.into_owned()),
            Parameter::Missing => None,
            other => panic!("{query}: {other:?}"),
        }
    }

    #[test]
    fn parameters_are_decoded() {
        for (query, expected) in [
            ("key=a", Some("a")),
            ("?key=a", Some("a")),
            ("x=1&key=a", Some("a")),
            ("key=", Some("")),
            ("key", Some("")),
            ("key=a=b", Some("a=b")),
            ("key=a+b%20c%2B", Some("a b c+")),
            ("key=caf%C3%a9", Some("café")),
            ("key=café", Some("café")),
            ("%6Bey=a", Some("a")),
            ("key=100%&b", Some("100%")),
            ("key=%zz%2", Some("%zz%2")),
            ("key=%2%41", Some("%2A")),
            ("key=%ff", Some("\u{fffd}ff")),
            ("key=%fe", Some("\u{fffd}fe")),
            ("&&key=a&", Some("a")),
            ("", None),
            ("keys=a", None),
            ("x=key", None),
        ] {
            assert_eq!(once(query, "key").as_deref(), expected, "{query}");
        }
        assert_eq!(once("a+b=c", "a b").as_deref(), Some("c"));
        assert_eq!(once("&&", ""), None);
    }

    /// Some servers ignore case (ASP.NET, variables of nginx), some remove spaces (PHP).
    #[test]
    fn a_parameter_in_other_letters_is_the_same_parameter() {
        for query in ["KEY=a", "Key=a", "%4Bey=a", "+key=a", "key%20=a"] {
            assert_eq!(once(query, "key").as_deref(), Some("a"), "{query}");
        }
    }

    #[test]
    fn a_parameter_that_comes_twice_is_repeated() {
        for query in ["key=a&key=b", "key=a&x=1&%6bey=b", "key=a&KEY=b", "key=a&key=c&key=b"] {
            assert_eq!(parameter(query, "key"), Parameter::Repeated { first: "a".into(), last: "b".into() }, "{query}");
        }
        assert!(matches!(parameter("key=a&key=a", "key"), Parameter::Repeated { .. }));
        assert!(matches!(parameter("key&key=a", "key"), Parameter::Repeated { .. }));
    }

    /// Some servers separate parameters by `;` (Rack 2, older Python).
    #[test]
    fn a_semicolon_that_changes_a_value_makes_it_ambiguous() {
        for query in ["key=a;b", "key=a;key=b", "x=1;key=a", "key=a&x;key=b"] {
            assert_eq!(parameter(query, "key"), Parameter::Ambiguous, "{query}");
        }
        for query in ["x=1;2&key=a", "key=a&x=1;y=2", "key=a&;"] {
            assert_eq!(once(query, "key").as_deref(), Some("a"), "{query}");
        }
        assert_eq!(once("key=a%3Bb", "key").as_deref(), Some("a;b"));
    }

    #[test]
    fn an_ordinary_value_is_not_copied() {
        assert!(matches!(parameter("x=1&key=a-b", "key"), Parameter::Once(Cow::Borrowed("a-b"))));
        assert!(matches!(cookies("x=1; id=a-b", "id").as_slice(), [Cow::Borrowed("a-b")]));
    }

    #[test]
    fn each_value_of_a_cookie_is_found_once() {
        for (header, expected) in [
            ("id=a", &["a"][..]),
            ("x=1; id=a; id=b", &["a", "b"]),
            ("id=a; id=b; id=a", &["a", "b"]),
            ("id=a; ID=b", &["a", "b"]),
            ("x=1;id=a", &["a"]),
            (" id = a ", &["a"]),
            ("id=", &[]),
            ("id=; id=\" a\"; id=a", &["a"]),
            ("id", &[]),
            ("", &[]),
            ("id=1; id=2; id=3; id=4; id=5; id=6", &["1", "2", "3", "4", "5"]),
        ] {
            assert_eq!(cookies(header, "id").as_slice(), expected, "{header}");
        }
    }

    /// Python's `http.cookies` separates cookies by space, and older servers by commas: each new value in front of the real one, or
    /// beside another cookie, would be a new subject.
    #[test]
    fn a_cookie_behind_a_space_or_a_comma_counts_beside_the_others() {
        for (header, expected) in [
            ("id=a id=b", &["a id=b", "a", "b"][..]),
            ("id=a, ID = b", &["a, ID = b", "a", "b"]),
            ("id=a; x=1 id=b", &["a", "b"]),
            ("id=d; x=1, id = a ; y=2,id=b,c", &["d", "a", "b,c", "b"]),
            ("x=1,id=b", &["b"]),
            ("x=1\tid=b", &["b"]),
            ("id=a b", &["a b"]),
            ("id=a,b=c; x=1, y=2", &["a,b=c"]),
            ("id=a xid=b", &["a xid=b"]),
            ("é id=b", &["b"]),
            ("x id id=", &[]),
        ] {
            assert_eq!(cookies(header, "id").as_slice(), expected, "{header}");
        }
        assert_eq!(cookies(&"id=1 ".repeat(10_000), "id").len(), MAX_REPEATED_VALUES + 1);
    }

    #[test]
    fn the_last_cookie_is_found_behind_any_number() {
        assert_eq!(last_cookie("id=1; id=2; id=3; id=4; id=5; ID=%36; x=7", "id").as_deref(), Some("6"));
        assert_eq!(last_cookie("x=7", "id"), None);
    }

    /// Node decodes percent-encoding, Python's cookies decode backslashes, and all of them remove quotes.
    #[test]
    fn all_spellings_of_a_cookie_have_one_value() {
        for header in ["id=abc", "id=\"abc\"", "id=%61bc", "id=\"a\\142c\"", "id=\"a\\bc\"", "id=\"%61\\142c\""] {
            assert_eq!(cookies(header, "id").as_slice(), ["abc"], "{header}");
        }
        for (header, expected) in [
            ("id=\"", "\""),
            ("id=\"a", "\"a"),
            ("id=a\\142c", "a\\142c"),
            ("id=a%2+c=d", "a%2+c=d"),
            ("id=\"a\\\"", "a\\"),
        ] {
            assert_eq!(cookies(header, "id").as_slice(), [expected], "{header}");
        }
    }

    proptest! {
        #[test]
        fn an_escaped_value_decodes_to_the_original(name in "[a-z]{1,8}", value in "\\PC*") {
            let escape = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<Vec<_>>().concat();
            let query = format!("0=b&{}={}&1", escape(&name), escape(&value));
            prop_assume!(!value.contains(char::REPLACEMENT_CHARACTER));
            prop_assert_eq!(once(&query, &name), Some(value));
        }
    }

    #[test]
    fn no_text_panics() {
        bolero::check!().with_type::<(String, String)>().for_each(|(text, name)| {
            // A byte that is not UTF-8 becomes a replacement character and two digits.
            let fits = |value: &Cow<'_, str>| value.len() <= 5 * text.len();
            match parameter(text, name) {
                Parameter::Missing | Parameter::Ambiguous => {}
                Parameter::Once(value) => assert!(fits(&value)),
                Parameter::Repeated { first, last } => assert!(fits(&first) && fits(&last)),
            }
            let values = cookies(text, name);
            assert!(values.len() <= MAX_REPEATED_VALUES + 1 && values.iter().all(fits));
        });
    }
}
