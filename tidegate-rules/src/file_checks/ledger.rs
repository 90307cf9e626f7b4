//! Accounts of a ledger that nobody authenticates.

use tidegate::RuleMode;

use crate::compile::CompiledRule;
use crate::compiled_file::CompiledFile;
use crate::identity::Source;
use crate::problem::Problem;
use crate::provenance::how_to_authenticate;
use crate::request_matcher::TenantUse;

pub(super) fn check(file: &CompiledFile, rule: &CompiledRule, problems: &mut Vec<Problem>) {
    if rule.ledger.is_none() {
        return;
    }
    if file.counts_anonymous(rule) {
        let message = "a ledger needs an authenticated subject: anybody could open accounts without end, or spend the money of \
                       another customer";
        let help = "count by a tenant or a key that a proxy sets or verifies, and list it below `identify`: \
                    `authenticated: [x-tenant-id]`; or remove `ledger`";
        problems.push(Problem::error("unauthenticated-ledger", message, rule.per_span.clone()).with_help(help));
    }
    // A rule in shadow mode writes no ledger.
    if rule.mode != RuleMode::Shadow {
        problems.extend(account_without_tenant(file, rule));
    }
}

/// An account that begins anew, because the tenant that was part of its key, or selected its plan, counts only if it is authenticated.
fn account_without_tenant(file: &CompiledFile, rule: &CompiledRule) -> Option<Problem> {
    let (tenant, scope) = (&file.matcher.tenant, &file.matcher.scope);
    let is_counted = |source: &Source| scope.each_source().any(|counted| counted == source);
    let ignored = tenant.sources.iter().find(|one| !is_counted(&one.source))?;
    let effect = match rule.matcher.tenant {
        TenantUse::Scope => "would no longer be one for each tenant: every account would begin anew",
        _ if rule.plans.is_empty() || file.matcher.plan_of_tenant.is_empty() => return None,
        _ => "would no longer have the amounts of `tenants`",
    };
    let message = format!("nobody authenticates the tenant from `{}`, so this quota {effect}", ignored.kind);
    let how = how_to_authenticate([&ignored.source]);
    let help = match rule.matcher.tenant {
        TenantUse::Scope => {
            format!("{how}, and accounts stay as they are; or write `scope: global`, and they begin anew")
        }
        _ => format!("{how}; or remove the plans of this rule"),
    };
    Some(Problem::error("ledger-without-tenant", message, rule.per_span.clone()).with_help(help))
}
