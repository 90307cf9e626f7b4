//! From a [`RequestSpec`] to a [`RequestDescription`], merged over the defaults of the file or the test.

use serde_json::Value;

use super::SuiteBuilder;
use super::schema_types::RequestSpec;
use crate::read::OneOrMany;
use crate::request_description::RequestDescription;
use crate::source_file::Span;

impl SuiteBuilder<'_> {
    /// Merges `written` over `base`. Invalid values are reported at their positions.
    pub(super) fn request(&mut self, base: &RequestDescription, written: &RequestSpec) -> RequestDescription {
        for (piece, span) in pieces(written) {
            if let Err(error) = piece.attributes() {
                self.error("request", &span, error.problem());
            }
        }
        let mut sample = RequestDescription {
            method: written.method.merge_over(base.method.as_ref()),
            path: written.path.merge_over(base.path.as_ref()),
            host: written.host.merge_over(base.host.as_ref()),
            headers: base.headers.clone(),
            ip: written.ip.merge_over(base.ip.as_ref()),
            tenant: written.tenant.merge_over(base.tenant.as_ref()),
            action: written.action.merge_over(base.action.as_ref()),
            attributes: base.attributes.clone(),
            body: written.body.merge_over(base.body.clone().map(Value::String).as_ref()).as_ref().map(text),
            size: written.size.merge_over(base.size.as_ref()),
            cost: written.cost.merge_over(base.cost.as_ref()),
        };
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
fn pieces(written: &RequestSpec) -> Vec<(RequestDescription, Span)> {
    let mut pieces = Vec::new();
    if let Some(at) = written.path.value() {
        pieces.push((
            RequestDescription { path: Some(at.value.clone()), ..RequestDescription::default() },
            at.span.clone(),
        ));
    }
    if let Some(at) = written.ip.value() {
        pieces.push((
            RequestDescription { ip: Some(at.value.clone()), ..RequestDescription::default() },
            at.span.clone(),
        ));
    }
    for (name, at) in &written.headers {
        let headers = lines(at.value.as_ref()).map(|line| (name.clone(), line.clone())).collect();
        pieces.push((RequestDescription { headers, ..RequestDescription::default() }, at.span.clone()));
    }
    for (name, at) in &written.attributes {
        let attributes = vec![(name.clone(), at.value.clone().unwrap_or_default())];
        pieces.push((RequestDescription { attributes, ..RequestDescription::default() }, at.span.clone()));
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
