//! Serde's access traits for a [`Node`]: by item, by entry, by variant, and as a value with its position.

use serde::de::value::{SeqDeserializer, StringDeserializer, UsizeDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::Node;
use super::deserializer::{DecodeError, NodeDeserializer};

/// Start, end, removed fields and value of a [`Spanned`](super::Spanned), as a sequence.
pub(super) struct SpannedAccess<'n> {
    pub(super) reader: Option<NodeDeserializer<'n>>,
    pub(super) returned: u8,
}

impl<'de> SeqAccess<'de> for SpannedAccess<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        self.returned += 1;
        let Some(reader) = &self.reader else { return Ok(None) };
        let offset = |byte: usize| -> UsizeDeserializer<DecodeError> { byte.into_deserializer() };
        match self.returned {
            1 => seed.deserialize(offset(reader.node.span.start)).map(Some),
            2 => seed.deserialize(offset(reader.node.span.end)).map(Some),
            3 => seed.deserialize(SeqDeserializer::new(reader.node.removed.iter().cloned())).map(Some),
            _ => self.reader.take().map(|reader| seed.deserialize(reader)).transpose(),
        }
    }
}

/// A single node as a list of one item.
pub(super) struct SingleItemAccess<'n>(pub(super) Option<NodeDeserializer<'n>>);

impl<'de> SeqAccess<'de> for SingleItemAccess<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        self.0.take().map(|reader| seed.deserialize(reader)).transpose()
    }
}

pub(super) struct ListAccess<'r, 'n> {
    pub(super) reader: &'r NodeDeserializer<'n>,
    pub(super) list: &'n [Node],
    pub(super) next: usize,
}

impl<'de> SeqAccess<'de> for ListAccess<'_, '_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        let Some(item) = self.list.get(self.next) else { return Ok(None) };
        let reader = self.reader.inner(self.next, item);
        self.next += 1;
        seed.deserialize(reader).map(Some)
    }
}

pub(super) struct MapEntryAccess<'r, 'n> {
    pub(super) reader: &'r NodeDeserializer<'n>,
    pub(super) map: &'n [(Node, Node)],
    pub(super) next: usize,
}

impl<'de> MapAccess<'de> for MapEntryAccess<'_, '_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let Some((key, _)) = self.map.get(self.next) else {
            self.reader.current.set(None);
            return Ok(None);
        };
        self.reader.current.set(Some(self.next));
        seed.deserialize(self.reader.inner(self.next, key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        let index = self.next;
        self.next += 1;
        seed.deserialize(self.reader.inner(index, &self.map[index].1))
    }
}

pub(super) struct VariantNameAccess<'n> {
    pub(super) name: String,
    pub(super) reader: NodeDeserializer<'n>,
}

impl<'de, 'n> EnumAccess<'de> for VariantNameAccess<'n> {
    type Error = DecodeError;
    type Variant = NodeDeserializer<'n>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, NodeDeserializer<'n>), DecodeError> {
        let name: StringDeserializer<DecodeError> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self.reader))
    }
}

impl<'de> VariantAccess<'de> for NodeDeserializer<'_> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DecodeError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _length: usize, _visitor: V) -> Result<V::Value, DecodeError> {
        Err(self.type_error("a single value"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_struct("", fields, visitor)
    }
}
