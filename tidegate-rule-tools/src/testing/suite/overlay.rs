//! From a [`RequestSpec`] to a [`RequestDescription`], merged over the defaults of the file or the test.

use serde_json::Value;
use tidegate_rules::RequestDescription;
use tidegate_rules::internals::{OneOrMany, Span};

use super::SuiteBuilder;
use super::schema_types::RequestSpec;

impl SuiteBuilder<'_> {
    /// Merges `written` over `base`. Invalid values are reported at their positions.
    pub(super) fn request(&mut self, base: &RequestDescription, written: &RequestSpec) -> RequestDescription {
        for (piece, span) in pieces(written) {
            if let Err(error) = piece.attributes() {
                self.error("request", &span, error.problem());
            }
        }
        let mut description = base.clone();
        description.method = written.method.merge_over(base.method.as_ref());
        description.path = written.path.merge_over(base.path.as_ref());
        description.host = written.host.merge_over(base.host.as_ref());
        description.ip = written.ip.merge_over(base.ip.as_ref());
        description.tenant = written.tenant.merge_over(base.tenant.as_ref());
        description.action = written.action.merge_over(base.action.as_ref());
        description.body = written.body.merge_over(base.body.clone().map(Value::String).as_ref()).as_ref().map(text);
        description.size = written.size.merge_over(base.size.as_ref());
        description.cost = written.cost.merge_over(base.cost.as_ref());
        for (name, at) in &written.headers {
            description.headers.retain(|(header, _)| !header.eq_ignore_ascii_case(name));
            description.headers.extend(lines(at.value.as_ref()).map(|line| (name.clone(), line.clone())));
        }
        for (name, at) in &written.attributes {
            description.attributes.retain(|(attribute, _)| attribute != name);
            description.attributes.extend(at.value.clone().map(|value| (name.clone(), value)));
        }
        description
    }
}

/// Every part that can be invalid, alone, with its position.
fn pieces(written: &RequestSpec) -> Vec<(RequestDescription, Span)> {
    let mut pieces = Vec::new();
    if let Some(at) = written.path.value() {
        pieces.push((RequestDescription::new().with_path(at.value), at.span.clone()));
    }
    if let Some(at) = written.ip.value() {
        pieces.push((RequestDescription::new().with_ip(at.value), at.span.clone()));
    }
    for (name, at) in &written.headers {
        let add = |piece: RequestDescription, line: &String| piece.with_header(name, line);
        pieces.push((lines(at.value.as_ref()).fold(RequestDescription::new(), add), at.span.clone()));
    }
    for (name, at) in &written.attributes {
        let piece = RequestDescription::new().with_attribute(name, at.value.as_deref().unwrap_or_default());
        pieces.push((piece, at.span.clone()));
    }
    pieces
}

/// The lines of a header.
fn lines(value: Option<&OneOrMany<String>>) -> impl Iterator<Item = &String> {
    value.into_iter().flat_map(|lines| &lines.0)
}

fn text(body: &Value) -> String {
    match body {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
