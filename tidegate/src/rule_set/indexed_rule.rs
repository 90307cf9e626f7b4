//! `IndexedRule`: a rule with everything precomputed that does not depend on the request. It adds the checks of a request to a plan.

use std::collections::HashMap;
use std::sync::Arc;

use smol_str::SmolStr;

use crate::attributes::{IP, NormalForms, TENANT};
use crate::key::{Key, KeyStem};
use crate::limits::Algorithm;
use crate::plan::{Check, CountedSubject, Gate, Plan, Role};
use crate::rule::{PartitionBy, Rule, RuleMode, StatedForms};
use crate::spi::Subject;
use crate::subject::SubjectHasher;
use crate::{Limit, Network, OnFailure, Request, Secret};

/// A rule with everything precomputed that does not depend on the request.
#[derive(Clone, Debug)]
pub(super) struct IndexedRule {
    pub(super) rule: Rule,
    pub(super) gates: Vec<Gate>,
    /// The gates of its plans, by name.
    pub(super) plans: Vec<(SmolStr, Vec<Gate>)>,
    /// The normal forms of its attributes, for rules without a matcher, which has normal values. Empty if none has any.
    pub(super) forms: Vec<NormalForms>,
    /// Hashes the subject.
    pub(super) subject: Arc<SubjectHasher>,
    /// The index of the value that decides the partition, and its hasher, if that is the tenant.
    pub(super) tenant: Option<(usize, Arc<SubjectHasher>)>,
    /// The index of the value that is the tenant, if the ledger keeps its name.
    pub(super) named_tenant: Option<usize>,
    /// The index of the value that is an address, for rules without a matcher.
    pub(super) address: Option<usize>,
    /// The tag that decides the partition, if it is the same for all subjects.
    pub(super) fixed_tag: Option<Subject>,
}

/// The name of a penalty among the limits of its rule.
const PENALTY_NAME: &str = "penalty";

/// The parameters of a request under one rule, except for the subject.
pub(super) struct RuleInput<'m> {
    /// The plan that applies.
    pub(super) plan: &'m str,
    pub(super) cost: u64,
    pub(super) on_failure: Option<OnFailure>,
    pub(super) anonymous: bool,
    pub(super) network: Option<Network>,
}

/// Rules that count by the same attributes share one hasher, which then stays in the CPU cache.
pub(super) struct HasherCache {
    pub(super) secret: Secret,
    hashers: HashMap<Vec<SmolStr>, Arc<SubjectHasher>>,
}

impl HasherCache {
    pub(super) fn new(secret: Secret) -> Self {
        Self { secret, hashers: HashMap::new() }
    }

    fn hasher(&mut self, names: &[SmolStr]) -> Arc<SubjectHasher> {
        let Self { secret, hashers } = self;
        let hasher = || Arc::new(secret.hasher(names.iter().map(SmolStr::as_str)));
        Arc::clone(hashers.entry(names.to_vec()).or_insert_with(hasher))
    }
}

impl IndexedRule {
    pub(super) fn new(rule: Rule, hashers: &mut HasherCache) -> Self {
        let subject = hashers.hasher(&rule.per);
        // The tenant decides the partition of every rule that counts by it, so that the checks of one tenant share a slot.
        let tenant = rule.per.iter().position(|name| name == TENANT);
        let tenant = tenant.filter(|_| rule.per.len() > 1 && rule.partition_by == PartitionBy::Auto);
        let fixed_tag = match &rule.partition_by {
            PartitionBy::Auto | PartitionBy::Subject => None,
            PartitionBy::Rule => Some(KeyStem::tag_for_name(rule.budget.as_ref().unwrap_or(&rule.id))),
            PartitionBy::Constant(name) => Some(KeyStem::tag_for_name(name)),
        };
        let named_tenant = rule.per.iter().position(|name| name == TENANT).filter(|_| rule.ledger_names);
        let address = rule.per.iter().position(|name| name == IP);
        let plans = rule.plans.iter().map(|(plan, limits)| (plan.clone(), gates(&rule, plan, limits))).collect();
        Self {
            gates: gates(&rule, "", &rule.limits),
            plans,
            forms: forms(&rule),
            rule,
            subject,
            tenant: tenant.map(|index| (index, hashers.hasher(&[TENANT.into()]))),
            named_tenant,
            address,
            fixed_tag,
        }
    }

    /// The attribute of a request that servers read as that of two clients.
    pub(super) fn ambiguous_attribute(&self, request: &Request<'_>) -> Option<&str> {
        let mut attributes = self.rule.per.iter().zip(&self.forms);
        let is_ambiguous = |(name, forms): &(&SmolStr, &NormalForms)| {
            request.attribute(name).is_some_and(|value| forms.is_ambiguous(value))
        };
        attributes.find(is_ambiguous).map(|(name, _)| name.as_str())
    }

