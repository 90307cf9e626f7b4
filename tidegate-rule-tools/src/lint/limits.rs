//! Lints about amounts: limits that refuse everything, large logs, long queues, and costs of 0.

use std::borrow::Cow;
use std::time::Duration;

use smol_str::SmolStr;
use tidegate::spi::KeyStem;
use tidegate::{Limit, Rate, attributes};
use tidegate_rules::Problem;
use tidegate_rules::internals::{CompiledRule, Cost, CostSource, Span, format_duration};

/// The largest sliding log without a lint, in requests.
const MAX_LOG_LIMIT: u64 = 1_000;

/// The longest wait in a queue without a lint.
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(30);

/// A limit of a rule, with its plan and its position.
pub(super) struct SpannedLimit<'r> {
    plan: &'r str,
    pub(super) limit: &'r Limit,
    pub(super) span: &'r Span,
}

pub(super) fn lint(rule: &CompiledRule, lints: &mut Vec<Problem>) {
    for spanned_limits in spanned_limits(rule) {
        lints.extend(huge_log(&spanned_limits));
        lints.extend(zero(&spanned_limits));
        lints.extend(long_queue(&spanned_limits));
    }
    lints.extend(lint_cost_above_limit(rule));
    lints.extend(free_until_settled(rule).or_else(|| usage_without_estimate(rule)));
    let plans = rule.plans.iter().zip(&rule.plan_spans);
    lints.extend(plans.filter_map(|((plan, limits), span)| another_shape(rule, plan, limits, span)));
}

/// Whether a limit is a log that keeps more than [`MAX_LOG_LIMIT`] requests.
pub(crate) fn is_huge_log(limit: &Limit) -> bool {
    matches!(limit, Limit::SlidingLog(log) if log.limit() > MAX_LOG_LIMIT)
}

/// The plan, the cost and the limit, if a request can cost more than the whole limit of a rule.
pub(crate) fn cost_above_limit(rule: &CompiledRule) -> Option<(&str, u64, u64)> {
    let cost = match &rule.matcher.cost {
        Cost::Given => None,
        Cost::Fixed(cost) => Some(*cost),
        Cost::Table(table) => {
            let default = matches!(table.from, CostSource::Default).then_some(table.default);
            table.routes.values().chain(default).max()
        }
    }?;
    // A limit of 0 is a way to refuse all requests, and has a lint of its own.
    let limits = all(rule).map(|(plan, limit)| (plan, largest_cost(limit))).filter(|(_, largest)| *largest > 0);
    let (plan, largest) = limits.min_by_key(|(_, largest)| *largest)?;
    (cost > largest).then_some((plan, cost, largest))
}

/// The largest cost that a limit can ever admit at once.
fn largest_cost(limit: &Limit) -> u64 {
    match limit {
        Limit::Quota(quota) => quota.hard_limit(),
        limit => limit.amount(),
    }
}

/// The limits of a rule and of its plans, each with the name of its plan.
pub(crate) fn all(rule: &CompiledRule) -> impl Iterator<Item = (&str, &Limit)> {
    let of_plans =
        rule.plans.iter().flat_map(|(plan, limits)| limits.iter().map(move |(_, limit)| (plan.as_str(), limit)));
    let own = rule.limits.iter().map(|(_, limit)| ("", limit));
    own.chain(of_plans)
}

/// The limits with their positions. Limits of a plan are shown at their rule.
pub(super) fn spanned_limits(rule: &CompiledRule) -> impl Iterator<Item = SpannedLimit<'_>> {
    let places = rule.limit_spans.iter().chain(std::iter::repeat(&rule.id_span));
    all(rule).zip(places).map(|((plan, limit), span)| SpannedLimit { plan, limit, span })
}

fn huge_log(spanned_limits: &SpannedLimit<'_>) -> Option<Problem> {
    if !is_huge_log(spanned_limits.limit) {
        return None;
    }
    let bytes = 10 * spanned_limits.limit.amount() / 1_000;
    let message = format!("this log takes up to {bytes} kB for each subject{}", spanned_limits.of_plan());
    let help = "`sliding_window` is nearly as exact and takes a few bytes for each slice; keep logs to 1,000 requests";
    Some(Problem::warning("huge-log", message, spanned_limits.span.clone()).with_help(help))
}

fn zero(spanned_limits: &SpannedLimit<'_>) -> Option<Problem> {
    if largest_cost(spanned_limits.limit) > 0 || !spanned_limits.plan.is_empty() {
        return None;
    }
    let message = "a limit of 0 refuses every request with a cost";
    let help = "this is fine if it is intended; `mode: disabled` turns a rule off";
    Some(Problem::note("zero-limit", message, spanned_limits.span.clone()).with_help(help))
}

fn long_queue(spanned_limits: &SpannedLimit<'_>) -> Option<Problem> {
    let Limit::LeakyBucket(bucket) = spanned_limits.limit else { return None };
    let wait = wait(bucket.queue(), bucket.drain());
    if wait <= MAX_QUEUE_WAIT {
        return None;
    }
    let shown = format_duration(Duration::from_secs(wait.as_secs() + u64::from(wait.subsec_nanos() > 0)));
    let message = format!(
        "the last request in this queue waits {shown}{}; most callers have given up by then",
        spanned_limits.of_plan()
    );
    let help = format!("shorten `queue` to what drains in {} s", MAX_QUEUE_WAIT.as_secs());
    Some(Problem::note("long-queue", message, spanned_limits.span.clone()).with_help(help))
}

