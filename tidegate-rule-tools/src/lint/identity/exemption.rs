//! Lints about exemptions: those that a client can claim for itself, and those of customers that lift more than their own limits.

use tidegate_rules::Problem;
use tidegate_rules::internals::{
    CompiledFile, CompiledRule, Condition, Source, Span, TenantUse, how_to_authenticate, is_method,
};

use super::TrustLint;
use crate::lint::{MAX_LISTED_NAMES, list_names};

/// The most exemptions that are compared with all rules.
const MAX_COMPARED_EXEMPTIONS: usize = 100;

impl TrustLint<'_> {
    /// An exemption that depends on headers, or on the host, alone.
    pub(super) fn exemption_by_header(&self, condition: &Condition, span: &Span) -> Option<Problem> {
        // An exemption that also requires a network, tenant or plan does not depend on the header alone.
        let asks_more = !(condition.networks.is_empty() && condition.tenants.is_empty() && condition.plans.is_empty());
        if asks_more || self.file.requires_verified(condition) {
            return None;
        }
        let (sent, help) = match condition.headers.first() {
            Some((name, _)) => (name.as_str(), how_to_authenticate([&Source::Attribute(name.clone())])),
            // A path is as certain as what is behind it: there the host decides nothing.
            None if !condition.hosts.is_empty() && condition.paths.is_empty() => {
                ("host", Condition::BY_HOST_HELP.to_owned())
            }
            None => return None,
        };
        let message = format!("a client can send `{sent}` and so be exempt");
        let problem = Problem::warning("exempt-by-header", message, span.clone());
        Some(problem.with_help(format!("{help}; {}", Condition::BY_NETWORK_HELP)))
    }
}

/// Exemptions of tenants and plans from all rules, among them rules against guessing or limits of all requests together. An exemption
/// that names its rules is meant so.
pub(super) fn lint_lifted_protection(file: &CompiledFile, lints: &mut Vec<Problem>) {
    let exemptions = file.matcher.exempt.iter().zip(&file.matcher.exempt_rules).zip(&file.exempt);
    let of_customers = exemptions.filter(|((condition, rules), _)| {
        rules.is_none() && !(condition.tenants.is_empty() && condition.plans.is_empty())
    });
    for ((condition, _), span) in of_customers.take(MAX_COMPARED_EXEMPTIONS) {
        let rules = file.enabled_rules().filter(|rule| may_overlap(condition, &rule.matcher.condition));
        let (protecting, others): (Vec<&CompiledRule>, Vec<_>) = rules.partition(|rule| protects_everybody(rule));
        let Some(names) = list_names(&ids(&protecting)) else { continue };
        let message =
            format!("this exempts a customer also from rules that protect everybody from guesses or overload: {names}");
        let meant = if others.is_empty() { ids(&protecting) } else { ids(&others) };
        let meant = if meant.len() > MAX_LISTED_NAMES { "…".to_owned() } else { meant.join(", ") };
        let help = format!("name the rules that it is meant for: `rules: [{meant}]`");
        lints.push(Problem::warning("exempt-from-protection", message, span.clone()).with_help(help));
    }
}

fn ids<'r>(rules: &[&'r CompiledRule]) -> Vec<&'r str> {
    rules.iter().map(|rule| rule.id.as_str()).collect()
}

/// Whether a rule is against guessing, or limits all requests together.
fn protects_everybody(rule: &CompiledRule) -> bool {
    rule.security || (rule.matcher.per.is_empty() && rule.matcher.tenant == TenantUse::No)
}

/// Whether a request can match both, as far as lists of values show.
fn may_overlap(left: &Condition, right: &Condition) -> bool {
    overlap(&left.methods, &right.methods, |a, b| is_method(a, b) || is_method(b, a))
        && overlap(&left.paths, &right.paths, |a, b| a.covers(b) || b.covers(a))
        && overlap(&left.hosts, &right.hosts, |a, b| a.covers(b) || b.covers(a))
        && overlap(&left.tenants, &right.tenants, |a, b| a == b)
        && overlap(&left.plans, &right.plans, |a, b| a == b)
        && overlap(&left.actions, &right.actions, |a, b| a == b)
        && overlap(&left.networks, &right.networks, |a, b| a.contains(b) || b.contains(a))
}

/// Whether one of `left` and one of `right` are alike; an empty list stands for everything.
fn overlap<T>(left: &[T], right: &[T], like: impl Fn(&T, &T) -> bool) -> bool {
    left.is_empty() || right.is_empty() || left.iter().any(|one| right.iter().any(|other| like(one, other)))
}
