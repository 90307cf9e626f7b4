//! From [`Node`] to the written types, by serde, so that the schema and the reader come from the same types.
//!
//! Serde stops at the first error. To tell all of them at once, the piece that is wrong is reported and taken out, and the
//! rest is decoded again. What is then missing because it was taken out is not reported a second time.

use std::cell::Cell;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::access::{ListAccess, MapEntryAccess, SingleItemAccess, SpannedAccess, VariantNameAccess};
use super::spanned::{AT, ONE_OR_MANY};
use super::{Node, NodeKind};
use crate::problem::{MAX_PROBLEMS, Problem};
use crate::source_file::Span;
use crate::suggest::{nearest, suggest};

/// An enum of this name has a variant for each shape that a value can have: `number`, `text`, `list`, `map`.
const SHAPE: &str = "$shape";

/// Words of the rule file that a later version will know.
const NOT_YET: [&str; 4] = ["concurrency", "quota", "penalty", "rollout"];

/// Decodes a document. Without a value, `problems` says why; with one, it may still have lost what is reported.
pub(crate) fn decode<T: for<'de> Deserialize<'de>>(root: Node, problems: &mut Vec<Problem>) -> Option<T> {
    decode_part(root, problems).map(|(value, _)| value)
}

/// Decodes a part of a document, and tells whether a field of it was lost.
pub(crate) fn decode_part<T: for<'de> Deserialize<'de>>(
    mut root: Node,
    problems: &mut Vec<Problem>,
) -> Option<(T, bool)> {
    while problems.len() < MAX_PROBLEMS {
        let fault = match T::deserialize(NodeDeserializer::at_root(&root)) {
            Ok(value) => return Some((value, !root.taken.is_empty())),
            Err(fault) => fault,
        };
        let place = fault.place.unwrap_or_else(|| Box::new(NodeDeserializer::at_root(&root).place()));
        // (A field with a slip of the pen is the one that is then missing.)
        let told = |field| place.taken.iter().any(|taken| nearest(taken, std::iter::once(field)).is_some());
        let told = fault.missing.is_some_and(told);
        if !told {
            let problem = Problem::error(fault.code, fault.message, place.span);
            problems.push(match fault.help {
                Some(help) => problem.with_help(help),
                None => problem,
            });
        }
        if place.path.is_empty() {
            return None;
        }
        root.take_out(&place.path);
    }
    None
}

/// Why a piece cannot be decoded.
#[derive(Debug)]
pub(super) struct DecodeError {
    code: &'static str,
    message: String,
    help: Option<String>,
    /// The field that is not there, if that is it.
    missing: Option<&'static str>,
    /// Where, once it is known: serde makes errors that do not know.
    place: Option<Box<DecodePosition>>,
}

#[derive(Debug)]
struct DecodePosition {
    span: Span,
    path: Vec<usize>,
    taken: Vec<String>,
}

/// A node, and the way to it from the root.
pub(super) struct NodeDeserializer<'n> {
    pub(super) node: &'n Node,
    path: Vec<usize>,
    /// The entry of the map that is being read, for a fault that does not know where it is.
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

    /// A fault of this node.
    fn fault(&self, code: &'static str, message: impl Into<String>) -> DecodeError {
        DecodeError { code, message: message.into(), help: None, missing: None, place: Some(Box::new(self.place())) }
    }

    fn place(&self) -> DecodePosition {
        DecodePosition { span: self.node.span.clone(), path: self.path.clone(), taken: self.node.taken.clone() }
    }

    pub(super) fn wanted(&self, what: &str) -> DecodeError {
        self.fault("type", format!("this is {}; {what} is wanted here", self.node.what()))
    }

    /// Gives a fault that does not know where it is this node's place.
    fn here<V>(&self, result: Result<V, DecodeError>) -> Result<V, DecodeError> {
        let place = || match (self.current.get(), &self.node.kind) {
            (Some(index), NodeKind::Map(entries)) => self.inner(index, &entries[index].0).place(),
            _ => self.place(),
        };
        result.map_err(|fault| DecodeError { place: fault.place.or_else(|| Some(Box::new(place()))), ..fault })
    }

    fn whole(&self) -> Result<i128, DecodeError> {
        match &self.node.kind {
            NodeKind::Whole(value, _) => Ok(*value),
            NodeKind::Text(text) => match crate::quantity::parse_count(text) {
                Ok(value) => Ok(value.into()),
                Err(_) => Err(self.wanted("a whole number")),
            },
            _ => Err(self.wanted("a whole number")),
        }
    }

    fn entries(&self) -> Result<&'n [(Node, Node)], DecodeError> {
        match &self.node.kind {
            NodeKind::Map(entries) => Ok(entries),
            // `identify:` with nothing below it is as good as an empty set.
            NodeKind::Null => Ok(&[]),
            _ => Err(self.wanted("a set of fields")),
        }
    }

    /// Every key must be one of `fields`.
    fn check_fields(&self, fields: &'static [&'static str]) -> Result<(), DecodeError> {
        for (index, (key, _)) in self.entries()?.iter().enumerate() {
            let name = key.text().unwrap_or_default();
            if !fields.contains(&name) {
                let fault = self.inner(index, key).fault("unknown-field", format!("there is no field `{name}` here"));
                let help = if NOT_YET.contains(&name) {
                    "this version has no limits of that kind yet; take the field out".into()
                } else {
                    suggest(name, fields.iter().copied())
                };
                return Err(DecodeError { help: Some(help), ..fault });
            }
        }
        Ok(())
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $number:ty),*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            let value = self.whole()?;
            let value = <$number>::try_from(value).map_err(|_| {
                let most = i128::from(<$number>::MAX).min(i128::from(tidegate::spi::MAX_AMOUNT));
                self.fault("type", format!("{value} is out of range: {} to {most} are possible", <$number>::MIN))
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

    numbers!(deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_i64 visit_i64 i64);

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.kind {
            NodeKind::Bool(value, _) => self.here(visitor.visit_bool(value)),
            _ => Err(self.wanted("true or false")),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.text() {
            Some(text) => self.here(visitor.visit_str(text)),
            None => Err(self.wanted("text")),
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
            (AT, _) => visitor.visit_seq(SpannedAccess { reader: Some(self), application_attribute: 0 }),
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
            _ => Err(self.wanted("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let entries = self.entries()?;
        let result = visitor.visit_map(MapEntryAccess { reader: &self, map: entries, next: 0 });
        self.here(result)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.check_fields(fields)?;
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
            (self.node.text().ok_or_else(|| self.wanted("a word"))?, false)
        };
        if !variants.contains(&variant) {
            if shaped {
                return Err(self.wanted("something else"));
            }
            let fault = self.fault("unknown-value", format!("`{variant}` is not possible here"));
            return Err(DecodeError { help: Some(suggest(variant, variants.iter().copied())), ..fault });
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
        Self { code: "value", message: message.to_string(), help: None, missing: None, place: None }
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
