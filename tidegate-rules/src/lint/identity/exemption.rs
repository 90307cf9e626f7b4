//! Lints about exemptions: those that a client can claim for itself, and those of customers that lift more than their own limits.

use std::slice;

use smol_str::SmolStr;

use super::{TrustLint, how_to_authenticate};
use crate::compile::{CompiledFile, CompiledRule};
use crate::condition::Condition;
use crate::identity::{Identity, Source};
use crate::lint::{MAX_LISTED_NAMES, list_names};
use crate::problem::Problem;
use crate::provenance::Provenance;
use crate::request_matcher::TenantUse;
use crate::source_file::Span;

/// The most exemptions that are compared with all rules.
const MAX_COMPARED_EXEMPTIONS: usize = 100;

/// How an exemption by network is written, for help.
const BY_NETWORK: &str = "otherwise match the network too: `ip: 10.0.0.0/8`";

impl TrustLint<'_> {
    /// An exemption that depends on headers, or on the host, alone.
    pub(super) fn exemption_by_header(&self, condition: &Condition, span: &Span) -> Option<Problem> {
        // An exemption that also requires a network, tenant or plan does not depend on the header alone.
        let asks_more = !(condition.networks.is_empty() && condition.tenants.is_empty() && condition.plans.is_empty());
        if asks_more || self.requires_verified(condition) {
            return None;
        }
        let (sent, help) = match condition.headers.first() {
            Some((name, _)) => (name.as_str(), how_to_authenticate(&[Source::Attribute(name.clone())])),
            // A path is as certain as what is behind it: there the host decides nothing.
            None if !condition.hosts.is_empty() && condition.paths.is_empty() => (
                "host",
                "if a proxy rejects other hosts, declare it: `authenticated: [host]` below `identify`".to_owned(),
            ),
            None => return None,
        };
        let message = format!("a client can send `{sent}` and so be exempt");
        let problem = Problem::warning("exempt-by-header", message, span.clone());
        Some(problem.with_help(format!("{help}; {BY_NETWORK}")))
    }

    /// An exemption of a tenant or a plan that any client can claim to be of.
    pub(super) fn exemption_by_tenant(&self, condition: &Condition, span: &Span) -> Option<Problem> {
        if !condition.networks.is_empty() || self.requires_verified(condition) {
            return None;
        }
        let by_tenant = (!condition.tenants.is_empty()).then(|| self.forgery(&self.file.matcher.tenant));
        let by_plan = (!condition.plans.is_empty()).then(|| self.plan_forgery(&condition.plans));
        // One part that cannot be forged is enough.
        let is_certain = [&by_tenant, &by_plan].into_iter().any(|part| matches!(part, Some(None)));
        let (message, help) = by_tenant.or(by_plan).flatten().filter(|_| !is_certain)?;
        Some(Problem::error("exempt-by-tenant", message, span.clone()).with_help(format!("{help}; {BY_NETWORK}")))
    }

    /// Whether it requires a header, or a host, that a client cannot choose.
    fn requires_verified(&self, condition: &Condition) -> bool {
        let verified = |name: &SmolStr| self.provenance(&Source::Attribute(name.clone())) == Provenance::Verified;
        condition.headers.iter().any(|(name, _)| verified(name))
            || (!condition.hosts.is_empty() && self.authenticated.contains("host"))
    }

    /// How a client can choose its tenant, and what to do about it; `None` if it cannot.
    fn forgery(&self, identity: &Identity) -> Option<(String, String)> {
        let is_forgeable = |source: &Source| match source {
            Source::Host => !self.authenticated.contains("host"),
            _ => matches!(self.provenance(source), Provenance::Forgeable | Provenance::BodyField),
        };
        let index = identity.sources.iter().position(is_forgeable)?;
        let (name, kind, source) = (&identity.name, &identity.kinds[index], &identity.sources[index]);
        let message = format!("a client can send any `{kind}` as its {name}, and so be exempt");
        Some((
            message,
            match source {
                Source::Host => {
                    "if a proxy rejects other hosts, declare it: `authenticated: [host]` below `identify`".to_owned()
                }
                source => how_to_authenticate(slice::from_ref(source)),
            },
        ))
    }

    /// The same for one of these plans, which may be that of a tenant.
    fn plan_forgery(&self, plans: &[SmolStr]) -> Option<(String, String)> {
        let matcher = &self.file.matcher;
        let of_tenant = || plans.iter().any(|plan| matcher.plan_of_tenant.values().any(|other| other == plan));
        let by_tenant = || self.forgery(&matcher.tenant).filter(|_| of_tenant());
        let by_default = || {
            let message =
                format!("plan `{}` is that of every client without a tenant, which is so exempt", matcher.default_plan);
            let help = "exempt another plan, or choose another `default_plan`".to_owned();
            plans.contains(&matcher.default_plan).then_some((message, help))
        };
        self.forgery(&matcher.plan).or_else(by_tenant).or_else(by_default)
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
        let rules = file.rules.iter().filter(|rule| !rule.is_disabled());
        let rules = rules.filter(|rule| condition.may_overlap(&rule.matcher.condition));
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
