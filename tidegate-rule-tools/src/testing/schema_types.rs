//! The types of a test file: one for each section, with the position of every value. [`TestSuite`](super::suite::TestSuite)
//! checks their values.

mod field;

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value;
use tidegate_rules::internals::{OneOrMany, Spanned};

use field::non_null;

pub(in crate::testing) use field::{OptionalField, OverridableField};

/// Tests for limits: requests to a rule file in virtual time, and the expected decisions. Every test starts with unused limits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TestFile")]
pub(crate) struct TestFileSpec {
    /// The path of the rule file, relative to this file.
    pub(crate) rules: Spanned<String>,
    /// When every test starts, in UTC: `2026-01-01T00:00:00Z` if missing. It matters to windows, which follow the clock.
    #[serde(default)]
    pub(crate) start: OptionalField<Spanned<String>>,
    /// The number of instances that share the store, for rules that are `local` while it fails. 1 if missing.
    #[serde(default)]
    pub(crate) instances: OptionalField<Spanned<u64>>,
    /// What all requests of the file have in common.
    #[serde(default, deserialize_with = "non_null")]
    pub(crate) request: RequestSpec,
    /// The tests.
    pub(crate) tests: Vec<Spanned<TestSpec>>,
}

/// One test: steps that follow each other in time.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Test")]
pub(crate) struct TestSpec {
    /// What it shows, as a sentence.
    pub(crate) name: Spanned<String>,
    /// What its requests have in common.
    #[serde(default, deserialize_with = "non_null")]
    pub(crate) request: RequestSpec,
    /// What happens, in order.
    pub(crate) steps: Vec<Spanned<StepSpec>>,
}

/// One step: some requests, and the expected decisions.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Step")]
pub(crate) struct StepSpec {
    /// The time since the start of the test: `2s`, `1m30s`; or an instant: `2026-03-29T03:00:00+02:00`.
    pub(crate) at: OptionalField<Spanned<String>>,
    /// The time since the previous request: `500ms`. Without `at` and `after`, the same instant.
    pub(crate) after: OptionalField<Spanned<String>>,
    /// How many times the request is sent. 1 if missing.
    pub(crate) send: OptionalField<Spanned<u64>>,
    /// The time between two of them. If missing, all are sent at once.
    pub(crate) every: OptionalField<Spanned<String>>,
    /// How long each request runs before it releases its slots of concurrency limits; they are renewed meanwhile. `0s` for one that ends
    /// at once. If missing, nothing renews or releases them, and they run out after the lease.
    pub(crate) holds: OptionalField<Spanned<String>>,
    /// The actual cost of each request, for rules with `cost.actual` or `cost.usage`, known at once or after the time that it `holds`. The
    /// difference is charged or refunded.
    pub(crate) actual: OptionalField<Spanned<u64>>,
    /// Checks without consuming.
    pub(crate) peek: OptionalField<Spanned<bool>>,
    /// The store fails for these requests, and the `on_failure` of each rule applies.
    pub(crate) store_fails: OptionalField<Spanned<bool>>,
    /// The cost that the caller gives, for rules without a cost of their own. 1 if missing.
    pub(crate) cost: OptionalField<Spanned<u64>>,
    /// Changes to the request of the test. Fields replace those of the test or remove them (`~`); headers and attributes are
    /// added.
    #[serde(deserialize_with = "non_null")]
    pub(crate) request: RequestSpec,
    /// The expected decisions. If missing, the requests are only sent.
    pub(crate) expect: OptionalField<Spanned<ExpectSpec>>,
}

/// A request. A null (`~`) removes the value of the outer request.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Request")]
pub(crate) struct RequestSpec {
    /// The HTTP method.
    pub(crate) method: OverridableField<String>,
    /// The path, with its query if it has one: `/search?q=tide`.
    pub(crate) path: OverridableField<String>,
    /// The host. If missing, that of the `Host` header.
    pub(crate) host: OverridableField<String>,
    /// Headers by name; a list for several lines of one name, null (`~`) to remove a header of the test.
    #[serde(deserialize_with = "non_null")]
    #[schemars(schema_with = "lines_by_name")]
    pub(crate) headers: BTreeMap<String, Spanned<Option<OneOrMany<String>>>>,
    /// The address that connects to us: the client, or the proxy in front of us.
    pub(crate) ip: OverridableField<String>,
    /// The tenant, as set by the application.
    pub(crate) tenant: OverridableField<String>,
    /// The action.
    pub(crate) action: OverridableField<String>,
    /// Other attributes that the application sets, by name; null (`~`) to remove one of the test.
    #[serde(deserialize_with = "non_null")]
    #[schemars(schema_with = "texts_by_name")]
    pub(crate) attributes: BTreeMap<String, Spanned<Option<String>>>,
    /// The body: text as it is, anything else as JSON.
    pub(crate) body: OverridableField<Value>,
    /// The size of the body in bytes. If missing, that of the header `Content-Length` or of `body`; 0 for a GET or HEAD without
    /// these; else not known.
    pub(crate) size: OverridableField<u64>,
    /// The cost that the caller gives, for rules without a cost of their own. 1 if missing.
    pub(crate) cost: OverridableField<u64>,
}

