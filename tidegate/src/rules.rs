//! `RuleSet`: rules that fit together, indexed; turns a [`Request`] into the [`Plan`] that it must pass. Pure.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::fmt;

use smol_str::SmolStr;

use crate::key::{Key, KeyStem};
use crate::limit::LARGEST_AMOUNT;
use crate::plan::{Check, Gate, MOST_CHECKS, Plan, Role};
use crate::rule::{Rule, RuleMode};
use crate::subject::SubjectHasher;
use crate::{Few, Request, Secret};

/// The attribute whose value decides the partition of every rule that counts by it, so that the checks of one tenant
/// share a slot.
const TENANT: &str = "tenant";

/// The longest name of a rule, a limit or a budget, in bytes: it is part of every key.
const LONGEST_ID: usize = 64;

/// Rules that fit together.
#[derive(Clone, Debug)]
pub struct RuleSet {
    rules: Vec<Ready>,
    /// For each action that a rule names: which rules match it, in order, those for every action among them.
    by_action: HashMap<SmolStr, Vec<u32>>,
    /// Which rules match any other action.
    for_any: Vec<u32>,
}

/// A rule with everything computed that does not depend on the request.
#[derive(Clone, Debug)]
struct Ready {
    rule: Rule,
    gates: Vec<Gate>,
    /// Hashes whom the rule counts.
    subject: SubjectHasher,
    /// Hashes what decides the partition, where that is not the subject itself.
    tenant: Option<SubjectHasher>,
}

/// Why rules do not fit together: which rule, and what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    rule: SmolStr,
    problem: String,
}

impl RuleSet {
    /// Checks the rules and indexes them; their order is kept.
    ///
    /// ```
    /// use tidegate::{Limit, Rate, Rule, RuleSet};
    ///
    /// let limit = Limit::token_bucket(20, Rate::per_second(10)?)?;
    /// let error = RuleSet::new([Rule::new("api", limit), Rule::new("api", limit)]).unwrap_err();
    /// assert_eq!(error.to_string(), "rule \"api\": the id is taken; give each rule its own");
    /// # Ok::<(), tidegate::LimitError>(())
    /// ```
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, RuleError> {
        let mut set = Self { rules: Vec::new(), by_action: HashMap::new(), for_any: Vec::new() };
        let mut ids = HashSet::new();
        let mut budgets: HashMap<SmolStr, Rule> = HashMap::new();
        for rule in rules {
            check(&rule, &mut ids, &mut budgets)?;
            if rule.mode != RuleMode::Disabled {
                set.index(&rule);
                set.rules.push(Ready::new(rule, &Secret::public()));
            }
        }
        set.check_sizes()?;
        Ok(set)
    }

    /// Notes which actions the next rule matches.
    fn index(&mut self, rule: &Rule) {
        let next = self.rules.len() as u32;
        if let Some(action) = &rule.action {
            self.by_action.entry(action.clone()).or_insert_with(|| self.for_any.clone()).push(next);
        } else {
            self.for_any.push(next);
            self.by_action.values_mut().for_each(|matching| matching.push(next));
        }
    }

    /// No request may have to pass more checks than a plan takes.
    fn check_sizes(&self) -> Result<(), RuleError> {
        for matching in self.by_action.values().chain([&self.for_any]) {
            let checks: usize = matching.iter().map(|index| self.rules[*index as usize].gates.len()).sum();
            if let Some(last) = matching.last().filter(|_| checks > MOST_CHECKS) {
                let rule = self.rules[*last as usize].rule.id.clone();
                let problem = format!("with it {checks} limits apply to one request; at most {MOST_CHECKS} may");
                return Err(RuleError { rule, problem });
            }
        }
        Ok(())
    }

    /// Hashes subjects with `secret` instead of the [public](Secret::public) one.
    pub fn secret(mut self, secret: &Secret) -> Self {
        self.rules = self.rules.into_iter().map(|ready| Ready::new(ready.rule, secret)).collect();
        self
    }

