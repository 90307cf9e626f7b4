//! How much memory the rules take in Redis: an estimate from the measured bytes of a key, on the safe side.

use tidegate::Limit;

use super::ChecklistItem;
use crate::compile::CompiledRule;
use crate::lint::MAX_LISTED_NAMES;
use crate::request_matcher::TenantUse;

/// A key with a value of one number, its name and lifetime included (`docs/figures.md`).
const KEY: u64 = 130;

/// How much more a key takes whose value is a text.
const TEXT: u64 = 20;

/// What a request takes in a log.
const LOGGED: u64 = 10;

/// For how many subjects the whole is told.
const SUBJECTS: u64 = 1_000_000;

pub(super) fn item(rules: &[&CompiledRule]) -> ChecklistItem {
    let mut each: Vec<(u64, &str)> =
        rules.iter().filter(|rule| counts_many(rule)).map(|rule| (bytes(rule), rule.matcher.id.as_str())).collect();
    let total: u64 = each.iter().fold(0, |sum, (bytes, _)| sum.saturating_add(*bytes));
    // The largest first; with many rules the others are not worth a line.
    each.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let named: Vec<String> = each.iter().take(MAX_LISTED_NAMES).map(|(bytes, id)| format!("{id} {bytes}")).collect();
    let more = match each.len().saturating_sub(MAX_LISTED_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let detail = if each.is_empty() {
        "every rule is one key for all, so a few hundred bytes".to_owned()
    } else {
        format!(
            "at most about {} in Redis for a million subjects active under every rule; bytes a subject: {}{more}",
            megabytes(total.saturating_mul(SUBJECTS)),
            named.join(", ")
        )
    };
    ChecklistItem::met("memory is estimated", detail)
}

/// Whether a rule has a key for each of many subjects.
fn counts_many(rule: &CompiledRule) -> bool {
    !rule.matcher.per.is_empty() || rule.matcher.tenant == TenantUse::Subject
}

/// The bytes of one subject: all limits of the rule, or those of its largest plan.
fn bytes(rule: &CompiledRule) -> u64 {
    let sum = |limits: &[(smol_str::SmolStr, Limit)]| limits.iter().map(|(_, limit)| bytes_of(limit)).sum::<u64>();
    rule.plans.iter().map(|(_, limits)| sum(limits)).chain([sum(&rule.limits)]).max().unwrap_or_default()
}

fn bytes_of(limit: &Limit) -> u64 {
    match limit {
        Limit::SlidingLog(log) => KEY + TEXT + LOGGED * log.limit(),
        Limit::SlidingWindow(window) => {
            // A count and a comma for each slice, and one slice that is about to leave.
            let digits = u64::from(window.limit().checked_ilog10().unwrap_or_default()) + 1;
            KEY + TEXT + (digits + 1) * (window.slices() + 1)
        }
        _ => KEY,
    }
}

fn megabytes(bytes: u64) -> String {
    match bytes / 1_000_000 {
        megabytes if megabytes < 10_000 => format!("{megabytes} MB"),
        megabytes => format!("{} GB", megabytes / 1_000),
    }
}
