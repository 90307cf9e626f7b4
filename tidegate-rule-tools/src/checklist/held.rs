//! The items about what outlasts a request: leases of slots, and blocks by penalties.

use tidegate::{Limit, OnFailure};
use tidegate_rules::internals::{CompiledRule, format_duration};

use super::{ChecklistItem, Deployment, list_rules};
use crate::lint::{limits, penalty};

/// Whether holders keep their slots while the store fails over.
pub(super) fn leases(rules: &[&CompiledRule], deployment: &Deployment) -> ChecklistItem {
    const NAME: &str = "leases outlast a failover";
    let all = rules.iter().flat_map(|rule| limits::all(rule)).map(|(_, limit)| limit);
    let leases = all.filter_map(|limit| match limit {
        Limit::Concurrency(limit) => Some(limit.lease()),
        _ => None,
    });
    let Some(shortest) = leases.min().map(format_duration) else {
        return ChecklistItem::met(NAME, "no rule limits concurrency");
    };
    let is_held = |rule: &CompiledRule| limits::all(rule).any(|(_, limit)| limit.has_slots());
    let is_local = |rule: &CompiledRule| rule.matcher.on_failure.each().any(|(_, policy)| policy == OnFailure::Local);
    let local = match list_rules(rules, |rule| is_held(rule) && is_local(rule)) {
        Some(ids) => format!("; meanwhile each instance admits `max` once more (`local`): {ids}"),
        None => String::new(),
    };
    if deployment.scheme() == Some("memory") {
        return ChecklistItem::met(NAME, "the memory store does not fail over; the slots of a process end with it");
    }
    let detail = format!(
        "the file does not show how long your store takes to fail over; the shortest lease is {shortest}; after more than \
         that without the store, workers lose their slots, and requests take theirs again if there is room{local}"
    );
    ChecklistItem::unknown(NAME, detail)
}

/// Whether a block hits only the sender that caused it.
pub(super) fn penalties(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "penalties block no bystander";
    if let Some(ids) = list_rules(rules, |rule| rule.penalty.is_some() && penalty::blocks_owners(rule)) {
        let detail = format!("whoever types the name of an account blocks its owner: {ids}; count by `ip`");
        return ChecklistItem::unmet(NAME, detail);
    }
    if let Some(ids) = list_rules(rules, |rule| rule.penalty.is_some() && penalty::counts_by_address(rule)) {
        let detail = format!(
            "clients behind one address are blocked together: {ids}; the file does not show how many there are, so compare the limit \
             with what an office or a carrier sends"
        );
        return ChecklistItem::unknown(NAME, detail);
    }
    match list_rules(rules, |rule| rule.penalty.is_some()) {
        Some(ids) => ChecklistItem::met(NAME, format!("only authenticated subjects are blocked: {ids}")),
        None => ChecklistItem::met(NAME, "no rule has a penalty"),
    }
}
