//! The messages as JSON, by the proto3 mapping: names in camel case or as in the .proto file, zeros omitted, bytes in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::messages::{
    Code, DescriptorStatus, Entry, HeaderValue, RateLimit, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
    RateLimitResponse, RateLimitUnit, UInt64Value, Unit,
};
use super::metadata;
use super::service::{MAX_DESCRIPTORS, MAX_ENTRIES};
use crate::calls::bounded_json::{BoundedList, TOO_MANY};

/// A `RateLimitRequest` in JSON.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(super) struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<BoundedList<JsonDescriptor, MAX_DESCRIPTORS>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<JsonInteger>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct JsonDescriptor {
    entries: Option<BoundedList<JsonEntry, MAX_ENTRIES>>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<JsonInteger>,
    #[serde(alias = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct JsonLimit {
    #[serde(alias = "requestsPerUnit")]
    requests_per_unit: Option<JsonInteger>,
    unit: Option<Value>,
}

/// An unsigned integer, as a number or as text.
struct JsonInteger(u64);

impl<'de> Deserialize<'de> for JsonInteger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match Value::deserialize(deserializer)? {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        number.map(Self).ok_or_else(|| D::Error::custom("expected an unsigned integer"))
    }
}

/// Parses a request. The error contains no value of the request.
pub(super) fn parse_request(body: &[u8]) -> Result<RateLimitRequest, String> {
    // serde would accept an array of the field values, too.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err("line 1, column 1: a RateLimitRequest is an object".to_owned());
    }
    let input: JsonRequest = serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        match error.classify() {
            serde_json::error::Category::Data if error.to_string().starts_with(TOO_MANY) => {
                format!("descriptors: {error}")
            }
            serde_json::error::Category::Data => {
                format!("line {line}, column {column}: this is not a RateLimitRequest in JSON")
            }
            _ => format!("line {line}, column {column}: this is not JSON"),
        }
    })?;
    let descriptors = input.descriptors.map_or_else(Vec::new, |list| list.0);
    let descriptors = descriptors.into_iter().map(descriptor).collect::<Result<_, _>>()?;
    let hits_addend = to_u32(input.hits_addend, "hits_addend")?;
    Ok(RateLimitRequest { domain: input.domain.unwrap_or_default(), descriptors, hits_addend })
}

fn descriptor(input: JsonDescriptor) -> Result<RateLimitDescriptor, String> {
    let entry = |entry: JsonEntry| Entry { key: entry.key.unwrap_or_default(), value: entry.value.unwrap_or_default() };
    Ok(RateLimitDescriptor {
        entries: input.entries.map_or_else(Vec::new, |list| list.0).into_iter().map(entry).collect(),
        limit: input.limit.map(limit).transpose()?,
        hits_addend: input.hits_addend.map(|hits| UInt64Value { value: hits.0 }),
        is_negative_hits: input.is_negative_hits.unwrap_or_default(),
    })
}

fn limit(input: JsonLimit) -> Result<RateLimitOverride, String> {
    let unit = match input.unit {
        None | Some(Value::Null) => Some(RateLimitUnit::Unknown),
        Some(Value::String(name)) => RateLimitUnit::from_str_name(&name),
        Some(number) => number.as_i64().and_then(|number| RateLimitUnit::try_from(i32::try_from(number).ok()?).ok()),
    };
    let unit = unit.ok_or("limit.unit: send one from SECOND to YEAR")?;
    Ok(RateLimitOverride {
        requests_per_unit: to_u32(input.requests_per_unit, "requests_per_unit")?,
        unit: unit.into(),
    })
}

fn to_u32(number: Option<JsonInteger>, name: &str) -> Result<u32, String> {
    let number = number.map_or(0, |number| number.0);
    u32::try_from(number).map_err(|_| format!("{name}: at most {}", u32::MAX))
}

/// Formats a response.
pub(super) fn format_response(response: &RateLimitResponse) -> Value {
    let mut object = Map::new();
    object.insert("overallCode".into(), code(response.overall_code));
    insert_list(&mut object, "statuses", response.statuses.iter().map(status));
    insert_list(&mut object, "responseHeadersToAdd", response.response_headers_to_add.iter().map(header));
    insert_list(&mut object, "requestHeadersToAdd", response.request_headers_to_add.iter().map(header));
    if !response.raw_body.is_empty() {
        object.insert("rawBody".into(), STANDARD.encode(&response.raw_body).into());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        object.insert("dynamicMetadata".into(), metadata::to_json(metadata));
    }
    object.into()
}

fn insert_list(object: &mut Map<String, Value>, name: &str, values: impl Iterator<Item = Value>) {
    let values: Vec<Value> = values.collect();
    if !values.is_empty() {
        object.insert(name.into(), values.into());
    }
}

fn code(code: i32) -> Value {
    Code::try_from(code).map_or_else(|_| code.into(), |code| code.as_str_name().into())
}

fn status(status: &DescriptorStatus) -> Value {
    let mut object = Map::new();
    object.insert("code".into(), code(status.code));
    if let Some(limit) = &status.current_limit {
        object.insert("currentLimit".into(), current_limit(limit));
    }
    if status.limit_remaining > 0 {
        object.insert("limitRemaining".into(), status.limit_remaining.into());
    }
    if let Some(reset) = &status.duration_until_reset {
        object.insert("durationUntilReset".into(), format!("{}s", reset.seconds).into());
    }
    object.into()
}

fn current_limit(limit: &RateLimit) -> Value {
    let mut object = Map::new();
    if !limit.name.is_empty() {
        object.insert("name".into(), limit.name.clone().into());
    }
    if limit.requests_per_unit > 0 {
        object.insert("requestsPerUnit".into(), limit.requests_per_unit.into());
    }
    if let Some(unit) = Unit::try_from(limit.unit).ok().filter(|unit| *unit != Unit::Unknown) {
        object.insert("unit".into(), unit.as_str_name().into());
    }
    object.into()
}

fn header(header: &HeaderValue) -> Value {
    json!({ "key": header.key, "value": header.value })
}