    /// Adds a check for each limit that applies.
    #[inline(always)]
    pub(super) fn add_checks<'r, 'v>(
        &'r self,
        plan: &mut Plan<'r>,
        values: impl ExactSizeIterator<Item = Option<&'v str>> + Clone,
        input: &RuleInput<'_>,
    ) {
        let RuleInput { plan: plan_name, cost, on_failure, anonymous, network } = *input;
        // A cost of 0 is admitted by a limit that has nothing left, and the tokens that the request uses then would be too late to deny it.
        let cost = if self.rule.usage.is_some() { cost.max(1) } else { cost };
        // A rule without attributes has only one subject.
        let anonymous = anonymous && !self.rule.per.is_empty();
        // Without a tenant, the subject decides the partition.
        let tenant = self.tenant.as_ref().and_then(|(index, hasher)| {
            let tenant = values.clone().nth(*index).flatten()?;
            Some(hasher.subject([Some(tenant)].into_iter()))
        });
        let tenant_name = self.named_tenant.and_then(|index| values.clone().nth(index).flatten());
        let subject = self.subject.subject(values);
        let tag = self.fixed_tag.or(tenant);
        for gate in self.gates_of(plan_name) {
            // Without a subject, the limit decides the partition, which spreads such rules over the slots.
            let own = if self.rule.per.is_empty() { gate.own_tag() } else { subject };
            let key = Key::new(gate.stem(), tag.unwrap_or(own), subject);
            let check = Check::from_key(gate, key, cost).with_anonymous(anonymous).with_network(network);
            let check = on_failure.map_or(check, |on_failure| check.with_on_failure(on_failure));
            plan.add(check, self.rule.budget.is_some());
            if let Some(name) = tenant_name.filter(|_| gate.ledger().is_some()) {
                plan.name_account(&key, name);
            }
        }
    }

    /// The gates of a plan, or of the rule itself if it has no plan of this name.
    #[inline(always)]
    fn gates_of(&self, plan: &str) -> &[Gate] {
        let in_plan = self.plans.iter().find(|(name, _)| name == plan);
        in_plan.map_or(&self.gates, |(_, gates)| gates)
    }

    /// Adds a check for each limit of a subject that was counted before.
    pub(super) fn add_counted<'r>(&'r self, plan: &mut Plan<'r>, plan_name: &str, counted: &CountedSubject) {
        for gate in self.gates_of(plan_name) {
            let key = self.key_of_grant(gate, counted.partition(), counted.subject());
            plan.add(counted.check(gate, key), self.rule.budget.is_some());
        }
    }

    /// The key of `subject` under `gate`, whose keys were in `partition` when it was counted. Without a subject the limit decides the
    /// partition, so it is another one if the window was changed.
    pub(super) fn key_of_grant<'r>(&self, gate: &'r Gate, partition: u16, subject: Subject) -> Key<'r> {
        if self.rule.per.is_empty() && self.fixed_tag.is_none() {
            return Key::new(gate.stem(), gate.own_tag(), subject);
        }
        Key::in_partition(gate.stem(), partition, subject)
    }

    /// The maximum number of checks, over all plans.
    pub(super) fn max_checks(&self) -> usize {
        self.plans.iter().map(|(_, gates)| gates.len()).chain([self.gates.len()]).max().unwrap_or_default()
    }
}

/// The normal forms of the attributes of a rule; empty if none has any.
pub(super) fn forms(rule: &Rule) -> Vec<NormalForms> {
    let forms = |(name, stated): (&SmolStr, &StatedForms)| {
        let stated = stated.as_ref().ok().cloned().flatten();
        stated.unwrap_or_else(|| NormalForms::default_for(name, rule.security))
    };
    let forms: Vec<NormalForms> = rule.per.iter().zip(&rule.forms).map(forms).collect();
    if forms.iter().all(NormalForms::is_empty) { Vec::new() } else { forms }
}

fn gates(rule: &Rule, plan: &str, limits: &[(SmolStr, Limit)]) -> Vec<Gate> {
    let role = if rule.mode == RuleMode::Shadow { Role::Shadow } else { Role::Enforced };
    let gate = |(name, limit): &(SmolStr, Limit)| {
        let stem = match &rule.budget {
            // A shadow rule must not consume from a shared budget.
            Some(budget) if role != Role::Shadow => KeyStem::for_budget(budget, limit, name),
            // A rule has at most one.
            _ if limit.algorithm() == Algorithm::Penalty => KeyStem::for_rule(&rule.id, limit, ""),
            _ => KeyStem::for_rule(&rule.id, limit, name),
        };
        let gate = Gate::from_names(rule.id.clone(), name.clone(), *limit, role, stem);
        let is_ledger = rule.ledger.is_some() && limit.algorithm() == Algorithm::Quota;
        let gate = gate
            .with_plan(plan)
            .with_on_failure(rule.on_failure)
            .with_on_overload(rule.on_overload)
            .with_denial_cache(rule.denial_cache)
            .with_static_limit(rule.static_limit)
            .with_security(rule.security)
            .with_error_format(rule.error_format());
        gate.with_anonymous(rule.anonymous.unwrap_or_default())
            // A rule without attributes has only one subject. An account of the ledger is never shared with others.
            .with_max_subjects(if rule.per.is_empty() || is_ledger { u64::MAX } else { rule.max_subjects })
            .with_one_partition(matches!(rule.partition_by, PartitionBy::Rule | PartitionBy::Constant(_)))
            .with_usage(rule.usage.is_some())
            .with_ledger(rule.ledger)
    };
    let penalty = rule.penalty.map(|penalty| (PENALTY_NAME.into(), Limit::Penalty(penalty)));
    limits.iter().chain(&penalty).map(gate).collect()
}
