//! From text to [`Node`]: YAML with places, in bounded work. It has no opinion about what belongs where.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::problem::{ConfigProblem, Place};

/// The largest file that is read, in bytes.
pub(super) const LARGEST_FILE: usize = 8 * 1024 * 1024;

/// Each level of descriptors takes two, a list and a map.
const DEEPEST: usize = 64;

/// The most values in a file, those behind aliases counted as often as they are used.
const MOST_VALUES: usize = 1_500_000;

/// A piece of YAML.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) place: Place,
}

/// What it is. A scalar is kept as it is written, since `0042` may be a name.
#[derive(Debug)]
pub(super) enum Kind {
    Null,
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

/// The whole document, or why it is not one.
pub(super) fn parse(file: &str, text: &str) -> Result<Node, ConfigProblem> {
    if text.len() > LARGEST_FILE {
        let message = format!("the file has {} bytes; at most {LARGEST_FILE} are read", text.len());
        return Err(ConfigProblem::new(file, Place::default(), message));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEEPEST,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_documents: 1,
            max_nodes: MOST_VALUES,
            max_events: 3 * MOST_VALUES,
            max_total_scalar_bytes: LARGEST_FILE,
        },
        strict_booleans: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options) {
        Ok(root) => Ok(node(root, text)),
        Err(error) => {
            let place = error.location().map(|location| place(&location)).unwrap_or_default();
            Err(ConfigProblem::new(file, place, shortened(&error.without_snippet().to_string())))
        }
    }
}

impl Node {
    /// What it is, for people.
    pub(super) const fn what(&self) -> &'static str {
        match self.kind {
            Kind::Null => "nothing",
            Kind::Scalar(_) => "a single value",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a set of fields",
        }
    }
}

/// The message without the position, which is told beside it anyway.
fn shortened(message: &str) -> String {
    let rest = message.trim_start_matches("error: ");
    let rest = match rest.split_once(": ") {
        Some((place, rest)) if place.starts_with("line ") => rest,
        _ => rest,
    };
    rest.split(", set DuplicateKeyPolicy").next().unwrap_or(rest).trim().to_owned()
}

fn place(location: &Location) -> Place {
    Place { line: location.line(), column: location.column() }
}

fn node(raw: Spanned<Raw>, text: &str) -> Node {
    let kind = match raw.value {
        Raw::Null => Kind::Null,
        Raw::Text(value) => Kind::Scalar(value),
        Raw::Number(value) => Kind::Scalar(written(&raw.defined, text).map_or(value, str::to_owned)),
        Raw::List(items) => Kind::List(items.into_iter().map(|item| node(item, text)).collect()),
        Raw::Map(entries) => {
            Kind::Map(entries.into_iter().map(|(key, value)| (node(key, text), node(value, text))).collect())
        }
    };
    Node { kind, place: place(&raw.referenced) }
}

/// The text at a place, if that is known.
fn written<'t>(location: &Location, text: &'t str) -> Option<&'t str> {
    let span = location.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let end = start.checked_add(usize::try_from(span.byte_len()?).ok()?)?;
    text.get(start..end).filter(|text| !text.is_empty())
}

enum Raw {
    Null,
    Text(String),
    /// A number, true or false; what counts is how it is written.
    Number(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<Raw>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}
