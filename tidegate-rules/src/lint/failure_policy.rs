//! Failure policies in lints and the checklist: which requests pass without limits while the store fails, and whether one rule
//! is as strict as another then.

use smol_str::SmolStr;
use tidegate::OnFailure;

use super::list_names;
use crate::compile::CompiledRule;
use crate::condition::is_method;
use crate::route_table::RouteEntry;

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
    let (own, other) = (&strict.matcher.on_failure, &rule.matcher.on_failure);
    other.each().all(|(_, policy)| policy.lets_pass())
        || own.each().all(|(_, policy)| policy == OnFailure::Closed)
        || (own == other && strict.emergency == rule.emergency)
}
