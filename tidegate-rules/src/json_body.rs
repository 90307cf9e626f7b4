//! `JsonBody`: the fields of a JSON body. It keeps what parsers disagree on: keys that come more than once.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A JSON body, or a part of it.
#[derive(Debug)]
pub(crate) enum JsonBody {
    /// Every key, in order.
    Object(Vec<(String, JsonBody)>),
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

/// The values under a name.
#[derive(Default)]
struct Candidates<'b> {
    values: Vec<&'b JsonBody>,
    /// Whether a key on the way to one of them is in other letters than the name.
    is_folded: bool,
}

impl JsonBody {
    /// Parses a body of at most `max_bytes`. `None` if it is longer, invalid, or nested deeper than the 128 levels of `serde_json`.
    pub(crate) fn parse(text: &str, max_bytes: usize) -> Option<Self> {
        if text.len() > max_bytes {
            return None;
        }
        serde_json::from_str(text).ok()
    }

    /// The field `name`: a key, or keys of nested objects with dots between them.
    ///
    /// Parsers differ in which of two equal keys counts, and some, such as Go's, take `Account` for `account`. So a field that is
    /// there twice in any letters is repeated, and so is one that is there as one key and as a nested one.
    pub(crate) fn field(&self, name: &str) -> BodyField<'_> {
        self.field_with(name, Self::text)
    }

    /// The field `name`, which may be any number.
    pub(crate) fn text_or_number(&self, name: &str) -> BodyField<'_> {
        self.field_with(name, |value| match value {
            Self::Decimal(digits) => Some(digits),
            value => value.text(),
        })
    }

    fn field_with<'b>(&'b self, name: &str, text: fn(&'b Self) -> Option<&'b str>) -> BodyField<'b> {
        let mut found = Candidates::default();
        self.collect(name, false, &mut found);
        match found.values.as_slice() {
            [] => BodyField::Missing,
            [_] if found.is_folded => BodyField::Missing,
            [value] => text(value).map_or(BodyField::Missing, BodyField::Once),
            [first, .., last] => BodyField::Repeated { first: text(first), last: text(last) },
        }
    }

    /// Each object is visited at most once, because only one sequence of keys leads to it.
    fn collect<'b>(&'b self, name: &str, is_folded: bool, found: &mut Candidates<'b>) {
        let Self::Object(entries) = self else { return };
        for (key, value) in entries {
            if is_same_key(key, name) {
                found.is_folded |= is_folded || key != name;
                found.values.push(value);
            }
            if !matches!(value, Self::Object(_)) {
                continue;
            }
            for (dot, _) in name.match_indices('.') {
                if is_same_key(key, &name[..dot]) {
                    value.collect(&name[dot + 1..], is_folded || key != &name[..dot], found);
                }
            }
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Object(_) | Self::Decimal(_) | Self::Other => None,
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

impl<'de> Deserialize<'de> for JsonBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonVisitor;
        impl<'de> Visitor<'de> for JsonVisitor {
            type Value = JsonBody;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }
            fn visit_str<E>(self, text: &str) -> Result<JsonBody, E> {
                Ok(JsonBody::Text(text.to_owned()))
            }
            fn visit_string<E>(self, text: String) -> Result<JsonBody, E> {
                Ok(JsonBody::Text(text))
            }
            fn visit_bool<E>(self, truth: bool) -> Result<JsonBody, E> {
                Ok(JsonBody::Text(truth.to_string()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<JsonBody, E> {
                Ok(JsonBody::Text(number.to_string()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<JsonBody, E> {
                Ok(JsonBody::Text(number.to_string()))
            }
            fn visit_f64<E>(self, number: f64) -> Result<JsonBody, E> {
                Ok(JsonBody::Decimal(number.to_string()))
            }
            fn visit_unit<E>(self) -> Result<JsonBody, E> {
                Ok(JsonBody::Other)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonBody, A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(JsonBody::Other)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<JsonBody, A::Error> {
                let mut object = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    object.push(entry);
                }
                Ok(JsonBody::Object(object))
            }
        }
        deserializer.deserialize_any(JsonVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_BODY_BYTES: usize = 64 * 1024;

    fn field(text: &str, name: &str) -> Option<String> {
        match JsonBody::parse(text, MAX_BODY_BYTES)?.field(name) {
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
        let body = JsonBody::parse(body, MAX_BODY_BYTES).unwrap();
        for (name, expected) in [
            ("s", "7"),
            ("i", "7"),
            ("f", "1.5"),
            ("x", "1000"),
            ("neg", "-2.5"),
            ("big", "18446744073709552000"),
            ("o.i", "1"),
        ] {
            assert_eq!(body.text_or_number(name), BodyField::Once(expected), "{name}");
        }
        for name in ["n", "a", "o", "missing"] {
            assert_eq!(body.text_or_number(name), BodyField::Missing, "{name}");
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
