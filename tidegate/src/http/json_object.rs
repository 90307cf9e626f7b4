//! `JsonObject`: JSON text with the members in the order in which they are added.

use std::fmt::{Display, Write as _};

use serde_json::Value;

/// A JSON object with its members in the order of insertion.
pub(super) struct JsonObject(String);

impl JsonObject {
    pub(super) fn new() -> Self {
        Self("{".to_owned())
    }

    pub(super) fn with(self, name: &str, value: impl Into<Value>) -> Self {
        self.with_json(name, value.into())
    }

    pub(super) fn with_some(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub(super) fn with_object(self, name: &str, object: Self) -> Self {
        self.with_json(name, object.finish())
    }

    fn with_json(mut self, name: &str, json: impl Display) -> Self {
        let comma = if self.0.len() > 1 { "," } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{comma}\"{name}\":{json}");
        self
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }
}
