//! What the check API is asked: JSON in, a sample out. Errors say where and what, and quote no value.

use std::collections::BTreeMap;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Number, json};
use tidegate_rules::{SampleAttributes, SampleRequest};

/// The most checks of one batch.
const MAX_CHECKS: usize = 100;

/// A check that is asked for.
pub(crate) struct Asked {
    pub(crate) attributes: SampleAttributes,
    pub(crate) peek: bool,
    /// Whether what it consumes may be asked back.
    pub(crate) receipt: bool,
}

/// Several of them.
pub(crate) struct Batch {
    pub(crate) checks: Vec<Asked>,
    pub(crate) atomic: bool,
    /// Of one that is atomic, whether what it consumes may be asked back.
    pub(crate) receipt: bool,
}

/// Why a call makes no sense.
#[derive(Debug)]
pub(crate) struct Refusal(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    method: Option<String>,
    path: Option<String>,
    host: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, OneOrMany>,
    ip: Option<String>,
    tenant: Option<String>,
    action: Option<String>,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
    body: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    cost: Option<u64>,
    #[serde(default)]
    peek: bool,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Calls {
    checks: Vec<Call>,
    #[serde(default)]
    atomic: bool,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Returned {
    receipt: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// A whole number that every reader of JSON can tell from the next, also if it is written with a fraction of zero.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    const LARGEST: u64 = (1 << 53) - 1;
    let Some(number) = Option::<Number>::deserialize(deserializer)? else { return Ok(None) };
    let of_float = |number: f64| (number >= 0.0 && number.fract() == 0.0).then_some(number as u64);
    let whole = number.as_u64().or_else(|| number.as_f64().and_then(of_float)).filter(|number| *number <= LARGEST);
    whole.map(Some).ok_or_else(|| D::Error::custom("a whole number is wanted here"))
}

impl Asked {
    pub(crate) fn read(body: &[u8]) -> Result<Self, Refusal> {
        Self::of(parse(body)?)
    }

    fn of(call: Call) -> Result<Self, Refusal> {
        if call.headers.values().any(|values| matches!(values, OneOrMany::Many(values) if values.is_empty())) {
            return Err(Refusal::new("headers: a list of values is empty; leave the header out"));
        }
        let each = |(name, values): (String, OneOrMany)| {
            let values = match values {
                OneOrMany::One(value) => vec![value],
                OneOrMany::Many(values) => values,
            };
            values.into_iter().map(move |value| (name.clone(), value)).collect::<Vec<_>>()
        };
        let mut sample = SampleRequest::new();
        sample.method = call.method;
        sample.path = call.path;
        sample.host = call.host;
        sample.headers = call.headers.into_iter().flat_map(each).collect();
        sample.ip = call.ip;
        sample.tenant = call.tenant;
        sample.action = call.action;
        sample.attributes = call.attributes.into_iter().collect();
        sample.body = call.body;
        sample.cost = call.cost;
        match sample.attributes() {
            Ok(attributes) => Ok(Self { attributes, peek: call.peek, receipt: call.receipt && !call.peek }),
            Err(error) => Err(Refusal(error.to_string())),
        }
    }
}

impl Batch {
    pub(crate) fn read(body: &[u8]) -> Result<Self, Refusal> {
        let calls: Calls = parse(body)?;
        if calls.checks.len() > MAX_CHECKS {
            return Err(Refusal(format!("{} checks; at most {MAX_CHECKS} in one batch", calls.checks.len())));
        }
        let checks: Result<Vec<_>, _> = calls.checks.into_iter().map(Asked::of).collect();
        let checks = checks?;
        if calls.atomic && checks.iter().any(|asked| asked.peek) {
            return Err(Refusal("a batch that is atomic cannot peek: leave `peek` out".into()));
        }
        if calls.atomic && checks.iter().any(|asked| asked.receipt) {
            return Err(Refusal::new("a batch that is atomic has one receipt: ask for it beside `atomic`"));
        }
        if calls.receipt && !calls.atomic {
            return Err(Refusal::new("a batch that is not atomic has a receipt for each check: ask for them there"));
        }
        Ok(Self { checks, atomic: calls.atomic, receipt: calls.receipt })
    }
}

/// The receipt that a caller brings back.
pub(crate) fn receipt(body: &[u8]) -> Result<String, Refusal> {
    parse(body).map(|returned: Returned| returned.receipt)
}

fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        // The text of an error may repeat a value, so only what kind it is is told.
        let what = match error.classify() {
            serde_json::error::Category::Syntax => "this is not JSON",
            serde_json::error::Category::Eof => "the JSON ends too early",
            serde_json::error::Category::Data | serde_json::error::Category::Io => {
                "a field is unknown, or of another type; see /openapi.json"
            }
        };
        Refusal(format!("line {line}, column {column}: {what}"))
    })
}

impl Refusal {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (StatusCode::BAD_REQUEST, Json(json!({ "error": "bad_request", "message": self.0 }))).into_response()
    }
}
