//! Lints about concurrency limits: limits against guessing that do not stop it, long leases, many slots, and a rate in their place
//! while the store fails. Also one about tokens that all requests reserve together, which only a concurrency limit divides.

use std::time::Duration;

use tidegate::spi::algorithm::holds::MAX_RESERVATIONS;
use tidegate::{Limit, OnFailure};
use tidegate_rules::Problem;
use tidegate_rules::internals::{CompiledRule, format_duration};

use super::{failure_policy, limits, security};

/// The longest lease without a lint.
const MAX_LEASE: Duration = Duration::from_secs(5 * 60);

/// The most slots without a lint.
const MAX_SLOTS: u64 = 1_000;

/// The size of a slot in the store.
const SLOT_BYTES: u64 = 16;

pub(super) fn lint(rule: &CompiledRule, lints: &mut Vec<Problem>) {
    for spanned in limits::spanned_limits(rule) {
        let Limit::Concurrency(limit) = spanned.limit else { continue };
        let (span, of_plan) = (spanned.span.clone(), spanned.of_plan());
        if limit.lease() > MAX_LEASE {
            let lease = format_duration(limit.lease());
            let message = format!("the slot of a holder that dies is taken for {lease}{of_plan}");
            let help = "set a shorter `lease`: holders that live renew it by themselves, however long they run";
            lints.push(Problem::note("long-lease", message, span.clone()).with_help(help));
        }
        if limit.max() > MAX_SLOTS {
            let bytes = SLOT_BYTES * limit.max() / 1_000;
            let message =
                format!("these slots take up to {bytes} kB for each subject, copied with every request{of_plan}");
            let help = "keep `max` to 1,000, or count by a finer subject; for more, bound the rate with `token_bucket`";
            lints.push(Problem::warning("many-slots", message, span).with_help(help));
        }
    }
    if security::is_security(rule) && holds_alone(rule) {
        let message = "guesses are not limited: whoever waits for each response may send any number of them";
        let help = "add `sliding_log` under `limits`, or set `security: false`";
        lints.push(Problem::warning("concurrency-on-security", message, rule.id_span.clone()).with_help(help));
    }
    if rule.limits.iter().any(|(_, limit)| limit.has_slots())
        && rule.matcher.on_failure.each().any(|(_, policy)| policy == OnFailure::Static)
    {
        let message =
            "while the store fails, `static` limits how many requests begin, not how many run at the same time";
        let help =
            "set `share`, which divides `max` by the instances, or `closed`; this is fine if the requests are short";
        lints.push(Problem::note("static-for-concurrency", message, rule.on_failure_span.clone()).with_help(help));
    }
}

/// Slots that all requests share, without a rule beside that gives each client a part of them. Of several such rules on one request, the
/// first is reported.
pub(super) fn one_client_holds_all(
    index: usize,
    rule: &CompiledRule,
    beside: &[(usize, &CompiledRule)],
) -> Option<Problem> {
    let is_held = |rule: &CompiledRule| limits::all(rule).any(|(_, limit)| limit.has_slots() && limit.amount() > 1);
    let is_suspect = |rule: &CompiledRule| is_held(rule) && failure_policy::counts_everybody(rule);
    let is_covered = |(at, other): &(usize, &CompiledRule)| holds_for_each(other) || (*at < index && is_suspect(other));
    if !is_suspect(rule) || beside.iter().any(is_covered) {
        return None;
    }
    let message =
        "all requests share these slots, and one client may hold all of them: its slow requests deny everybody else";
    let help =
        "add a rule with the same `match` that gives each client a part of them: `per: [client]` and a smaller `max`";
    Some(Problem::note("slots-for-one", message, rule.per_span.clone()).with_help(help))
}

/// Tokens that all requests reserve from one limit, without a rule beside that bounds how many requests of each client run.
pub(super) fn one_client_reserves_all(rule: &CompiledRule, beside: &[(usize, &CompiledRule)]) -> Option<Problem> {
    let is_suspect = rule.usage.is_some() && failure_policy::counts_everybody(rule);
    if !is_suspect || beside.iter().any(|(_, other)| holds_for_each(other)) {
        return None;
    }
    let message = format!(
        "all requests reserve tokens from this limit, which keeps at most {MAX_RESERVATIONS} open reservations: \
         with as many slow responses, or with large estimates, one client denies everybody else"
    );
    let help = "count by `client` or `tenant`, or add a rule with the same `match`, `per: [client]` and `concurrency`";
    Some(Problem::note("shared-usage", message, rule.per_span.clone()).with_help(help))
}

/// Whether a rule limits how many requests of each of its subjects run.
fn holds_for_each(rule: &CompiledRule) -> bool {
    limits::all(rule).any(|(_, limit)| limit.has_slots()) && !failure_policy::counts_everybody(rule)
}

/// Whether a rule has concurrency limits only, in itself or in a plan.
fn holds_alone(rule: &CompiledRule) -> bool {
    let mut plans = rule.plans.iter().map(|(_, limits)| limits).chain([&rule.limits]);
    plans.any(|limits| limits.iter().all(|(_, limit)| limit.has_slots()))
}
