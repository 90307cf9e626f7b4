//! What rules with a ledger need of a server. It is checked at the start, and before rules are reloaded.

use tidegate::{OnFailure, Rule, RuleMode};
use tidegate_ledger::LedgerUrl;
use tidegate_rules::RuleFile;

/// What a server has for rules with a ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LedgerMeans<'a> {
    pub(crate) url: Option<&'a LedgerUrl>,
    pub(crate) is_store_shared: bool,
    pub(crate) has_secret: bool,
}

impl LedgerMeans<'_> {
    /// Says what is missing for the rules of `file`, and what to write.
    pub(crate) fn check(self, file: &RuleFile) -> Result<(), String> {
        match (self.url, ledger_rules(file).next()) {
            (None, Some(rule)) => Err(format!(
                "rule `{}` has a ledger, and the server has none: add --ledger sqlite:FILE for a single instance, or --ledger \
                 postgres://USER:PASSWORD@HOST/DATABASE for several",
                rule.id
            )),
            (Some(_), _) if !self.has_secret => Err(
                "--ledger needs TIDEGATE_SECRET: accounts are found by a hash with that secret, so with another one at the next start \
                 every tenant would begin again at nothing; set it to the output of `openssl rand -hex 16`, keep it, and use the same on \
                 all instances"
                    .to_owned(),
            ),
            (Some(url), Some(rule)) if self.is_store_shared && !url.is_shared() => Err(format!(
                "rule `{}` has a ledger, and --store is shared by several instances: each of them would write to a SQLite file of its \
                 own, and none would know all that was consumed; use --ledger postgres://USER:PASSWORD@HOST/DATABASE, or --store memory:",
                rule.id
            )),
            _ => Ok(()),
        }
    }
}

/// Warns of quotas that a server with a ledger does not record, unless the file says that this is meant.
pub(crate) fn warn_of_unrecorded(file: &RuleFile) {
    let rules: Vec<&str> = file.unrecorded_quotas().collect();
    if !rules.is_empty() {
        tracing::warn!(
            target: "tidegate::ledger", rules = rules.join(" "),
            "the ledger records nothing of these quotas: write `ledger: sync` or `ledger: async` in them, or `ledger: none` if it is meant"
        );
    }
}

/// The rules of a file that have a ledger.
pub(crate) fn ledger_rules(file: &RuleFile) -> impl Iterator<Item = &Rule> {
    let rules = file.ids().filter_map(|id| file.rules().rule(id));
    rules.filter(|rule| rule.ledger.is_some() && rule.mode != RuleMode::Shadow)
}

/// The first rule with a ledger that admits requests while the store fails, on any route. It needs a journal.
pub(crate) fn admits_without_store(file: &RuleFile) -> Option<&Rule> {
    ledger_rules(file).find(|rule| file.failure_policies(&rule.id).any(|policy| policy != OnFailure::Closed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_admits_on_one_route_while_the_store_fails_needs_a_journal() {
        let admitting = |on_failure: &str| {
            let text = format!(
                "version: 1\nidentify: {{ tenant: header:x-tenant, authenticated: [x-tenant] }}\nrules:\n\
                 - {{ id: units, per: [tenant], quota: {{ amount: 9, period: day, ledger: async }}{on_failure} }}\n"
            );
            let file = RuleFile::parse("rules.yaml", &text).unwrap();
            admits_without_store(&file).map(|rule| rule.id.to_string())
        };
        for closed in ["", ", on_failure: closed", ", on_failure: { POST: closed, default: closed }"] {
            assert_eq!(admitting(closed), None, "{closed}");
        }
        for open in
            [", on_failure: open", ", on_failure: { POST: local }", ", on_failure: { POST: closed, default: share }"]
        {
            assert_eq!(admitting(open).as_deref(), Some("units"), "{open}");
        }
    }
}
