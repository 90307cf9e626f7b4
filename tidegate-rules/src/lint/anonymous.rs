//! Lints about strangers: those whom nobody vouches for and who are remembered for long. Whoever wants many addresses has
//! many, and each takes room in the store for as long as its limit remembers it.

use std::time::Duration;

use super::limits;
use crate::compile::{CompiledFile, CompiledRule};
use crate::identity::Identity;
use crate::problem::Problem;
use crate::provenance::Provenance;
use crate::quantity;
use crate::request_matcher::TenantUse;

/// How long a stranger may be remembered without a word about it.
const MAX_SILENT_RETENTION: Duration = Duration::from_secs(60 * 60);

/// Strangers that are remembered for long, unless the rule says after which time one is forgotten.
pub(super) fn lint(ready: &CompiledFile, rule: &CompiledRule) -> Option<Problem> {
    let says = rule.anonymous.is_some_and(|anonymous| anonymous.forget_after.is_some());
    let longest = limits::all(rule).map(|(_, limit)| limit.max_window()).max()?;
    if says || longest <= MAX_SILENT_RETENTION || !counts_strangers(ready, rule) {
        return None;
    }
    let shown = quantity::format_duration(longest);
    let message =
        format!("nobody vouches for some of those whom this counts, and each is remembered for up to {shown}");
    let help = "a flood of new addresses fills the store: say after how much time one that does not come back is forgotten, \
                such as `anonymous: { forget_after: 10m }`, or write the whole time if that is meant";
    Some(Problem::warning("strangers-remembered", message, rule.per_span.clone()).with_help(help))
}

/// Whether a rule may count many whom nobody vouches for. Those who lack an identity are only one.
fn counts_strangers(ready: &CompiledFile, rule: &CompiledRule) -> bool {
    // Plans are few; whoever can choose one has a lint for that.
    let per = rule.matcher.per.iter().filter(|identity| identity.name != "plan");
    let tenant = (rule.matcher.tenant == TenantUse::Subject).then_some(&ready.matcher.tenant);
    let parts: Vec<&Identity> = per.chain(tenant).collect();
    parts.iter().any(|identity| may_be_strange(identity)) && !parts.iter().any(|identity| is_vouched(identity))
}

/// Whether it may come to a source that nobody vouches for. What is about nobody is always there, and hides all that follow.
fn may_be_strange(identity: &Identity) -> bool {
    let reached = identity.provenances.iter().take_while(|provenance| **provenance != Provenance::NoIdentity);
    reached.into_iter().any(|provenance| *provenance != Provenance::Verified)
}

/// Whether somebody vouches for it wherever it is there.
fn is_vouched(identity: &Identity) -> bool {
    !may_be_strange(identity)
        && (identity.provenances.is_empty() || identity.provenances.contains(&Provenance::Verified))
}
