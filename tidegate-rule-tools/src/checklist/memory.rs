//! An upper estimate of the memory that the rules take in Redis, from the measured size of a key.

use tidegate::Limit;
use tidegate_rules::internals::{CompiledRule, TenantUse};

use super::ChecklistItem;
use crate::lint::MAX_LISTED_NAMES;

/// The size of a key with a numeric value, including name and expiry (`docs/figures.md`).
const KEY_BYTES: u64 = 130;

/// The additional size of a key with a text value.
const TEXT_VALUE_BYTES: u64 = 20;

/// The size of one request in a log.
const LOG_ENTRY_BYTES: u64 = 10;

/// The size of a held slot.
const SLOT_BYTES: u64 = 16;

/// The size of the index of a period: an hour has the most digits.
const PERIOD_BYTES: u64 = 8;

/// The additional size of a state with open reservations, and of each of them.
const HOLDS_BYTES: u64 = 25;
const HOLD_BYTES: u64 = 22;

/// The number of subjects in the estimate.
const ESTIMATED_SUBJECTS: u64 = 1_000_000;

pub(super) fn item(rules: &[&CompiledRule]) -> ChecklistItem {
    let mut each: Vec<(u64, &str)> =
        rules.iter().filter(|rule| counts_many(rule)).map(|rule| (subject_bytes(rule), rule.id.as_str())).collect();
    let total: u64 = each.iter().fold(0, |sum, (bytes, _)| sum.saturating_add(*bytes));
    // The largest first; only some are listed.
    each.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let named: Vec<String> = each.iter().take(MAX_LISTED_NAMES).map(|(bytes, id)| format!("{id} {bytes}")).collect();
    let more = match each.len().saturating_sub(MAX_LISTED_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let detail = if each.is_empty() {
        "every rule has one key for all subjects: a few hundred bytes".to_owned()
    } else {
        format!(
            "at most about {} in Redis for a million subjects active under every rule; bytes for each subject: {}{more}",
            format_megabytes(total.saturating_mul(ESTIMATED_SUBJECTS)),
            named.join(", ")
        )
    };
    ChecklistItem::met("memory is estimated", detail + &reservations(rules) + &outboxes(rules))
}

/// The rules whose entries wait in the store until the ledger has them. The estimate does not include them, since the length of an
/// interruption is not known.
fn outboxes(rules: &[&CompiledRule]) -> String {
    super::list_rules(rules, super::billing::is_recorded).map_or_else(String::new, |ids| {
        format!(
            "; without entries for the ledger, which are removed once they are durable there and grow with each request while it \
             is not available: {ids}"
        )
    })
}

/// The size of reservations, which the estimate does not include, since the number of open ones is not known.
fn reservations(rules: &[&CompiledRule]) -> String {
    let mut reserving = rules.iter().filter(|rule| rule.usage.is_some()).map(|rule| rule.id.as_str());
    reserving.next().map_or_else(String::new, |first| {
        let more = if reserving.next().is_some() { " and others" } else { "" };
        format!(
            "; without open reservations (`usage` in {first}{more}), which take {HOLDS_BYTES} bytes a subject and \
             {HOLD_BYTES} each"
        )
    })
}

/// Whether a rule has a key for each subject.
fn counts_many(rule: &CompiledRule) -> bool {
    !rule.matcher.per.is_empty() || rule.matcher.tenant == TenantUse::Subject
}

/// The size for one subject: all limits of the rule, or those of its largest plan.
fn subject_bytes(rule: &CompiledRule) -> u64 {
    let sum = |limits: &[(smol_str::SmolStr, Limit)]| limits.iter().map(|(_, limit)| limit_bytes(limit)).sum::<u64>();
    let limits = rule.plans.iter().map(|(_, limits)| sum(limits)).chain([sum(&rule.limits)]).max().unwrap_or_default();
    limits + rule.penalty.map_or(0, |_| KEY_BYTES)
}

fn limit_bytes(limit: &Limit) -> u64 {
    match limit {
        Limit::SlidingLog(log) => KEY_BYTES + TEXT_VALUE_BYTES + LOG_ENTRY_BYTES * log.limit(),
        Limit::SlidingWindow(window) => {
            // A count and a comma for each slice, plus one for the slice that is about to expire.
            let digits = u64::from(window.limit().checked_ilog10().unwrap_or_default()) + 1;
            KEY_BYTES + TEXT_VALUE_BYTES + (digits + 1) * (window.slices() + 1)
        }
        // The period, and as text the units used in it and before, and the debt after both. The debt may be more than the limit, but
        // is almost always less.
        Limit::Quota(quota) => {
            let digits = u64::from(quota.hard_limit().checked_ilog10().unwrap_or_default()) + 1;
            KEY_BYTES + TEXT_VALUE_BYTES + PERIOD_BYTES + 4 * (digits + 1)
        }
        Limit::Concurrency(concurrency) => KEY_BYTES + TEXT_VALUE_BYTES + SLOT_BYTES * concurrency.max(),
        _ => KEY_BYTES,
    }
}

fn format_megabytes(bytes: u64) -> String {
    match bytes / 1_000_000 {
        megabytes if megabytes < 10_000 => format!("{megabytes} MB"),
        megabytes => format!("{} GB", megabytes / 1_000),
    }
}
