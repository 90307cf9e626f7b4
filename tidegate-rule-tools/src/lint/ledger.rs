//! Lints about ledgers: consumption that is not recorded or not limited, and a commit for each read request.

use smol_str::SmolStr;
use tidegate::rules::LedgerMode;
use tidegate::{Limit, RuleMode};
use tidegate_rules::Problem;
use tidegate_rules::internals::{CompiledFile, CompiledRule, Condition, Cost, PathPattern, Segment, Span, is_method};

use super::failure_policy::{UncountedRequests, uncounted_requests};

pub(super) fn lint(file: &CompiledFile, rule: &CompiledRule, lints: &mut Vec<Problem>) {
    lints.extend(forgotten_ledger(file, rule));
    let (Some(mode), Some(span)) = (rule.ledger, &rule.ledger_span) else { return };
    if rule.mode == RuleMode::Shadow {
        let message = "a rule in shadow mode writes no ledger: nothing that it counts is recorded";
        let help = "this is fine to try the rule; remove `mode: shadow` before you bill by it";
        lints.push(Problem::warning("ledger-in-shadow", message, span.clone()).with_help(help));
        return;
    }
    lints.extend(fails_open(rule));
    if mode == LedgerMode::Sync {
        lints.extend(commits_reads(rule, span));
    }
    let plans = rule.plans.iter().zip(&rule.plan_spans);
    lints.extend(plans.filter_map(|((plan, limits), span)| plan_without_ledger(plan, limits, span)));
}

/// A quota without a ledger in a file whose other quotas have one.
fn forgotten_ledger(file: &CompiledFile, rule: &CompiledRule) -> Option<Problem> {
    let span = rule.unrecorded_quota.as_ref().filter(|_| rule.mode == RuleMode::Enabled)?;
    let other = file.rules.iter().find(|other| other.ledger.is_some() && !other.is_disabled())?;
    let message = format!(
        "no ledger records what this quota counts, and an emptied store forgets it; rule `{}` has a ledger",
        other.id
    );
    let help = "write `ledger: sync` or `ledger: async`; or `ledger: none` if it is meant";
    Some(Problem::warning("quota-without-ledger", message, span.clone()).with_help(help))
}

/// Requests that pass while the store fails, however much of the quota is left.
fn fails_open(rule: &CompiledRule) -> Option<Problem> {
    let code = "ledger-fails-open";
    let help = "remove `on_failure`, or its entry: a rule with a ledger is `closed` then";
    let span = rule.on_failure_span.clone();
    let of = match uncounted_requests(rule) {
        UncountedRequests::None if !rule.says_local => return None,
        UncountedRequests::None => {
            let message = "while the store fails, each instance admits the whole quota once more; it is journaled and becomes debt";
            return Some(Problem::note(code, message, span).with_help(help));
        }
        UncountedRequests::All => String::new(),
        UncountedRequests::Some(requests) => format!(": those of {requests}"),
    };
    let message = format!(
        "while the store fails, requests pass without a limit{of}; they are journaled and become debt, which is money given away \
         if nobody pays it"
    );
    Some(Problem::warning(code, message, span).with_help(help))
}

/// A commit of the ledger for each read request.
fn commits_reads(rule: &CompiledRule, span: &Span) -> Option<Problem> {
    let is_free = match &rule.matcher.cost {
        Cost::Fixed(cost) => *cost == 0,
        Cost::Table(table) => table.routes.values().any(|cost| cost == 0),
        Cost::Given => false,
    };
    if is_free || !matches_reads(&rule.matcher.condition) {
        return None;
    }
    let message = "every read request that matches waits for a commit of the ledger";
    let help = "use `ledger: async`, or match only the requests that are worth it; this is fine if each of them must be durable \
                before it is allowed";
    Some(Problem::note("sync-ledger-on-reads", message, span.clone()).with_help(help))
}

/// Whether a condition matches reads of every path, or of every path below one.
fn matches_reads(condition: &Condition) -> bool {
    let is_below = |path: &PathPattern| path.segments().last().is_some_and(|last| matches!(last, Segment::Rest));
    let reads = |method: &SmolStr| is_method(method, "GET") || is_method(method, "HEAD");
    condition.actions.is_empty()
        && (condition.methods.is_empty() || condition.methods.iter().any(reads))
        && (condition.paths.is_empty() || condition.paths.iter().any(is_below))
}

/// A plan whose limit is no quota, so that the ledger does not record its tenants.
fn plan_without_ledger(plan: &str, limits: &[(SmolStr, Limit)], span: &Span) -> Option<Problem> {
    if limits.iter().any(|(_, limit)| matches!(limit, Limit::Quota(_))) {
        return None;
    }
    let message = format!("the ledger does not record tenants of plan `{plan}`: only quotas have a ledger");
    let help =
        "give the plan a quota too, with a large amount if it should not limit; or move its limit to another rule";
    Some(Problem::warning("plan-without-ledger", message, span.clone()).with_help(help))
}
