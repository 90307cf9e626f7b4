//! `FieldValues`: a field of a JSON body. It tells what parsers disagree on: keys that come more than once.
//!
//! Of a body, only the values under the name that is asked for are kept, and of many the first and the last: a body of small members would
//! take many times its length.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The values under a name in a body.
#[derive(Debug, Default)]
pub(crate) struct FieldValues {
    first: Option<FieldValue>,
    /// The last of several.
    last: Option<FieldValue>,
    /// Whether a key on the way to one of them is in other letters than the name.
    is_folded: bool,
}

/// A value in a body.
#[derive(Debug)]
enum FieldValue {
    /// A string, an integer or a boolean, as text.
    Text(String),
    /// A decimal or a number beyond 64 bits, in digits. It has more than one spelling, so it identifies nobody.
    Decimal(String),
    /// Anything else.
    Other,
}

/// A field of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyField<'b> {
    Missing,
    Once(&'b str),
    /// Servers may read any of these. `None` for a value that is no text.
    Repeated {
        first: Option<&'b str>,
        last: Option<&'b str>,
    },
}

impl FieldValues {
    /// Reads the field `name` of a body: a key, or keys of nested objects with dots between them. The body has at most `max_bytes`. Finds
    /// nothing if it is longer or invalid.
    pub(crate) fn parse(text: &str, name: &str, max_bytes: usize) -> Self {
        let mut values = Self::default();
        if text.len() > max_bytes {
            return values;
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let object = ObjectFields { name, is_folded: false, values: &mut values };
        match object.deserialize(&mut json).and_then(|()| json.end()) {
            Ok(()) => values,
            Err(_) => Self::default(),
        }
    }

    /// The field, if it is a text.
    ///
    /// Parsers differ in which of two equal keys counts, and some, such as Go's, take `Account` for `account`. So a field that is
    /// there twice in any letters is repeated, and so is one that is there as one key and as a nested one.
    pub(crate) fn text(&self) -> BodyField<'_> {
        self.read(FieldValue::text)
    }

    /// The field, which may be any number.
    pub(crate) fn text_or_number(&self) -> BodyField<'_> {
        self.read(|value| match value {
            FieldValue::Decimal(digits) => Some(digits),
            value => value.text(),
        })
    }

    fn read<'b>(&'b self, text: fn(&'b FieldValue) -> Option<&'b str>) -> BodyField<'b> {
        match (&self.first, &self.last) {
            (None, _) => BodyField::Missing,
            (Some(first), Some(last)) => BodyField::Repeated { first: text(first), last: text(last) },
            (Some(_), None) if self.is_folded => BodyField::Missing,
            (Some(value), None) => text(value).map_or(BodyField::Missing, BodyField::Once),
        }
    }

    fn push(&mut self, value: FieldValue) {
        if self.first.is_none() {
            self.first = Some(value);
        } else {
            self.last = Some(value);
        }
    }
}

impl FieldValue {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Decimal(_) | Self::Other => None,
        }
    }
}

/// Whether two keys are the same but for the case of their letters, as Unicode defines it.
fn is_same_key(one: &str, other: &str) -> bool {
    let folded =
        |text: &str| -> Vec<char> { text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect() };
    // A letter and its other case may differ in length, by a factor of three at most.
    let may_be_same = one.len() <= 3 * other.len() && other.len() <= 3 * one.len();
    one.eq_ignore_ascii_case(other)
        || (may_be_same && !(one.is_ascii() && other.is_ascii()) && folded(one) == folded(other))
}

/// Collects the values under a name from an object. Anything else has none.
struct ObjectFields<'n, 'v> {
    name: &'n str,
    is_folded: bool,
    values: &'v mut FieldValues,
}

/// What a key of an object leads to.
enum KeyMatch<'n> {
    Nothing,
    Value {
        is_folded: bool,
    },
    /// An object in which the rest of the name is looked for.
    Object {
        rest: &'n str,
        is_folded: bool,
    },
}

/// Compares a key without keeping it.
struct KeyOf<'n>(&'n str);

/// Keeps a value.
struct ValueSeed;

impl<'n> KeyOf<'n> {
    /// Only one part of a name can be the key, so that each object is visited once.
    fn find(&self, key: &str) -> KeyMatch<'n> {
        let Self(name) = *self;
        if is_same_key(key, name) {
            return KeyMatch::Value { is_folded: key != name };
        }
        let dot = name.match_indices('.').map(|(dot, _)| dot).find(|dot| is_same_key(key, &name[..*dot]));
        dot.map_or(KeyMatch::Nothing, |dot| KeyMatch::Object { rest: &name[dot + 1..], is_folded: key != &name[..dot] })
    }
}

