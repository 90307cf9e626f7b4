//! From text to [`Node`]: YAML with bounded work. Deep nesting, alias bombs and endless documents end in a problem.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Options, Spanned};

use super::{Kind, Node};
use crate::problem::Problem;
use crate::source::{LARGEST_FILE, Source, Span, boundary};

/// No file nests deeper: each level of an Envoy descriptor takes two, a list and a map.
const DEEPEST: usize = 64;

/// The most values in a file, those behind aliases counted as often as they are used: fifty thousand rules of some fields.
const MOST_VALUES: usize = 1_500_000;

/// The whole document, or why it is not one.
pub(crate) fn parse(source: &Source) -> Result<Node, Problem> {
    let options = options();
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(source.text(), options) {
        Ok(root) => Ok(node(root, source.text())),
        Err(error) => {
            let span = error.location().map_or(0..0, |location| span(&location, source.text()));
            let text = error.without_snippet().to_string();
            if text.contains("budget") || text.contains("alias") && text.contains("limit") {
                let message = format!(
                    "the file is too much: at most {MOST_VALUES} values (aliases counted as often as they are used), \
                     {DEEPEST} levels and one document"
                );
                return Err(Problem::error("too-much", message, span));
            }
            let problem = Problem::error("yaml", shorten(&text), span);
            Err(if text.contains("duplicate") { problem.help("keep one of the two") } else { problem })
        }
    }
}

fn options() -> Options {
    let mut options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEEPEST,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_documents: 1,
            max_nodes: MOST_VALUES,
            max_events: 3 * MOST_VALUES,
            max_total_scalar_bytes: LARGEST_FILE as usize,
        },
        // `on`, `off`, `yes` and `no` are texts.
        strict_booleans: true,
        with_snippet: false,
    };
    options.legacy_octal_numbers = false;
    options
}

/// The message without the position, which is shown beside it anyway.
fn shorten(message: &str) -> String {
    let rest = message.trim_start_matches("error: ");
    let rest = match rest.split_once(": ") {
        Some((place, rest)) if place.starts_with("line ") => rest,
        _ => rest,
    };
    let rest = rest.split(", set DuplicateKeyPolicy").next().unwrap_or(rest).trim();
    let is_place = |place: &str| {
        let (line, column) = place.split_once(", column ").unwrap_or_default();
        [line, column].iter().all(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match rest.rsplit_once(" at line ") {
        Some((message, place)) if is_place(place) => message.to_owned(),
        _ => rest.to_owned(),
    }
}

enum Raw {
    Null,
    Bool(bool),
    Whole(i128),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<Raw>, Spanned<Raw>)>),
}

fn node(raw: Spanned<Raw>, text: &str) -> Node {
    // Problems are shown where a value is used; its text is where it is written, which may be behind an alias.
    let mut span = span(&raw.referenced, text);
    let written = || text[self::span(&raw.defined, text)].to_owned();
    let kind = match raw.value {
        Raw::Null => Kind::Null,
        Raw::Bool(value) => Kind::Bool(value, written()),
        Raw::Whole(value) => Kind::Whole(value, written()),
        Raw::Float(value) => Kind::Float(value, written()),
        Raw::Text(value) => Kind::Text(value),
        Raw::List(items) => Kind::List(items.into_iter().map(|item| node(item, text)).collect()),
        Raw::Map(entries) => {
            let entries = entries.into_iter().map(|(key, value)| (node(key, text), node(value, text)));
            Kind::Map(entries.collect())
        }
    };
    // A collection is shown by its first key or item: the parser gives it no length.
    if let Kind::List(items) = &kind
        && let Some(first) = items.first().filter(|_| span.is_empty())
    {
        span = first.span.clone();
    }
    if let Kind::Map(entries) = &kind
        && let Some((first, _)) = entries.first().filter(|_| span.len() <= 1)
    {
        span = first.span.clone();
    }
    Node::new(kind, span)
}

fn span(location: &Location, text: &str) -> Span {
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let span = location.span();
    // Errors know their place in characters only.
    let Some((start, length)) = span.byte_offset().zip(span.byte_len()) else {
        let start = text.char_indices().nth(number(span.offset())).map_or(text.len(), |(start, _)| start);
        return start..boundary(text, start + 1).max(start);
    };
    let start = boundary(text, number(start));
    start..boundary(text, start.saturating_add(number(length)))
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
        Ok(Raw::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Whole(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Whole(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Whole(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Float(value))
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
