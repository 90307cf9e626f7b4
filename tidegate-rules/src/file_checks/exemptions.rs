//! Exemptions of a tenant or a plan that any client can claim to be of.

use smol_str::SmolStr;

use crate::compiled_file::CompiledFile;
use crate::condition::Condition;
use crate::identity::{Identity, Source};
use crate::problem::Problem;
use crate::provenance::{Provenance, how_to_authenticate};
use crate::source_file::Span;

/// An error for each exemption that a client can claim.
pub(super) fn check(file: &CompiledFile, problems: &mut Vec<Problem>) {
    let exemptions = file.matcher.exempt.iter().zip(&file.exempt);
    problems.extend(exemptions.filter_map(|(condition, span)| exemption_by_tenant(file, condition, span)));
}

fn exemption_by_tenant(file: &CompiledFile, condition: &Condition, span: &Span) -> Option<Problem> {
    if !condition.networks.is_empty() || file.requires_verified(condition) {
        return None;
    }
    let by_tenant = (!condition.tenants.is_empty()).then(|| forgery(file, &file.matcher.tenant));
    let by_plan = (!condition.plans.is_empty()).then(|| plan_forgery(file, &condition.plans));
    // One part that cannot be forged is enough.
    let is_certain = [&by_tenant, &by_plan].into_iter().any(|part| matches!(part, Some(None)));
    let (message, help) = by_tenant.or(by_plan).flatten().filter(|_| !is_certain)?;
    let help = format!("{help}; {}", Condition::BY_NETWORK_HELP);
    Some(Problem::error("exempt-by-tenant", message, span.clone()).with_help(help))
}

/// How a client can choose its tenant, and what to do about it; `None` if it cannot.
fn forgery(file: &CompiledFile, identity: &Identity) -> Option<(String, String)> {
    let is_forgeable = |source: &Source| match source {
        Source::Host => !file.identify.authenticated.contains("host"),
        // A claim that is not stated as verified has an error of its own.
        Source::Claim(_) => false,
        _ => matches!(file.identify.authenticated.provenance(source), Provenance::Forgeable | Provenance::BodyField),
    };
    let forged = identity.sources.iter().find(|one| is_forgeable(&one.source))?;
    let message = format!("a client can send any `{}` as its {}, and so be exempt", forged.kind, identity.name);
    let help = match &forged.source {
        Source::Host => Condition::BY_HOST_HELP.to_owned(),
        source => how_to_authenticate([source]),
    };
    Some((message, help))
}

/// The same for one of these plans, which may be that of a tenant.
fn plan_forgery(file: &CompiledFile, plans: &[SmolStr]) -> Option<(String, String)> {
    let matcher = &file.matcher;
    let of_tenant = || plans.iter().any(|plan| matcher.plan_of_tenant.values().any(|other| other == plan));
    let by_tenant = || forgery(file, &matcher.tenant).filter(|_| of_tenant());
    let by_default = || {
        let message =
            format!("plan `{}` is that of every client without a tenant, which is so exempt", matcher.default_plan);
        let help = "exempt another plan, or choose another `default_plan`".to_owned();
        plans.contains(&matcher.default_plan).then_some((message, help))
    };
    forgery(file, &matcher.plan).or_else(by_tenant).or_else(by_default)
}
