//! The statuses of a response: one for each descriptor, complete, since Envoy makes its own header fields of them. Pure.

use std::time::Duration;

use tidegate::{Algorithm, Checked, Decision, Role, Timestamp};

use super::pb::{self, Code, DescriptorStatus, RateLimit};
use super::prepared::{Judged, Told, Wanted};
use super::unit;

/// The statuses of all descriptors, in order.
pub(super) fn statuses(wanted: &[Wanted], judged: &Judged, strict: bool) -> Vec<DescriptorStatus> {
    wanted.iter().map(|wanted| status(wanted, judged, strict)).collect()
}

/// The status of a descriptor that no limit applies to.
pub(super) fn passed() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }
}

fn status(wanted: &Wanted, judged: &Judged, strict: bool) -> DescriptorStatus {
    let (decision, places) = match (&judged.counted, &judged.looked) {
        (Some(counted), None) => (counted, &wanted.places),
        (Some(counted), Some(_)) if !wanted.looks => (counted, &wanted.places),
        (_, Some(looked)) => (looked, &wanted.looked),
        (None, None) => return passed(),
    };
    let mut checks = places.iter().filter_map(|place| decision.checks().get(*place));
    let (checked, limit) = match &wanted.told {
        Told::Nothing => return passed(),
        Told::Unlimited => return DescriptorStatus { limit_remaining: u32::MAX, ..passed() },
        Told::Limit(limit) => (checks.next(), Some(limit.clone())),
        Told::Rules => {
            let checked = most_restrictive(checks);
            (checked, checked.map(limit_of_rule))
        }
    };
    let Some(checked) = checked else { return passed() };
    let over = !checked.outcome().admitted;
    let code = if over && checked.role() != Role::Shadow { Code::OverLimit } else { Code::Ok };
    let reset = Some(until_reset(checked, decision.decided_at()));
    if judged.shown().is_some_and(Decision::is_security) {
        // A rule that guards against guessing: that it is over, and when to come back, and no more.
        let reset = reset.filter(|_| code == Code::OverLimit);
        return DescriptorStatus { code: code.into(), duration_until_reset: reset, ..DescriptorStatus::default() };
    }
    // Where refused hits count, nothing is left after one; what is in shadow counts none and would say otherwise.
    let remaining = if over && strict { 0 } else { checked.outcome().remaining };
    DescriptorStatus {
        code: code.into(),
        current_limit: limit,
        limit_remaining: narrow(remaining),
        duration_until_reset: reset,
        quota: None,
    }
}

/// The check of a descriptor to show, if it has one that counts.
fn most_restrictive<'d>(checks: impl Iterator<Item = &'d Checked>) -> Option<&'d Checked> {
    let waits = |check: &Checked| match check.outcome() {
        outcome if outcome.admitted => Duration::ZERO,
        outcome => outcome.retry_after.unwrap_or(Duration::MAX),
    };
    checks
        .filter(|check| check.role() != Role::Shadow)
        .min_by_key(|check| (check.outcome().admitted, std::cmp::Reverse(waits(check)), check.outcome().remaining))
}

fn limit_of_rule(checked: &Checked) -> RateLimit {
    let name = match (checked.rule(), checked.limit_name()) {
        (rule, "") => rule.to_owned(),
        (rule, limit) => format!("{rule}.{limit}"),
    };
    RateLimit {
        name,
        requests_per_unit: narrow(checked.outcome().limit),
        unit: unit::of_window(checked.window()).into(),
    }
}

/// Envoy makes `Retry-After` of this, and drops fractions: whole seconds, rounded up.
fn until_reset(checked: &Checked, now: Timestamp) -> pb::Duration {
    let outcome = checked.outcome();
    let time = match (outcome.admitted, outcome.retry_after) {
        (false, Some(retry)) => retry,
        // The end of the window, even of one in which nothing was counted.
        _ if checked.algorithm() == Algorithm::FixedWindow => checked.window().until_end(now),
        _ => outcome.reset_after,
    };
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    pb::Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
