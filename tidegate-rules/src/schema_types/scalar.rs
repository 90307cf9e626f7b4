//! `Amount`, `BoundedAmount` and `TextScalar`: scalars with more than one notation.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

/// A whole number, which may be written as `10_000` or `10k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Amount(pub(crate) u64);

/// An [`Amount`] that must be `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoundedAmount<const MIN: u64, const MAX: u64>(pub(crate) u64);

/// A text, which may look like a number: a header's value, a tenant's name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct TextScalar(pub(crate) String);

impl Deref for TextScalar {
    type Target = String;

    fn deref(&self) -> &String {
        &self.0
    }
}

/// Reads a [`BoundedAmount`]. A negative number has the error of the bounds; one above them is refused with the limit.
struct BoundedAmountVisitor<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Visitor<'_> for BoundedAmountVisitor<MIN, MAX> {
    type Value = BoundedAmount<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Self::Value, E> {
        let out_of_range = |_| E::custom(format_args!("{value} is out of range: it must be {MIN} to {MAX}"));
        u64::try_from(value).map(BoundedAmount).map_err(out_of_range)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for BoundedAmount<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i128(BoundedAmountVisitor)
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for BoundedAmount<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("AmountFrom{MIN}To{MAX}").into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Amount::json_schema(generator);
        if let Some(number) = schema.pointer_mut("/anyOf/0") {
            (number["minimum"], number["maximum"]) = (MIN.into(), MAX.into());
        }
        schema
    }
}

impl JsonSchema for Amount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string", "pattern": "^[0-9][0-9_.]*[kM]?$" }] })
    }
}

impl JsonSchema for TextScalar {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number", "boolean"] })
    }
}
