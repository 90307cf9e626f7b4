//! The lint `penalty-by-account`: a penalty that an attacker can bring on somebody else, by typing the name of an account.

use tidegate::attributes;
use tidegate_rules::Problem;
use tidegate_rules::internals::{CompiledRule, Identity, Provenance, Source};

pub(super) fn lint(rule: &CompiledRule) -> Option<Problem> {
    let span = rule.penalty_span.clone().filter(|_| rule.penalty.is_some())?;
    if !blocks_owners(rule) {
        return None;
    }
    let message = "whoever types the name of an account gets its owner blocked: the rule counts by no address";
    let help = "move the penalty to a rule with the same `match` that counts by `ip`, or add `ip` to `per`";
    Some(Problem::warning("penalty-by-account", message, span).with_help(help))
}

/// Whether a block hits the owner of an account, whoever typed its name: the rule counts by an account and by no address.
pub(crate) fn blocks_owners(rule: &CompiledRule) -> bool {
    !counts_by_address(rule) && rule.matcher.per.iter().any(is_typed)
}

pub(crate) fn counts_by_address(rule: &CompiledRule) -> bool {
    rule.matcher.per.iter().any(|identity| identity.sources.iter().any(|one| one.provenance == Provenance::Address))
}

/// Whether a sender can name another's account: all but addresses, verified tokens and verified headers.
fn is_typed(identity: &Identity) -> bool {
    identity.sources.iter().any(|one| match &one.source {
        // The application sets it, from what the client typed.
        Source::Attribute(name) => attributes::header_name(name).is_none() || one.provenance == Provenance::Forgeable,
        _ => matches!(one.provenance, Provenance::Forgeable | Provenance::BodyField),
    })
}
