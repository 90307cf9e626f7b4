//! The JSON bodies of the check API. Errors name the place and the kind of problem, and quote no value.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::de::Unexpected;
use serde::{Deserialize, Deserializer};
use serde_json::{Number, json};
use tidegate::attributes::RequestAttributes;
use tidegate_rules::RequestDescription;

use crate::calls::bounded_json::{BoundedList, BoundedMap, TextOrList};
use crate::calls::json_problem;

/// The most checks of one batch.
const MAX_CHECKS: usize = 100;

/// The most header lines of one check.
const MAX_HEADERS: usize = 256;

/// The most attributes of one check.
const MAX_ATTRIBUTES: usize = 256;

/// The longest idempotency key.
const MAX_KEY_BYTES: usize = 255;

/// The most rules with a cost of their own in one commit. More do not apply to one request.
const MAX_COSTS: usize = 256;

/// A call of `/v1/check`, or one check of a batch.
pub(crate) struct CheckCall {
    pub(crate) attributes: RequestAttributes<'static>,
    pub(crate) peek: bool,
    /// Whether the response has a receipt.
    pub(crate) receipt: bool,
    /// Whether it is an error if no rule matches, if the call says so.
    pub(crate) strict: Option<bool>,
}

/// A call of `/v1/acquire`.
pub(crate) struct AcquireCall {
    pub(crate) check: CheckCall,
    /// How long the caller waits at most, if it says so.
    pub(crate) max_wait: Option<Duration>,
}

/// A call of `/v1/quotas/reserve`.
pub(crate) struct ReserveCall {
    pub(crate) check: CheckCall,
    pub(crate) idempotency_key: String,
}

/// A call of `/v1/quotas/commit`.
pub(crate) struct CommitCall {
    pub(crate) id: String,
    pub(crate) actual: ActualCost,
}

/// What was consumed of a reservation.
pub(crate) enum ActualCost {
    /// Under every rule without a cost of its own.
    Same(u64),
    /// Under these rules; under others, what was reserved.
    Each(BTreeMap<String, u64>),
}

/// A call of `/v1/check/batch`.
pub(crate) struct BatchCheckCall {
    pub(crate) checks: Vec<CheckCall>,
    pub(crate) atomic: bool,
    /// Whether the response to an atomic batch has a receipt.
    pub(crate) receipt: bool,
}

/// Why a call cannot be understood; answered with 400, or with 422 if no rule matches a strict check.
#[derive(Debug)]
pub(crate) struct BadRequest {
    message: String,
    is_unmatched: bool,
}

/// A request in a body.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckBody {
    method: Option<String>,
    path: Option<String>,
    host: Option<String>,
    #[serde(default)]
    headers: BoundedMap<TextOrList<MAX_HEADERS>, MAX_HEADERS>,
    ip: Option<String>,
    tenant: Option<String>,
    action: Option<String>,
    #[serde(default)]
    attributes: BoundedMap<String, MAX_ATTRIBUTES>,
    body: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    size: Option<u64>,
    #[serde(default, deserialize_with = "whole")]
    cost: Option<u64>,
    #[serde(default)]
    peek: bool,
    #[serde(default)]
    receipt: bool,
    strict: Option<bool>,
    /// Only in a call of `/v1/acquire`.
    #[serde(default, deserialize_with = "whole")]
    max_wait_ms: Option<u64>,
    /// Only in a call of `/v1/quotas/reserve`.
    idempotency_key: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommitBody {
    id: String,
    #[serde(default, deserialize_with = "whole")]
    cost: Option<u64>,
    costs: Option<BoundedMap<WholeNumber, MAX_COSTS>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseBody {
    id: String,
}

/// A number as [`whole`] reads it, which is not null.
struct WholeNumber(u64);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody {
    checks: BoundedList<CheckBody, MAX_CHECKS>,
    #[serde(default)]
    atomic: bool,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefundBody {
    receipt: String,
}

/// A whole number below 2^53, which every JSON parser represents exactly; `3.0` is accepted.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    const MAX: u64 = (1 << 53) - 1;
    let Some(number) = Option::<Number>::deserialize(deserializer)? else { return Ok(None) };
    let from_float = |number: f64| (number >= 0.0 && number.fract() == 0.0).then_some(number as u64);
    let whole = number.as_u64().or_else(|| number.as_f64().and_then(from_float)).filter(|number| *number <= MAX);
    whole.map(Some).ok_or_else(not_whole)
}

fn not_whole<E: serde::de::Error>() -> E {
    E::invalid_value(Unexpected::Other("number"), &"a whole number below 2^53")
}

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        whole(deserializer)?.map(Self).ok_or_else(not_whole)
    }
}

