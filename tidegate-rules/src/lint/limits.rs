//! Lints about amounts: limits that refuse everything, logs that weigh too much, queues that nobody waits in, costs that are
//! not there when it matters.

use std::time::Duration;

use smol_str::SmolStr;
use tidegate::spi::KeyStem;
use tidegate::{Limit, Rate};

use crate::compile::CompiledRule;
use crate::cost::{Cost, CostSource};
use crate::problem::Problem;
use crate::quantity;
use crate::source_file::Span;

/// The largest log that is worth its bytes.
const MAX_LOG_LIMIT: u64 = 1_000;

/// How long callers are willing to wait; most have given up before.
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(30);

/// One limit of a rule: of which plan, and where it stands.
pub(super) struct SpannedLimit<'r> {
    plan: &'r str,
    pub(super) limit: &'r Limit,
    pub(super) span: &'r Span,
}

pub(super) fn lint(rule: &CompiledRule, found: &mut Vec<Problem>) {
    for spanned_limits in spanned_limits(rule) {
        found.extend(huge_log(&spanned_limits));
        found.extend(zero(&spanned_limits));
        found.extend(long_queue(&spanned_limits));
    }
    found.extend(too_dear(rule));
    found.extend(free_until_settled(rule));
    found.extend(rule.plans.iter().filter_map(|(plan, limits)| another_shape(rule, plan, limits)));
}

/// Whether a limit is a log that keeps more requests than it should.
pub(crate) fn is_huge_log(limit: &Limit) -> bool {
    matches!(limit, Limit::SlidingLog(log) if log.limit() > MAX_LOG_LIMIT)
}

/// The plan, the cost and the amount, if some request of a rule costs more than it can ever have.
pub(crate) fn dearest(rule: &CompiledRule) -> Option<(&str, u64, u64)> {
    let cost = match &rule.matcher.cost {
        Cost::Given => None,
        Cost::Fixed(cost) => Some(*cost),
        Cost::Table(table) => {
            let default = matches!(table.from, CostSource::Default).then_some(table.default);
            table.routes.values().chain(default).max()
        }
    }?;
    // A limit of 0 is a way to say no, and has a lint of its own.
    let limits = all(rule).filter(|(_, limit)| limit.amount() > 0);
    let (plan, limit) = limits.min_by_key(|(_, limit)| limit.amount())?;
    (cost > limit.amount()).then(|| (plan, cost, limit.amount()))
}

/// The limits of a rule, those of its plans too, each with the name of its plan.
pub(crate) fn all(rule: &CompiledRule) -> impl Iterator<Item = (&str, &Limit)> {
    let of_plans =
        rule.plans.iter().flat_map(|(plan, limits)| limits.iter().map(move |(_, limit)| (plan.as_str(), limit)));
    let own = rule.limits.iter().map(|(_, limit)| ("", limit));
    own.chain(of_plans)
}

/// The limits with their places. Those of a plan are shown at the rule that they belong to.
pub(super) fn spanned_limits(rule: &CompiledRule) -> impl Iterator<Item = SpannedLimit<'_>> {
    let places = rule.limit_spans.iter().chain(std::iter::repeat(&rule.id_span));
    all(rule).zip(places).map(|((plan, limit), span)| SpannedLimit { plan, limit, span })
}

fn huge_log(spanned_limits: &SpannedLimit<'_>) -> Option<Problem> {
    if !is_huge_log(spanned_limits.limit) {
        return None;
    }
    let bytes = 10 * spanned_limits.limit.amount() / 1_000;
    let message = format!("this log keeps up to {bytes} kB for each subject{}", spanned_limits.of_plan());
    let help = "`sliding_window` is nearly as exact with a few bytes a slice; keep logs to 1,000 requests";
    Some(Problem::warning("huge-log", message, spanned_limits.span.clone()).with_help(help))
}

fn zero(spanned_limits: &SpannedLimit<'_>) -> Option<Problem> {
    if spanned_limits.limit.amount() > 0 || !spanned_limits.plan.is_empty() {
        return None;
    }
    let message = "a limit of 0 refuses everything that has a cost";
    let help = "if that is meant, nothing is to be done; `mode: disabled` switches a rule off";
    Some(Problem::note("zero-limit", message, spanned_limits.span.clone()).with_help(help))
}

fn long_queue(spanned_limits: &SpannedLimit<'_>) -> Option<Problem> {
    let Limit::LeakyBucket(bucket) = spanned_limits.limit else { return None };
    let wait = wait(bucket.queue(), bucket.drain());
    if wait <= MAX_QUEUE_WAIT {
        return None;
    }
    let shown = quantity::format_duration(Duration::from_secs(wait.as_secs() + u64::from(wait.subsec_nanos() > 0)));
    let message =
        format!("the last in this queue waits {shown}{}; most callers are gone by then", spanned_limits.of_plan());
    let help = format!("shorten `queue` to what drains in {} s", MAX_QUEUE_WAIT.as_secs());
    Some(Problem::note("long-queue", message, spanned_limits.span.clone()).with_help(help))
}

/// How long it takes until `queue` requests have gone out.
fn wait(queue: u64, rate: Rate) -> Duration {
    let micros = u128::from(queue) * rate.period().as_micros() / u128::from(rate.amount());
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

fn too_dear(rule: &CompiledRule) -> Option<Problem> {
    let (plan, cost, amount) = dearest(rule)?;
    let in_plan = if plan.is_empty() { String::new() } else { format!(" in plan `{plan}`") };
    let message = format!("a request that costs {cost} is refused for good: the limit is {amount}{in_plan}");
    let help = "lower the cost, or raise the limit to the largest cost";
    Some(Problem::warning("cost-above-limit", message, rule.cost_span.clone()).with_help(help))
}

/// A cost that is told by the response, and may be nothing until then.
fn free_until_settled(rule: &CompiledRule) -> Option<Problem> {
    let (Some(header), Cost::Table(table)) = (&rule.actual, &rule.matcher.cost) else { return None };
    // What an expression comes to is not known here; but where it fails, the default stands.
    let told_as_nothing = table.most == 0 && !matches!(table.from, CostSource::Default);
    let can_be_nothing = table.default == 0 || told_as_nothing || table.routes.values().any(|cost| cost == 0);
    if !can_be_nothing {
        return None;
    }
    let message =
        format!("a cost of 0 passes an empty limit, so nothing is refused until `{header}` tells the real one");
    let help =
        "charge at least 1, better what such a request usually costs; the rest is given back or charged after it";
    Some(Problem::warning("free-until-settled", message, rule.cost_span.clone()).with_help(help))
}

/// A plan under which a rule counts with keys of its own, since these carry the shape of a limit.
fn another_shape(rule: &CompiledRule, plan: &str, limits: &[(SmolStr, Limit)]) -> Option<Problem> {
    let stem = |(name, limit): &(SmolStr, Limit)| KeyStem::for_rule("", limit, name);
    let same = |limit| rule.limits.iter().any(|own| stem(own) == stem(limit));
    if limits.iter().all(same) {
        return None;
    }
    let message =
        format!("plan `{plan}` has another kind, window or number of slices here: who changes to it starts afresh");
    let help =
        "change only amounts and rates, and what was used stays used; if a fresh start is meant, nothing is to be done";
    Some(Problem::note("plan-of-another-shape", message, rule.id_span.clone()).with_help(help))
}

impl SpannedLimit<'_> {
    /// The plan as a part of a sentence, or nothing.
    pub(super) fn of_plan(&self) -> String {
        if self.plan.is_empty() { String::new() } else { format!(" in plan `{}`", self.plan) }
    }
}
