//! `IndexedRule`: a rule with everything precomputed that does not depend on the request. It adds the checks of a request to a plan.

use std::collections::HashMap;
use std::sync::Arc;

use smol_str::SmolStr;

use super::SubjectAttributes;
use crate::attributes::{BODY, IP, TENANT};
use crate::key::{Key, KeyStem};
use crate::plan::{Check, CountedSubject, Gate, Plan};
use crate::rule::{PartitionBy, Rule, RuleMode};
use crate::spi::{BodyNeed, BodyUse, RequestProblemKind, Subject};
use crate::subject::SubjectHasher;
use crate::{Limit, Network, OnFailure, Request, Secret};

/// A rule with everything precomputed that does not depend on the request.
#[derive(Clone, Debug)]
pub(super) struct IndexedRule {
    pub(super) rule: Arc<Rule>,
    pub(super) attributes: SubjectAttributes,
    pub(super) gates: Vec<Gate>,
    /// The gates of its plans, by name.
    pub(super) plans: Vec<(SmolStr, Vec<Gate>)>,
    /// Hashes the subject.
    subject: Arc<SubjectHasher>,
    /// The index of the value that decides the partition, and its hasher, if that is the tenant.
    tenant: Option<(usize, Arc<SubjectHasher>)>,
    /// The index of the value that is the tenant, if the ledger keeps its name.
    named_tenant: Option<usize>,
    /// The index of the value that is an address, for rules without a matcher.
    pub(super) address: Option<usize>,
    /// The partition, if it is the same for all subjects.
    fixed_partition: Option<u16>,
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
    pub(super) fn new(rule: Arc<Rule>, attributes: SubjectAttributes, hashers: &mut HasherCache) -> Self {
        let tenant = attributes.position(TENANT);
        // The tenant decides the partition of every rule that counts by it, so that the checks of one tenant share a slot.
        let by_tenant = tenant.filter(|_| attributes.names.len() > 1 && rule.partition_by == PartitionBy::Auto);
        Self {
            gates: gates(&rule, "", &rule.limits),
            plans: rule.plans.iter().map(|(plan, limits)| (plan.clone(), gates(&rule, plan, limits))).collect(),
            subject: hashers.hasher(&attributes.names),
            tenant: by_tenant.map(|index| (index, hashers.hasher(&[TENANT.into()]))),
            named_tenant: tenant.filter(|_| rule.ledger_names),
            address: attributes.position(IP),
            fixed_partition: match &rule.partition_by {
                PartitionBy::Auto | PartitionBy::Subject => None,
                PartitionBy::Rule => Some(KeyStem::partition_of_name(rule.budget.as_ref().unwrap_or(&rule.id))),
                PartitionBy::Constant(name) => Some(KeyStem::partition_of_name(name)),
            },
            attributes,
            rule,
        }
    }

    /// The same with the hashers of another secret.
    pub(super) fn with_hashers(self, hashers: &mut HasherCache) -> Self {
        Self::new(self.rule, self.attributes, hashers)
    }

    /// Why a request cannot be judged under this rule, and the attribute that is the reason: for rules without a matcher.
    #[inline(always)]
    pub(super) fn problem<'p>(&'p self, request: &Request<'p>) -> Option<(RequestProblemKind, &'p str)> {
        if request.has_repeats()
            && let Some(name) = request.repeated_names().find(|name| self.attributes.position(name).is_some())
        {
            return Some((RequestProblemKind::Repeated, name));
        }
        if let Some(name) = self.attributes.missing(&self.rule, request) {
            return Some((RequestProblemKind::Missing, name));
        }
        self.attributes.ambiguous(request).map(|name| (RequestProblemKind::Ambiguous, name))
    }

    /// How the result under this rule depends on the body of a request that does not have it: for rules without a matcher.
    pub(super) fn body_use(&self) -> BodyUse {
        let text = match self.rule.mode {
            _ if self.attributes.position(BODY).is_none() => BodyNeed::None,
            RuleMode::Shadow => BodyNeed::Shadow,
            _ => BodyNeed::Enforced,
        };
        BodyUse { text, ..BodyUse::default() }
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
        let anonymous = anonymous && !self.attributes.names.is_empty();
        // Without a tenant, the subject decides the partition.
        let tenant = self.tenant.as_ref().and_then(|(index, hasher)| {
            let tenant = values.clone().nth(*index).flatten()?;
            Some(hasher.subject([Some(tenant)].into_iter()).partition())
        });
        let tenant_name = self.named_tenant.and_then(|index| values.clone().nth(index).flatten());
        let subject = self.subject.subject(values);
        let partition = self.fixed_partition.or(tenant);
        for gate in self.gates_of(plan_name) {
            // Without a subject, the limit decides the partition, which spreads such rules over the slots.
            let own = if self.attributes.names.is_empty() { gate.stem().own_subject() } else { subject };
            let key = Key::new(gate.stem(), partition.unwrap_or_else(|| own.partition()), subject);
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
        let has_own = self.attributes.names.is_empty() && self.fixed_partition.is_none();
        let partition = if has_own { gate.stem().own_subject().partition() } else { partition };
        Key::new(gate.stem(), partition, subject)
    }

    /// The maximum number of checks, over all plans.
    pub(super) fn max_checks(&self) -> usize {
        self.plans.iter().map(|(_, gates)| gates.len()).chain([self.gates.len()]).max().unwrap_or_default()
    }
}

/// The limits of a rule, or of one of its plans, and its penalty.
fn gates(rule: &Arc<Rule>, plan: &str, limits: &[(SmolStr, Limit)]) -> Vec<Gate> {
    let penalty = rule.penalty.map(|penalty| (PENALTY_NAME.into(), Limit::Penalty(penalty)));
    let gate = |(name, limit): &(SmolStr, Limit)| Gate::new(Arc::clone(rule), name.clone(), *limit).with_plan(plan);
    limits.iter().chain(&penalty).map(gate).collect()
}