impl CheckCall {
    pub(crate) fn from_json(body: &[u8]) -> Result<Self, BadRequest> {
        Self::from_body(parse(body)?)
    }

    /// A call that takes a slot or waits for its turn, so it cannot be a peek.
    pub(crate) fn for_lease(body: &[u8]) -> Result<Self, BadRequest> {
        Self::from_json(body)?.without_peek()
    }

    /// A call that looks at the limits of a request, so it consumes nothing in any case.
    pub(crate) fn for_listing(body: &[u8]) -> Result<Self, BadRequest> {
        let call = Self::from_json(body)?;
        if call.peek || call.receipt {
            return Err(BadRequest::new("`peek` and `receipt` have no effect here; leave them out"));
        }
        Ok(call)
    }

    fn without_peek(self) -> Result<Self, BadRequest> {
        if self.peek {
            return Err(BadRequest::new("peek: this call takes what it needs; use /v1/check to peek"));
        }
        Ok(self)
    }

    fn from_body(call: CheckBody) -> Result<Self, BadRequest> {
        if call.max_wait_ms.is_some() {
            return Err(BadRequest::new("max_wait_ms: only /v1/acquire waits"));
        }
        if call.idempotency_key.is_some() {
            return Err(BadRequest::new("idempotency_key: only /v1/quotas/reserve has one"));
        }
        if call.headers.0.values().any(|values| values.0.is_empty()) {
            return Err(BadRequest::new("headers: a list of values is empty; leave the header out"));
        }
        let headers: Vec<(String, String)> = (call.headers.0.into_iter())
            .flat_map(|(name, values)| values.0.into_iter().map(move |value| (name.clone(), value)))
            .collect();
        if headers.len() > MAX_HEADERS {
            return Err(BadRequest::new(format!("headers: {} values; at most {MAX_HEADERS}", headers.len())));
        }
        let mut description = RequestDescription::new();
        description.method = call.method;
        description.path = call.path;
        description.host = call.host;
        description.headers = headers;
        description.ip = call.ip;
        description.tenant = call.tenant;
        description.action = call.action;
        description.attributes = call.attributes.0.into_iter().collect();
        description.body = call.body;
        description.size = call.size;
        description.cost = call.cost;
        let attributes = description.attributes().map_err(|error| BadRequest::new(error.to_string()))?.into_owned();
        let CheckBody { peek, receipt, strict, .. } = call;
        Ok(Self { attributes, peek, receipt: receipt && !peek, strict })
    }
}

impl AcquireCall {
    pub(crate) fn from_json(body: &[u8]) -> Result<Self, BadRequest> {
        let mut call: CheckBody = parse(body)?;
        let max_wait = call.max_wait_ms.take().map(Duration::from_millis);
        Ok(Self { check: CheckCall::from_body(call)?.without_peek()?, max_wait })
    }
}

impl ReserveCall {
    pub(crate) fn from_json(body: &[u8]) -> Result<Self, BadRequest> {
        let mut call: CheckBody = parse(body)?;
        let Some(idempotency_key) = call.idempotency_key.take() else {
            let message =
                "idempotency_key is missing: send one that is new for each piece of work, and the same in each repeat";
            return Err(BadRequest::new(message));
        };
        let is_printable = idempotency_key.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !is_printable || !(1..=MAX_KEY_BYTES).contains(&idempotency_key.len()) {
            let message = format!("idempotency_key: this must be 1 to {MAX_KEY_BYTES} printable ASCII characters");
            return Err(BadRequest::new(message));
        }
        if call.receipt {
            return Err(BadRequest::new("receipt: a reservation is committed or released by its id; leave it out"));
        }
        Ok(Self { check: CheckCall::from_body(call)?.without_peek()?, idempotency_key })
    }
}

