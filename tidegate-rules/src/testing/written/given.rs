//! `Given`: a field that may be left out, but not left empty; `Over`: a field that is laid over another, or takes it away.
//! To an `Option` both look the same as nothing (`~`), and an expectation that is nothing could not fail.

use std::borrow::Cow;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer, Error};

use crate::read::At;

/// A field that may be left out. Nothing (`~`) in its place is an error.
#[derive(Clone, Debug)]
pub(in crate::testing) struct Given<T>(Option<T>);

/// A field of a request: left out, it stays as it was; nothing (`~`) takes it away.
#[derive(Clone, Debug)]
pub(in crate::testing) struct Over<T>(Option<At<Option<T>>>);

/// A value that is there. An empty field is an error, with the field's place.
pub(super) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    let nothing = || D::Error::custom("there is nothing here: leave it out, or write a value");
    Option::deserialize(deserializer)?.ok_or_else(nothing)
}

// === impl Given ===

impl<T> Default for Given<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Deref for Given<T> {
    type Target = Option<T>;

    fn deref(&self) -> &Option<T> {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        given(deserializer).map(|value| Self(Some(value)))
    }
}

impl<T: JsonSchema> JsonSchema for Given<T> {
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

// === impl Over ===

impl<T: Clone> Over<T> {
    /// What becomes of `base` below this.
    pub(in crate::testing) fn over(&self, base: Option<&T>) -> Option<T> {
        match &self.0 {
            Some(at) => at.value.clone(),
            None => base.cloned(),
        }
    }

    /// The value with its place, if there is one.
    pub(in crate::testing) fn written(&self) -> Option<At<&T>> {
        let at = self.0.as_ref()?;
        Some(At { value: at.value.as_ref()?, span: at.span.clone() })
    }
}

impl<T> Default for Over<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Over<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        At::deserialize(deserializer).map(|at| Self(Some(at)))
    }
}

impl<T: JsonSchema> JsonSchema for Over<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        Option::<T>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Option::<T>::json_schema(generator)
    }
}
