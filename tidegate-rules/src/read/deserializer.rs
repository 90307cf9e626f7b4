//! From [`Node`] to the schema types with serde, so that the schema and the reader use the same types.
//!
//! Serde stops at the first error. To report all errors at once, the invalid part is reported and removed, and the rest is
//! decoded again. A field that is missing because it was removed is not reported again. A placeholder takes the place of a missing field:
//! [`Required`](super::Required) reads it, so that the fields beside it are kept. Where nothing reads it, the whole part is removed.

use std::cell::Cell;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::access::{ListAccess, MapEntryAccess, SingleItemAccess, SpannedAccess, VariantNameAccess};
use super::spanned::{ONE_OR_MANY, REQUIRED, SPANNED, has_lost};
use super::{Node, NodeKind};
use crate::problem::{MAX_PROBLEMS, Problem};
use crate::source_file::Span;
use crate::suggest::suggest;

/// The name of enums with a variant for each shape of a value: `number`, `text`, `list`, `map`.
const SHAPE: &str = "$shape";

/// Fields that belong elsewhere or that a later version may support, with what to do instead.
const MISPLACED_FIELDS: [(&str, &str); 3] = [
    (
        "keep_names",
        "only a quota with a ledger has it: `quota: { amount: 1000, period: month, ledger: sync, keep_names: true }`",
    ),
    ("ledger", "only a quota has one: `quota: { amount: 1000, period: month, ledger: sync }`"),
    ("rollout", "this version does not support it; remove the field"),
];

/// How sections are written that look as if a single value were enough, by their types.
const NOTATIONS: [(&str, &str); 8] = [
    ("ConcurrencySpec", "write `concurrency: { max: 3 }`"),
    ("FixedWindowSpec", "write `fixed_window: { limit: 100, window: 1m }`"),
    ("LeakyBucketSpec", "write `leaky_bucket: { rate: 10/s, queue: 20 }`"),
    ("PenaltySpec", "write `penalty: { after: 3, block: 1m, max: 1h }`"),
    ("QuotaSpec", "write `quota: { amount: 1000, period: month }`"),
    ("SlidingLogSpec", "write `sliding_log: { limit: 100, window: 1m }`"),
    ("SlidingWindowSpec", "write `sliding_window: { limit: 100, window: 1m }`"),
    ("TokenBucketSpec", "write `token_bucket: { capacity: 10, refill: 1/s }`"),
];

/// Decodes a document or a part of it, and appends its problems. `None` if nothing can be decoded; otherwise invalid parts were removed.
pub fn decode<T: for<'de> Deserialize<'de>>(mut root: Node, problems: &mut Vec<Problem>) -> Option<T> {
    while problems.len() < MAX_PROBLEMS {
        let error = match T::deserialize(NodeDeserializer::at_root(&root)) {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let mut position = error.position.unwrap_or_else(|| Box::new(NodeDeserializer::at_root(&root).position()));
        // A misspelt field is removed, and then the right one is missing.
        let is_removed = error.missing.is_some_and(|field| has_lost(&position.removed, &[field]));
        let is_reported = position.is_placeholder || is_removed;
        if !is_reported {
            let problem = Problem::error(error.code, error.message, position.span);
            problems.push(match error.help {
                Some(help) => problem.with_help(help),
                None => problem,
            });
        }
        if let Some(field) = error.missing {
            root.insert_placeholder(&position.path, field);
            continue;
        }
        if position.is_placeholder {
            // The map that cannot be without this field.
            position.path.pop();
        }
        if position.path.is_empty() {
            return None;
        }
        root.remove_at(&position.path);
    }
    None
}

/// Why a part cannot be decoded.
#[derive(Debug)]
pub(super) struct DecodeError {
    code: &'static str,
    message: String,
    help: Option<String>,
    /// The missing field, if one is missing.
    missing: Option<&'static str>,
    /// The position, once known: serde creates errors without it.
    position: Option<Box<DecodePosition>>,
}

#[derive(Debug)]
struct DecodePosition {
    span: Span,
    path: Vec<usize>,
    removed: Vec<String>,
    is_placeholder: bool,
}

/// A node, and the path to it from the root.
pub(super) struct NodeDeserializer<'n> {
    pub(super) node: &'n Node,
    path: Vec<usize>,
    /// The index of the map entry that is being read, for errors without a position.
    pub(super) current: Cell<Option<usize>>,
}

impl<'n> NodeDeserializer<'n> {
    const fn at_root(node: &'n Node) -> Self {
        Self { node, path: Vec::new(), current: Cell::new(None) }
    }

    pub(super) fn inner(&self, index: usize, node: &'n Node) -> Self {
        let mut path = self.path.clone();
        path.push(index);
        Self { node, path, current: Cell::new(None) }
    }

    /// An error at this node.
    fn error(&self, code: &'static str, message: impl Into<String>) -> DecodeError {
        DecodeError {
            code,
            message: message.into(),
            help: None,
            missing: None,
            position: Some(Box::new(self.position())),
        }
    }

    fn position(&self) -> DecodePosition {
        let Node { span, removed, is_placeholder, .. } = self.node;
        DecodePosition {
            span: span.clone(),
            path: self.path.clone(),
            removed: removed.clone(),
            is_placeholder: *is_placeholder,
        }
    }

    pub(super) fn type_error(&self, what: &str) -> DecodeError {
        self.error("type", format!("expected {what}, found {}", self.node.type_name()))
    }

