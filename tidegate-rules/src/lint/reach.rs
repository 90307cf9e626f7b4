//! Lints about reach: rules that never come to a word, because an exemption or another rule is always there first, and
//! requests on which too many rules meet.

use std::collections::HashSet;

use smol_str::SmolStr;
use tidegate::{Limit, MOST_CHECKS, Rate, RuleMode};

use crate::compile::{Compiled, Ready};
use crate::condition::Condition;
use crate::cost::Cost;
use crate::identity::Identity;
use crate::matching::{Matched, TenantIn};
use crate::problem::Problem;
use crate::source::Span;

/// Conditions that ask for a tenant or a plan that nothing in the file provides.
pub(super) fn conditions(ready: &Ready, found: &mut Vec<Problem>) {
    let rules = ready.rules.iter().filter(|rule| !rule.is_disabled());
    let asked = rules.map(|rule| -> (&Condition, &Span) { (&rule.matched.condition, &rule.match_span) });
    let no_tenant = ready.matching.tenant.sources.is_empty();
    let mut plans: HashSet<&SmolStr> = HashSet::from([&ready.matching.default_plan]);
    if !no_tenant {
        plans.extend(ready.matching.plan_of_tenant.values());
    }
    let plans = ready.matching.plan.sources.is_empty().then_some(plans);
    for (condition, span) in asked.chain(ready.matching.exempt.iter().zip(&ready.exempt)) {
        found.extend(nowhere_from(no_tenant, plans.as_ref(), condition, span));
    }
}

/// `plans` are those that a request can have, if these are known.
fn nowhere_from(
    no_tenant: bool,
    plans: Option<&HashSet<&SmolStr>>,
    condition: &Condition,
    span: &Span,
) -> Option<Problem> {
    let none_of = |plans: &HashSet<&SmolStr>| !condition.plans.iter().any(|plan| plans.contains(plan));
    let missing = if no_tenant && !condition.tenants.is_empty() {
        "tenant"
    } else if !condition.plans.is_empty() && plans.is_some_and(none_of) {
        "plan"
    } else {
        return None;
    };
    let message = format!("this matches only if the application sets the attribute `{missing}`");
    let help = format!("if it does not, say where it comes from: `{missing}: header:x-{missing}` below `identify`");
    Some(Problem::note("never-matches", message, span.clone()).help(help))
}

/// An exemption that lifts a rule wherever it would apply.
pub(super) fn exempted(ready: &Ready, rule: &Compiled) -> Option<Problem> {
    let place = ready.matching.exempt.iter().position(|exempt| exempt.covers(&rule.matched.condition))?;
    let message = format!("exemption {} lifts this rule for every request that it applies to", place + 1);
    let help = "narrow the exemption, or take the rule out";
    Some(Problem::warning("unreachable", message, rule.match_span.clone()).help(help))
}

/// A request on which more limits meet than one decision takes. `full` has the places that were told already.
pub(super) fn too_many(beside: &[(usize, &Compiled)], full: &mut HashSet<usize>) -> Option<Problem> {
    let (mut checks, mut last, mut budgets) = (0, None, HashSet::new());
    for (place, rule) in beside {
        // Rules that share a budget make one check of it.
        if rule.budget.as_ref().is_some_and(|budget| !budgets.insert(budget)) {
            continue;
        }
        checks += rule.limits.len();
        if checks > MOST_CHECKS && last.is_none() {
            last = Some((*place, *rule));
        }
    }
    let (_, rule) = last.filter(|(place, _)| full.insert(*place))?;
    let message = format!("{checks} limits apply to one request, this one among them; at most {MOST_CHECKS} may");
    let problem = Problem::error("too-many-checks", message, rule.id_span.clone());
    Some(problem.help("let the rules match less, or make one rule of several that count by the same"))
}