impl CommitCall {
    pub(crate) fn from_json(body: &[u8]) -> Result<Self, BadRequest> {
        let CommitBody { id, cost, costs } = parse(body)?;
        let actual = match (cost, costs) {
            (Some(cost), None) => ActualCost::Same(cost),
            (None, Some(costs)) => ActualCost::Each(costs.0.into_iter().map(|(rule, cost)| (rule, cost.0)).collect()),
            _ => return Err(BadRequest::new("send either `cost`, or `costs` with a cost for each rule")),
        };
        Ok(Self { id, actual })
    }
}

/// The id in a call of `/v1/quotas/release`.
pub(crate) fn reservation_id(body: &[u8]) -> Result<String, BadRequest> {
    parse(body).map(|body: ReleaseBody| body.id)
}

impl BatchCheckCall {
    pub(crate) fn from_json(body: &[u8]) -> Result<Self, BadRequest> {
        let calls: BatchBody = parse(body)?;
        let checks: Result<Vec<_>, _> = calls.checks.0.into_iter().map(CheckCall::from_body).collect();
        let checks = checks?;
        if calls.atomic && checks.iter().any(|call| call.peek) {
            return Err(BadRequest::new("an atomic batch cannot peek: leave `peek` out"));
        }
        if calls.atomic && checks.iter().any(|call| call.receipt) {
            return Err(BadRequest::new("an atomic batch has one receipt: set `receipt` beside `atomic`"));
        }
        if calls.receipt && !calls.atomic {
            return Err(BadRequest::new(
                "a batch that is not atomic has a receipt for each check: set `receipt` there",
            ));
        }
        Ok(Self { checks, atomic: calls.atomic, receipt: calls.receipt })
    }
}

impl CheckBody {
    /// The attributes of a request that describes a subject.
    pub(crate) fn into_subject(self) -> Result<RequestAttributes<'static>, BadRequest> {
        let CheckCall { attributes, peek, receipt, strict } = CheckCall::from_body(self)?;
        if peek || receipt || strict.is_some() {
            return Err(BadRequest::new("request: `peek`, `receipt` and `strict` have no effect here; leave them out"));
        }
        Ok(attributes)
    }

    /// The tenant, if nothing else is known.
    pub(crate) fn only_tenant(&self) -> Option<String> {
        let Self { method, path, host, headers, ip, tenant, action, attributes, body, .. } = self;
        let others = [method, path, host, ip, action, body];
        let is_only = others.iter().all(|text| text.is_none()) && headers.0.is_empty() && attributes.0.is_empty();
        tenant.clone().filter(|_| is_only)
    }

    /// A request of which only the tenant is known.
    pub(crate) fn for_tenant(tenant: String) -> Self {
        Self { tenant: Some(tenant), ..Self::default() }
    }
}

/// The receipt in a call of `/v1/refund`.
pub(crate) fn receipt(body: &[u8]) -> Result<String, BadRequest> {
    parse(body).map(|body: RefundBody| body.receipt)
}

/// Parses the body of a call. The error names the place and quotes no value.
pub(crate) fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, BadRequest> {
    json_problem::from_json(body).map_err(BadRequest::new)
}

impl BadRequest {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_unmatched: false }
    }

    /// No rule matches a strict check.
    pub(crate) fn no_rule(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_unmatched: true }
    }

    /// Says which check of a batch no rule matches.
    pub(crate) fn in_check(self, index: usize) -> Self {
        let message = if self.is_unmatched { format!("checks[{index}]: {}", self.message) } else { self.message };
        Self { message, ..self }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl IntoResponse for BadRequest {
    fn into_response(self) -> Response {
        let (status, error) = if self.is_unmatched {
            (StatusCode::UNPROCESSABLE_ENTITY, "no_rule")
        } else {
            (StatusCode::BAD_REQUEST, "bad_request")
        };
        (status, Json(json!({ "error": error, "message": self.message }))).into_response()
    }
}
