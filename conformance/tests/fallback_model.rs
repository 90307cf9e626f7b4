//! Decisions without the store, compared with a naive model of the failure policies: plans of several rules of every kind, role and
//! policy, with budgets and static caps, under every kind of failure, with peeks, free requests and several units.

mod histories;

use std::collections::HashMap;

use conformance::model::{Model, ModelRequest};
use histories::{FailureSpec, RuleSpec, Step, rule, steps};
use proptest::prelude::*;
use tidegate::rules::OnOverload;
use tidegate::spi::{Check, Gate, Plan, Role, Subject};
use tidegate::{Clock, Limit, Limiter, ManualClock, MemoryStore, OnFailure, Request, Rule, RuleMode, RuleSet};

// === The naive model ===

/// What one limit of one rule means for a request, before policies.
#[derive(Clone, Debug)]
struct NaiveCheck {
    rule: String,
    key: String,
    limit: Limit,
    cost: u64,
    role: Role,
    on_failure: OnFailure,
    on_overload: OnOverload,
    static_limit: Limit,
}

/// What a policy makes of a check.
enum Effect {
    Passes,
    Refuses,
    /// A limit in memory, under a key.
    Limits {
        key: String,
        limit: Limit,
        cost: u64,
    },
}

/// The memory of an instance, by definition.
#[derive(Default)]
struct NaiveFallback {
    models: HashMap<String, Model>,
}

impl NaiveCheck {
    fn effect(&self, failure: FailureSpec, instances: u32) -> Effect {
        let whole = || Effect::Limits { key: self.key.clone(), limit: self.limit, cost: self.cost };
        let overload = matches!(failure, FailureSpec::Overloaded | FailureSpec::Crowded);
        if overload && self.on_overload == OnOverload::Open {
            return Effect::Passes;
        }
        if failure == FailureSpec::Crowded {
            return Effect::Refuses;
        }
        if overload && self.on_overload == OnOverload::Local {
            return whole();
        }
        match self.on_failure {
            OnFailure::Closed => Effect::Refuses,
            OnFailure::Open | OnFailure::Degraded if !overload => Effect::Passes,
            OnFailure::Static => Effect::Limits {
                key: format!("{} static", self.rule),
                limit: self.static_limit,
                cost: self.cost.min(1),
            },
            OnFailure::Share => {
                let limit = self.limit.share(instances);
                Effect::Limits { key: self.key.clone(), limit, cost: self.cost }
            }
            _ => whole(),
        }
    }
}

impl NaiveFallback {
    /// The units granted; `None` if the request is refused.
    fn decide(&mut self, checks: &[NaiveCheck], step: &Step, now: u64, instances: u32) -> Option<u64> {
        let mut groups: Vec<(Role, Vec<Effect>)> = Vec::new();
        for check in checks.iter().filter(|check| check.role != Role::Shadow) {
            let effect = check.effect(step.failure, instances);
            let known = groups.iter_mut().find(|(role, _)| *role == check.role && matches!(role, Role::AnyOf(_)));
            match known {
                Some((_, group)) => group.push(effect),
                None => groups.push((check.role, vec![effect])),
            }
        }
        if groups.iter().any(|(_, group)| group.iter().any(|effect| matches!(effect, Effect::Refuses))) {
            return None;
        }
        // A group that somebody lets pass restricts nothing; a static limit counts once.
        groups.retain(|(_, group)| !group.iter().any(|effect| matches!(effect, Effect::Passes)));
        let mut counted: Vec<Vec<(String, Limit, u64)>> = Vec::new();
        for (_, group) in groups {
            let mut members: Vec<(String, Limit, u64)> = Vec::new();
            for effect in group {
                let Effect::Limits { key, limit, cost } = effect else { continue };
                let is_known = |(known, _, _): &(String, Limit, u64)| *known == key;
                if !members.iter().any(is_known) && !counted.iter().flatten().any(is_known) {
                    members.push((key, limit, cost));
                }
            }
            if !members.is_empty() {
                counted.push(members);
            }
        }
        let request = |cost: u64, units: u64| ModelRequest { now, cost: cost * units, max_delay: u64::MAX, owner: 0 };
        let model = |key: &String, limit: &Limit, models: &HashMap<String, Model>| {
            let mut model = models.get(key).cloned().unwrap_or_else(|| Model::new(limit));
            model.settle(now);
            model
        };
        let fits = |(key, limit, cost): &(String, Limit, u64), units: u64, models: &HashMap<String, Model>| {
            model(key, limit, models).fits(request(*cost, units))
        };
        let passes =
            |units: u64| counted.iter().all(|group| group.iter().any(|member| fits(member, units, &self.models)));
        let granted = (1..=step.max_units).rev().find(|units| passes(*units)).unwrap_or(0);
        if granted == 0 || step.peek {
            return Some(granted);
        }
        for member in counted.iter().flatten() {
            let (key, limit, cost) = member;
            if *cost > 0 && fits(member, granted, &self.models) {
                let mut model = model(key, limit, &self.models);
                model.spend(now, cost * granted, 0);
                self.models.insert(key.clone(), model);
            }
        }
        Some(granted)
    }
}

