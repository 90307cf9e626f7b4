//! The types of the rule file: one for each section, with the position of every value. Serde reads into them and the JSON
//! Schema is generated from them; [`compile`](crate::compile) checks their values.

mod anonymous;
mod cost;
mod exemption;
mod identify;
mod limit;
mod on_failure;
mod penalty;
mod route_table;
mod scalar;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) use anonymous::{AnonymousSpec, AuthenticatedSpec};
pub(crate) use cost::{CostSpec, CostTableSpec, UsageSpec};
pub(crate) use exemption::ExemptionSpec;
pub(crate) use identify::{EscapedSlashesSpec, IdentifySpec, RepeatedName, RepeatedSpec, SourcesSpec};
pub(crate) use limit::{
    ConcurrencySpec, FixedWindowSpec, LeakyBucketSpec, LedgerSpec, LimitSpec, PeriodSpec, QuotaSpec, SlidingLogSpec,
    SlidingWindowSpec, TokenBucketSpec,
};
pub(crate) use on_failure::{OnFailureSpec, OnOverloadSpec, PolicyName, PolicySpec, PolicyTableSpec, StaticLimitSpec};
pub(crate) use penalty::PenaltySpec;
pub(crate) use route_table::RouteTableSpec;
pub(crate) use scalar::{Amount, BoundedAmount, TextScalar};

use crate::read::{OneOrMany, Required, Spanned};

/// Limits for a service: who is limited, in what, and how much.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "File")]
pub(crate) struct RuleFileSpec {
    /// The version of this format: 1.
    pub(crate) version: Option<Spanned<u64>>,
    /// Who the client, the user and the tenant are.
    #[serde(default)]
    pub(crate) identify: Spanned<IdentifySpec>,
    /// Which header fields responses have, and in which format refusals are.
    #[serde(default)]
    pub(crate) http: HttpSpec,
    /// The size in bytes that `request.size` has for a body without a length; the gateway forwards no more of it. 2,097,152 if
    /// missing.
    pub(crate) unknown_size: Option<Spanned<Amount>>,
    /// The longest body that rules read, in bytes: 1,024 to 16,777,216; longer ones are refused with 413. 65,536 if missing, or
    /// 1,048,576 if a rule has `cost.usage`.
    pub(crate) max_body: Option<Spanned<Amount>>,
    /// Requests that are exempt from all rules, such as internal calls and health checks, or from some.
    #[serde(default)]
    pub(crate) exempt: Vec<Spanned<ExemptionSpec>>,
    /// Other limits for the requests of a plan: plan, then rule, then its limit.
    #[serde(default)]
    pub(crate) plans: Spanned<BTreeMap<String, BTreeMap<String, Spanned<LimitSpec>>>>,
    /// The plan of each tenant.
    #[serde(default)]
    pub(crate) tenants: Spanned<BTreeMap<String, Spanned<String>>>,
    /// The plan of tenants without one, and of requests without a tenant.
    pub(crate) default_plan: Option<Spanned<String>>,
    /// The rules. All that match a request apply, and it is admitted only if all of them admit it.
    #[serde(default)]
    pub(crate) rules: Vec<Spanned<RuleSpec>>,
    /// Whether a rule could not be decoded at all.
    #[serde(skip)]
    pub(crate) lost_rules: bool,
}

