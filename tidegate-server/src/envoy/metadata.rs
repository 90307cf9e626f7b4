//! `dynamic_metadata`: what a response tells later filters of Envoy about the request and about the limits that it passed. Pure.

use std::collections::HashMap;

use serde_json::{Map, Number};
use tidegate_rules::yaml;

use super::pb::{
    Code, DescriptorStatus, ListValue, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitUnit, Struct,
    Value, ValueKind,
};
use super::prepared::{Told, Wanted};

/// The domain, the descriptors, and what the limits that were passed have to say, all in one.
pub(super) fn of_response(request: &RateLimitRequest, wanted: &[Wanted<'_>], statuses: &[DescriptorStatus]) -> Struct {
    let mut fields = HashMap::from([
        ("domain".to_owned(), text(request.domain.clone())),
        ("descriptors".to_owned(), list(request.descriptors.iter().map(descriptor))),
    ]);
    if request.hits_addend > 0 {
        fields.insert("hitsAddend".to_owned(), number(f64::from(request.hits_addend)));
    }
    let mut merged = Struct::default();
    for (wanted, status) in wanted.iter().zip(statuses) {
        if let (Told::Limit(limit), true) = (&wanted.told, status.code == i32::from(Code::Ok)) {
            limit.metadata.iter().for_each(|metadata| merge(&mut merged, metadata));
        }
    }
    if !merged.fields.is_empty() {
        fields.insert("metadata".to_owned(), value(ValueKind::StructValue(merged)));
    }
    Struct { fields }
}

/// Takes in what is not there yet; what is there stays, and maps are merged.
pub(super) fn merge(into: &mut Struct, other: &Struct) {
    for (name, value) in &other.fields {
        let Some(known) = into.fields.get_mut(name) else {
            into.fields.insert(name.clone(), value.clone());
            continue;
        };
        if let (Some(ValueKind::StructValue(known)), Some(ValueKind::StructValue(other))) =
            (&mut known.kind, &value.kind)
        {
            merge(known, other);
        }
    }
}

/// A piece of YAML as such a value.
pub(super) fn of_yaml(node: &yaml::Node) -> Value {
    value(match &node.kind {
        yaml::NodeKind::Null => ValueKind::NullValue(0),
        yaml::NodeKind::Bool(flag, _) => ValueKind::BoolValue(*flag),
        yaml::NodeKind::Whole(number, _) => ValueKind::NumberValue(*number as f64),
        yaml::NodeKind::Float(number, text) if !number.is_finite() => ValueKind::StringValue(text.clone()),
        yaml::NodeKind::Float(number, _) => ValueKind::NumberValue(*number),
        yaml::NodeKind::Text(text) => ValueKind::StringValue(text.clone()),
        yaml::NodeKind::List(items) => ValueKind::ListValue(ListValue { values: items.iter().map(of_yaml).collect() }),
        yaml::NodeKind::Map(entries) => ValueKind::StructValue(of_fields(entries)),
    })
}

/// The fields of a map in YAML.
pub(super) fn of_fields(entries: &[(yaml::Node, yaml::Node)]) -> Struct {
    let field = |(key, value): &(yaml::Node, yaml::Node)| (key.text().unwrap_or_default().to_owned(), of_yaml(value));
    Struct { fields: entries.iter().map(field).collect() }
}

/// Such a value as JSON.
pub(super) fn json(metadata: &Struct) -> serde_json::Value {
    let fields = metadata.fields.iter().map(|(name, value)| (name.clone(), json_value(value)));
    serde_json::Value::Object(fields.collect::<Map<_, _>>())
}

fn json_value(value: &Value) -> serde_json::Value {
    match &value.kind {
        None | Some(ValueKind::NullValue(_)) => serde_json::Value::Null,
        Some(ValueKind::BoolValue(flag)) => (*flag).into(),
        Some(ValueKind::StringValue(text)) => text.clone().into(),
        Some(ValueKind::NumberValue(number)) => {
            // A whole number is written as one.
            let whole = (number.fract() == 0.0 && number.abs() < 9e15).then_some(*number as i64);
            whole.map_or_else(|| Number::from_f64(*number).into(), Into::into)
        }
        Some(ValueKind::ListValue(list)) => list.values.iter().map(json_value).collect(),
        Some(ValueKind::StructValue(fields)) => json(fields),
    }
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Value {
    let entries = descriptor.entries.iter().map(|entry| text(format!("{}={}", entry.key, entry.value)));
    let mut fields = HashMap::from([("entries".to_owned(), list(entries))]);
    if let Some(limit) = &descriptor.limit {
        fields.insert("limit".to_owned(), text(limit_text(*limit)));
    }
    if let Some(hits) = &descriptor.hits_addend {
        fields.insert("hitsAddend".to_owned(), number(hits.value as f64));
    }
    value(ValueKind::StructValue(Struct { fields }))
}

/// A limit that a request brought, in the text format of its message.
fn limit_text(limit: RateLimitOverride) -> String {
    let unit = RateLimitUnit::try_from(limit.unit).unwrap_or_default().as_str_name();
    format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit)
}

const fn value(kind: ValueKind) -> Value {
    Value { kind: Some(kind) }
}

const fn text(text: String) -> Value {
    value(ValueKind::StringValue(text))
}

const fn number(number: f64) -> Value {
    value(ValueKind::NumberValue(number))
}

fn list(values: impl Iterator<Item = Value>) -> Value {
    value(ValueKind::ListValue(ListValue { values: values.collect() }))
}
