//! `OptionalField`: a field that may be left out, but not left empty; `OverridableField`: a field that is laid over another, or takes it away.
//! An `Option` would treat null (`~`) like a missing field, and an expectation of null could not fail.

use std::borrow::Cow;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer, Error};
use tidegate_rules::internals::Spanned;

/// A field that may be missing. Null (`~`) is an error.
#[derive(Clone, Debug)]
pub(in crate::testing) struct OptionalField<T>(Option<T>);

/// A field of a request: a missing one keeps the outer value, null (`~`) removes it.
#[derive(Clone, Debug)]
pub(in crate::testing) struct OverridableField<T>(Option<Spanned<Option<T>>>);

/// Deserializes a value; null is an error at the field's position.
pub(super) fn non_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    let nothing = || D::Error::custom("there is no value: write one, or remove the field");
    Option::deserialize(deserializer)?.ok_or_else(nothing)
}

// === impl OptionalField ===

impl<T> Default for OptionalField<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Deref for OptionalField<T> {
    type Target = Option<T>;

    fn deref(&self) -> &Option<T> {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OptionalField<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        non_null(deserializer).map(|value| Self(Some(value)))
    }
}

impl<T: JsonSchema> JsonSchema for OptionalField<T> {
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

// === impl OverridableField ===

impl<T: Clone> OverridableField<T> {
    /// The value merged over `base`.
    pub(in crate::testing) fn merge_over(&self, base: Option<&T>) -> Option<T> {
        match &self.0 {
            Some(at) => at.value.clone(),
            None => base.cloned(),
        }
    }

    /// The value with its place, if there is one.
    pub(in crate::testing) fn value(&self) -> Option<Spanned<&T>> {
        let at = self.0.as_ref()?;
        Some(Spanned::new(at.value.as_ref()?, at.span.clone()))
    }
}

impl<T> Default for OverridableField<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OverridableField<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Spanned::deserialize(deserializer).map(|at| Self(Some(at)))
    }
}

impl<T: JsonSchema> JsonSchema for OverridableField<T> {
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
