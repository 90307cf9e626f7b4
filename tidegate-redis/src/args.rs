//! What the scripts are told: keys and numbers, packed as doubles, which is what Lua counts in.

use redis::Cmd;
use tidegate::spi::algorithm::{Op, Place};
use tidegate::spi::{Adjustment, Check, Key, Plan, PlanMode, Role};
use tidegate::{Limit, Timestamp};

use crate::flood::{Treated, has_overflow};
use crate::scripts::kind;

/// Appends what `decide_one.lua` takes, or `decide_stranger.lua` if there is something in `treatment`.
pub(crate) fn decide_one(
    cmd: &mut Cmd,
    prefix: &str,
    plan: &Plan<'_>,
    treatment: &[Treated<'_>],
    now: Option<Timestamp>,
) {
    let [check] = plan.checks() else { return };
    let overflow = treatment.first().and_then(|treated| treated.overflow);
    cmd.arg(1 + usize::from(overflow.is_some())).arg(name(prefix, check.key()));
    if let Some(overflow) = overflow {
        cmd.arg(name(prefix, &overflow));
    }
    let mut numbers = Numbers::default();
    numbers.take(plan, check);
    cmd.arg(numbers.bytes());
    if let [treated] = treatment {
        let mut numbers = Numbers::default();
        numbers.span(treated.longest);
        cmd.arg(numbers.bytes());
    }
    injected(cmd, now);
}

/// Appends what `decide.lua` takes, to decide or to peek: the usual, or for strangers if there is something in `treatment`.
pub(crate) fn decide(cmd: &mut Cmd, prefix: &str, plan: &Plan<'_>, treatment: &[Treated<'_>], now: Option<Timestamp>) {
    keys(cmd, prefix, plan.checks().iter().map(Check::key), treatment);
    let mut numbers = Numbers::default();
    numbers.push(plan.units());
    numbers.push(u64::from(plan.plan_mode() == PlanMode::CountEach));
    for treated in treatment {
        numbers.span(treated.longest);
    }
    cmd.arg(numbers.bytes());
    for check in plan.checks() {
        let mut numbers = Numbers::default();
        numbers.push(kind(check.gate().limit()) as u64);
        numbers.push(match check.gate().role() {
            Role::Shadow => 1,
            Role::AnyOf(group) => 2 + u64::from(group),
            _ => 0,
        });
        numbers.take(plan, check);
        cmd.arg(numbers.bytes());
    }
    injected(cmd, now);
}

/// Appends what `adjust.lua` takes: the usual, or for strangers if there is an overflow bucket in `treatment`.
pub(crate) fn adjust(
    cmd: &mut Cmd,
    prefix: &str,
    adjustments: &[Adjustment<'_>],
    treatment: &[Treated<'_>],
    now: Option<Timestamp>,
) {
    let seconds = if has_overflow(treatment) { treatment } else { &[] };
    keys(cmd, prefix, adjustments.iter().map(|adjustment| &adjustment.key), seconds);
    for (index, Adjustment { limit, op, .. }) in adjustments.iter().enumerate() {
        let (code, cost, place) = match op {
            Op::Charge { cost } => (3, *cost, Place::default()),
            Op::Refund { cost, place } => (4, *cost, *place),
            // The store has refused any other before it came here.
            _ => (3, 0, Place::default()),
        };
        let mut numbers = Numbers::default();
        numbers.push(kind(limit) as u64);
        numbers.push(code);
        numbers.span(treatment.get(index).and_then(|treated| treated.longest));
        numbers.limit(limit, cost, u64::MAX, place);
        cmd.arg(numbers.bytes());
    }
    injected(cmd, now);
}

pub(crate) fn name(prefix: &str, key: &Key<'_>) -> Vec<u8> {
    let mut name = Vec::with_capacity(48);
    key.write_name(prefix, &mut name);
    name
}

/// Appends these keys with their number; then, if there is something in `treatment`, for each the overflow bucket or itself.
fn keys<'k>(
    cmd: &mut Cmd,
    prefix: &str,
    keys: impl ExactSizeIterator<Item = &'k Key<'k>> + Clone,
    treatment: &[Treated<'_>],
) {
    cmd.arg(keys.len() + treatment.len());
    for key in keys.clone() {
        cmd.arg(name(prefix, key));
    }
    for (key, treated) in keys.zip(treatment) {
        cmd.arg(name(prefix, treated.overflow.as_ref().unwrap_or(key)));
    }
}

fn injected(cmd: &mut Cmd, now: Option<Timestamp>) {
    if let Some(now) = now {
        cmd.arg(now.as_micros());
    }
}

/// Numbers as the scripts unpack them. All are integers below 2^53, but for an infinite delay.
#[derive(Default)]
struct Numbers(Vec<u8>);

impl Numbers {
    fn push(&mut self, number: u64) {
        self.push_f64(number as f64);
    }

    fn push_f64(&mut self, number: f64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn push_all(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.push(*number);
        }
    }

    /// A span in microseconds, or an infinite one.
    fn span(&mut self, span: Option<u64>) {
        self.push_f64(span.filter(|span| *span < 1 << 53).map_or(f64::INFINITY, |span| span as f64));
    }

    fn take(&mut self, plan: &Plan<'_>, check: &Check<'_>) {
        let take = plan.take(check, 1);
        self.limit(check.gate().limit(), take.cost, take.longest_delay, Place::default());
    }

    /// Cost and place, then the parameters of the limit: the arguments of its Lua function after `units`.
    fn limit(&mut self, limit: &Limit, cost: u64, longest_delay: u64, place: Place) {
        match limit {
            Limit::TokenBucket(bucket) => {
                self.bucket(bucket, cost);
                self.push_f64(f64::INFINITY);
            }
            Limit::LeakyBucket(leaky) => {
                self.bucket(leaky.bucket(), cost);
                self.span(Some(longest_delay));
                self.push(place.moment().micros);
                self.push(place.moment().part);
            }
            Limit::FixedWindow(window) => {
                self.push_all(&[cost, place.position(), window.limit()]);
                self.push_f64(window.window_number() as f64);
            }
            Limit::SlidingLog(log) => {
                self.push_all(&[cost, place.position(), log.limit(), log.window_micros()]);
            }
            Limit::SlidingWindow(window) => {
                self.push_all(&[cost, place.position(), window.limit(), window.slice_micros(), window.slices()]);
            }
            // `Limit` may grow, but only together with a script that knows the new kind.
            _ => {}
        }
    }

    fn bucket(&mut self, bucket: &tidegate::spi::algorithm::token_bucket::TokenBucket, cost: u64) {
        let (span, burst) = (bucket.span(cost), bucket.burst());
        self.push_all(&[span.micros, span.part, bucket.refill().amount(), burst.micros, burst.part]);
    }

    fn bytes(self) -> Vec<u8> {
        self.0
    }
}
