//! `dynamic_metadata` of a response, for later filters of Envoy: the request, and the metadata of the limits it passed. Pure.

use std::collections::HashMap;

use serde_json::{Map, Number};
use tidegate_rules::yaml;

use super::messages::{
    Code, DescriptorStatus, ListValue, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitUnit, Struct,
    Value, ValueKind,
};
use super::request_plan::{AppliedLimit, DescriptorPlan};

/// The domain, the descriptors, and the merged metadata of the limits that were passed.
pub(super) fn response_metadata(
    request: &RateLimitRequest,
    descriptors: &[DescriptorPlan<'_>],
    statuses: &[DescriptorStatus],
) -> Struct {
    let mut fields = HashMap::from([
        ("domain".to_owned(), text(request.domain.clone())),
        ("descriptors".to_owned(), list(request.descriptors.iter().map(descriptor))),
    ]);
    if request.hits_addend > 0 {
        fields.insert("hitsAddend".to_owned(), number(f64::from(request.hits_addend)));
    }
    let mut merged = Struct::default();
    for (descriptor, status) in descriptors.iter().zip(statuses) {
        if let (AppliedLimit::Configured(limit), true) = (&descriptor.limit, status.code == i32::from(Code::Ok)) {
            limit.metadata.iter().for_each(|metadata| merge(&mut merged, metadata));
        }
    }
    if !merged.fields.is_empty() {
        fields.insert("metadata".to_owned(), value(ValueKind::StructValue(merged)));
    }
    Struct { fields }
}

/// Adds the fields of `other` that are missing. Existing values stay; maps are merged recursively.
pub(super) fn merge(into: &mut Struct, other: &Struct) {
    for (name, value) in &other.fields {
        let Some(existing) = into.fields.get_mut(name) else {
            into.fields.insert(name.clone(), value.clone());
            continue;
        };
        if let (Some(ValueKind::StructValue(existing)), Some(ValueKind::StructValue(other))) =
            (&mut existing.kind, &value.kind)
        {
            merge(existing, other);
        }
    }
}

/// Converts a YAML node.
pub(super) fn from_yaml(node: &yaml::Node) -> Value {
    value(match &node.kind {
        yaml::NodeKind::Null => ValueKind::NullValue(0),
        yaml::NodeKind::Bool(flag, _) => ValueKind::BoolValue(*flag),
        yaml::NodeKind::Whole(number, _) => ValueKind::NumberValue(*number as f64),
        yaml::NodeKind::Float(number, text) if !number.is_finite() => ValueKind::StringValue(text.clone()),
        yaml::NodeKind::Float(number, _) => ValueKind::NumberValue(*number),
        yaml::NodeKind::Text(text) => ValueKind::StringValue(text.clone()),
        yaml::NodeKind::List(items) => {
            ValueKind::ListValue(ListValue { values: items.iter().map(from_yaml).collect() })
        }
        yaml::NodeKind::Map(entries) => ValueKind::StructValue(from_yaml_map(entries)),
    })
}

/// Converts the entries of a YAML map.
pub(super) fn from_yaml_map(entries: &[(yaml::Node, yaml::Node)]) -> Struct {
    let field = |(key, value): &(yaml::Node, yaml::Node)| (key.text().unwrap_or_default().to_owned(), from_yaml(value));
    Struct { fields: entries.iter().map(field).collect() }
}

/// Converts metadata to JSON.
pub(super) fn to_json(metadata: &Struct) -> serde_json::Value {
    let fields = metadata.fields.iter().map(|(name, value)| (name.clone(), value_to_json(value)));
    serde_json::Value::Object(fields.collect::<Map<_, _>>())
}

fn value_to_json(value: &Value) -> serde_json::Value {
    match &value.kind {
        None | Some(ValueKind::NullValue(_)) => serde_json::Value::Null,
        Some(ValueKind::BoolValue(flag)) => (*flag).into(),
        Some(ValueKind::StringValue(text)) => text.clone().into(),
        Some(ValueKind::NumberValue(number)) => {
            // An integer is formatted without a fraction.
            let whole = (number.fract() == 0.0 && number.abs() < 9e15).then_some(*number as i64);
            whole.map_or_else(|| Number::from_f64(*number).into(), Into::into)
        }
        Some(ValueKind::ListValue(list)) => list.values.iter().map(value_to_json).collect(),
        Some(ValueKind::StructValue(fields)) => to_json(fields),
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

/// The limit of a request, in the protobuf text format.
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