/// A rule that another one makes superfluous.
pub(super) fn outdone(place: usize, rule: &Compiled, beside: &[(usize, &Compiled)]) -> Option<Problem> {
    let by = |(at, other): &&(usize, &Compiled)| *at != place && outdoes(other, rule);
    let (at, other) = beside.iter().find(by)?;
    let id = &other.matched.id;
    if outdoes(rule, other) {
        // Of two that say the same, the later one is told.
        let message = format!("this rule says the same as rule `{id}`");
        let problem = Problem::warning("duplicate-rule", message, rule.id_span.clone());
        return (*at < place).then(|| problem.help("take one of the two out"));
    }
    let message = format!("rule `{}` never refuses what rule `{id}` lets pass", rule.matched.id);
    let help = format!("`{id}` applies to the same requests and is as strict; take this one out, or make it stricter");
    Some(Problem::warning("never-decides", message, rule.id_span.clone()).help(help))
}

/// Whether `strict` refuses whatever `rule` refuses.
///
/// Both see the same requests, the strict one perhaps more in one bucket, and a request that passes is counted by both: so
/// the strict one never has more left.
fn outdoes(strict: &Compiled, rule: &Compiled) -> bool {
    let comparable = |rule: &Compiled| rule.mode == RuleMode::Enabled && rule.budget.is_none() && rule.actual.is_none();
    let refuses_on_failure = |rule: &Compiled| !rule.on_failure.unwrap_or_default().lets_pass();
    comparable(strict)
        && comparable(rule)
        && (refuses_on_failure(strict) || !refuses_on_failure(rule))
        && same_cost(&strict.matched.cost, &rule.matched.cost)
        && counts_together(&strict.matched, &rule.matched)
        && in_every_plan(strict, rule)
        && strict.matched.condition.covers(&rule.matched.condition)
}

fn same_cost(a: &Cost, b: &Cost) -> bool {
    match (a, b) {
        (Cost::Given, Cost::Given) => true,
        (Cost::Fixed(a), Cost::Fixed(b)) => a == b,
        _ => false,
    }
}

/// Whether those whom `fine` counts as one are one for `coarse` too.
fn counts_together(coarse: &Matched, fine: &Matched) -> bool {
    let same = |a: &Identity, b: &Identity| a.given == b.given && a.sources == b.sources;
    (coarse.tenant == TenantIn::No || coarse.tenant == fine.tenant)
        && coarse.per.iter().all(|one| fine.per.iter().any(|other| same(one, other)))
}

/// Whether each limit of `rule` has a stricter one, whatever the plan.
fn in_every_plan(strict: &Compiled, rule: &Compiled) -> bool {
    let holds = |plan: &str| {
        let stricter = limits(strict, plan);
        limits(rule, plan).iter().all(|(_, limit)| stricter.iter().any(|(_, other)| is_stricter(other, limit)))
    };
    let named = strict.plans.iter().chain(&rule.plans).map(|(plan, _)| plan.as_str());
    holds("") && named.into_iter().all(holds)
}

/// The limits of a rule for the requests of a plan.
fn limits<'r>(rule: &'r Compiled, plan: &str) -> &'r [(SmolStr, Limit)] {
    rule.plans.iter().find(|(name, _)| name == plan).map_or(&rule.limits, |(_, limits)| limits)
}

/// Whether `strict` is of the same kind and admits no more than `limit` at any time.
fn is_stricter(strict: &Limit, limit: &Limit) -> bool {
    let same_window = strict.window_micros() == limit.window_micros();
    match (strict, limit) {
        (Limit::TokenBucket(a), Limit::TokenBucket(b)) => {
            a.capacity() <= b.capacity() && is_slower(a.refill(), b.refill())
        }
        (Limit::LeakyBucket(a), Limit::LeakyBucket(b)) => a.queue() <= b.queue() && is_slower(a.drain(), b.drain()),
        (Limit::FixedWindow(a), Limit::FixedWindow(b)) => same_window && a.limit() <= b.limit(),
        (Limit::SlidingLog(a), Limit::SlidingLog(b)) => same_window && a.limit() <= b.limit(),
        (Limit::SlidingWindow(a), Limit::SlidingWindow(b)) => {
            same_window && a.slices() == b.slices() && a.limit() <= b.limit()
        }
        _ => false,
    }
}

/// Whether a rate is at most another one, without rounding.
fn is_slower(a: Rate, b: Rate) -> bool {
    u128::from(a.amount()) * u128::from(b.period_micros()) <= u128::from(b.amount()) * u128::from(a.period_micros())
}