impl<'de, 'n> DeserializeSeed<'de> for KeyOf<'n> {
    type Value = KeyMatch<'n>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<KeyMatch<'n>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'n> Visitor<'_> for KeyOf<'n> {
    type Value = KeyMatch<'n>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E>(self, key: &str) -> Result<KeyMatch<'n>, E> {
        Ok(self.find(key))
    }
}

impl<'de> DeserializeSeed<'de> for ObjectFields<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ObjectFields<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<(), A::Error> {
        skip_items(items)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(found) = entries.next_key_seed(KeyOf(self.name))? {
            match found {
                KeyMatch::Nothing => drop(entries.next_value::<IgnoredAny>()?),
                KeyMatch::Value { is_folded } => {
                    self.values.is_folded |= self.is_folded || is_folded;
                    let value = entries.next_value_seed(ValueSeed)?;
                    self.values.push(value);
                }
                KeyMatch::Object { rest, is_folded } => {
                    let is_folded = self.is_folded || is_folded;
                    entries.next_value_seed(ObjectFields { name: rest, is_folded, values: &mut *self.values })?;
                }
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed {
    type Value = FieldValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<FieldValue, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed {
    type Value = FieldValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_str<E>(self, text: &str) -> Result<FieldValue, E> {
        Ok(FieldValue::Text(text.to_owned()))
    }
    fn visit_bool<E>(self, truth: bool) -> Result<FieldValue, E> {
        Ok(FieldValue::Text(truth.to_string()))
    }
    fn visit_i64<E>(self, number: i64) -> Result<FieldValue, E> {
        Ok(FieldValue::Text(number.to_string()))
    }
    fn visit_u64<E>(self, number: u64) -> Result<FieldValue, E> {
        Ok(FieldValue::Text(number.to_string()))
    }
    fn visit_f64<E>(self, number: f64) -> Result<FieldValue, E> {
        Ok(FieldValue::Decimal(number.to_string()))
    }
    fn visit_unit<E>(self) -> Result<FieldValue, E> {
        Ok(FieldValue::Other)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<FieldValue, A::Error> {
        skip_items(items).map(|()| FieldValue::Other)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<FieldValue, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(FieldValue::Other)
    }
}

fn skip_items<'de, A: SeqAccess<'de>>(mut items: A) -> Result<(), A::Error> {
    while items.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_BODY_BYTES: usize = 64 * 1024;

    fn field(text: &str, name: &str) -> Option<String> {
        match FieldValues::parse(text, name, MAX_BODY_BYTES).text() {
            BodyField::Missing => None,
            BodyField::Once(text) => Some(text.to_owned()),
            BodyField::Repeated { first, last } => Some(format!("{first:?} {last:?}")),
        }
    }

    #[test]
    fn strings_integers_and_booleans_are_text_and_nothing_else_is() {
        let body = r#"{"s":"é","e":"","i":-7,"u":18446744073709551615,"t":true,"f":1.5,"x":1e3,"n":null,"a":["b"],
            "o":{},"big":18446744073709551616}"#;
        for (name, expected) in [("s", "é"), ("e", ""), ("i", "-7"), ("u", "18446744073709551615"), ("t", "true")] {
            assert_eq!(field(body, name).as_deref(), Some(expected), "{name}");
        }
        for name in ["f", "x", "n", "a", "o", "big", "missing", "a.0", "s.x", "", ".", "o."] {
            assert_eq!(field(body, name), None, "{name}");
        }
        for body in ["", "null", "[1]", "account=a7", "{\"account\":\"a7\"", r#"{"account":"a7"} more"#] {
            assert_eq!(field(body, "account"), None, "{body}");
        }
    }

    /// Otherwise `max_tokens: 1e6` would be an estimate of nothing.
    #[test]
    fn a_cost_reads_every_spelling_of_a_number() {
        let body =
            r#"{"s":"7","i":7,"f":1.5,"x":1e3,"neg":-2.5,"big":18446744073709551616,"n":null,"a":[1],"o":{"i":1.0}}"#;
        let values = |name| FieldValues::parse(body, name, MAX_BODY_BYTES);
        for (name, expected) in [
            ("s", "7"),
            ("i", "7"),
            ("f", "1.5"),
            ("x", "1000"),
            ("neg", "-2.5"),
            ("big", "18446744073709552000"),
            ("o.i", "1"),
        ] {
            assert_eq!(values(name).text_or_number(), BodyField::Once(expected), "{name}");
        }
        for name in ["n", "a", "o", "missing"] {
            assert_eq!(values(name).text_or_number(), BodyField::Missing, "{name}");
        }
    }

    #[test]
    fn dots_separate_nested_keys_or_are_part_of_one() {
        assert_eq!(field(r#"{"user":{"id":42}}"#, "user.id").as_deref(), Some("42"));
        assert_eq!(field(r#"{"user.id":"b"}"#, "user.id").as_deref(), Some("b"));
        let url = r#"{"https://example.com/app":{"org":{"id":"c"}}}"#;
        assert_eq!(field(url, "https://example.com/app.org.id").as_deref(), Some("c"));
    }

    /// Otherwise a client counts under a new subject with each request, and the upstream reads the other value.
    #[test]
    fn a_field_that_parsers_read_differently_is_repeated() {
        for (body, name, expected) in [
            (r#"{"account":"a","account":"b"}"#, "account", r#"Some("a") Some("b")"#),
            (r#"{"account":"a","x":1,"Account":"b"}"#, "account", r#"Some("a") Some("b")"#),
            (r#"{"ACCOUNT":"a","account":"b"}"#, "account", r#"Some("a") Some("b")"#),
            (r#"{"account":null,"account":"b"}"#, "account", r#"None Some("b")"#),
            ("{\"kiss\":\"a\",\"\u{212a}i\u{17f}s\":\"b\"}", "kiss", r#"Some("a") Some("b")"#),
            (r#"{"user":{"id":"a"},"user":{"id":"b"}}"#, "user.id", r#"Some("a") Some("b")"#),
            (r#"{"user":{"id":"a"},"User":{"ID":"b"}}"#, "user.id", r#"Some("a") Some("b")"#),
            (r#"{"user.id":"a","user":{"id":"b"}}"#, "user.id", r#"Some("a") Some("b")"#),
            (r#"{"a":1,"\u0061":2,"a":3}"#, "a", r#"Some("1") Some("3")"#),
        ] {
            assert_eq!(field(body, name).as_deref(), Some(expected), "{body}");
        }
        assert_eq!(field(r#"{"other":1,"other":2,"account":"a"}"#, "account").as_deref(), Some("a"));
        assert_eq!(field(r#"{"x":{"account":"b"},"account":"a"}"#, "account").as_deref(), Some("a"));
        assert_eq!(field(r#"{"Account":"a"}"#, "account"), None, "it may be another field");
    }

    #[test]
    fn a_deep_or_long_body_is_not_read() {
        let nested = |levels| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
        assert_eq!(field(&nested(3), "a.a.a").as_deref(), Some("1"));
        assert_eq!(field(&nested(10_000), "a"), None);
        assert_eq!(field(&format!("{{\"a\":{}1}}", " ".repeat(MAX_BODY_BYTES)), "a"), None);
    }

    /// Otherwise a body of small members would take about thirty times its length.
    #[test]
    fn of_many_values_only_the_first_and_the_last_are_kept() {
        let values = |body: &str| FieldValues::parse(body, "a", MAX_BODY_BYTES);
        let others = values(&format!("{{{}\"a\":7}}", "\"\":0,".repeat(10_000)));
        assert!(matches!(others, FieldValues { first: Some(FieldValue::Text(_)), last: None, is_folded: false }));
        let same = values(&format!("{{{}\"A\":7}}", "\"a\":0,".repeat(10_000)));
        assert_eq!(same.text(), BodyField::Repeated { first: Some("0"), last: Some("7") });
        let nested = values(&format!("{{\"a\":{{{}\"b\":1}}}}", "\"b\":0,".repeat(10_000)));
        assert!(matches!(nested.first, Some(FieldValue::Other)), "an object is not kept");
    }

    /// A name with many dots against keys that match it in every grouping: each object is visited once.
    #[test]
    fn the_work_for_an_ambiguous_body_is_linear_in_its_size() {
        let keys = ["a", "a.a", "a.a.a", "a.a.a.a"].map(|key| format!("\"{key}\":{{\"a\":{{\"a\":{{}}}}}}")).join(",");
        let name = vec!["a"; 2000].join(".");
        assert_eq!(field(&format!("{{{keys}}}"), &name), None);
    }

    #[test]
    fn no_text_panics() {
        bolero::check!().with_type::<(String, String)>().for_each(|(text, name)| {
            let _ = field(text, name);
            let body = serde_json::json!({ name.as_str(): text }).to_string();
            assert_eq!(field(&body, name).as_ref(), Some(text));
        });
    }
}
