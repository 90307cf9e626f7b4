//! The fields of a YAML map, and their values: text, flags, numbers, lists. It knows nothing about limits.

use tidegate_rules::yaml::{Node, NodeKind};

use super::{ConfigProblem, ConfigReader, EXTENSION_KEYS, MAX_PROBLEMS, REFERENCE_KEYS};

/// The fields of a map, to be taken one by one.
pub(super) struct YamlFields {
    /// Byte offset of the map.
    pub(super) offset: usize,
    fields: Vec<(String, Node)>,
}

/// YAML values
impl ConfigReader<'_> {
    pub(super) fn error(&mut self, offset: usize, message: impl Into<String>) {
        if self.errors.len() < MAX_PROBLEMS {
            self.errors.push(ConfigProblem::at(self.source, offset, message));
        }
    }

    pub(super) fn warning(&mut self, offset: usize, message: impl Into<String>) {
        if self.warnings.len() < MAX_PROBLEMS {
            self.warnings.push(ConfigProblem::at(self.source, offset, message));
        }
    }

    /// The fields of a map. Like the reference server, it ignores keys that are valid only at another level, with a warning.
    pub(super) fn fields(&mut self, node: Node, expected: &str, allowed: &[&str]) -> Option<YamlFields> {
        let offset = node.span.start;
        let NodeKind::Map(entries) = node.kind else {
            self.error(node.span.start, format!("expected {expected}, found {}", node.type_name()));
            return None;
        };
        let mut fields = Vec::new();
        for (key, value) in entries {
            let name = key.text().unwrap_or_default().to_owned();
            let is_extension = EXTENSION_KEYS.contains(&name.as_str()) && !self.options.strict;
            if !REFERENCE_KEYS.contains(&name.as_str()) && !is_extension {
                self.error(key.span.start, format!("unknown key {name:?}; remove or correct it"));
            } else if allowed.contains(&name.as_str()) {
                fields.push((name, value));
            } else {
                self.warning(key.span.start, format!("{name:?} has no effect at this level"));
            }
        }
        Some(YamlFields { offset, fields })
    }

    pub(super) fn list(&mut self, node: Option<Node>) -> Vec<Node> {
        let Some(node) = node else { return Vec::new() };
        let (offset, what) = (node.span.start, node.type_name());
        match node.kind {
            NodeKind::List(items) => items,
            NodeKind::Null => Vec::new(),
            _ => {
                self.error(offset, format!("expected a list, found {what}"));
                Vec::new()
            }
        }
    }

    /// A scalar in its original notation, since `0042` may be a name. Null is the empty text.
    pub(super) fn text(&mut self, node: &Node) -> Option<String> {
        match node.text() {
            Some(text) => Some(text.to_owned()),
            None if matches!(node.kind, NodeKind::Null) => Some(String::new()),
            None => {
                self.error(node.span.start, format!("expected text, found {}", node.type_name()));
                None
            }
        }
    }

    pub(super) fn text_of(&mut self, fields: &mut YamlFields, name: &str) -> String {
        fields.take(name).and_then(|node| self.text(&node)).unwrap_or_default()
    }

    /// A boolean, in any notation of YAML 1.1.
    pub(super) fn flag(&mut self, fields: &mut YamlFields, name: &str) -> bool {
        let Some(node) = fields.take(name) else { return false };
        let offset = node.span.start;
        match self.text(&node).unwrap_or_default().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => true,
            "false" | "no" | "off" | "n" | "" => false,
            _ => {
                self.error(offset, format!("`{name}` must be true or false"));
                false
            }
        }
    }

    pub(super) fn number(&mut self, node: &Node, name: &str, min: u32) -> Option<u32> {
        let number = self.text(node)?.replace('_', "").parse().ok().filter(|number| *number >= min);
        if number.is_none() {
            self.error(node.span.start, format!("`{name}` must be an integer from {min} to {}", u32::MAX));
        }
        number
    }
}

impl YamlFields {
    pub(super) fn take(&mut self, name: &str) -> Option<Node> {
        let index = self.fields.iter().position(|(key, _)| key == name)?;
        Some(self.fields.swap_remove(index).1)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(key, _)| key == name)
    }

    /// Byte offset of a field, or of the map if the field is missing.
    pub(super) fn offset_of(&self, name: &str) -> usize {
        self.fields.iter().find(|(key, _)| key == name).map_or(self.offset, |(_, node)| node.span.start)
    }
}
