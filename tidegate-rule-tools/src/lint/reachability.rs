//! Lints about rules without effect: no request matches them, or an exemption or another rule makes them redundant.

use std::collections::HashSet;

use smol_str::SmolStr;
use tidegate::{Limit, Rate, RuleMode};
use tidegate_rules::Problem;
use tidegate_rules::internals::{
    CompiledFile, CompiledRule, Condition, Cost, PathPattern, RuleMatcher, Segment, Span, TenantUse,
};

use super::failure_policy;

/// Conditions with a tenant or plan that the file gives no source for, and paths with a segment such as `:id`.
pub(super) fn lint_conditions(file: &CompiledFile, lints: &mut Vec<Problem>) {
    let rules = file.enabled_rules();
    let conditions = rules.map(|rule| -> (&Condition, &Span) { (&rule.matcher.condition, &rule.match_span) });
    let no_tenant = file.matcher.tenant.sources.is_empty();
    let mut plans: HashSet<&SmolStr> = HashSet::from([&file.matcher.default_plan]);
    if !no_tenant {
        plans.extend(file.matcher.plan_of_tenant.values());
    }
    let plans = file.matcher.plan.sources.is_empty().then_some(plans);
    for (condition, span) in conditions.chain(file.matcher.exempt.iter().zip(&file.exempt)) {
        lints.extend(lint_missing_source(no_tenant, plans.as_ref(), condition, span));
        lints.extend(condition.paths.iter().filter_map(|pattern| colon(pattern, span)));
    }
    for rule in file.enabled_rules() {
        let paths = rule.matcher.on_failure.routes.paths();
        lints.extend(paths.filter_map(|pattern| colon(pattern, &rule.on_failure_span)));
        let Cost::Table(table) = &rule.matcher.cost else { continue };
        lints.extend(table.routes.paths().filter_map(|pattern| colon(pattern, &rule.cost_span)));
    }
}

/// A segment such as `:id`, which means any segment in other programs.
fn colon(pattern: &PathPattern, span: &Span) -> Option<Problem> {
    let segment = pattern.segments().iter().find_map(|segment| match segment {
        Segment::Literal(text) => name_after_colon(text).map(|_| text),
        Segment::Any | Segment::Rest => None,
    })?;
    let written = pattern.to_string();
    let braced = |part: &str| name_after_colon(part).map_or(part.to_owned(), |name| format!("{{{name}}}"));
    let meant = written.split('/').map(braced).collect::<Vec<_>>().join("/");
    let message = format!("`{segment}` in `{written}` matches only this text");
    let help = format!("for any segment write `{meant}`; this is fine if the colon is intended");
    Some(Problem::note("colon-segment", message, span.clone()).with_help(help))
}

/// `id` of `:id`.
fn name_after_colon(segment: &str) -> Option<&str> {
    let fits = |name: &&str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    segment.strip_prefix(':').filter(fits)
}

/// Reports a tenant or plan that no request can have; `plans` are those that a request can have, if known.
fn lint_missing_source(
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
    let help = format!("otherwise add its source: `{missing}: header:x-{missing}` below `identify`");
    Some(Problem::note("never-matches", message, span.clone()).with_help(help))
}

/// An exemption that covers every request of a rule.
pub(super) fn always_exempt(file: &CompiledFile, rule: &CompiledRule) -> Option<Problem> {
    let is_from = |index: &usize| file.matcher.exemption_from(&rule.id, &[*index as u32]).is_some();
    let mut covering = file.matcher.exempt.iter().enumerate().filter(|(_, it)| it.covers(&rule.matcher.condition));
    let index = covering.find_map(|(index, _)| Some(index).filter(is_from))?;
    let message = format!("exemption {} covers every request of this rule", index + 1);
    let help = "narrow the exemption, or remove the rule";
    Some(Problem::warning("unreachable", message, rule.match_span.clone()).with_help(help))
}

