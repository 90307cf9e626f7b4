//! The statuses of a response: one for each descriptor, with limit, remaining and reset, from which Envoy derives its own
//! headers. Pure.

use std::time::Duration;

use tidegate::limits::Algorithm;
use tidegate::spi::{CheckResult, Role};
use tidegate::{Decision, Timestamp};

use super::config::EnvoyConfig;
use super::descriptor_tree::{ConfiguredLimit, CounterNaming};
use super::messages::{self, Code, DescriptorStatus, RateLimit, RateLimitDescriptor, RateLimitRequest};
use super::request_plan::{AppliedLimit, DescriptorPlan, HitsMode, StoredOutcome};
use super::stats::Hits;
use super::unit;

/// The statuses of all descriptors, in order.
pub(super) fn build_statuses(
    descriptors: &[DescriptorPlan<'_>],
    outcome: &StoredOutcome,
    strict: bool,
) -> Vec<DescriptorStatus> {
    descriptors.iter().map(|descriptor| build_status(descriptor, outcome, strict)).collect()
}

/// The status of a descriptor without a limit.
pub(super) fn ok_status() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }
}

/// The status of a descriptor of a denied request, without numbers.
pub(super) fn over_limit_status() -> DescriptorStatus {
    DescriptorStatus { code: Code::OverLimit.into(), ..DescriptorStatus::default() }
}

