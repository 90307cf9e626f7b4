//! `Node`: a piece of YAML with its place. It has no opinion about what belongs where.

use std::ops::Range;

/// A piece of YAML.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// Its place: bytes of the [`SourceFile`](crate::yaml::SourceFile). A list or a set of fields has that of its first item or key.
    pub span: Range<usize>,
    /// The fields that were taken out of it because they were wrong: that they are missing has been reported already.
    pub(crate) taken: Vec<String>,
}

/// What it is. Scalars keep their text as it is written, since `0042` may be a name and not a number.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// Nothing, `~` or `null`.
    Null,
    /// `true` or `false`; `yes`, `no`, `on` and `off` are texts.
    Bool(bool, String),
    /// A whole number.
    Whole(i128, String),
    /// A number that is not whole.
    Float(f64, String),
    /// Anything else that is a single value, and whatever has quotation marks.
    Text(String),
    /// A list, in order.
    List(Vec<Node>),
    /// Fields, in order; no key stands twice.
    Map(Vec<(Node, Node)>),
}

impl Node {
    pub(crate) fn new(kind: NodeKind, span: Range<usize>) -> Self {
        Self { kind, span, taken: Vec::new() }
    }

    /// A single value as it is written; none for nothing, lists and fields.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Text(text) | NodeKind::Bool(_, text) | NodeKind::Whole(_, text) | NodeKind::Float(_, text) => {
                Some(text)
            }
            NodeKind::Null | NodeKind::List(_) | NodeKind::Map(_) => None,
        }
    }

    /// The key of a field, if it is there.
    pub(crate) fn key(&self, name: &str) -> Option<&Self> {
        let NodeKind::Map(entries) = &self.kind else { return None };
        entries.iter().map(|(key, _)| key).find(|key| key.text() == Some(name))
    }

    /// Takes the items of a list out of a field, and leaves an empty list there.
    pub(crate) fn take_list(&mut self, name: &str) -> Vec<Self> {
        let NodeKind::Map(entries) = &mut self.kind else { return Vec::new() };
        let field = entries.iter_mut().find(|(key, _)| key.text() == Some(name));
        match field.map(|(_, value)| &mut value.kind) {
            Some(NodeKind::List(items)) => std::mem::take(items),
            _ => Vec::new(),
        }
    }

    /// What it is, for people.
    pub const fn what(&self) -> &'static str {
        match self.kind {
            NodeKind::Null => "nothing",
            NodeKind::Bool(..) => "true or false",
            NodeKind::Whole(..) => "a number",
            NodeKind::Float(..) => "a decimal number",
            NodeKind::Text(_) => "text",
            NodeKind::List(_) => "a list",
            NodeKind::Map(_) => "a set of fields",
        }
    }

    /// Takes out the entry or item at the end of `path`, if it is there.
    pub(crate) fn take_out(&mut self, path: &[usize]) {
        let [first, rest @ ..] = path else { return };
        match &mut self.kind {
            NodeKind::List(items) if *first < items.len() => {
                if rest.is_empty() {
                    items.remove(*first);
                } else {
                    items[*first].take_out(rest);
                }
            }
            NodeKind::Map(entries) if *first < entries.len() => {
                if rest.is_empty() {
                    let (key, _) = entries.remove(*first);
                    self.taken.push(key.text().unwrap_or_default().to_owned());
                } else {
                    entries[*first].1.take_out(rest);
                }
            }
            _ => {}
        }
    }
}
