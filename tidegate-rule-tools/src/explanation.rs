//! `Explanation`: which rules of a file apply to a request and why the others do not, the subject and keys under each, and
//! the next decisions.

use std::fmt;

use tidegate::http::ErrorFormat;
use tidegate::rules::{LedgerMode, OnOverload, UsageKind};
use tidegate::{OnFailure, RequestProblem, RuleMode};

use crate::timeline::Timeline;

/// The effect of a rule file on a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The address of the client, according to the trusted proxies.
    pub client_ip: Option<String>,
    /// The tenant, if one is known.
    pub tenant: Option<String>,
    /// Whether nobody authenticates it, so that it separates no subjects and selects no plan.
    pub tenant_is_ignored: bool,
    /// The plan, empty if there is none.
    pub plan: String,
    /// The claims by which the request is judged: by its tenant, its plan, and what the rules that apply count by.
    pub claims: Vec<ClaimUse>,
    /// The ways in which servers may read the path, as written first. The request must pass the rules of each.
    pub path_readings: Vec<String>,
    /// The line of the exemption from all rules that applies, if every reading of the path is exempt.
    pub exempt: Option<usize>,
    /// Why the request is refused whatever its limits are: a path with too many readings, a value that comes more than once, or is
    /// too long. For a path, there are no rules.
    pub problem: Option<RequestProblem>,
    /// Every rule of the file, in order. A rule that counts the readings of the path separately is listed once for each.
    pub rules: Vec<RuleExplanation>,
    /// The decisions if the request were repeated from now on.
    pub timeline: Timeline,
}

/// A claim by which a request is judged. Tidegate reads tokens and does not verify them: a file with claims can be loaded only if it
/// states, by listing the header of the token below `authenticated`, that the proxy or application in front does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimUse {
    /// The identity that it is the value of, as in `per`: `user`, `tenant`, `claim:sub`.
    pub identity: String,
    /// The claim: `claim:sub`.
    pub claim: String,
    /// The header with the token, which must be verified before Tidegate reads it.
    pub header: String,
}

/// Whether and how one rule applies to the request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleExplanation {
    /// The id of the rule.
    pub id: String,
    /// Its mode.
    pub mode: RuleMode,
    /// Whether it applies, and if not, why.
    pub status: RuleStatus,
}

/// Whether a rule applies.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RuleStatus {
    /// It applies.
    Applies(RuleEffect),
    /// The request does not match its condition.
    Differs {
        /// The field that differs: `method`, `path`, `header x-beta`.
        field: String,
        /// The value that the rule wants.
        wanted: String,
        /// The value of the request, if any.
        found: Option<String>,
    },
    /// The request is exempt from it, by the entry in this line.
    Exempt {
        /// The line of the entry.
        line: usize,
    },
    /// It is disabled.
    Disabled,
}

/// The effect of a rule that applies.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleEffect {
    /// The parts of the subject; empty if all requests share the limit.
    pub subject: Vec<SubjectPart>,
    /// The subject as stores, logs and metrics see it.
    pub subject_hash: String,
    /// Whether no part of the subject is authenticated.
    pub anonymous: bool,
    /// The cost of the request.
    pub cost: u64,
    /// The tokens of a language model that are the actual cost.
    pub usage: Option<UsageKind>,
    /// The response header with the actual cost.
    pub actual: Option<String>,
    /// The failure policy that applies to the request while the store fails.
    pub on_failure: OnFailure,
    /// Whether the policy is a default: the file says nothing about this request. With a ledger it is [closed](OnFailure::Closed).
    pub is_default_policy: bool,
    /// What happens to the request while an instance is overloaded.
    pub on_overload: OnOverload,
    /// The limit of one instance in words, if the policy is [static](OnFailure::Static).
    pub static_limit: Option<String>,
    /// The format of responses that name the rule.
    pub error_format: ErrorFormat,
    /// The ledger of its quotas. A rule in shadow mode writes none.
    pub ledger: Option<LedgerExplanation>,
    /// Its limits, with their keys.
    pub limits: Vec<LimitExplanation>,
}

/// How a ledger records what the quotas of a rule consume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerExplanation {
    /// When the ledger has it.
    pub mode: LedgerMode,
    /// Whether the ledger keeps the tenant's name in clear text, beside the hash.
    pub keep_names: bool,
}

/// A part of a subject.
#[derive(Clone)]
#[non_exhaustive]
pub struct SubjectPart {
    /// Its name in the rule: `client`.
    pub name: String,
    /// The source of the value: `header:x-api-key`. `None` if there is no value: all such requests are one subject.
    pub kind: Option<String>,
    /// The value in its normal form, without a password.
    pub value: Option<String>,
}

/// A limit that applies.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitExplanation {
    /// Its name within the rule, often empty.
    pub name: String,
    /// The plan whose limit it is, often empty.
    pub plan: String,
    /// A description, in words.
    pub text: String,
    /// Its key after the namespace, with unprintable bytes as `\x..`.
    pub key: String,
    /// The running period, if it is a quota.
    pub period: Option<PeriodExplanation>,
}

/// The running period of a quota, in its time zone: `2026-03-29T00:00:00+01:00`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeriodExplanation {
    /// Its first instant.
    pub begins: String,
    /// The first instant of the next one.
    pub ends: String,
    /// The name of the time zone.
    pub time_zone: String,
}

/// Omits the value, which may be personal: debug output may end up in a log.
impl fmt::Debug for SubjectPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubjectPart").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}
