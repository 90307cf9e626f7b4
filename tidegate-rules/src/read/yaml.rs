//! From text to [`Node`]: YAML with bounded work. Deep nesting, alias bombs and very long documents are errors.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Location, Options, Spanned as SaphyrSpanned};

use super::{Node, NodeKind};
use crate::problem::Problem;
use crate::source_file::{MAX_FILE_BYTES, SourceFile, Span, boundary};

/// The deepest nesting: each level of an Envoy descriptor takes two, a list and a map.
const MAX_DEPTH: usize = 64;

/// The most values in a file, aliased ones counted at each use: about fifty thousand rules.
const MAX_YAML_VALUES: usize = 1_500_000;

/// Parses a document.
pub fn parse(source: &SourceFile) -> Result<Node, Problem> {
    let options = options();
    match serde_saphyr::from_str_with_options::<SaphyrSpanned<RawYaml>>(source.text(), options) {
        Ok(root) => Ok(node(root, source.text())),
        Err(error) => {
            let span = error.location().map_or(0..0, |location| span(&location, source.text()));
            let error = error.without_snippet();
            if matches!(error, serde_saphyr::Error::Budget { breach: BudgetBreach::Documents { .. }, .. }) {
                let problem = Problem::error("second-document", "the file has a second YAML document", span);
                return Err(problem.with_help("write one document in each file, and remove this `---`"));
            }
            let text = error.to_string();
            if text.contains("budget") || text.contains("alias") && text.contains("limit") {
                let message = format!(
                    "the file is too large: at most {MAX_YAML_VALUES} values (aliases counted at each use) and \
                     {MAX_DEPTH} levels"
                );
                return Err(Problem::error("too-much", message, span));
            }
            let problem = Problem::error("yaml", shorten(&text), span);
            Err(if text.contains("duplicate") { problem.with_help("keep one of the two") } else { problem })
        }
    }
}

fn options() -> Options {
    let mut options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_documents: 1,
            max_nodes: MAX_YAML_VALUES,
            max_events: 3 * MAX_YAML_VALUES,
            max_total_scalar_bytes: MAX_FILE_BYTES as usize,
        },
        // `on`, `off`, `yes` and `no` are texts.
        strict_booleans: true,
        with_snippet: false,
    };
    options.legacy_octal_numbers = false;
    options
}

/// The message without the position, which is shown separately.
fn shorten(message: &str) -> String {
    let rest = message.trim_start_matches("error: ");
    let rest = match rest.split_once(": ") {
        Some((position, rest)) if position.starts_with("line ") => rest,
        _ => rest,
    };
    let rest = rest.split(", set DuplicateKeyPolicy").next().unwrap_or(rest).trim();
    let is_position = |position: &str| {
        let (line, column) = position.split_once(", column ").unwrap_or_default();
        [line, column].iter().all(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match rest.rsplit_once(" at line ") {
        Some((message, position)) if is_position(position) => message.to_owned(),
        _ => rest.to_owned(),
    }
}

enum RawYaml {
    Null,
    Bool(bool),
    Whole(i128),
    Float(f64),
    Text(String),
    List(Vec<SaphyrSpanned<RawYaml>>),
    Map(Vec<(SaphyrSpanned<RawYaml>, SaphyrSpanned<RawYaml>)>),
}

fn node(raw: SaphyrSpanned<RawYaml>, text: &str) -> Node {
    // Problems are shown where a value is used; its text is where it is defined, which may be behind an alias.
    let mut span = span(&raw.referenced, text);
    let written = || text[self::span(&raw.defined, text)].to_owned();
    let kind = match raw.value {
        RawYaml::Null => NodeKind::Null,
        RawYaml::Bool(value) => NodeKind::Bool(value, written()),
        RawYaml::Whole(value) => NodeKind::Whole(value, written()),
        RawYaml::Float(value) => NodeKind::Float(value, written()),
        RawYaml::Text(value) => NodeKind::Text(value),
        RawYaml::List(items) => NodeKind::List(items.into_iter().map(|item| node(item, text)).collect()),
        RawYaml::Map(entries) => {
            let entries = entries.into_iter().map(|(key, value)| (node(key, text), node(value, text)));
            NodeKind::Map(entries.collect())
        }
    };
    // A collection has the position of its first key or item: the parser gives it no length.
    if let NodeKind::List(items) = &kind
        && let Some(first) = items.first().filter(|_| span.is_empty())
    {
        span = first.span.clone();
    }
    if let NodeKind::Map(entries) = &kind
        && let Some((first, _)) = entries.first().filter(|_| span.len() <= 1)
    {
        span = first.span.clone();
    }
    Node::new(kind, span)
}

fn span(location: &Location, text: &str) -> Span {
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let span = location.span();
    // Errors have their position in characters only.
    let Some((start, length)) = span.byte_offset().zip(span.byte_len()) else {
        let start = text.char_indices().nth(number(span.offset())).map_or(text.len(), |(start, _)| start);
        return start..boundary(text, start + 1).max(start);
    };
    let start = boundary(text, number(start));
    start..boundary(text, start.saturating_add(number(length)))
}

impl<'de> Deserialize<'de> for RawYaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawYamlVisitor)
    }
}

struct RawYamlVisitor;

impl<'de> Visitor<'de> for RawYamlVisitor {
    type Value = RawYaml;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<RawYaml, E> {
        Ok(RawYaml::Null)
    }

    fn visit_none<E>(self) -> Result<RawYaml, E> {
        Ok(RawYaml::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<RawYaml, E> {
        Ok(RawYaml::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<RawYaml, E> {
        Ok(RawYaml::Whole(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<RawYaml, E> {
        Ok(RawYaml::Whole(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<RawYaml, E> {
        Ok(RawYaml::Whole(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<RawYaml, E> {
        Ok(RawYaml::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<RawYaml, E> {
        Ok(RawYaml::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<RawYaml, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(RawYaml::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<RawYaml, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(RawYaml::Map(entries))
    }
}
