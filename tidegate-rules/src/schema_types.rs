//! The rule file as it is written: one type for each section, with the place of every value. The schema is generated from
//! these types and serde reads into them; what the values mean is decided when they are [compiled](crate::compile).

mod anonymous;
mod cost;
mod identify;
mod limit;
mod on_failure;
mod route_table;
mod scalar;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) use anonymous::AnonymousSpec;
pub(crate) use cost::{CostSpec, CostTableSpec};
pub(crate) use identify::{IdentifySpec, SourcesSpec};
pub(crate) use limit::{
    FixedWindowSpec, LeakyBucketSpec, LimitSpec, SlidingLogSpec, SlidingWindowSpec, TokenBucketSpec,
};
pub(crate) use on_failure::{OnFailureSpec, PolicyName, PolicySpec, PolicyTableSpec, StaticCapSpec};
pub(crate) use route_table::RouteTableSpec;
pub(crate) use scalar::{Amount, TextScalar};

use crate::read::{OneOrMany, Spanned};

/// Limits for a service: who is limited, in what, and how much.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "File")]
pub(crate) struct RuleFileSpec {
    /// The version of this format: 1.
    pub(crate) version: Option<Spanned<u64>>,
    /// Who the client, the user and the tenant are.
    #[serde(default)]
    pub(crate) identify: IdentifySpec,
    /// Which fields answers carry.
    #[serde(default)]
    pub(crate) http: HttpSpec,
    /// Requests that no rule applies to, such as internal calls and health checks.
    #[serde(default)]
    pub(crate) exempt: Vec<Spanned<MatchSpec>>,
    /// Other limits for the requests of a plan: plan, then rule, then its limit.
    #[serde(default)]
    pub(crate) plans: BTreeMap<String, BTreeMap<String, Spanned<LimitSpec>>>,
    /// The plan of each tenant.
    #[serde(default)]
    pub(crate) tenants: BTreeMap<String, Spanned<String>>,
    /// The plan of tenants that have none, and of requests without a tenant.
    pub(crate) default_plan: Option<Spanned<String>>,
    /// The rules. All that match a request apply, and it passes only if all allow it.
    #[serde(default)]
    pub(crate) rules: Vec<Spanned<RuleSpec>>,
    /// Some rules could not be decoded, so that a name that is not there may be one of theirs.
    #[serde(skip)]
    pub(crate) lost_rules: bool,
}

/// One rule: what is limited, per whom, and how much.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Rule")]
pub(crate) struct RuleSpec {
    /// Its name in answers, metrics and keys. A new name starts afresh.
    pub(crate) id: Spanned<String>,
    /// What it is for, in your own words.
    #[allow(dead_code, reason = "it is for the readers of the file")]
    pub(crate) description: Option<String>,
    /// What it applies to; left out, to every request.
    pub(crate) r#match: Option<Spanned<MatchSpec>>,
    /// Per what it counts: names from `identify`, or sources such as `ip`, `header:x-api-key`, `attr:account`. With `[]`
    /// everybody shares one limit.
    pub(crate) per: Spanned<OneOrMany<Spanned<String>>>,
    /// Whether users and keys of two tenants are told apart (`tenant`, the default) or not (`global`).
    pub(crate) scope: Option<Spanned<ScopeSpec>>,
    /// What decides in which slot of a cluster its keys are: `tenant` (the default if it counts by one), `subject` (to spread a
    /// large tenant over all servers), `rule`, or `const:NAME` (together with all rules of that name).
    pub(crate) tag: Option<Spanned<String>>,
    /// So many at once, then a sustained rate.
    pub(crate) token_bucket: Option<Spanned<TokenBucketSpec>>,
    /// A constant rate; what comes early waits in a queue.
    pub(crate) leaky_bucket: Option<Spanned<LeakyBucketSpec>>,
    /// So many in each window of the clock.
    pub(crate) fixed_window: Option<Spanned<FixedWindowSpec>>,
    /// So many in any window, exactly; keeps every request.
    pub(crate) sliding_log: Option<Spanned<SlidingLogSpec>>,
    /// So many in any window, estimated from slices.
    pub(crate) sliding_window: Option<Spanned<SlidingWindowSpec>>,
    /// Several limits, each under a name of its own.
    #[serde(default)]
    pub(crate) limits: BTreeMap<String, Spanned<LimitSpec>>,
    /// What a request costs: a number, a table, or an expression in CEL. Left out, 1 or what the caller says.
    pub(crate) cost: Option<Spanned<CostSpec>>,
    /// Shares one allowance with every rule that names the same budget.
    pub(crate) budget: Option<Spanned<String>>,
    /// What happens while the store fails: a word (`open` if left out, `closed`, `local`, `degraded`), `{ static: 100/s }`, or
    /// a table by method or route.
    pub(crate) on_failure: Option<Spanned<OnFailureSpec>>,
    /// What becomes of those whom nobody vouches for, when there are many.
    pub(crate) anonymous: Option<Spanned<AnonymousSpec>>,
    /// Whether it is applied.
    pub(crate) mode: Option<Spanned<ModeSpec>>,
    /// Guards against guessing: answers then tell no more than when to try again.
    pub(crate) security: Option<Spanned<bool>>,
    /// What a refused caller reads.
    pub(crate) message: Option<Spanned<String>>,
    /// A field could not be decoded, so that what is missing has been reported already.
    #[serde(skip)]
    pub(crate) damaged: bool,
}

/// Which requests are meant. Every field that is given must fit; of a list, one entry must.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Match")]
pub(crate) struct MatchSpec {
    /// The HTTP method.
    #[serde(default)]
    pub(crate) method: OneOrMany<Spanned<String>>,
    /// The path: `/a/b`, `/a/{id}` for any one segment, `/a/*` for everything below.
    #[serde(default)]
    pub(crate) path: OneOrMany<Spanned<String>>,
    /// The host: `api.example.com`, or `*.example.com` for everything below.
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
    /// The name of what is done, such as `login` or `export`.
    #[serde(default)]
    pub(crate) action: OneOrMany<Spanned<String>>,
    /// The address of the client: networks such as `10.0.0.0/8`.
    #[serde(default)]
    pub(crate) ip: OneOrMany<Spanned<String>>,
}

/// Which fields answers carry.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Http")]
pub(crate) struct HttpSpec {
    /// `RateLimit` and `RateLimit-Policy`: the revision of the draft (`draft-11`), or `off`.
    pub(crate) ratelimit: Option<Spanned<String>>,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`: what `-Reset` tells, or `off`. `epoch` if left out.
    pub(crate) x_ratelimit: Option<Spanned<ResetFormSpec>>,
    /// The older `RateLimit-Limit`, `-Remaining` and `-Reset`. `off` if left out.
    pub(crate) ratelimit_trio: Option<Spanned<ResetFormSpec>>,
    /// `Retry-After-Ms`, which some SDKs read first.
    pub(crate) retry_after_ms: Option<Spanned<bool>>,
}

/// What a reset field tells.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResetForm")]
pub(crate) enum ResetFormSpec {
    /// The second since 1970 at which everything is back.
    Epoch,
    /// The seconds until everything is back.
    Delta,
    /// No such fields.
    Off,
}

/// Whether subjects of two tenants are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Scope")]
pub(crate) enum ScopeSpec {
    /// They are; addresses and constants belong to no tenant.
    Tenant,
    /// They are not.
    Global,
}

/// Whether a rule is applied.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Mode")]
pub(crate) enum ModeSpec {
    /// It is.
    Enabled,
    /// It is not.
    Disabled,
    /// It counts and reports what it would reject, and affects nothing.
    Shadow,
}
