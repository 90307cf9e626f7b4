//! Whether a body is a JSON object that every server reads alike. Keeps nothing of it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Whether a body is a JSON object in UTF-8.
///
/// Some servers also read a byte order mark, UTF-16, `NaN`, numbers and nesting without bounds, and halves of surrogate pairs. The rules do
/// not, so they would not see the fields of such a body.
pub(super) fn is_json_object(body: &[u8]) -> bool {
    let is_object = body.trim_ascii_start().starts_with(b"{");
    is_object && str::from_utf8(body).is_ok_and(|text| serde_json::from_str::<StrictJson>(text).is_ok())
}

/// A JSON value, of which every part was read and none is kept.
struct StrictJson;

impl<'de> Deserialize<'de> for StrictJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for StrictJson {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self, A::Error> {
        while entries.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_that_every_server_reads_alike_is_one() {
        for text in ["{}", " {\"a\":[1,-2.5e3,\"\\u00e9\\ud83d\\ude00\",null,true,{\"b\":{}}]}\n", "{\"a\":1,\"a\":2}"]
        {
            assert!(is_json_object(text.as_bytes()), "{text}");
        }
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
        let utf16: Vec<u8> = "{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let others: [&[u8]; 16] = [
            b"",
            b"not JSON",
            b"[]",
            b"\"text\"",
            b"{\"a\":1",
            b"{\"a\":1} {}",
            b"{\"a\":NaN}",
            b"{\"a\":Infinity}",
            b"{\"a\":1e999}",
            b"{'a':1}",
            b"{\"a\":\"\\ud800\"}",
            b"{\"\\udc00\":1}",
            b"{\"a\":\"\xff\"}",
            b"\xef\xbb\xbf{}",
            &utf16,
            deep.as_bytes(),
        ];
        for text in others {
            assert!(!is_json_object(text), "{}", String::from_utf8_lossy(text));
        }
    }
}
