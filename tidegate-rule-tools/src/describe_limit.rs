//! Limits in words, for explanations.

use tidegate::Limit;
use tidegate::limits::{Anchor, Periods, Weekday};
use tidegate::rules::LedgerMode;
use tidegate_rules::internals::{format_duration, format_rate, format_window};

/// Describes a limit in words.
pub fn describe_limit(limit: &Limit) -> String {
    let window = format_window(limit.window());
    match limit {
        Limit::TokenBucket(bucket) => {
            format!("token bucket: {} at once, then {}", bucket.capacity(), format_rate(bucket.refill()))
        }
        Limit::LeakyBucket(bucket) => {
            format!("leaky bucket: {}, up to {} wait", format_rate(bucket.drain()), bucket.queue())
        }
        Limit::FixedWindow(fixed) => format!("fixed window: {} in each {window}", fixed.limit()),
        Limit::SlidingLog(log) => format!("sliding log: {} in any {window}", log.limit()),
        Limit::SlidingWindow(sliding) => {
            format!("sliding window: about {} in any {window}, {} slices", sliding.limit(), sliding.slices())
        }
        Limit::Penalty(penalty) => {
            let (after, factor) = (penalty.after(), penalty.factor());
            let [block, max] = [penalty.block(), penalty.max()].map(format_duration);
            let growth = if factor == 1 {
                "and as long at each further one".into()
            } else {
                format!("then {factor} times the block before, up to {max}")
            };
            // Its name says that it is a penalty.
            format!("blocked for {block} at strike {after}, {growth}")
        }
        Limit::Concurrency(concurrency) => {
            let lease = format_duration(concurrency.lease());
            format!("concurrency: {} at the same time, each for {lease} without a renewal", concurrency.max())
        }
        Limit::Quota(quota) => describe_quota(quota.amount(), quota.grace(), quota.periods()),
        other => format!("{}: {} in {window}", other.algorithm().as_str(), other.amount()),
    }
}

/// Describes in words when the ledger has what a request consumed.
pub const fn describe_ledger(mode: LedgerMode) -> &'static str {
    match mode {
        LedgerMode::Sync => "in the ledger before a request is allowed (sync)",
        LedgerMode::Async => "in the ledger soon after a request is allowed (async)",
        _ => "in the ledger",
    }
}

/// `quota: 1000000 in each month of Europe/Berlin from day 15 on, then 50000 in grace`.
fn describe_quota(amount: u64, grace: u64, periods: Periods) -> String {
    let anchor = match periods.anchor() {
        None | Some(Anchor::Weekday(Weekday::Monday) | Anchor::Day(1) | Anchor::Date { month: 1, day: 1 }) => {
            String::new()
        }
        Some(Anchor::Day(day)) => format!(" from day {day} on"),
        Some(anchor) => format!(" from {anchor} on"),
    };
    let grace = match grace {
        0 => String::new(),
        grace => format!(", then {grace} in grace"),
    };
    format!("quota: {amount} in each {} of {}{anchor}{grace}", periods.period(), periods.time_zone())
}
