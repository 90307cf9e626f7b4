//! `Node`: a YAML value with its position.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use siphasher::sip::SipHasher24;

/// A YAML value.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Node {
    /// Its type and value.
    pub kind: NodeKind,
    /// Its position: bytes of the [`SourceFile`](crate::yaml::SourceFile). A list or map has that of its first item or key.
    pub span: Range<usize>,
    /// Fields and items that were removed because they were invalid, and are not reported as missing.
    pub(crate) removed: Vec<String>,
    /// Whether it takes the place of a field that is missing or was removed.
    pub(crate) is_placeholder: bool,
}

/// The type and value of a node. Scalars keep their text, since `0042` may be a name and not a number.
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
    /// Any other scalar, and every quoted one.
    Text(String),
    /// A list, in order.
    List(Vec<Node>),
    /// A map, in order; no key occurs twice.
    Map(Vec<(Node, Node)>),
}

impl Node {
    pub(crate) fn new(kind: NodeKind, span: Range<usize>) -> Self {
        Self { kind, span, removed: Vec::new(), is_placeholder: false }
    }

    /// The text of a scalar; `None` for null, lists and maps.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Text(text) | NodeKind::Bool(_, text) | NodeKind::Whole(_, text) | NodeKind::Float(_, text) => {
                Some(text)
            }
            NodeKind::Null | NodeKind::List(_) | NodeKind::Map(_) => None,
        }
    }

    /// The key node of a field.
    pub fn key(&self, name: &str) -> Option<&Self> {
        self.entries().iter().map(|(key, _)| key).find(|key| key.text() == Some(name))
    }

    /// The fields of a map.
    pub(crate) fn entries(&self) -> &[(Self, Self)] {
        if let NodeKind::Map(entries) = &self.kind { entries } else { &[] }
    }

    /// The value of a field.
    pub(crate) fn value(&self, name: &str) -> Option<&Self> {
        self.entries().iter().find(|(key, _)| key.text() == Some(name)).map(|(_, value)| value)
    }

    /// Removes the items of the list in a field, and leaves it empty.
    pub(crate) fn take_list(&mut self, name: &str) -> Vec<Self> {
        let NodeKind::Map(entries) = &mut self.kind else { return Vec::new() };
        let field = entries.iter_mut().find(|(key, _)| key.text() == Some(name));
        match field.map(|(_, value)| &mut value.kind) {
            Some(NodeKind::List(items)) => std::mem::take(items),
            _ => Vec::new(),
        }
    }

    /// A hash of the content, without positions and without the order of fields. It is the same in every build.
    pub(crate) fn content_hash(&self) -> u64 {
        let mut hasher = SipHasher24::new();
        std::mem::discriminant(&self.kind).hash(&mut hasher);
        match &self.kind {
            NodeKind::List(items) => items.iter().for_each(|item| item.content_hash().hash(&mut hasher)),
            NodeKind::Map(entries) => {
                let entry_hash = |(key, value): &(Self, Self)| {
                    let mut hasher = SipHasher24::new();
                    (key.content_hash(), value.content_hash()).hash(&mut hasher);
                    hasher.finish()
                };
                entries.iter().map(entry_hash).fold(0, u64::wrapping_add).hash(&mut hasher);
            }
            _ => self.text().hash(&mut hasher),
        }
        hasher.finish()
    }

    /// The name of its type, for messages.
    pub const fn type_name(&self) -> &'static str {
        match self.kind {
            NodeKind::Null => "nothing",
            NodeKind::Bool(..) => "true or false",
            NodeKind::Whole(..) => "a number",
            NodeKind::Float(..) => "a decimal number",
            NodeKind::Text(_) => "text",
            NodeKind::List(_) => "a list",
            NodeKind::Map(_) => "a map",
        }
    }

    /// Removes the entry or item at the end of `path`.
    pub(crate) fn remove_at(&mut self, path: &[usize]) {
        let [first, rest @ ..] = path else { return };
        match &mut self.kind {
            NodeKind::List(items) if *first < items.len() => {
                if rest.is_empty() {
                    items.remove(*first);
                    self.removed.push(String::new());
                } else {
                    items[*first].remove_at(rest);
                }
            }
            NodeKind::Map(entries) if *first < entries.len() => {
                if rest.is_empty() {
                    let (key, _) = entries.remove(*first);
                    self.removed.push(key.text().unwrap_or_default().to_owned());
                } else {
                    entries[*first].1.remove_at(rest);
                }
            }
            _ => {}
        }
    }

    /// Adds a placeholder for the missing `field` to the map at `path`.
    pub(crate) fn insert_placeholder(&mut self, path: &[usize], field: &str) {
        if let [first, rest @ ..] = path {
            match &mut self.kind {
                NodeKind::List(items) if *first < items.len() => items[*first].insert_placeholder(rest, field),
                NodeKind::Map(entries) if *first < entries.len() => entries[*first].1.insert_placeholder(rest, field),
                _ => {}
            }
            return;
        }
        // A map without fields may be written as nothing.
        if matches!(self.kind, NodeKind::Null) {
            self.kind = NodeKind::Map(Vec::new());
        }
        if let NodeKind::Map(entries) = &mut self.kind {
            let new = |kind| Self::new(kind, self.span.clone());
            entries.push((new(NodeKind::Text(field.into())), Self { is_placeholder: true, ..new(NodeKind::Null) }));
        }
    }
}
