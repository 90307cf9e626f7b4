//! `Gate`: one limit of one rule, ready to be checked; it knows nobody who passes. Pure.

use std::sync::Arc;

use smol_str::SmolStr;

use crate::algorithm::Calendar;
use crate::key::KeyStem;
use crate::spi::Subject;
use crate::{AnonymousBounds, Limit, OnFailure};

/// What a check has to say in a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// The request passes only if it admits.
    #[default]
    Enforced,
    /// CheckVerdict beside, without influence: consumes if the request passes and it would itself have admitted it.
    Shadow,
    /// One of a group, by number: the group denies only if all its members do.
    AnyOf(u8),
}

/// One limit of one rule, ready to be checked.
#[derive(Clone, Debug)]
pub struct Gate {
    rule: SmolStr,
    limit_name: SmolStr,
    limit: Limit,
    role: Role,
    stem: KeyStem,
    plan: Option<Arc<str>>,
    on_failure: OnFailure,
    emergency: Option<Limit>,
    security: bool,
    anonymous: AnonymousBounds,
    /// The time in which the whole limit comes back, in microseconds.
    window: Calendar,
}

impl Gate {
    /// A limit of `rule`, under a name that tells it from other limits of the rule (empty for the only one).
    pub fn new(
        rule: impl Into<SmolStr>,
        limit_name: impl Into<SmolStr>,
        limit: Limit,
        role: Role,
        stem: KeyStem,
    ) -> Self {
        Self {
            rule: rule.into(),
            limit_name: limit_name.into(),
            limit,
            role,
            stem,
            plan: None,
            on_failure: OnFailure::default(),
            emergency: None,
            security: false,
            anonymous: AnonymousBounds::default(),
            window: limit.grid(),
        }
    }

    /// The same gate, with another limit.
    pub(crate) fn with_limit(&self, limit: Limit) -> Self {
        Self { limit, window: limit.grid(), ..self.clone() }
    }

    /// The same gate, with the limit that the rule has in this plan.
    pub fn of_plan(mut self, plan: &str) -> Self {
        self.plan = Some(plan).filter(|plan| !plan.is_empty()).map(Into::into);
        self
    }

    /// Sets what happens while the store fails.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Sets what one instance lets pass under [`OnFailure::Static`].
    pub fn emergency(mut self, limit: Option<Limit>) -> Self {
        self.emergency = limit;
        self
    }

    /// Sets whether answers must give nothing away.
    pub fn security(mut self, security: bool) -> Self {
        self.security = security;
        self
    }

    /// Sets what becomes of subjects that nobody vouches for when there are many.
    pub fn anonymous(mut self, anonymous: AnonymousBounds) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// The only limit of `rule`, enforced, under the rule's own key.
    pub fn of_rule(rule: impl Into<SmolStr>, limit: Limit) -> Self {
        let rule = rule.into();
        let stem = KeyStem::of_rule(&rule, &limit, "");
        Self::new(rule, "", limit, Role::Enforced, stem)
    }

    /// The id of the rule.
    pub const fn rule(&self) -> &SmolStr {
        &self.rule
    }

    /// The name of the limit within its rule, often empty.
    pub const fn limit_name(&self) -> &SmolStr {
        &self.limit_name
    }

    /// The limit.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Its role.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The plan whose limit it is, often empty.
    pub fn plan(&self) -> &str {
        self.plan.as_deref().unwrap_or_default()
    }

    pub(crate) fn shared_plan(&self) -> Option<Arc<str>> {
        self.plan.clone()
    }

    /// What one instance lets pass under [`OnFailure::Static`], whoever asks.
    pub const fn emergency_limit(&self) -> Option<&Limit> {
        self.emergency.as_ref()
    }

    /// What becomes of subjects that nobody vouches for when there are many.
    pub const fn anonymous_bounds(&self) -> AnonymousBounds {
        self.anonymous
    }

    /// What happens while the store fails.
    pub(super) const fn policy(&self) -> OnFailure {
        self.on_failure
    }

    /// Whether answers must give nothing away.
    pub(super) const fn is_security(&self) -> bool {
        self.security
    }

    pub(crate) const fn window(&self) -> Calendar {
        self.window
    }

    pub(crate) const fn stem(&self) -> &KeyStem {
        &self.stem
    }

    /// What decides the partition when the rule counts everybody together.
    pub(crate) fn own_tag(&self) -> Subject {
        self.stem.own_tag()
    }
}
