//! The item about billing: the store counts to limit, and only a ledger, or a database of your own, records what is billed.

use std::time::Duration;

use tidegate::{Limit, OnFailure, RuleMode};
use tidegate_rules::internals::CompiledRule;

use super::{ChecklistItem, list_rules};
use crate::lint::limits;

/// Limits with at least this window may be meant for billing.
const MIN_BILLING_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether what is billed has records of its own.
pub(super) fn item(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "quotas and billing have their own records";
    let looks_billed = |rule: &CompiledRule| is_quota(rule) || is_long(rule);
    let recorded = list_rules(rules, is_recorded).map(|ids| format!("the ledger records: {ids}"));
    let debt = list_rules(rules, |rule| is_recorded(rule) && passes_uncounted(rule))
        .map(|ids| format!("while the store fails, more than the quota passes, is journaled and becomes debt: {ids}"));
    let ledger = recorded.into_iter().chain(debt);
    let Some(ids) = list_rules(rules, |rule| looks_billed(rule) && !is_recorded(rule) && !is_not_billed(rule)) else {
        let ledger: Vec<String> = ledger.collect();
        return match ledger.as_slice() {
            [] => {
                ChecklistItem::met(NAME, "no quota, and no window of a day or longer, so no limit looks like billing")
            }
            ledger => ChecklistItem::met(NAME, ledger.join("; ")),
        };
    };
    let unrecorded = format!(
        "quotas, and windows of a day or longer: {ids}; the store may lose counts, so keep what you bill in a database of \
         your own"
    );
    let lost = list_rules(rules, |rule| is_quota(rule) && !is_recorded(rule) && passes_uncounted(rule)).map(|ids| {
        format!(
            "while the store fails, more than the quota passes, and the store never learns of it: {ids}; set `closed` where it \
             must not"
        )
    });
    let parts: Vec<String> = [unrecorded].into_iter().chain(lost).chain(ledger).collect();
    ChecklistItem::unknown(NAME, parts.join("; "))
}

/// Whether a ledger records what the rule consumes. A rule in shadow mode writes none.
pub(super) fn is_recorded(rule: &CompiledRule) -> bool {
    rule.ledger.is_some() && rule.mode != RuleMode::Shadow
}

/// Whether the file says that no ledger is meant to record its quotas.
fn is_not_billed(rule: &CompiledRule) -> bool {
    rule.mode != RuleMode::Shadow && is_quota(rule) && rule.ledger.is_none() && rule.unrecorded_quota.is_none()
}

fn is_quota(rule: &CompiledRule) -> bool {
    limits::all(rule).any(|(_, limit)| matches!(limit, Limit::Quota(_)))
}

fn is_long(rule: &CompiledRule) -> bool {
    limits::all(rule).any(|(_, limit)| limit.max_window() >= MIN_BILLING_WINDOW)
}

/// Whether more than the limit passes while the store fails.
fn passes_uncounted(rule: &CompiledRule) -> bool {
    rule.matcher.on_failure.each().any(|(_, policy)| !matches!(policy, OnFailure::Closed | OnFailure::Share))
}
