//! `Gate`: one limit of one rule with everything that does not depend on a request.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use crate::algorithm::Calendar;
use crate::http::ErrorFormat;
use crate::key::KeyStem;
use crate::rule::DEFAULT_MAX_SUBJECTS;
use crate::rules::{AnonymousBounds, LedgerMode, OnOverload};
use crate::spi::Subject;
use crate::{Limit, OnFailure};

/// How a check counts in its plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// The request passes only if this check admits it.
    #[default]
    Enforced,
    /// The check has no effect on the request. It consumes if the request passes and the check admits it.
    Shadow,
    /// A member of the group with this number. A group denies only if all its members do.
    AnyOf(u8),
}

/// One limit of one rule, which [checks](crate::spi::Check) refer to.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Gate {
    rule: SmolStr,
    limit_name: SmolStr,
    limit: Limit,
    role: Role,
    stem: KeyStem,
    plan: Option<Arc<str>>,
    on_failure: OnFailure,
    on_overload: OnOverload,
    denial_cache: bool,
    static_limit: Option<Limit>,
    security: bool,
    error_format: Option<ErrorFormat>,
    anonymous: AnonymousBounds,
    max_subjects: u64,
    one_partition: bool,
    usage: bool,
    ledger: Option<LedgerMode>,
    /// The windows of the limit; for a bucket, one as long as it takes to refill.
    window: Calendar,
}

/// Constructors
impl Gate {
    /// A limit of `rule`. `limit_name` distinguishes the limits of a rule; it is empty for the only one.
    pub fn new(
        rule: impl Into<String>,
        limit_name: impl Into<String>,
        limit: Limit,
        role: Role,
        stem: KeyStem,
    ) -> Self {
        Self::from_names(rule.into().into(), limit_name.into().into(), limit, role, stem)
    }

    pub(crate) fn from_names(rule: SmolStr, limit_name: SmolStr, limit: Limit, role: Role, stem: KeyStem) -> Self {
        Self {
            rule,
            limit_name,
            limit,
            role,
            stem,
            plan: None,
            on_failure: OnFailure::default(),
            on_overload: OnOverload::default(),
            denial_cache: true,
            static_limit: None,
            security: false,
            error_format: None,
            anonymous: AnonymousBounds::default(),
            max_subjects: DEFAULT_MAX_SUBJECTS,
            one_partition: false,
            usage: false,
            ledger: None,
            window: limit.calendar(),
        }
    }

    /// The only limit of `rule`, enforced, under the rule's own key.
    pub fn for_rule(rule: impl Into<String>, limit: Limit) -> Self {
        let rule = rule.into();
        let stem = KeyStem::for_rule(&rule, &limit, "");
        Self::new(rule, "", limit, Role::Enforced, stem)
    }
}

/// Settings
impl Gate {
    /// A copy with another limit.
    pub(crate) fn with_limit(&self, limit: Limit) -> Self {
        Self { limit, window: limit.calendar(), ..self.clone() }
    }

    /// Sets the plan that this limit of the rule belongs to.
    pub fn with_plan(mut self, plan: &str) -> Self {
        self.plan = Some(plan).filter(|plan| !plan.is_empty()).map(Into::into);
        self
    }

    /// Sets what happens while the store fails.
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Sets what happens while this instance is overloaded.
    pub fn with_on_overload(mut self, on_overload: OnOverload) -> Self {
        self.on_overload = on_overload;
        self
    }

    /// Sets whether a store may deny a request in the process, shortly after it denied the same one.
    pub fn with_denial_cache(mut self, denial_cache: bool) -> Self {
        self.denial_cache = denial_cache;
        self
    }

    /// Sets the limit of one instance under [`OnFailure::Static`].
    pub fn with_static_limit(mut self, limit: Option<Limit>) -> Self {
        self.static_limit = limit;
        self
    }

    /// Sets whether the rule protects against guessing, so that responses must not contain details.
    pub fn with_security(mut self, security: bool) -> Self {
        self.security = security;
        self
    }

    /// Sets the format of refusals, if the rule says something about it.
    pub fn with_error_format(mut self, format: Option<ErrorFormat>) -> Self {
        self.error_format = format;
        self
    }

