//! `BodyFields`: fields of a JSON body, from one pass over it. It tells what parsers disagree on: keys that come more than once.
//!
//! Of a body, only the values under the names that are asked for are kept, and of many the first and the last: a body of small members would
//! take many times its length.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;
use tidegate::attributes::fold_case;

/// The values under each of several names in a body.
#[derive(Debug)]
pub(crate) struct BodyFields(Vec<FieldValues>);

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

impl BodyFields {
    /// Reads the fields `names` of a body: each a key, or keys of nested objects with dots between them. The body has at most `max_bytes`.
    /// Finds nothing if it is longer or invalid.
    pub(crate) fn parse(text: &str, names: &[impl AsRef<str>], max_bytes: usize) -> Self {
        #[cfg(test)]
        PASSES.set(passes() + 1);
        let nothing = || names.iter().map(|_| FieldValues::default()).collect();
        if text.len() > max_bytes {
            return Self(nothing());
        }
        let mut values: Vec<_> = nothing();
        let target = |(field, name)| Target { field, rest: Some(AsRef::as_ref(name)), is_folded: false };
        let body = ValueOf { targets: names.iter().enumerate().map(target).collect(), values: &mut values };
        let mut json = serde_json::Deserializer::from_str(text);
        let is_valid = body.deserialize(&mut json).and_then(|()| json.end()).is_ok();
        Self(if is_valid { values } else { nothing() })
    }

    /// The values under the name at `index`.
    pub(crate) fn get(&self, index: usize) -> Option<&FieldValues> {
        self.0.get(index)
    }
}

impl FieldValues {
    /// Reads one field.
    pub(crate) fn parse(text: &str, name: &str, max_bytes: usize) -> Self {
        BodyFields::parse(text, &[name], max_bytes).0.pop().unwrap_or_default()
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

/// A field that is looked for in a value of the body.
#[derive(Clone, Copy)]
struct Target<'n> {
    /// The index of its name.
    field: usize,
    /// The part of its name that is looked for in the value; `None` if the value is the field.
    rest: Option<&'n str>,
    is_folded: bool,
}

type Targets<'n> = SmallVec<[Target<'n>; 4]>;

/// Finds what a key leads to, without keeping it.
struct KeyOf<'t, 'n>(&'t [Target<'n>]);

/// Collects the fields from a value.
struct ValueOf<'n, 'v> {
    targets: Targets<'n>,
    values: &'v mut [FieldValues],
}

impl Target<'_> {
    /// What is looked for in the value under a key. Only one part of a name can be the key, so that each object is visited once.
    fn below(self, key: &str) -> Option<Self> {
        let (part, rest) = split_after_key(self.rest?, key)?;
        Some(Self { rest, is_folded: self.is_folded || part != key, ..self })
    }
}

/// The part of a name that is a key but for the case of its letters, as Unicode defines it, and what comes after the dot behind it.
fn split_after_key<'n>(name: &'n str, key: &str) -> Option<(&'n str, Option<&'n str>)> {
    if name.is_ascii() && key.is_ascii() {
        let (part, rest) = name.split_at_checked(key.len())?;
        let rest = if rest.is_empty() { None } else { Some(rest.strip_prefix('.')?) };
        return part.eq_ignore_ascii_case(key).then_some((part, rest));
    }
    // Compared letter by letter, so that a long key costs no more than the part of it that is like the name.
    let mut key = key.chars().flat_map(fold_case).peekable();
    for (index, letter) in name.char_indices() {
        if letter == '.' && key.peek().is_none() {
            return Some((&name[..index], Some(&name[index + 1..])));
        }
        if !fold_case(letter).all(|letter| key.next() == Some(letter)) {
            return None;
        }
    }
    key.next().is_none().then_some((name, None))
}

impl<'de, 'n> DeserializeSeed<'de> for KeyOf<'_, 'n> {
    type Value = Targets<'n>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Targets<'n>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'n> Visitor<'_> for KeyOf<'_, 'n> {
    type Value = Targets<'n>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E>(self, key: &str) -> Result<Targets<'n>, E> {
        Ok(self.0.iter().filter_map(|target| target.below(key)).collect())
    }
}

impl ValueOf<'_, '_> {
    /// Keeps the value for each field that it is.
    fn keep(self, value: impl Fn() -> FieldValue) {
        for target in self.targets.iter().filter(|target| target.rest.is_none()) {
            let values = &mut self.values[target.field];
            values.is_folded |= target.is_folded;
            values.push(value());
        }
    }
}

impl<'de> DeserializeSeed<'de> for ValueOf<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueOf<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.keep(|| FieldValue::Text(text.to_owned()));
        Ok(())
    }
    fn visit_bool<E>(self, truth: bool) -> Result<(), E> {
        self.keep(|| FieldValue::Text(truth.to_string()));
        Ok(())
    }
    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.keep(|| FieldValue::Text(number.to_string()));
        Ok(())
    }
    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.keep(|| FieldValue::Text(number.to_string()));
        Ok(())
    }
    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.keep(|| FieldValue::Decimal(number.to_string()));
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        self.keep(|| FieldValue::Other);
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        self.keep(|| FieldValue::Other);
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(targets) = entries.next_key_seed(KeyOf(&self.targets))? {
            if targets.is_empty() {
                entries.next_value::<IgnoredAny>()?;
            } else {
                entries.next_value_seed(ValueOf { targets, values: &mut *self.values })?;
            }
        }
        self.keep(|| FieldValue::Other);
        Ok(())
    }
}

#[cfg(test)]
thread_local! {
    static PASSES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many bodies this thread has read.
#[cfg(test)]
pub(crate) fn passes() -> usize {
    PASSES.get()
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

    #[test]
    fn fields_that_are_read_together_are_as_each_alone() {
        let body = "{\"user\":{\"id\":1,\"ID\":2,\"x\":{\"y\":null}},\"User\":7,\"user.id\":\"a\",\"\u{212a}\":1.5,\"stra\u{df}e\":{\"a.b\":true}}";
        let names =
            ["user", "user.id", "user.x", "user.x.y", "User", "k", "\u{212a}", "STRASSE.a.b", "user.id.x", "", "."];
        let together = BodyFields::parse(body, &names, MAX_BODY_BYTES);
        let mut found = 0;
        for (index, name) in names.iter().enumerate() {
            let alone = FieldValues::parse(body, name, MAX_BODY_BYTES);
            assert_eq!(format!("{:?}", together.get(index).unwrap()), format!("{alone:?}"), "{name}");
            found += usize::from(alone.first.is_some());
        }
        assert_eq!(found, 8, "all but the last three");
        assert!(BodyFields::parse("{\"user\":1", &names, MAX_BODY_BYTES).0.iter().all(|field| field.first.is_none()));
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