/// The expected decisions of a step.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(rename = "Expect", untagged)]
pub(crate) enum ExpectSpec {
    /// The outcome of each request.
    Text(Spanned<OutcomeSpec>),
    /// The number of outcomes, and fields of the last decision.
    Map(Box<ExpectDetailsSpec>),
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Fate")]
pub(crate) enum OutcomeSpec {
    /// It is admitted by the rules that apply.
    Allowed,
    /// It is refused.
    Denied,
    /// No rule applies, or an exemption does.
    NoRule,
    /// It is refused with 503: the store fails, and a rule is closed then.
    Unavailable,
}

/// The number of outcomes, and fields of the last decision. Only given fields are compared; null (`~`) is an error.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Details")]
pub(crate) struct ExpectDetailsSpec {
    /// How many pass.
    pub(crate) allowed: OptionalField<Spanned<u64>>,
    /// How many are refused; or the rule that refuses them, which is all of them if `allowed` does not say otherwise.
    pub(crate) denied: OptionalField<DeniedSpec>,
    /// To how many no rule applies.
    pub(crate) no_rule: OptionalField<Spanned<u64>>,
    /// How many are refused with 503, because the store fails and a rule is closed then.
    pub(crate) unavailable: OptionalField<Spanned<u64>>,
    /// The rule that the answer is about.
    pub(crate) rule: OptionalField<Spanned<String>>,
    /// The most that this rule could ever admit at once.
    pub(crate) limit: OptionalField<Spanned<u64>>,
    /// The largest cost that it would still admit.
    pub(crate) remaining: OptionalField<Spanned<u64>>,
    /// After which time the same request would pass.
    pub(crate) retry_after: OptionalField<Spanned<String>>,
    /// After which time everything is as at the beginning.
    pub(crate) reset_after: OptionalField<Spanned<String>>,
    /// How long the request is held.
    pub(crate) delay: OptionalField<Spanned<String>>,
    /// Whether no waiting helps.
    pub(crate) permanent: OptionalField<Spanned<bool>>,
    /// Whether it passes in the grace of a quota.
    pub(crate) in_grace: OptionalField<Spanned<bool>>,
    /// What it costs under the rule that the answer is about.
    pub(crate) cost: OptionalField<Spanned<u64>>,
    /// The status of the answer: 200 if it passes, 429 if not, 503 if the store fails and a rule is closed then, 400 if the request
    /// cannot be judged.
    pub(crate) status: OptionalField<Spanned<u64>>,
    /// Headers of the answer by name: the value, `*` for any, nothing (`~`) for a header that must not be there.
    #[serde(deserialize_with = "non_null")]
    #[schemars(schema_with = "texts_by_name")]
    pub(crate) headers: BTreeMap<String, Spanned<Option<String>>>,
    /// What a refused caller reads.
    pub(crate) message: OptionalField<Spanned<String>>,
    /// The body of the answer to a refused caller, as it is sent.
    pub(crate) body: OptionalField<Spanned<String>>,
    /// The rules in shadow that would have refused it, in the order of the file.
    pub(crate) shadow_would_reject: OptionalField<Spanned<OneOrMany<Spanned<String>>>>,
}

/// How many are refused, or by which rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(rename = "Denied", untagged)]
pub(crate) enum DeniedSpec {
    /// So many.
    Number(Spanned<u64>),
    /// By this rule.
    Text(Spanned<String>),
}

/// Texts by name. YAML takes `600` for a number, and read as text it is as it is written, so an editor must not object.
fn texts_by_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "type": ["string", "number", "boolean", "null"] },
    })
}

/// The same, with several lines for a name.
fn lines_by_name(_: &mut SchemaGenerator) -> Schema {
    let line = json_schema!({ "type": ["string", "number", "boolean"] });
    json_schema!({
        "type": "object",
        "additionalProperties": { "anyOf": [line, { "type": "array", "items": line }, { "type": "null" }] },
    })
}
