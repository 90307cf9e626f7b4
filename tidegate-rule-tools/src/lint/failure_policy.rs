//! Failure policies in lints and the checklist: which requests pass without limits while the store fails, whether instances
//! together admit more than a limit for everybody, and whether one rule is as strict as another then.

use smol_str::SmolStr;
use tidegate::rules::OnOverload;
use tidegate::{OnFailure, RuleMode};
use tidegate_rules::Problem;
use tidegate_rules::internals::{CompiledRule, RouteEntry, TenantUse, is_method};

use super::{list_names, security};

/// The most comparisons of routes with the methods and paths of a rule. Beyond it, some requests are assumed to pass.
const MAX_ROUTE_COMPARISONS: usize = 100_000;

/// The requests of a rule that pass without a limit while the store fails.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UncountedRequests {
    None,
    All,
    /// A description of the routes that pass, and of requests that match no route.
    Some(String),
}

pub(super) fn lint(rule: &CompiledRule, lints: &mut Vec<Problem>) {
    // A rule in shadow mode refuses nothing in any case.
    if rule.mode == RuleMode::Shadow {
        return;
    }
    // For a security rule, `security-fails-open` says it, and for a rule with a ledger `ledger-fails-open`.
    if !security::is_security(rule) && rule.ledger.is_none() {
        lints.extend(fails_open(rule));
    }
    if rule.on_overload == OnOverload::Open {
        let message = "while an instance is overloaded, every request passes; a client that floods it overloads it, and has \
                       no limit then";
        let help =
            "remove `on_overload: open`: a subject with requests waiting is then refused, others are decided in memory";
        lints.push(Problem::warning("fails-open", message, rule.on_overload_span.clone()).with_help(help));
    }
    // Ledgers are younger than the change, and `local` is not the default of rules with one.
    if rule.says_local && rule.ledger.is_none() {
        let message = "`local` has changed: each instance applies the whole limit while the store fails, no longer its share of it";
        let help = "write `share` for the limit divided by the instances; `local` is the default now, so leave it out if it is \
                    intended";
        lints.push(Problem::warning("local-changed", message, rule.on_failure_span.clone()).with_help(help));
    }
    if is_local_for_everybody(rule) {
        let message = "all requests share the limit, and while the store fails each instance admits all of it: twelve instances \
                       admit twelve times as much";
        let help = "set `on_failure: share`, which divides it by the instances";
        lints.push(Problem::warning("local-for-everybody", message, rule.on_failure_span.clone()).with_help(help));
    }
}

/// Requests that are not limited while the store fails.
fn fails_open(rule: &CompiledRule) -> Option<Problem> {
    let of = match uncounted_requests(rule) {
        UncountedRequests::None => return None,
        UncountedRequests::All => String::new(),
        UncountedRequests::Some(requests) => format!(": those of {requests}"),
    };
    let message = format!("while the store fails, requests pass without a limit{of}; a flood passes as a whole");
    let help =
        "set `local`, the default, which admits the limit once more in each instance; or `share`, or a `static` limit";
    let says_open = rule.matcher.on_failure.each().any(|(_, policy)| policy == OnFailure::Open);
    let span = rule.on_failure_span.clone();
    let problem = if says_open {
        Problem::warning("fails-open", message, span)
    } else {
        Problem::note("fails-open", message, span)
    };
    Some(problem.with_help(help))
}

/// Whether all requests share the limits of a rule, of which each instance applies the whole while the store fails.
pub(crate) fn is_local_for_everybody(rule: &CompiledRule) -> bool {
    let is_local = |(_, policy): (Option<&RouteEntry<OnFailure>>, OnFailure)| policy == OnFailure::Local;
    counts_everybody(rule) && rule.mode != RuleMode::Shadow && rule.matcher.on_failure.each().any(is_local)
}

/// Whether all requests of a rule share its limits.
pub(super) fn counts_everybody(rule: &CompiledRule) -> bool {
    rule.matcher.per.is_empty() && rule.matcher.tenant != TenantUse::Subject
}

/// Finds the requests of a rule that pass without a limit while the store fails.
pub(crate) fn uncounted_requests(rule: &CompiledRule) -> UncountedRequests {
    let policy = &rule.matcher.on_failure;
    if policy.each().all(|(_, policy)| policy.lets_pass()) {
        return UncountedRequests::All;
    }
    let passes = |route: &&RouteEntry<OnFailure>| route.value.lets_pass() && may_match(route, rule);
    let routes: Vec<_> = policy.routes.routes().iter().filter(passes).map(|route| format!("`{route}`")).collect();
    let rest = policy.otherwise.lets_pass() && has_rest(rule);
    match (list_names(&routes), rest) {
        (None, false) => UncountedRequests::None,
        (None, true) => UncountedRequests::Some("requests that match no route".to_owned()),
        (Some(routes), false) => UncountedRequests::Some(routes),
        (Some(routes), true) => UncountedRequests::Some(format!("{routes}, and of requests that match no route")),
    }
}

/// Whether a route may match requests of the rule, judging by methods.
fn may_match(route: &RouteEntry<OnFailure>, rule: &CompiledRule) -> bool {
    let methods = &rule.matcher.condition.methods;
    let meets = |own: &SmolStr| methods.iter().any(|method| is_method(own, method) || is_method(method, own));
    methods.is_empty() || route.method.as_ref().is_none_or(meets)
}

/// Whether the rule may apply to requests that match no route.
fn has_rest(rule: &CompiledRule) -> bool {
    let (condition, routes) = (&rule.matcher.condition, rule.matcher.on_failure.routes.routes());
    let methods = or_any(&condition.methods);
    let paths = or_any(&condition.paths);
    let work = methods.len().saturating_mul(paths.len()).saturating_mul(routes.len());
    let is_covered = |method: Option<&SmolStr>, path| routes.iter().any(|route| route.covers(method, path));
    work > MAX_ROUTE_COMPARISONS || methods.iter().any(|method| paths.iter().any(|path| !is_covered(*method, *path)))
}

/// Each value; `[None]`, which stands for any value, if there are none.
fn or_any<T>(values: &[T]) -> Vec<Option<&T>> {
    if values.is_empty() { vec![None] } else { values.iter().map(Some).collect() }
}

/// Whether `strict` refuses every request that `rule` refuses while the store fails, given limits at least as strict.
pub(super) fn is_as_strict(strict: &CompiledRule, rule: &CompiledRule) -> bool {
    if strict.on_overload != rule.on_overload && rule.on_overload != OnOverload::Open {
        return false;
    }
    let (own, other) = (&strict.matcher.on_failure, &rule.matcher.on_failure);
    let least = own.each().map(|(_, policy)| strictness(policy).unwrap_or(0)).min();
    let most = other.each().map(|(_, policy)| strictness(policy).unwrap_or(CLOSED)).max();
    least >= most || (own == other && strict.static_limit == rule.static_limit)
}

/// The strictness of `closed`, which refuses whatever a static limit refuses.
const CLOSED: u8 = 3;

/// A number for policies of which one refuses all that another refuses; `None` for a static limit, which depends on its amount.
const fn strictness(policy: OnFailure) -> Option<u8> {
    match policy {
        OnFailure::Open | OnFailure::Degraded => Some(0),
        OnFailure::Local => Some(1),
        OnFailure::Share => Some(2),
        OnFailure::Closed => Some(CLOSED),
        _ => None,
    }
}