/// Whether a request passes by its statuses alone (strict mode): no limit is exceeded, and not all quotas are.
pub(super) fn is_allowed_by_statuses(
    config: &EnvoyConfig,
    descriptors: &[DescriptorPlan<'_>],
    statuses: &[DescriptorStatus],
) -> bool {
    let (mut has_quotas, mut has_quota_left) = (false, false);
    for (descriptor, status) in descriptors.iter().zip(statuses) {
        let over = status.code == i32::from(Code::OverLimit);
        let quota = match descriptor.limit {
            AppliedLimit::Configured(limit) => limit.quota || config.options.quota,
            AppliedLimit::Override(_) => config.options.quota,
            _ => continue,
        };
        if over && !quota {
            return false;
        }
        has_quotas |= quota;
        has_quota_left |= quota && !over;
    }
    !has_quotas || has_quota_left
}

/// Counts the hits of a request by an Envoy configuration in the statistics.
pub(super) fn count_hits(
    config: &EnvoyConfig,
    request: &RateLimitRequest,
    descriptors: &[DescriptorPlan<'_>],
    outcome: &StoredOutcome,
) {
    for (plan, descriptor) in descriptors.iter().zip(&request.descriptors) {
        let (HitsMode::Consume, [index]) = (plan.mode, &plan.checks[..]) else { continue };
        let decision = outcome.decision(HitsMode::Consume);
        let Some(check) = decision.and_then(|decision| decision.check(*index)) else { continue };
        let before = outcome.before.as_ref().and_then(|before| before.check(*index)).unwrap_or(check);
        // The numbers of a decision include what it consumed; those of a peek do not.
        let consumed = if before.is_consumed() { before.cost() } else { 0 };
        let state = before.outcome();
        let used = state.limit.saturating_sub(state.remaining.saturating_add(consumed));
        let (configured, near_threshold) = match &plan.limit {
            AppliedLimit::Configured(limit) => {
                (Some(*limit), limit.rate.as_ref().map_or(0, |rate| rate.near_threshold))
            }
            AppliedLimit::Override(limit) => (None, config.options.near_threshold(limit.requests_per_unit)),
            _ => continue,
        };
        let hits = Hits {
            count: plan.hits,
            before: used.saturating_add(plan.hits_before),
            limit: state.limit,
            near_threshold,
            over: !check.outcome().admitted,
            shadow: configured.is_some_and(|limit| limit.shadow),
        };
        add_hits(config, &request.domain, configured, descriptor, hits);
    }
}

fn add_hits(
    config: &EnvoyConfig,
    domain: &str,
    limit: Option<&ConfiguredLimit>,
    descriptor: &RateLimitDescriptor,
    hits: Hits,
) {
    let (stats, level) = (&config.options.stats, config.domain(domain));
    let limit = limit.or_else(|| level?.find(&descriptor.entries)?.limit);
    match limit.map(|limit| &limit.counter_naming) {
        Some(CounterNaming::PerLimit(counters)) => counters.add(hits),
        Some(CounterNaming::PerValue { all }) => {
            let name = level.map(|level| level.counter_name(domain, &descriptor.entries, *all)).unwrap_or_default();
            stats.value_counters(domain, name).add(hits);
        }
        // A limit of the request only: its values must not become metric names.
        None => stats.limit_counters(vec![domain.to_owned(), "override".to_owned()]).add(hits),
    }
}

fn build_status(descriptor: &DescriptorPlan<'_>, outcome: &StoredOutcome, strict: bool) -> DescriptorStatus {
    let Some(decision) = outcome.decision(descriptor.mode) else {
        return if matches!(descriptor.limit, AppliedLimit::Unlimited) { unlimited_status() } else { ok_status() };
    };
    let mut checks = descriptor.checks.iter().filter_map(|index| decision.check(*index));
    let (check, limit) = match &descriptor.limit {
        AppliedLimit::None => return ok_status(),
        AppliedLimit::Unlimited => return unlimited_status(),
        AppliedLimit::Configured(limit) => (checks.next(), configured_rate_limit(limit)),
        AppliedLimit::Override(limit) => (checks.next(), Some(limit.clone())),
        AppliedLimit::Rules => {
            let check = most_restrictive(checks);
            (check, check.map(rule_rate_limit))
        }
    };
    let Some(check) = check else { return ok_status() };
    // A refund is never over the limit.
    let over = !check.outcome().admitted && descriptor.mode != HitsMode::Refund;
    let shadow =
        check.role() == Role::Shadow || matches!(descriptor.limit, AppliedLimit::Configured(limit) if limit.shadow);
    let code = if over && !shadow { Code::OverLimit } else { Code::Ok };
    let reset = Some(duration_until_reset(check, decision.decided_at(), over));
    if decision.is_security() || outcome.decision_to_show().is_some_and(Decision::is_security) {
        // A security rule discloses only that the limit is exceeded, and when to retry.
        let reset = reset.filter(|_| code == Code::OverLimit);
        return DescriptorStatus { code: code.into(), duration_until_reset: reset, ..DescriptorStatus::default() };
    }
    let remaining = match check.outcome().remaining {
        // Strict mode counts denied hits, so nothing remains after one.
        _ if over && strict => 0,
        remaining if descriptor.has_denied_hits_to_count(outcome) => remaining.saturating_sub(check.cost()),
        remaining => remaining,
    };
    DescriptorStatus {
        code: code.into(),
        current_limit: limit,
        limit_remaining: saturate_u32(remaining),
        duration_until_reset: reset,
    }
}

fn unlimited_status() -> DescriptorStatus {
    DescriptorStatus { limit_remaining: u32::MAX, ..ok_status() }
}

fn configured_rate_limit(limit: &ConfiguredLimit) -> Option<RateLimit> {
    let rate = limit.rate.as_ref()?;
    Some(RateLimit { name: limit.name.clone(), requests_per_unit: rate.requests, unit: rate.unit.into() })
}

/// The check to show for a descriptor: a denied one with the longest wait, else the one with the least remaining.
fn most_restrictive<'d>(checks: impl Iterator<Item = &'d CheckResult>) -> Option<&'d CheckResult> {
    let retry_after = |check: &CheckResult| match check.outcome() {
        outcome if outcome.admitted => Duration::ZERO,
        outcome => outcome.retry_after.unwrap_or(Duration::MAX),
    };
    checks.filter(|check| check.role() != Role::Shadow).min_by_key(|check| {
        (check.outcome().admitted, std::cmp::Reverse(retry_after(check)), check.outcome().remaining)
    })
}

fn rule_rate_limit(check: &CheckResult) -> RateLimit {
    let name = match (check.rule(), check.limit_name()) {
        (rule, "") => rule.to_owned(),
        (rule, limit) => format!("{rule}.{limit}"),
    };
    RateLimit {
        name,
        requests_per_unit: saturate_u32(check.outcome().limit),
        unit: unit::from_window(check.window()).into(),
    }
}

/// Envoy derives `Retry-After` from this and drops fractions, so it is rounded up to whole seconds.
fn duration_until_reset(check: &CheckResult, now: Timestamp, over: bool) -> messages::Duration {
    let outcome = check.outcome();
    let time = match (over, outcome.retry_after) {
        (true, Some(retry)) => retry,
        // The end of the window, even if nothing was counted in it.
        _ if check.algorithm() == Algorithm::FixedWindow => check.window().until_end(now),
        _ => outcome.reset_after,
    };
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    messages::Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

fn saturate_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