/// The time until `queue` requests have drained.
fn wait(queue: u64, rate: Rate) -> Duration {
    let micros = u128::from(queue) * rate.period().as_micros() / u128::from(rate.amount());
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// A body without a length that costs more than the whole limit.
pub(super) fn unknown_size(rule: &CompiledRule, unknown_size: u64) -> Option<Problem> {
    let Cost::Table(table) = &rule.matcher.cost else { return None };
    let CostSource::Expression(expression) = &table.from else { return None };
    if !expression.reads().iter().any(|name| name == attributes::SIZE) {
        return None;
    }
    // Other values are missing, so this is the cost of one request among others.
    let size = |name: &str| (name == attributes::SIZE).then(|| Cow::Owned(unknown_size.to_string()));
    let cost = u64::try_from(expression.evaluate(&size).ok()?).ok()?.min(table.max);
    let limits = all(rule).map(|(_, limit)| largest_cost(limit)).filter(|amount| *amount > 0);
    let amount = limits.min().filter(|amount| cost > *amount)?;
    let message = format!(
        "a body without a length counts as {unknown_size} bytes and costs {cost}, so it is always refused: the limit is {amount}"
    );
    let help = "set `unknown_size` to a size that the limit admits, or give the cost a `max`; this is fine if clients announce lengths";
    Some(Problem::note("unknown-size", message, rule.cost_span.clone()).with_help(help))
}

fn lint_cost_above_limit(rule: &CompiledRule) -> Option<Problem> {
    let (plan, cost, amount) = cost_above_limit(rule)?;
    let in_plan = if plan.is_empty() { String::new() } else { format!(" in plan `{plan}`") };
    let message = format!("a request that costs {cost} is always refused: the limit is {amount}{in_plan}");
    let help = "lower the cost, or raise the limit to at least the largest cost";
    Some(Problem::warning("cost-above-limit", message, rule.cost_span.clone()).with_help(help))
}

/// A cost that is settled after the response and may be 0 before.
fn free_until_settled(rule: &CompiledRule) -> Option<Problem> {
    let Cost::Table(table) = &rule.matcher.cost else { return None };
    let settled_by = match (&rule.cost_header, rule.usage) {
        (Some(header), _) => format!("`{header}`"),
        (None, Some(_)) => "the token usage".to_owned(),
        (None, None) => return None,
    };
    // The result of an expression is not known here; if it fails, the default applies.
    let told_as_nothing = table.max == 0 && !matches!(table.from, CostSource::Default);
    let can_be_nothing = table.default == 0 || told_as_nothing || table.routes.values().any(|cost| cost == 0);
    if !can_be_nothing {
        return None;
    }
    let message = format!(
        "a request with a cost of 0 always passes, so nothing is refused until {settled_by} gives the actual cost"
    );
    let help = "charge at least 1, or the usual cost; the difference is charged or refunded after the response";
    Some(Problem::warning("free-until-settled", message, rule.cost_span.clone()).with_help(help))
}

/// A cost that is settled by token usage, and the same for every request before.
fn usage_without_estimate(rule: &CompiledRule) -> Option<Problem> {
    let (Some(_), Cost::Table(table)) = (rule.usage, &rule.matcher.cost) else { return None };
    if !matches!(table.from, CostSource::Default) || !table.routes.routes().is_empty() {
        return None;
    }
    let message = format!(
        "every request reserves {} until its token usage is known, so requests at the same time pass the limit together",
        table.default
    );
    let help = "estimate what a request uses: `expression: request.size / 4 + int(request.body.max_tokens, 1000)`";
    Some(Problem::warning("usage-without-estimate", message, rule.cost_span.clone()).with_help(help))
}

/// A plan whose limit has other keys than the rule's own, because keys contain the algorithm and window of a limit.
fn another_shape(rule: &CompiledRule, plan: &str, limits: &[(SmolStr, Limit)], span: &Span) -> Option<Problem> {
    let stem = |(name, limit): &(SmolStr, Limit)| KeyStem::for_rule("", limit, name);
    let same = |limit| rule.limits.iter().any(|own| stem(own) == stem(limit));
    if limits.iter().all(same) {
        return None;
    }
    let message = format!(
        "plan `{plan}` has another algorithm, window, period, lease or number of slices: usage is reset when a tenant changes to it"
    );
    let help =
        "repeat the others and change only amounts and rates to keep the usage; this is fine if the reset is intended";
    Some(Problem::note("plan-of-another-shape", message, span.clone()).with_help(help))
}

impl SpannedLimit<'_> {
    /// ` in plan …`, or an empty text.
    pub(super) fn of_plan(&self) -> String {
        if self.plan.is_empty() { String::new() } else { format!(" in plan `{}`", self.plan) }
    }
}
