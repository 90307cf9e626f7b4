//! What lints and the checklist ask about failure policies: which requests pass uncounted while the store fails, and whether
//! one rule is as strict as another then.

use smol_str::SmolStr;
use tidegate::OnFailure;

use super::named;
use crate::by_route::Route;
use crate::compile::Compiled;
use crate::condition::is_method;

/// How many routes are held against methods and paths of a rule. Where there are more, some are taken to pass.
const MOST_COMPARED: usize = 100_000;

/// Requests of a rule that pass while the store fails, however many there are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    None,
    All,
    /// These routes, and all requests that no route fits if it says so.
    Some(String),
}

/// Which requests of a rule pass while the store fails, however many there are.
pub(crate) fn passing(rule: &Compiled) -> Passing {
    let policy = &rule.matched.on_failure;
    if policy.each().all(|(_, policy)| policy.lets_pass()) {
        return Passing::All;
    }
    let passes = |route: &&Route<OnFailure>| route.value.lets_pass() && may_fit(route, rule);
    let routes: Vec<_> = policy.routes.routes().iter().filter(passes).map(|route| format!("`{route}`")).collect();
    let rest = policy.otherwise.lets_pass() && has_rest(rule);
    match (named(&routes), rest) {
        (None, false) => Passing::None,
        (None, true) => Passing::Some("what no route fits".to_owned()),
        (Some(routes), false) => Passing::Some(routes),
        (Some(routes), true) => Passing::Some(format!("{routes}, and of what no route fits")),
    }
}

/// Whether a route may fit requests of the rule, as far as methods tell.
fn may_fit(route: &Route<OnFailure>, rule: &Compiled) -> bool {
    let methods = &rule.matched.condition.methods;
    let meets = |own: &SmolStr| methods.iter().any(|method| is_method(own, method) || is_method(method, own));
    methods.is_empty() || route.method.as_ref().is_none_or(meets)
}

/// Whether the rule may apply to requests that no route fits.
fn has_rest(rule: &Compiled) -> bool {
    let (condition, routes) = (&rule.matched.condition, rule.matched.on_failure.routes.routes());
    let methods = or_any(&condition.methods);
    let paths = or_any(&condition.paths);
    let work = methods.len().saturating_mul(paths.len()).saturating_mul(routes.len());
    let is_covered = |method: Option<&SmolStr>, path| routes.iter().any(|route| route.covers(method, path));
    work > MOST_COMPARED || methods.iter().any(|method| paths.iter().any(|path| !is_covered(*method, *path)))
}

/// Each of them, or one that may be anything if there are none.
fn or_any<T>(values: &[T]) -> Vec<Option<&T>> {
    if values.is_empty() { vec![None] } else { values.iter().map(Some).collect() }
}

/// Whether `strict` refuses whatever `rule` refuses while the store fails, given that its limits are at least as strict.
pub(super) fn is_as_strict(strict: &Compiled, rule: &Compiled) -> bool {
    let (own, other) = (&strict.matched.on_failure, &rule.matched.on_failure);
    other.each().all(|(_, policy)| policy.lets_pass())
        || own.each().all(|(_, policy)| policy == OnFailure::Closed)
        || (own == other && strict.emergency == rule.emergency)
}
