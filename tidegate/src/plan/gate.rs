//! `Gate`: one limit of one rule.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use crate::algorithm::Calendar;
use crate::key::KeyStem;
use crate::rules::LedgerMode;
use crate::{Limit, Rule, RuleMode};

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

/// One limit of one rule, which [checks](crate::spi::Check) refer to. What it does not have itself is in its [rule](Self::rule).
///
/// ```
/// use tidegate::spi::{Check, Gate, Plan, Subject};
/// use tidegate::{Limit, MemoryStore, Rate, Rule};
///
/// let limit = Limit::token_bucket(20, Rate::per_second(10)?)?;
/// let gate = Gate::new(Rule::new("api", limit).with_per(["user"]).with_max_subjects(1000), "", limit);
/// assert_eq!((gate.rule().id.as_str(), gate.max_subjects(false)), ("api", 1000));
/// let plan = Plan::new([Check::new(&gate, Subject::from_hash(7), 1)])?;
/// assert_eq!(MemoryStore::new().decide_now(&plan).granted(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gate {
    rule: Arc<Rule>,
    limit_name: SmolStr,
    limit: Limit,
    role: Role,
    stem: KeyStem,
    plan: Option<Arc<str>>,
    /// The windows of the limit; for a bucket, one as long as it takes to refill.
    window: Calendar,
}

/// Constructors
impl Gate {
    /// A limit of `rule`, in the [role](Role) that its mode gives it, under its own key or that of its budget. `limit_name` distinguishes
    /// the limits of a rule; it is empty for the only one.
    pub fn new(rule: impl Into<Arc<Rule>>, limit_name: impl Into<SmolStr>, limit: Limit) -> Self {
        let (rule, limit_name) = (rule.into(), limit_name.into());
        let role = if rule.mode == RuleMode::Shadow { Role::Shadow } else { Role::Enforced };
        let stem = match &rule.budget {
            // A shadow rule must not consume from a shared budget.
            Some(budget) if role != Role::Shadow => KeyStem::for_budget(budget, &limit, &limit_name),
            // A rule has at most one penalty.
            _ if matches!(limit, Limit::Penalty(_)) => KeyStem::for_rule(&rule.id, &limit, ""),
            _ => KeyStem::for_rule(&rule.id, &limit, &limit_name),
        };
        Self { rule, limit_name, limit, role, stem, plan: None, window: limit.calendar() }
    }

    /// The only limit of a rule that counts by subject and has no other settings.
    pub fn for_rule(rule: impl Into<String>, limit: Limit) -> Self {
        Self::new(Rule::new(rule, limit).with_per(["subject"]), "", limit)
    }

    /// Sets the plan that this limit of the rule belongs to.
    pub(crate) fn with_plan(mut self, plan: &str) -> Self {
        self.plan = Some(plan).filter(|plan| !plan.is_empty()).map(Into::into);
        self
    }

    /// Sets how its checks count in a plan.
    pub fn with_role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Sets the common part of its keys.
    pub fn with_stem(mut self, stem: KeyStem) -> Self {
        self.stem = stem;
        self
    }

    /// A copy with another limit.
    pub(crate) fn with_limit(&self, limit: Limit) -> Self {
        Self { limit, window: limit.calendar(), ..self.clone() }
    }
}

/// Getters
impl Gate {
    /// The rule.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The rule, cheap to clone.
    pub(crate) const fn rule_arc(&self) -> &Arc<Rule> {
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

    /// How long a store keeps the state of an anonymous subject after its last request, if that is bounded. Slots that are held end by
    /// themselves and are never forgotten earlier.
    pub fn forget_after(&self) -> Option<Duration> {
        if self.limit.has_slots() || self.ledger().is_some() { None } else { self.rule.anonymous?.forget_after }
    }

    /// The number of subjects that a shared store remembers at the same time, of those that are anonymous or of the others.
    pub fn max_subjects(&self, anonymous: bool) -> u64 {
        if anonymous {
            return self.rule.anonymous.unwrap_or_default().max_subjects;
        }
        // A rule without attributes has only one subject. An account of the ledger is never shared with others.
        let is_account = self.rule.ledger.is_some() && matches!(self.limit, Limit::Quota(_));
        if self.rule.per.is_empty() || is_account { u64::MAX } else { self.rule.max_subjects }
    }

    /// How consumption reaches the ledger, if it does: only quotas that are not in shadow mode have one.
    #[inline]
    pub fn ledger(&self) -> Option<LedgerMode> {
        let may_have = matches!(self.limit, Limit::Quota(_)) && self.role != Role::Shadow;
        if may_have { self.rule.ledger } else { None }
    }

    pub(crate) const fn window(&self) -> Calendar {
        self.window
    }

    pub(crate) const fn stem(&self) -> &KeyStem {
        &self.stem
    }
}