    /// The checks that `request` must pass, in the order of the rules.
    ///
    /// Rules that share a budget make one check with the sum of their costs.
    #[inline(always)]
    pub fn resolve<'r>(&'r self, request: &Request<'_>) -> Plan<'r> {
        let mut plan = Plan::from_distinct(Few::default());
        for index in self.matching(request.action()) {
            let ready = &self.rules[*index as usize];
            let subject = ready.subject.subject(ready.rule.per.iter().map(|name| request.value(name)));
            let tag = ready.tenant.as_ref().map(|tenant| tenant.subject([request.value(TENANT)].into_iter()));
            let cost = ready.rule.cost.unwrap_or(request.units());
            for gate in &ready.gates {
                // With no subject, the partition comes from the rule instead: constants spread over the slots.
                let own = if ready.rule.per.is_empty() { gate.own_tag() } else { subject };
                let check = Check::new(gate, Key::new(gate.stem(), tag.unwrap_or(own), subject), cost);
                plan.add(check, ready.rule.budget.is_some());
            }
        }
        plan
    }

    /// The rules for `action`, in order.
    #[inline]
    fn matching(&self, action: &str) -> &[u32] {
        if self.by_action.is_empty() {
            return &self.for_any;
        }
        self.by_action.get(action).unwrap_or(&self.for_any)
    }

    /// The limit of a rule by name, for receipts.
    pub(crate) fn gate(&self, rule: &str, limit: &str) -> Option<&Gate> {
        let ready = self.rules.iter().find(|ready| ready.rule.id == rule)?;
        ready.gates.iter().find(|gate| gate.limit_name() == limit)
    }
}

impl Ready {
    fn new(rule: Rule, secret: &Secret) -> Self {
        let subject = secret.hasher(rule.per.iter().map(SmolStr::as_str));
        let by_tenant = rule.per.len() > 1 && rule.per.iter().any(|name| name == TENANT);
        Self { gates: gates(&rule), rule, subject, tenant: by_tenant.then(|| secret.hasher([TENANT])) }
    }
}

fn gates(rule: &Rule) -> Vec<Gate> {
    let role = if rule.mode == RuleMode::Shadow { Role::Shadow } else { Role::Enforced };
    let gate = |(name, limit): &(SmolStr, crate::Limit)| {
        let stem = match &rule.budget {
            // A shadow rule counts beside the budget: it must not touch what others share.
            Some(budget) if role != Role::Shadow => KeyStem::of_budget(budget, limit, name),
            _ => KeyStem::of_rule(&rule.id, limit, name),
        };
        Gate::new(rule.id.clone(), name.clone(), *limit, role, stem)
    };
    rule.limits.iter().map(gate).collect()
}

fn check(rule: &Rule, ids: &mut HashSet<SmolStr>, budgets: &mut HashMap<SmolStr, Rule>) -> Result<(), RuleError> {
    let error = |problem: String| Err(RuleError { rule: rule.id.clone(), problem });
    if rule.id.is_empty() || rule.id.len() > LONGEST_ID {
        return error(format!("the id has {} bytes; give it 1 to {LONGEST_ID}", rule.id.len()));
    }
    if !ids.insert(rule.id.clone()) {
        return error("the id is taken; give each rule its own".into());
    }
    let names = rule.limits.iter().map(|(name, _)| name).chain(&rule.budget);
    if let Some(name) = names.into_iter().find(|name| name.len() > LONGEST_ID) {
        return error(format!("the name {name:?} has {} bytes; give it at most {LONGEST_ID}", name.len()));
    }
    let mut names = HashSet::new();
    if let Some((name, _)) = rule.limits.iter().find(|(name, _)| !names.insert(name)) {
        return error(format!("two limits are named {name:?}; give each its own name"));
    }
    if let Some(cost) = rule.cost.filter(|cost| *cost > LARGEST_AMOUNT) {
        return error(format!("the cost {cost} is above the largest value, {LARGEST_AMOUNT}"));
    }
    if let Some(budget) = &rule.budget {
        let first = budgets.entry(budget.clone()).or_insert_with(|| rule.clone());
        if first.limits != rule.limits || first.per != rule.per {
            let other = &first.id;
            return error(format!(
                "it shares budget {budget:?} with rule {other:?}; give both the same limits and `per`"
            ));
        }
    }
    Ok(())
}

impl RuleError {
    /// The id of the rule that cannot stay as it is.
    pub fn rule(&self) -> &str {
        &self.rule
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {:?}: {}", self.rule, self.problem)
    }
}

impl Error for RuleError {}