// === The comparison ===

const SUBJECTS: [&str; 2] = ["ann", "bob"];

/// A limiter whose store is never asked, and its clock.
fn limiter(rules: RuleSet, instances: u32) -> (Limiter<MemoryStore>, ManualClock) {
    let clock = ManualClock::default();
    let memory = MemoryStore::new().with_clock(clock.clone());
    (Limiter::new(rules, MemoryStore::new()).with_fallback_store(memory).with_instances(instances), clock)
}

/// The units granted, or `None` after an error.
fn granted(limiter: &Limiter<MemoryStore>, plan: Plan<'_>, step: &Step) -> Option<u64> {
    let plan = plan.with_max_units(step.max_units);
    let plan = if step.peek { plan.with_peek() } else { plan };
    let error = step.error();
    let kind = error.kind();
    let mut decision = limiter.plans().fall_back(&plan, error).ok()?;
    assert_eq!(decision.degraded(), Some(kind));
    let granted = decision.granted();
    assert!(decision.take_grant().is_empty());
    Some(granted)
}

/// The rules as gates of a plan made by hand, with groups.
fn gates(rules: &[RuleSpec]) -> Vec<(usize, Gate)> {
    let mut gates = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        for (name, limit) in rule.limits.iter().enumerate() {
            let of_gate = Rule::new(format!("r{number}"), *limit)
                .with_per(["subject"])
                .with_on_failure(rule.on_failure)
                .with_on_overload(rule.on_overload)
                .with_static_limit(rule.static_limit);
            gates.push((number, Gate::new(of_gate, format!("l{name}"), *limit).with_role(rule.role)));
        }
    }
    gates
}

fn naive_checks(rules: &[RuleSpec], step: &Step) -> Vec<NaiveCheck> {
    let mut checks: Vec<NaiveCheck> = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        for (name, limit) in rule.limits.iter().enumerate() {
            let subject = SUBJECTS[step.subject];
            checks.push(NaiveCheck {
                rule: format!("r{number}"),
                key: format!("r{number} l{name} {subject}"),
                limit: *limit,
                cost: rule.cost(step),
                role: rule.role,
                on_failure: rule.on_failure,
                on_overload: rule.on_overload,
                static_limit: rule.static_limit,
            });
        }
    }
    checks
}

/// The same for rules of a rule set, where those of one budget are one check: with the sum of their costs and the strictest policy.
fn naive_checks_with_budgets(rules: &[RuleSpec], step: &Step) -> Vec<NaiveCheck> {
    let strictness = |policy: OnFailure| {
        [OnFailure::Open, OnFailure::Degraded, OnFailure::Static, OnFailure::Local, OnFailure::Share, OnFailure::Closed]
            .iter()
            .position(|other| *other == policy)
    };
    let mut checks: Vec<NaiveCheck> = Vec::new();
    for (rule, mut check) in
        rules.iter().flat_map(|rule| rule.limits.iter().map(move |_| rule)).zip(naive_checks(rules, step))
    {
        if let (Some(budget), Role::Enforced) = (rule.budget, rule.role) {
            let name = check.key.split(' ').nth(1).unwrap().to_owned();
            check.key = format!("budget {budget} {name} {}", SUBJECTS[step.subject]);
        }
        match checks.iter_mut().find(|known| known.key == check.key) {
            Some(known) => {
                known.cost += check.cost;
                if strictness(check.on_failure) > strictness(known.on_failure) {
                    known.on_failure = check.on_failure;
                }
                let order = [OnOverload::Open, OnOverload::Local, OnOverload::Policy];
                let rank = |on_overload| order.iter().position(|other| *other == on_overload);
                if rank(check.on_overload) > rank(known.on_overload) {
                    known.on_overload = check.on_overload;
                }
            }
            None => checks.push(check),
        }
    }
    checks
}

