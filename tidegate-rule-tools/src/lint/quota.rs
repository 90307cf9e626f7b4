//! Lints about quotas: a grace above the amount, and quotas of anonymous subjects, who get a new one with each new identity.

use tidegate::Limit;
use tidegate_rules::Problem;
use tidegate_rules::internals::{CompiledFile, CompiledRule};

use super::limits::spanned_limits;

pub(super) fn lint(file: &CompiledFile, rule: &CompiledRule, lints: &mut Vec<Problem>) {
    for spanned in spanned_limits(rule) {
        let Limit::Quota(quota) = spanned.limit else { continue };
        if quota.grace() > quota.amount() {
            let message = format!(
                "the grace of {} is larger than the amount of {}{}: most requests pass with a mark",
                quota.grace(),
                quota.amount(),
                spanned.of_plan()
            );
            let help = "a grace is a small allowance before the stop, such as `grace: 5%`";
            lints.push(Problem::warning("large-grace", message, spanned.span.clone()).with_help(help));
        }
    }
    let has_quota = rule.limits.iter().any(|(_, limit)| matches!(limit, Limit::Quota(_)));
    // With a ledger it is an error, `unauthenticated-ledger`.
    if has_quota && rule.ledger.is_none() && file.counts_anonymous(rule) {
        let message =
            "this quota counts unauthenticated subjects: a client with a new address has the whole amount again";
        let help = "count by a tenant or a key; this is fine for a free tier by address";
        lints.push(Problem::note("unauthenticated-quota", message, rule.per_span.clone()).with_help(help));
    }
}
