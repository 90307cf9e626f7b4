//! Validates rules: their names, limits, costs and budgets.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smol_str::SmolStr;

use super::{MAX_NAME_BYTES, SubjectAttributes};
use crate::limit::MAX_AMOUNT;
use crate::limits::Algorithm;
use crate::rule::{NamedLimits, Rule};
use crate::{Limit, OnFailure};

/// Validates `rule` by itself and together with the rules before it. Returns what it counts by, or what to change.
pub(super) fn check(
    rule: &Arc<Rule>,
    ids: &mut HashSet<SmolStr>,
    budgets: &mut HashMap<SmolStr, (Arc<Rule>, SubjectAttributes)>,
) -> Result<SubjectAttributes, String> {
    if rule.id.is_empty() || rule.id.len() > MAX_NAME_BYTES {
        return Err(format!("the id has {} bytes; give it 1 to {MAX_NAME_BYTES}", rule.id.len()));
    }
    if !ids.insert(rule.id.clone()) {
        return Err("the id is taken; give each rule its own".into());
    }
    let attributes = SubjectAttributes::from_rule(rule).map_err(|unknown| unknown.to_string())?;
    for limits in rule.plans.iter().map(|(_, limits)| limits).chain([&rule.limits]) {
        check_names(limits, rule.budget.as_ref())?;
    }
    check_penalty(rule)?;
    let mut plans = HashSet::new();
    if let Some((plan, _)) = rule.plans.iter().find(|(plan, _)| plan.is_empty() || !plans.insert(plan)) {
        return Err(format!("the name {plan:?} of a plan is empty or taken; give each plan its own"));
    }
    if let Some(cost) = rule.cost.filter(|cost| *cost > MAX_AMOUNT) {
        return Err(format!("the cost {cost} is above the largest value, {MAX_AMOUNT}"));
    }
    if rule.on_failure == OnFailure::Static && rule.static_limit.is_none() {
        return Err("it is static while the store fails, but has no static limit; give it one".into());
    }
    if rule.static_limit.as_ref().is_some_and(Limit::has_slots) {
        return Err(
            "a static limit cannot be a concurrency limit, whose slots nobody would release; give it a rate".into()
        );
    }
    let mut limits = rule.plans.iter().map(|(_, limits)| limits).chain([&rule.limits]);
    let has_quota = |limits: &NamedLimits| limits.iter().any(|(_, limit)| limit.algorithm() == Algorithm::Quota);
    if rule.ledger.is_some() && !limits.any(has_quota) {
        return Err("it has a ledger, but no quota; only what quotas consume is recorded".into());
    }
    if rule.ledger.is_some() && rule.anonymous.is_some() {
        return Err("it has a ledger, but its subjects are unauthenticated; anybody could open accounts".into());
    }
    if let Some(budget) = &rule.budget {
        let first = || (Arc::clone(rule), attributes.clone());
        let (first, first_attributes) = budgets.entry(budget.clone()).or_insert_with(first);
        let alike = first.limits == rule.limits && first.plans == rule.plans;
        if alike && first.static_limit != rule.static_limit {
            let other = &first.id;
            return Err(format!("it shares budget {budget:?} with rule {other:?}; give both the same static limit"));
        }
        if alike && first.ledger != rule.ledger {
            let other = &first.id;
            return Err(format!("it shares budget {budget:?} with rule {other:?}; give both the same ledger"));
        }
        if !alike || *first_attributes != attributes || first.partition_by != rule.partition_by {
            let other = &first.id;
            return Err(format!(
                "it shares budget {budget:?} with rule {other:?}; give both the same limits, `per` and tag"
            ));
        }
    }
    Ok(attributes)
}

/// A penalty blames a subject for what its own rule denied it.
fn check_penalty(rule: &Rule) -> Result<(), String> {
    let mut limits = rule.plans.iter().flat_map(|(_, limits)| limits).chain(&rule.limits);
    if limits.any(|(_, limit)| limit.algorithm() == Algorithm::Penalty) {
        return Err("a penalty is not a limit by itself; use `with_penalty`".into());
    }
    if rule.penalty.is_none() {
        return Ok(());
    }
    let mut limits = rule.plans.iter().flat_map(|(_, limits)| limits).chain(&rule.limits);
    if limits.any(|(_, limit)| limit.has_slots()) {
        // Whoever asks for a free slot again and again does what the retry of 1 s says.
        return Err("it has a penalty and a concurrency limit; give the concurrency limit a rule of its own".into());
    }
    if !rule.security {
        return Err("it has a penalty, but is no security rule; use `with_security`".into());
    }
    if rule.per.is_empty() {
        return Err("it has a penalty, but counts all requests together; give it attributes to count by".into());
    }
    if rule.budget.is_some() {
        return Err(
            "it has a penalty and a budget; other rules could exhaust the budget, so remove one of the two".into()
        );
    }
    Ok(())
}

fn check_names(limits: &[(SmolStr, Limit)], budget: Option<&SmolStr>) -> Result<(), String> {
    if limits.is_empty() {
        return Err("it has no limit; give it at least one".into());
    }
    if let Some(name) = limits.iter().map(|(name, _)| name).chain(budget).find(|name| name.len() > MAX_NAME_BYTES) {
        return Err(format!("the name {name:?} has {} bytes; give it at most {MAX_NAME_BYTES}", name.len()));
    }
    let mut names = HashSet::new();
    match limits.iter().find(|(name, _)| !names.insert(name)) {
        Some((name, _)) => Err(format!("two limits are named {name:?}; give each its own name")),
        None => Ok(()),
    }
}