/// One rule: which requests are limited, by which subject, and how much.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Rule")]
pub(crate) struct RuleSpec {
    /// Its name in responses, metrics and keys. A new id starts with unused limits.
    pub(crate) id: Required<String>,
    /// Its purpose, for readers of the file.
    #[allow(dead_code, reason = "it is for the readers of the file")]
    pub(crate) description: Option<String>,
    /// Which requests it applies to; all if missing.
    pub(crate) r#match: Option<Spanned<MatchSpec>>,
    /// The front ends that it is meant for; every one if missing. It changes no decision: reports leave the others out, and a rule that
    /// never applies at one that is listed is an error.
    pub(crate) front_ends: Option<Spanned<OneOrMany<Spanned<FrontEndSpec>>>>,
    /// What it counts by: names from `identify`, or sources such as `ip`, `header:x-api-key`, `attr:account`, each with any normal
    /// forms behind it (`body:email | email`). With `[]` all requests share one limit.
    pub(crate) per: Required<OneOrMany<Spanned<String>>>,
    /// Whether users and keys of different authenticated tenants are different subjects (`tenant`, the default) or not (`global`).
    pub(crate) scope: Option<Spanned<ScopeSpec>>,
    /// By what its keys are distributed over the slots of a cluster: `tenant` (the default if it counts by one), `subject` (to spread a
    /// large tenant over all servers), `rule`, or `const:NAME` (together with all rules of that name).
    pub(crate) tag: Option<Spanned<String>>,
    /// A burst, then a sustained rate.
    pub(crate) token_bucket: Option<Spanned<TokenBucketSpec>>,
    /// A constant rate; early requests wait in a queue.
    pub(crate) leaky_bucket: Option<Spanned<LeakyBucketSpec>>,
    /// A number of requests in each window of the clock.
    pub(crate) fixed_window: Option<Spanned<FixedWindowSpec>>,
    /// A number of requests in any window, exactly; stores every request.
    pub(crate) sliding_log: Option<Spanned<SlidingLogSpec>>,
    /// A number of requests in any window, estimated from slices.
    pub(crate) sliding_window: Option<Spanned<SlidingWindowSpec>>,
    /// A number of requests at the same time, each held until it ends.
    pub(crate) concurrency: Option<Spanned<ConcurrencySpec>>,
    /// A number of requests in each period of the calendar, in a time zone.
    pub(crate) quota: Option<Spanned<QuotaSpec>>,
    /// Several limits, each under a name of its own.
    #[serde(default)]
    pub(crate) limits: BTreeMap<String, Spanned<LimitSpec>>,
    /// Growing blocks for a subject that the rule refuses again and again. Only with `security: true`.
    pub(crate) penalty: Option<Spanned<PenaltySpec>>,
    /// The cost of a request: a number, a table, or an expression in CEL. If missing, the caller's cost, which is 1 by default.
    pub(crate) cost: Option<Spanned<CostSpec>>,
    /// Shares one limit with every rule of the same budget.
    pub(crate) budget: Option<Spanned<String>>,
    /// What happens while the store fails: a policy (`local`, `share`, `closed`, `degraded`, `open`), `{ static: 100/s }`, or a table
    /// by method or route. If missing, `closed` for a rule with a ledger and `local` for others.
    pub(crate) on_failure: Option<Spanned<OnFailureSpec>>,
    /// What happens to a request without a value that the rule counts by: `error`, it is refused as one that cannot be judged, or `shared`, all
    /// such requests are one subject. If missing, `error` for a rule with a ledger and `shared` for others.
    pub(crate) on_missing: Option<Spanned<OnMissingSpec>>,
    /// What happens while an instance is overloaded, because too many requests wait for the store. `policy` if missing.
    pub(crate) on_overload: Option<Spanned<OnOverloadSpec>>,
    /// Whether an instance may deny a subject by itself for up to a second after the store denied it. True if missing.
    pub(crate) denial_cache: Option<Spanned<bool>>,
    /// Bounds for unauthenticated subjects.
    pub(crate) anonymous: Option<Spanned<AnonymousSpec>>,
    /// Bounds for authenticated subjects.
    pub(crate) authenticated: Option<Spanned<AuthenticatedSpec>>,
    /// Whether it is enforced.
    pub(crate) mode: Option<Spanned<ModeSpec>>,
    /// Whether it protects against guessing: responses then show only when to retry, and accounts are trimmed and in lower case.
    pub(crate) security: Option<Spanned<bool>>,
    /// The message in the response to a refused request.
    pub(crate) message: Option<Spanned<String>>,
    /// The format of that response. If missing, that below `http`; else `openai` with `cost.usage` and `json` without.
    pub(crate) error_format: Option<Spanned<ErrorFormatSpec>>,
}

/// What happens to a request without a value that a rule counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "OnMissing")]
pub(crate) enum OnMissingSpec {
    /// It is refused as a request that cannot be judged.
    Error,
    /// All such requests are one subject.
    Shared,
}

/// Which requests match. Every given field must match; of a list, one entry must.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Match")]
pub(crate) struct MatchSpec {
    /// The HTTP method.
    #[serde(default)]
    pub(crate) method: OneOrMany<Spanned<String>>,
    /// The path: `/a/b`, `/a/{id}` for any one segment, `/a/*` for all paths below.
    #[serde(default)]
    pub(crate) path: OneOrMany<Spanned<String>>,
    /// The host: `api.example.com`, or `*.example.com` for its subdomains.
    #[serde(default)]
    pub(crate) host: OneOrMany<Spanned<String>>,
    /// Headers by name with their value; `*` for any value.
    #[serde(default)]
    pub(crate) header: BTreeMap<String, OneOrMany<Spanned<TextScalar>>>,
    /// The tenant.
    #[serde(default)]
    pub(crate) tenant: OneOrMany<Spanned<TextScalar>>,
    /// The plan.
    #[serde(default)]
    pub(crate) plan: OneOrMany<Spanned<String>>,
    /// The action, such as `login` or `export`.
    #[serde(default)]
    pub(crate) action: OneOrMany<Spanned<String>>,
    /// The address of the client: networks such as `10.0.0.0/8`.
    #[serde(default)]
    pub(crate) ip: OneOrMany<Spanned<String>>,
}

