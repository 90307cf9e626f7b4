//! The lint `strangers-remembered`: unauthenticated subjects with a long window. They are free to create, and each takes
//! memory in the store for as long as its limit remembers it.

use std::time::Duration;

use super::limits;
use crate::compile::{CompiledFile, CompiledRule};
use crate::identity::Identity;
use crate::problem::Problem;
use crate::provenance::Provenance;
use crate::quantity;
use crate::request_matcher::TenantUse;

/// The longest window of unauthenticated subjects without a lint.
const MAX_SILENT_RETENTION: Duration = Duration::from_secs(60 * 60);

/// Reports a long window, unless the rule has `forget_after`.
pub(super) fn lint(file: &CompiledFile, rule: &CompiledRule) -> Option<Problem> {
    let has_forget_after = rule.anonymous.is_some_and(|anonymous| anonymous.forget_after.is_some());
    let longest = limits::all(rule).map(|(_, limit)| limit.max_window()).max()?;
    if has_forget_after || longest <= MAX_SILENT_RETENTION || !counts_anonymous(file, rule) {
        return None;
    }
    let shown = quantity::format_duration(longest);
    let message = format!("this rule counts unauthenticated subjects, and remembers each for up to {shown}");
    let help = "a flood of new addresses fills the store: set when an idle one is forgotten, such as \
                `anonymous: { forget_after: 10m }`, or set the whole window if that is intended";
    Some(Problem::warning("strangers-remembered", message, rule.per_span.clone()).with_help(help))
}

/// Whether a rule may count many unauthenticated subjects. Requests without any identity are only one subject.
pub(super) fn counts_anonymous(file: &CompiledFile, rule: &CompiledRule) -> bool {
    // Plans are few; forgeable ones have a lint of their own.
    let per = rule.matcher.per.iter().filter(|identity| identity.name != "plan");
    let tenant = (rule.matcher.tenant == TenantUse::Subject).then_some(&file.matcher.tenant);
    let parts: Vec<&Identity> = per.chain(tenant).collect();
    parts.iter().any(|identity| may_be_anonymous(identity)) && !parts.iter().any(|identity| is_authenticated(identity))
}

/// Whether an unauthenticated source can be reached. A source that identifies nobody always has a value and hides later ones.
fn may_be_anonymous(identity: &Identity) -> bool {
    let reached = identity.provenances.iter().take_while(|provenance| **provenance != Provenance::NoIdentity);
    reached.into_iter().any(|provenance| *provenance != Provenance::Verified)
}

/// Whether every value is authenticated.
fn is_authenticated(identity: &Identity) -> bool {
    !may_be_anonymous(identity)
        && (identity.provenances.is_empty() || identity.provenances.contains(&Provenance::Verified))
}