    /// Adds this node's position to an error without one.
    fn here<V>(&self, result: Result<V, DecodeError>) -> Result<V, DecodeError> {
        let position = || match (self.current.get(), &self.node.kind) {
            (Some(index), NodeKind::Map(entries)) => self.inner(index, &entries[index].0).position(),
            _ => self.position(),
        };
        result.map_err(|error| DecodeError { position: error.position.or_else(|| Some(Box::new(position()))), ..error })
    }

    fn integer(&self) -> Result<i128, DecodeError> {
        match &self.node.kind {
            NodeKind::Whole(value, _) => Ok(*value),
            NodeKind::Text(text) => match crate::quantity::parse_count(text) {
                Ok(value) => Ok(value.into()),
                Err(_) => Err(self.type_error("a whole number")),
            },
            _ => Err(self.type_error("a whole number")),
        }
    }

    fn entries(&self) -> Result<&'n [(Node, Node)], DecodeError> {
        match &self.node.kind {
            NodeKind::Map(entries) => Ok(entries),
            // `identify:` without a value is an empty map.
            NodeKind::Null => Ok(&[]),
            _ => Err(self.type_error("a map")),
        }
    }

    /// Every key must be one of `fields`.
    fn check_fields(&self, fields: &'static [&'static str]) -> Result<(), DecodeError> {
        for (index, (key, _)) in self.entries()?.iter().enumerate() {
            let name = key.text().unwrap_or_default();
            if !fields.contains(&name) {
                let error = self.inner(index, key).error("unknown-field", format!("unknown field `{name}`"));
                let misplaced = MISPLACED_FIELDS.iter().find(|(field, _)| *field == name);
                let help = misplaced.map(|(_, help)| (*help).to_owned());
                let help = help.unwrap_or_else(|| suggest(name, fields.iter().copied()));
                return Err(DecodeError { help: Some(help), ..error });
            }
        }
        Ok(())
    }
}

macro_rules! deserialize_integers {
    ($($method:ident $visit:ident $number:ty),*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            let value = self.integer()?;
            let value = <$number>::try_from(value).map_err(|_| {
                let max = i128::from(<$number>::MAX).min(i128::from(tidegate::spi::MAX_AMOUNT));
                self.error("type", format!("{value} is out of range: it must be {} to {max}", <$number>::MIN))
            })?;
            self.here(visitor.$visit(value))
        })*
    };
}

impl<'de> Deserializer<'de> for NodeDeserializer<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.node.kind {
            NodeKind::Null => self.here(visitor.visit_unit()),
            NodeKind::Bool(value, _) => self.here(visitor.visit_bool(*value)),
            NodeKind::Whole(..) => self.deserialize_i64(visitor),
            NodeKind::Float(value, _) => self.here(visitor.visit_f64(*value)),
            NodeKind::Text(text) => self.here(visitor.visit_str(text)),
            NodeKind::List(_) => self.deserialize_seq(visitor),
            NodeKind::Map(_) => self.deserialize_map(visitor),
        }
    }

    deserialize_integers!(deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_i64 visit_i64 i64,
        deserialize_i128 visit_i128 i128);

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.kind {
            NodeKind::Bool(value, _) => self.here(visitor.visit_bool(value)),
            _ => Err(self.type_error("true or false")),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.text() {
            Some(text) => self.here(visitor.visit_str(text)),
            None => Err(self.type_error("text")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.kind {
            NodeKind::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match (name, &self.node.kind) {
            (SPANNED, _) => visitor.visit_seq(SpannedAccess { reader: Some(self), returned: 0 }),
            (REQUIRED, _) if self.node.is_placeholder => visitor.visit_none(),
            (ONE_OR_MANY, NodeKind::List(_)) => self.deserialize_seq(visitor),
            (ONE_OR_MANY, _) => visitor.visit_seq(SingleItemAccess(Some(self))),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.node.kind {
            NodeKind::List(items) => {
                let result = visitor.visit_seq(ListAccess { reader: &self, list: items, next: 0 });
                self.here(result)
            }
            _ => Err(self.type_error("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let entries = self.entries()?;
        let result = visitor.visit_map(MapEntryAccess { reader: &self, map: entries, next: 0 });
        self.here(result)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.check_fields(fields).map_err(|error| {
            let notation = NOTATIONS.iter().find(|(section, _)| *section == name).map(|(_, help)| (*help).to_owned());
            DecodeError { help: error.help.or(notation), ..error }
        })?;
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let (variant, shaped) = if name == SHAPE {
            let shape = match self.node.kind {
                NodeKind::Whole(..) => "number",
                NodeKind::List(_) => "list",
                NodeKind::Map(_) => "map",
                _ => "text",
            };
            (shape, true)
        } else {
            (self.node.text().ok_or_else(|| self.type_error("a name"))?, false)
        };
        if !variants.contains(&variant) {
            if shaped {
                return Err(self.type_error("another type"));
            }
            let error = self.error("unknown-value", format!("`{variant}` is not a valid value"));
            return Err(DecodeError { help: Some(suggest(variant, variants.iter().copied())), ..error });
        }
        visitor.visit_enum(VariantNameAccess { name: variant.to_owned(), reader: self })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct
    }
}

impl de::Error for DecodeError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self { code: "value", message: message.to_string(), help: None, missing: None, position: None }
    }

    fn missing_field(field: &'static str) -> Self {
        let message = format!("the field `{field}` is missing");
        Self { code: "missing-field", missing: Some(field), ..Self::custom(message) }
    }
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DecodeError {}
