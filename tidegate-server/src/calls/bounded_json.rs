//! Lists and maps of JSON with a maximum number of entries. Reading stops at the first entry too many, so that a body within its
//! size cannot take more memory and time than its entries need.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// How the message for too many entries begins. No message of serde begins so.
pub(crate) const TOO_MANY: &str = "at most ";

/// A list with up to `MAX` entries.
pub(crate) struct BoundedList<T, const MAX: usize>(pub(crate) Vec<T>);

/// A map with up to `MAX` entries.
pub(crate) struct BoundedMap<T, const MAX: usize>(pub(crate) BTreeMap<String, T>);

/// A text, or a list with up to `MAX` of them.
pub(crate) struct TextOrList<const MAX: usize>(pub(crate) Vec<String>);

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);
struct MapVisitor<T, const MAX: usize>(PhantomData<T>);
struct TextVisitor<const MAX: usize>;

impl<T, const MAX: usize> Default for BoundedMap<T, MAX> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

fn too_many<E: serde::de::Error>(max: usize) -> E {
    E::custom(format_args!("{TOO_MANY}{max} entries"))
}

/// Reads the entries of a list.
fn read_list<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(mut entries: A, max: usize) -> Result<Vec<T>, A::Error> {
    let mut list = Vec::new();
    while let Some(entry) = entries.next_element()? {
        if list.len() == max {
            return Err(too_many(max));
        }
        list.push(entry);
    }
    Ok(list)
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = BoundedList<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, entries: A) -> Result<Self::Value, A::Error> {
        read_list(entries, MAX).map(BoundedList)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for MapVisitor<T, MAX> {
    type Value = BoundedMap<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let (mut map, mut count) = (BTreeMap::new(), 0);
        while let Some((name, value)) = entries.next_entry()? {
            if count == MAX {
                return Err(too_many(MAX));
            }
            // A name that is repeated counts too.
            count += 1;
            map.insert(name, value);
        }
        Ok(BoundedMap(map))
    }
}

impl<'de, const MAX: usize> Visitor<'de> for TextVisitor<MAX> {
    type Value = TextOrList<MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOrList(vec![text.to_owned()]))
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(TextOrList(vec![text]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, entries: A) -> Result<Self::Value, A::Error> {
        read_list(entries, MAX).map(TextOrList)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedList<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedMap<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MapVisitor(PhantomData))
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for TextOrList<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error<T: for<'de> Deserialize<'de>>(text: &str) -> Option<String> {
        serde_json::from_str::<T>(text).err().map(|error| error.to_string())
    }

    #[test]
    fn reading_stops_at_the_first_entry_too_many() {
        type List = BoundedList<u8, 2>;
        type Map = BoundedMap<TextOrList<2>, 2>;
        assert_eq!((error::<List>("[1,2]"), error::<Map>(r#"{"a":"1","b":["1","2"]}"#)), (None, None));
        for error in [
            error::<List>("[1,2,3,this is not read"),
            error::<Map>(r#"{"a":"","b":"","c":"",this is not read"#),
            error::<Map>(r#"{"a":"","a":"","a":"",this is not read"#),
            error::<Map>(r#"{"a":["","","",this is not read"#),
        ] {
            assert!(error.as_ref().is_some_and(|error| error.starts_with("at most 2 entries")), "{error:?}");
        }
    }
}