/// Rules without groups. Those of one budget get the same limits and static limit, as a rule set requires.
fn for_rule_set(mut rules: Vec<RuleSpec>) -> Vec<RuleSpec> {
    let mut first: HashMap<u8, (Vec<Limit>, Limit)> = HashMap::new();
    for rule in &mut rules {
        if matches!(rule.role, Role::AnyOf(_)) {
            rule.role = Role::Enforced;
        }
        if let Some(budget) = rule.budget {
            let (limits, static_limit) =
                first.entry(budget).or_insert_with(|| (rule.limits.clone(), rule.static_limit)).clone();
            (rule.limits, rule.static_limit) = (limits, static_limit);
        }
    }
    rules
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn decisions_without_the_store_agree_with_the_model(
        rules in prop::collection::vec(rule(), 1..5),
        steps in steps(),
        instances in 1..5u32,
    ) {
        let (gates, mut model) = (gates(&rules), NaiveFallback::default());
        let (limiter, clock) = limiter(RuleSet::new([]).unwrap(), instances);
        for (number, step) in steps.iter().enumerate() {
            clock.advance(step.wait);
            let subject = Subject::from_hash(step.subject as u128 + 1);
            let checks = gates.iter().map(|(rule, gate)| Check::new(gate, subject, rules[*rule].cost(step)));
            let decided = granted(&limiter, Plan::new(checks).unwrap(), step);
            let expected = model.decide(&naive_checks(&rules, step), step, clock.now().as_micros(), instances);
            prop_assert_eq!(decided, expected, "step {}: {:?}", number, step);
        }
    }

    #[test]
    fn rules_with_budgets_agree_with_the_model(
        rules in prop::collection::vec(rule(), 1..6).prop_map(for_rule_set),
        steps in steps(),
        instances in 1..5u32,
    ) {
        let set = RuleSet::new(rules.iter().enumerate().map(|(number, spec)| {
            let limits = spec.limits.iter().enumerate().map(|(name, limit)| (format!("l{name}"), *limit));
            let rule = Rule::from_limits(format!("r{number}"), limits)
                .with_per(["user"])
                .with_on_failure(spec.on_failure)
                .with_on_overload(spec.on_overload)
                .with_static_limit(spec.static_limit)
                .with_mode(if spec.role == Role::Shadow { RuleMode::Shadow } else { RuleMode::Enabled });
            match spec.budget {
                Some(budget) => rule.with_budget(format!("b{budget}")),
                None => rule,
            }
        }));
        let (set, mut model) = (set.unwrap(), NaiveFallback::default());
        let (limiter, clock) = limiter(set, instances);
        for (number, step) in steps.iter().enumerate() {
            clock.advance(step.wait);
            let cost = if step.free { 0 } else { step.cost + 1 };
            let request = Request::new("").with_attribute("user", SUBJECTS[step.subject]).with_cost(cost);
            let decided = granted(&limiter, limiter.plan(&request), step);
            // Without a cost of its own, a rule has that of the request.
            let same_cost: Vec<RuleSpec> = rules.iter().map(|rule| RuleSpec { cost: 1, ..rule.clone() }).collect();
            let checks = naive_checks_with_budgets(&same_cost, step);
            let expected = model.decide(&checks, step, clock.now().as_micros(), instances);
            prop_assert_eq!(decided, expected, "step {}: {:?}", number, step);
        }
    }
}