/// How requests reach the rules.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "FrontEnd")]
pub(crate) enum FrontEndSpec {
    /// The reverse proxy of `tidegate serve`.
    Gateway,
    /// `/v1/forward-auth`, for proxies that ask before they forward.
    ForwardAuth,
    /// `/v1/check` and the other calls of the check API.
    Check,
    /// The tower layer of a Rust service.
    Tower,
    /// Envoy's rate limit service.
    Envoy,
    /// A program that uses the library.
    Library,
}

/// Which header fields responses have, and in which format refusals are.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Http")]
pub(crate) struct HttpSpec {
    /// `RateLimit` and `RateLimit-Policy`: the revision of the draft (`draft-11`), or `off`.
    pub(crate) ratelimit: Option<Spanned<String>>,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`: the form of `-Reset`, or `off`. `epoch` if missing.
    pub(crate) x_ratelimit: Option<Spanned<ResetFormSpec>>,
    /// The older `RateLimit-Limit`, `-Remaining` and `-Reset`. `off` if missing.
    pub(crate) ratelimit_trio: Option<Spanned<ResetFormSpec>>,
    /// `retry-after-ms` beside `Retry-After`, which some client libraries read first. On if missing.
    pub(crate) retry_after_ms: Option<Spanned<bool>>,
    /// The format of the bodies of refusals, for rules without one of their own and for requests that cannot be judged. If missing,
    /// `openai` for rules with `cost.usage` and `json` for others.
    pub(crate) error_format: Option<Spanned<ErrorFormatSpec>>,
}

/// The format of the body of a refusal. A client that asks for `application/problem+json` gets that.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ErrorFormat")]
pub(crate) enum ErrorFormatSpec {
    /// `{"error":"rate_limit_exceeded","message":"…"}`, with the rule and the time to retry.
    Json,
    /// A problem document of RFC 9457.
    Problem,
    /// `{"type":"error","error":{"message":"…","type":"…","param":null,"code":"…"}}`, for client libraries of language models.
    Openai,
}

/// The form of a reset field.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResetForm")]
pub(crate) enum ResetFormSpec {
    /// Seconds since 1970 at which the limit is fully available.
    Epoch,
    /// Seconds until the limit is fully available.
    Delta,
    /// No such fields.
    Off,
}

/// Whether subjects of different tenants are different subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Scope")]
pub(crate) enum ScopeSpec {
    /// They are different; addresses and constants belong to no tenant.
    Tenant,
    /// They are the same.
    Global,
}

/// Whether a rule is enforced.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Mode")]
pub(crate) enum ModeSpec {
    /// It is enforced.
    Enabled,
    /// It is ignored.
    Disabled,
    /// It counts and reports what it would refuse, but refuses nothing.
    Shadow,
}

impl Spanned<RuleFileSpec> {
    /// Whether a part was removed that may have named a plan.
    pub(crate) fn has_lost_plan_names(&self) -> bool {
        let is_lost = self.has_lost(&["plans", "tenants", "default_plan"]);
        is_lost || !self.plans.removed.is_empty() || !self.tenants.removed.is_empty()
    }

    /// Whether a part was removed that may have given a plan limits, or matched it.
    pub(crate) fn has_lost_plan_uses(&self) -> bool {
        let has_lost_match = |rule: &Spanned<RuleSpec>| {
            rule.has_lost(&["match"]) || rule.r#match.as_ref().is_some_and(|condition| condition.has_lost(&["plan"]))
        };
        let is_lost = self.lost_rules || self.has_lost(&["plans"]) || !self.plans.removed.is_empty();
        is_lost || self.rules.iter().any(has_lost_match)
    }
}

impl RuleFileSpec {
    /// Whether a rule lost its id, so that an unknown id may be its own.
    pub(crate) fn has_lost_ids(&self) -> bool {
        self.lost_rules || self.rules.iter().any(|rule| rule.id.is_none())
    }

    /// The ids of the rules, in the order of the file.
    pub(crate) fn rule_ids(&self) -> impl Iterator<Item = &str> + Clone {
        self.rules.iter().filter_map(|rule| rule.id.as_ref()).map(|id| id.as_str())
    }
}
