//! The statuses of a response: one for each descriptor, complete, since Envoy makes its own header fields of them. Pure.

use std::time::Duration;

use tidegate::spi::Role;
use tidegate::{Algorithm, CheckResult, Decision, Timestamp};

use super::config::EnvoyConfig;
use super::lookup::{Configured, Metric};
use super::pb::{self, Code, DescriptorStatus, RateLimit, RateLimitDescriptor, RateLimitRequest};
use super::prepared::{Asks, Judged, Told, Wanted};
use super::stats::Hits;
use super::unit;

/// The statuses of all descriptors, in order.
pub(super) fn statuses(wanted: &[Wanted<'_>], judged: &Judged, strict: bool) -> Vec<DescriptorStatus> {
    wanted.iter().map(|wanted| status(wanted, judged, strict)).collect()
}

/// The status of a descriptor that no limit applies to.
pub(super) fn passed() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }
}

/// The status of a descriptor whose request was refused, when more is not known.
pub(super) fn over() -> DescriptorStatus {
    DescriptorStatus { code: Code::OverLimit.into(), ..DescriptorStatus::default() }
}

/// Whether a request passes by its statuses alone, as in strict mode: no limit is over, and not all quotas are.
pub(super) fn passes(config: &EnvoyConfig, wanted: &[Wanted<'_>], statuses: &[DescriptorStatus]) -> bool {
    let (mut quotas, mut left) = (false, false);
    for (wanted, status) in wanted.iter().zip(statuses) {
        let over = status.code == i32::from(Code::OverLimit);
        let quota = match wanted.told {
            Told::Limit(limit) => limit.quota || config.options.quota,
            Told::Own(_) => config.options.quota,
            _ => continue,
        };
        if over && !quota {
            return false;
        }
        quotas |= quota;
        left |= quota && !over;
    }
    !quotas || left
}

/// Counts the hits of a request by an Envoy configuration, for dashboards.
pub(super) fn count(config: &EnvoyConfig, request: &RateLimitRequest, wanted: &[Wanted<'_>], judged: &Judged) {
    for (wanted, descriptor) in wanted.iter().zip(&request.descriptors) {
        let (Asks::Takes, [place]) = (wanted.asks, &wanted.places[..]) else { continue };
        let Some(checked) = judged.of(Asks::Takes).and_then(|decision| decision.checks().get(*place)) else { continue };
        let before = judged.before.as_ref().and_then(|before| before.checks().get(*place)).unwrap_or(checked);
        // A look at it does not count, and a decision counts what it consumed.
        let consumed = if before.is_consumed() { before.cost() } else { 0 };
        let outcome = before.outcome();
        let used = outcome.limit.saturating_sub(outcome.remaining.saturating_add(consumed));
        let (configured, near) = match &wanted.told {
            Told::Limit(limit) => (Some(*limit), limit.rate.as_ref().map_or(0, |rate| rate.near)),
            Told::Own(limit) => (None, config.options.near(limit.requests_per_unit)),
            _ => continue,
        };
        let hits = Hits {
            number: wanted.hits,
            before: used.saturating_add(wanted.ahead),
            limit: outcome.limit,
            near,
            over: !checked.outcome().admitted,
            shadow: configured.is_some_and(|limit| limit.shadow),
        };
        add(config, &request.domain, configured, descriptor, hits);
    }
}

fn add(config: &EnvoyConfig, domain: &str, limit: Option<&Configured>, descriptor: &RateLimitDescriptor, hits: Hits) {
    let (stats, level) = (&config.options.stats, config.domain(domain));
    let limit = limit.or_else(|| level?.find(&descriptor.entries)?.limit);
    match limit.map(|limit| &limit.metric) {
        Some(Metric::OfLimit(counters)) => counters.add(hits),
        Some(Metric::OfValues { all }) => {
            let name = level.map(|level| level.name(domain, &descriptor.entries, *all)).unwrap_or_default();
            stats.of_values(domain, name).add(hits);
        }
        // A limit that only the request knows: what it brings must not become a name.
        None => stats.of_limit(vec![domain.to_owned(), "override".to_owned()]).add(hits),
    }
}

fn status(wanted: &Wanted<'_>, judged: &Judged, strict: bool) -> DescriptorStatus {
    let Some(decision) = judged.of(wanted.asks) else {
        return if matches!(wanted.told, Told::Unlimited) { unlimited() } else { passed() };
    };
    let mut checks = wanted.places.iter().filter_map(|place| decision.checks().get(*place));
    let (checked, limit) = match &wanted.told {
        Told::Nothing => return passed(),
        Told::Unlimited => return unlimited(),
        Told::Limit(limit) => (checks.next(), limit_of_file(limit)),
        Told::Own(limit) => (checks.next(), Some(limit.clone())),
        Told::Rules => {
            let checked = most_restrictive(checks);
            (checked, checked.map(limit_of_rule))
        }
    };
    let Some(checked) = checked else { return passed() };
    // What is given back is never too much.
    let over = !checked.outcome().admitted && wanted.asks != Asks::Returns;
    let shadow = checked.role() == Role::Shadow || matches!(wanted.told, Told::Limit(limit) if limit.shadow);
    let code = if over && !shadow { Code::OverLimit } else { Code::Ok };
    let reset = Some(until_reset(checked, decision.decided_at(), over));
    if decision.is_security() || judged.shown().is_some_and(Decision::is_security) {
        // A rule that guards against guessing: that it is over, and when to come back, and no more.
        let reset = reset.filter(|_| code == Code::OverLimit);
        return DescriptorStatus { code: code.into(), duration_until_reset: reset, ..DescriptorStatus::default() };
    }
    let remaining = match checked.outcome().remaining {
        // Where refused hits count, nothing is left after one.
        _ if over && strict => 0,
        left if !judged.allowed && !checked.is_consumed() && wanted.counts_refused() => {
            left.saturating_sub(checked.cost())
        }
        left => left,
    };
    DescriptorStatus {
        code: code.into(),
        current_limit: limit,
        limit_remaining: narrow(remaining),
        duration_until_reset: reset,
        quota: None,
    }
}

fn unlimited() -> DescriptorStatus {
    DescriptorStatus { limit_remaining: u32::MAX, ..passed() }
}

fn limit_of_file(limit: &Configured) -> Option<RateLimit> {
    let rate = limit.rate.as_ref()?;
    Some(RateLimit { name: limit.name.clone(), requests_per_unit: rate.requests, unit: rate.unit.into() })
}

/// The check of a descriptor to show, if it has one that counts.
fn most_restrictive<'d>(checks: impl Iterator<Item = &'d CheckResult>) -> Option<&'d CheckResult> {
    let waits = |check: &CheckResult| match check.outcome() {
        outcome if outcome.admitted => Duration::ZERO,
        outcome => outcome.retry_after.unwrap_or(Duration::MAX),
    };
    checks
        .filter(|check| check.role() != Role::Shadow)
        .min_by_key(|check| (check.outcome().admitted, std::cmp::Reverse(waits(check)), check.outcome().remaining))
}

fn limit_of_rule(checked: &CheckResult) -> RateLimit {
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
fn until_reset(checked: &CheckResult, now: Timestamp, over: bool) -> pb::Duration {
    let outcome = checked.outcome();
    let time = match (over, outcome.retry_after) {
        (true, Some(retry)) => retry,
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
