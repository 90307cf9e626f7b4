//! `Spanned`: a value with its position in the file; `Required`: one that must be there; `OneOrMany`: a value or a list of values. None
//! shows in the schema.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

use crate::source_file::Span;
use crate::suggest::nearest;

/// Type names by which [`decode`](super::decode) recognizes these types.
pub(super) const SPANNED: &str = "$at";
pub(super) const REQUIRED: &str = "$required";
pub(super) const ONE_OR_MANY: &str = "$one-or-many";

/// A value and its position.
#[derive(Clone, Debug)]
pub struct Spanned<T> {
    pub value: T,
    pub span: Span,
    /// The names of the fields that were invalid, and so were reported and removed; an empty name for the item of a list.
    pub removed: Vec<String>,
}

/// The value of a field that must be there. `None` if it is missing or invalid, which is reported already: the fields beside it are read
/// all the same, so that their errors are reported, too.
#[derive(Clone, Debug)]
pub(crate) struct Required<T>(Option<Spanned<T>>);

/// A single value or a list.
#[derive(Clone, Debug)]
pub struct OneOrMany<T>(pub Vec<T>);

impl<T> Spanned<T> {
    /// A value at this position.
    pub const fn new(value: T, span: Span) -> Self {
        Self { value, span, removed: Vec::new() }
    }

    /// Whether one of these fields was removed, perhaps misspelt. Then it is not missing.
    pub(crate) fn has_lost(&self, fields: &[&str]) -> bool {
        has_lost(&self.removed, fields)
    }
}

/// The same of the names that were removed from a map.
pub(super) fn has_lost(removed: &[String], fields: &[&str]) -> bool {
    removed.iter().any(|name| nearest(name, fields.iter().copied()).is_some())
}

impl<T> Deref for Spanned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Deref for Required<T> {
    type Target = Option<Spanned<T>>;

    fn deref(&self) -> &Option<Spanned<T>> {
        &self.0
    }
}

impl<T: Default> Default for Spanned<T> {
    fn default() -> Self {
        Self::new(T::default(), 0..0)
    }
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Spanned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpannedVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for SpannedVisitor<T> {
            type Value = Spanned<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value with its position")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Spanned<T>, A::Error> {
                let mut offset = || parts.next_element::<usize>().map(Option::unwrap_or_default);
                let span = offset()?..offset()?;
                let removed = parts.next_element()?.unwrap_or_default();
                let value = parts.next_element()?.ok_or_else(|| serde::de::Error::custom("a value is missing"))?;
                Ok(Spanned { value, span, removed })
            }
        }
        deserializer.deserialize_newtype_struct(SPANNED, SpannedVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Required<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RequiredVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for RequiredVisitor<T> {
            type Value = Required<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_none<E>(self) -> Result<Required<T>, E> {
                Ok(Required(None))
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Required<T>, D::Error> {
                Spanned::deserialize(deserializer).map(|value| Required(Some(value)))
            }
        }
        deserializer.deserialize_newtype_struct(REQUIRED, RequiredVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrManyVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
            type Value = OneOrMany<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one or a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OneOrMany<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(item) = items.next_element()? {
                    all.push(item);
                }
                Ok(OneOrMany(all))
            }
        }
        deserializer.deserialize_newtype_struct(ONE_OR_MANY, OneOrManyVisitor(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for Spanned<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<T: JsonSchema> JsonSchema for Required<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMany_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}
