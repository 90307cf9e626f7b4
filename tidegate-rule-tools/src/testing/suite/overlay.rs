//! From a [`RequestSpec`] to a [`SampleRequest`], merged over the defaults of the file or the test.

use serde_json::Value;
use tidegate_rules::SampleRequest;
use tidegate_rules::internals::{OneOrMany, Span};

use super::SuiteBuilder;
use super::schema_types::RequestSpec;

impl SuiteBuilder<'_> {
    /// Merges `written` over `base`. Invalid values are reported at their positions.
    pub(super) fn request(&mut self, base: &SampleRequest, written: &RequestSpec) -> SampleRequest {
        for (piece, span) in pieces(written) {
            if let Err(error) = piece.attributes() {
                self.error("request", &span, error.problem());
            }
        }
        let mut sample = base.clone();
        sample.method = written.method.merge_over(base.method.as_ref());
        sample.path = written.path.merge_over(base.path.as_ref());
        sample.host = written.host.merge_over(base.host.as_ref());
        sample.ip = written.ip.merge_over(base.ip.as_ref());
        sample.tenant = written.tenant.merge_over(base.tenant.as_ref());
        sample.action = written.action.merge_over(base.action.as_ref());
        sample.body = written.body.merge_over(base.body.clone().map(Value::String).as_ref()).as_ref().map(text);
        sample.size = written.size.merge_over(base.size.as_ref());
        sample.cost = written.cost.merge_over(base.cost.as_ref());
        for (name, at) in &written.headers {
            sample.headers.retain(|(header, _)| !header.eq_ignore_ascii_case(name));
            sample.headers.extend(lines(at.value.as_ref()).map(|line| (name.clone(), line.clone())));
        }
        for (name, at) in &written.attributes {
            sample.attributes.retain(|(attribute, _)| attribute != name);
            sample.attributes.extend(at.value.clone().map(|value| (name.clone(), value)));
        }
        sample
    }
}

/// Every part that can be invalid, alone, with its position.
fn pieces(written: &RequestSpec) -> Vec<(SampleRequest, Span)> {
    let mut pieces = Vec::new();
    if let Some(at) = written.path.value() {
        pieces.push((SampleRequest::new().with_path(at.value), at.span.clone()));
    }
    if let Some(at) = written.ip.value() {
        pieces.push((SampleRequest::new().with_ip(at.value), at.span.clone()));
    }
    for (name, at) in &written.headers {
        let add = |piece: SampleRequest, line: &String| piece.with_header(name, line);
        pieces.push((lines(at.value.as_ref()).fold(SampleRequest::new(), add), at.span.clone()));
    }
    for (name, at) in &written.attributes {
        let piece = SampleRequest::new().with_attribute(name, at.value.as_deref().unwrap_or_default());
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
