//! The ways in which serde walks through a [`Node`]: by item, by entry, by variant, and as a value with its place.

use serde::de::value::{StringDeserializer, UsizeDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::Node;
use super::decode::{Fault, Reader};

/// A start, an end, and the value itself: what makes an [`At`](super::At).
pub(super) struct Parts<'n> {
    pub(super) reader: Option<Reader<'n>>,
    pub(super) given: u8,
}

impl<'de> SeqAccess<'de> for Parts<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        self.given += 1;
        let Some(reader) = &self.reader else { return Ok(None) };
        let place = |byte: usize| -> UsizeDeserializer<Fault> { byte.into_deserializer() };
        match self.given {
            1 => seed.deserialize(place(reader.node.span.start)).map(Some),
            2 => seed.deserialize(place(reader.node.span.end)).map(Some),
            _ => self.reader.take().map(|reader| seed.deserialize(reader)).transpose(),
        }
    }
}

/// One node as a list of itself.
pub(super) struct Single<'n>(pub(super) Option<Reader<'n>>);

impl<'de> SeqAccess<'de> for Single<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        self.0.take().map(|reader| seed.deserialize(reader)).transpose()
    }
}

pub(super) struct Items<'r, 'n> {
    pub(super) reader: &'r Reader<'n>,
    pub(super) list: &'n [Node],
    pub(super) next: usize,
}

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some(item) = self.list.get(self.next) else { return Ok(None) };
        let reader = self.reader.inner(self.next, item);
        self.next += 1;
        seed.deserialize(reader).map(Some)
    }
}

pub(super) struct Entries<'r, 'n> {
    pub(super) reader: &'r Reader<'n>,
    pub(super) map: &'n [(Node, Node)],
    pub(super) next: usize,
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        let Some((key, _)) = self.map.get(self.next) else {
            self.reader.current.set(None);
            return Ok(None);
        };
        self.reader.current.set(Some(self.next));
        seed.deserialize(self.reader.inner(self.next, key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let index = self.next;
        self.next += 1;
        seed.deserialize(self.reader.inner(index, &self.map[index].1))
    }
}

pub(super) struct Variant<'n> {
    pub(super) name: String,
    pub(super) reader: Reader<'n>,
}

impl<'de, 'n> EnumAccess<'de> for Variant<'n> {
    type Error = Fault;
    type Variant = Reader<'n>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Reader<'n>), Fault> {
        let name: StringDeserializer<Fault> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self.reader))
    }
}

impl<'de> VariantAccess<'de> for Reader<'_> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Fault> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _length: usize, _visitor: V) -> Result<V::Value, Fault> {
        Err(self.wanted("a single value"))
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_struct("", fields, visitor)
    }
}
