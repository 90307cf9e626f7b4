//! The fields of a map in YAML, and the pieces they are made of: text, flags, numbers, lists. What they mean is not known here.

use tidegate_rules::yaml::{Node, NodeKind};

use super::{ConfigProblem, KNOWN, MAX_PROBLEMS, OURS, Reader};

/// The fields of a map, from which they are taken one by one.
pub(super) struct Fields {
    pub(super) place: usize,
    fields: Vec<(String, Node)>,
}

/// The pieces of YAML
impl Reader<'_> {
    pub(super) fn error(&mut self, place: usize, message: impl Into<String>) {
        if self.errors.len() < MAX_PROBLEMS {
            self.errors.push(ConfigProblem::at(self.source, place, message));
        }
    }

    pub(super) fn warning(&mut self, place: usize, message: impl Into<String>) {
        if self.warnings.len() < MAX_PROBLEMS {
            self.warnings.push(ConfigProblem::at(self.source, place, message));
        }
    }

    /// The fields of a map. Those that mean nothing at this place are left out, as the reference server does.
    pub(super) fn fields(&mut self, node: Node, wanted: &str, here: &[&str]) -> Option<Fields> {
        let place = node.span.start;
        let NodeKind::Map(entries) = node.kind else {
            self.error(node.span.start, format!("this is {}; {wanted} is wanted here", node.what()));
            return None;
        };
        let mut fields = Vec::new();
        for (key, value) in entries {
            let name = key.text().unwrap_or_default().to_owned();
            let ours = OURS.contains(&name.as_str()) && !self.options.strict;
            if !KNOWN.contains(&name.as_str()) && !ours {
                self.error(key.span.start, format!("there is no key {name:?}; take it out, or correct it"));
            } else if here.contains(&name.as_str()) {
                fields.push((name, value));
            } else {
                self.warning(key.span.start, format!("{name:?} has no effect at this place"));
            }
        }
        Some(Fields { place, fields })
    }

    pub(super) fn list(&mut self, node: Option<Node>) -> Vec<Node> {
        let Some(node) = node else { return Vec::new() };
        let (place, what) = (node.span.start, node.what());
        match node.kind {
            NodeKind::List(items) => items,
            NodeKind::Null => Vec::new(),
            _ => {
                self.error(place, format!("this is {what}; a list is wanted here"));
                Vec::new()
            }
        }
    }

    /// A single value as it is written, since `0042` may be a name; nothing is as good as an empty one.
    pub(super) fn text(&mut self, node: &Node) -> Option<String> {
        match node.text() {
            Some(text) => Some(text.to_owned()),
            None if matches!(node.kind, NodeKind::Null) => Some(String::new()),
            None => {
                self.error(node.span.start, format!("this is {}; text is wanted here", node.what()));
                None
            }
        }
    }

    pub(super) fn text_of(&mut self, fields: &mut Fields, name: &str) -> String {
        fields.take(name).and_then(|node| self.text(&node)).unwrap_or_default()
    }

    /// A flag in any of the words that YAML had for it.
    pub(super) fn flag(&mut self, fields: &mut Fields, name: &str) -> bool {
        let Some(node) = fields.take(name) else { return false };
        let place = node.span.start;
        match self.text(&node).unwrap_or_default().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => true,
            "false" | "no" | "off" | "n" | "" => false,
            _ => {
                self.error(place, format!("`{name}` is true or false"));
                false
            }
        }
    }

    pub(super) fn number(&mut self, node: &Node, name: &str, least: u32) -> Option<u32> {
        let number = self.text(node)?.replace('_', "").parse().ok().filter(|number| *number >= least);
        if number.is_none() {
            self.error(node.span.start, format!("`{name}` is a whole number from {least} to {}", u32::MAX));
        }
        number
    }
}

impl Fields {
    pub(super) fn take(&mut self, name: &str) -> Option<Node> {
        let found = self.fields.iter().position(|(known, _)| known == name)?;
        Some(self.fields.swap_remove(found).1)
    }

    /// Where a field stands, or the map that lacks it.
    pub(super) fn place_of(&self, name: &str) -> usize {
        self.fields.iter().find(|(known, _)| known == name).map_or(self.place, |(_, node)| node.span.start)
    }
}