/// A rule that another rule makes redundant.
pub(super) fn redundant_rule(index: usize, rule: &CompiledRule, beside: &[(usize, &CompiledRule)]) -> Option<Problem> {
    let is_stricter_rule = |(at, other): &&(usize, &CompiledRule)| *at != index && makes_redundant(other, rule);
    let (at, other) = beside.iter().find(is_stricter_rule)?;
    let id = &other.id;
    if makes_redundant(rule, other) {
        // Of two equal rules, the later one is reported.
        let message = format!("this rule is the same as rule `{id}`");
        let problem = Problem::warning("duplicate-rule", message, rule.id_span.clone());
        return (*at < index).then(|| problem.with_help("remove one of the two"));
    }
    let message = format!("rule `{}` never refuses a request that rule `{id}` allows", rule.id);
    let help =
        format!("`{id}` applies to the same requests and is at least as strict; remove this rule, or make it stricter");
    Some(Problem::warning("never-decides", message, rule.id_span.clone()).with_help(help))
}

/// Whether `strict` refuses every request that `rule` refuses.
///
/// Both count the same requests, `strict` possibly more of them in one bucket, so it never has more left.
fn makes_redundant(strict: &CompiledRule, rule: &CompiledRule) -> bool {
    let comparable =
        |rule: &CompiledRule| rule.mode == RuleMode::Enabled && rule.budget.is_none() && rule.cost_header.is_none();
    comparable(strict)
        && comparable(rule)
        // What a rule records is an effect too.
        && rule.ledger.is_none()
        // A block refuses what every limit allows.
        && rule.penalty == strict.penalty.filter(|_| rule.penalty.is_some())
        && failure_policy::is_as_strict(strict, rule)
        && remembers_as_long(strict, rule)
        && same_cost(&strict.matcher.cost, &rule.matcher.cost)
        && counts_together(&strict.matcher, &rule.matcher)
        && in_every_plan(strict, rule)
        && strict.matcher.condition.covers(&rule.matcher.condition)
}

/// Whether `strict` forgets anonymous subjects no earlier than `rule`.
fn remembers_as_long(strict: &CompiledRule, rule: &CompiledRule) -> bool {
    let forgets = |rule: &CompiledRule| rule.anonymous.and_then(|anonymous| anonymous.forget_after);
    forgets(strict).is_none_or(|after| forgets(rule).is_some_and(|other| other <= after))
}

fn same_cost(a: &Cost, b: &Cost) -> bool {
    match (a, b) {
        (Cost::Given, Cost::Given) => true,
        (Cost::Fixed(a), Cost::Fixed(b)) => a == b,
        _ => false,
    }
}

/// Whether each subject of `fine` lies within one subject of `coarse`.
fn counts_together(coarse: &RuleMatcher, fine: &RuleMatcher) -> bool {
    (coarse.tenant == TenantUse::No || coarse.tenant == fine.tenant)
        && coarse.per.iter().all(|one| fine.per.iter().any(|other| one.covers(other)))
}

/// Whether each limit of `rule` has a stricter one in every plan.
fn in_every_plan(strict: &CompiledRule, rule: &CompiledRule) -> bool {
    let holds = |plan: &str| {
        let stricter = limits(strict, plan);
        limits(rule, plan).iter().all(|(_, limit)| stricter.iter().any(|(_, other)| is_stricter(other, limit)))
    };
    let named = strict.plans.iter().chain(&rule.plans).map(|(plan, _)| plan.as_str());
    holds("") && named.into_iter().all(holds)
}

/// The limits of a rule for the requests of a plan.
fn limits<'r>(rule: &'r CompiledRule, plan: &str) -> &'r [(SmolStr, Limit)] {
    rule.plans.iter().find(|(own, _)| own == plan).map_or(&rule.limits, |(_, limits)| limits)
}

/// Whether `strict` is of the same kind and admits no more than `limit` at any time.
fn is_stricter(strict: &Limit, limit: &Limit) -> bool {
    let same_window = strict.window() == limit.window();
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
        // A slot that is not renewed is free after the lease.
        (Limit::Concurrency(a), Limit::Concurrency(b)) => a.lease() >= b.lease() && a.max() <= b.max(),
        // The mark of a grace is an effect too.
        (Limit::Quota(a), Limit::Quota(b)) => {
            a.periods() == b.periods() && a.amount() <= b.amount() && a.hard_limit() <= b.hard_limit()
        }
        _ => false,
    }
}

/// Whether a rate is at most another one, computed exactly.
fn is_slower(a: Rate, b: Rate) -> bool {
    u128::from(a.amount()) * b.period().as_micros() <= u128::from(b.amount()) * a.period().as_micros()
}