    /// Sets the bounds for unauthenticated subjects.
    pub fn with_anonymous(mut self, bounds: AnonymousBounds) -> Self {
        self.anonymous = bounds;
        self
    }

    /// Sets the number of authenticated subjects that a shared store remembers at the same time. With `u64::MAX` it does not count
    /// them.
    pub fn with_max_subjects(mut self, max_subjects: u64) -> Self {
        self.max_subjects = max_subjects;
        self
    }

    /// Sets whether the keys of all subjects are in one partition.
    pub fn with_one_partition(mut self, one_partition: bool) -> Self {
        self.one_partition = one_partition;
        self
    }

    /// Sets whether the actual cost is the [token usage](crate::rules::UsageKind) of a language model.
    pub fn with_usage(mut self, usage: bool) -> Self {
        self.usage = usage;
        self
    }

    /// Sets how consumption reaches the ledger. Only quotas that are not in shadow mode have one.
    pub fn with_ledger(mut self, ledger: Option<LedgerMode>) -> Self {
        let may_have = matches!(self.limit, Limit::Quota(_)) && self.role != Role::Shadow;
        self.ledger = ledger.filter(|_| may_have);
        self
    }
}

/// Getters
impl Gate {
    /// The id of the rule.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The id of the rule, cheap to clone.
    pub(crate) const fn rule_smol_str(&self) -> &SmolStr {
        &self.rule
    }

    /// The name of the limit within its rule, often empty.
    pub fn limit_name(&self) -> &str {
        &self.limit_name
    }

    /// The name of the limit, cheap to clone.
    pub(crate) const fn limit_name_smol_str(&self) -> &SmolStr {
        &self.limit_name
    }

    /// The limit.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether it is the penalty of its rule, beside the limits.
    pub const fn is_penalty(&self) -> bool {
        matches!(self.limit, Limit::Penalty(_))
    }

    /// How its checks count in a plan.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The plan that the limit belongs to, often empty.
    pub fn plan(&self) -> &str {
        self.plan.as_deref().unwrap_or_default()
    }

    /// The plan, cheap to clone.
    pub(crate) fn plan_arc(&self) -> Option<Arc<str>> {
        self.plan.clone()
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

    /// The limit of one instance under [`OnFailure::Static`], for all subjects together.
    pub const fn static_limit(&self) -> Option<&Limit> {
        self.static_limit.as_ref()
    }

    /// Whether the rule protects against guessing, so that responses must not contain details.
    pub const fn is_security(&self) -> bool {
        self.security
    }

    /// The format of refusals, if the rule says something about it.
    pub const fn error_format(&self) -> Option<ErrorFormat> {
        self.error_format
    }

    /// The bounds for unauthenticated subjects.
    pub const fn anonymous(&self) -> AnonymousBounds {
        self.anonymous
    }

    /// How long a store keeps the state of an unauthenticated subject after its last request, if that is bounded. Slots that are held
    /// end by themselves and are never forgotten earlier.
    pub const fn forget_after(&self) -> Option<Duration> {
        if self.limit.has_slots() || self.ledger.is_some() { None } else { self.anonymous.forget_after }
    }

    /// The number of subjects that a shared store remembers at the same time, of those that are unauthenticated or of the others.
    pub const fn max_subjects(&self, anonymous: bool) -> u64 {
        if anonymous { self.anonymous.max_subjects } else { self.max_subjects }
    }

    /// Whether the keys of all subjects are in one partition.
    pub const fn has_one_partition(&self) -> bool {
        self.one_partition
    }

    /// Whether the actual cost is the [token usage](crate::rules::UsageKind) of a language model.
    pub const fn settles_by_usage(&self) -> bool {
        self.usage
    }

    /// How consumption reaches the ledger, if it has one.
    pub const fn ledger(&self) -> Option<LedgerMode> {
        self.ledger
    }

    pub(crate) const fn window(&self) -> Calendar {
        self.window
    }

    pub(crate) const fn stem(&self) -> &KeyStem {
        &self.stem
    }

    /// The tag that decides the partition if the rule counts all requests together.
    pub(crate) fn own_tag(&self) -> Subject {
        self.stem.own_tag()
    }
}
