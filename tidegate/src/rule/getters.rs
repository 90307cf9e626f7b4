//! What a [`Rule`] says.

use smol_str::SmolStr;

use super::{AnonymousBounds, OnMissing, PartitionBy, Rule, RuleMode};
use crate::attributes::PLAN;
use crate::http::ErrorFormat;
use crate::limits::Penalty;
use crate::rules::{LedgerMode, OnOverload, UsageKind};
use crate::{Limit, OnFailure, Request};

/// Getters
impl Rule {
    /// The name in keys, responses and metrics.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The limits by name, without those of plans.
    pub fn limits(&self) -> impl Iterator<Item = (&str, &Limit)> {
        self.limits.iter().map(|(name, limit)| (name.as_str(), limit))
    }

    /// The penalty for repeated denials, if it has one.
    pub const fn penalty(&self) -> Option<&Penalty> {
        self.penalty.as_ref()
    }

    /// The action that the rule applies to; `None` for every action.
    pub fn action(&self) -> Option<&str> {
        self.action.as_deref()
    }

    /// The attributes whose combinations are counted separately.
    pub fn per(&self) -> impl Iterator<Item = &str> {
        self.per.iter().map(SmolStr::as_str)
    }

    /// The cost of a request under this rule; `None` for the request's own.
    pub const fn cost(&self) -> Option<u64> {
        self.cost
    }

    /// Whether the request has another cost under this rule than its own.
    pub const fn has_own_cost(&self) -> bool {
        self.cost.is_some() || self.computed_cost
    }

    /// The budget that the rule shares.
    pub fn budget(&self) -> Option<&str> {
        self.budget.as_deref()
    }

    /// What happens while the store fails.
    pub const fn on_failure(&self) -> OnFailure {
        self.on_failure
    }

    /// What happens while this instance is overloaded.
    pub const fn on_overload(&self) -> OnOverload {
        self.on_overload
    }

    /// Whether a store may deny a request in the process, shortly after it denied the same one.
    pub const fn denial_cache(&self) -> bool {
        self.denial_cache
    }

    /// The limit of one instance under [`OnFailure::Static`].
    pub const fn static_limit(&self) -> Option<&Limit> {
        self.static_limit.as_ref()
    }

    /// The bounds for its subjects if they are unauthenticated.
    pub const fn anonymous(&self) -> Option<AnonymousBounds> {
        self.anonymous
    }

    /// The number of authenticated subjects that a shared store remembers at the same time.
    pub const fn max_subjects(&self) -> u64 {
        self.max_subjects
    }

    /// What decides the partition of the rule's keys.
    pub const fn partition_by(&self) -> &PartitionBy {
        &self.partition_by
    }

    /// Whether the rule protects against guessing.
    pub const fn is_security(&self) -> bool {
        self.security
    }

    /// The message for refused requests.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// The format of the body of refusals; `None` for that of the header policy.
    pub fn error_format(&self) -> Option<ErrorFormat> {
        self.error_format.or_else(|| self.usage.map(|_| ErrorFormat::OpenAi))
    }

    /// The response header that contains the actual cost of a request.
    pub fn cost_header(&self) -> Option<&str> {
        self.cost_header.as_deref()
    }

    /// The tokens of a language model that are the actual cost of a request.
    pub const fn usage(&self) -> Option<UsageKind> {
        self.usage
    }

    /// How consumption reaches the ledger, if it does.
    pub const fn ledger(&self) -> Option<LedgerMode> {
        self.ledger
    }

    /// Whether the ledger keeps the names of tenants.
    pub const fn ledger_names(&self) -> bool {
        self.ledger_names
    }

    /// What happens to a request without a value that the rule counts by.
    pub const fn on_missing(&self) -> OnMissing {
        self.on_missing
    }

    /// The first value that the rule counts by and that `request` lacks, if the rule refuses the request then. A plan identifies nobody.
    pub(crate) fn missing_value(&self, request: &Request<'_>) -> Option<&str> {
        let refuses = self.on_missing == OnMissing::Error && self.mode != RuleMode::Shadow;
        let is_missing = |name: &&str| *name != PLAN && request.attribute(name).is_none_or(str::is_empty);
        if refuses { self.per().find(is_missing) } else { None }
    }

    /// The mode.
    pub const fn mode(&self) -> RuleMode {
        self.mode
    }
}
