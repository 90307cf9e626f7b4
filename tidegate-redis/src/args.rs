//! The arguments of the scripts: keys, and numbers packed as little-endian doubles, the number type of Lua.

use std::time::Duration;

use redis::Cmd;
use tidegate::spi::algorithm::{Op, TakePosition};
use tidegate::spi::{Adjustment, Check, Key, Plan, PlanMode, Role};
use tidegate::{Limit, Timestamp};

use crate::cardinality::{OverflowRoute, has_overflow};
use crate::scripts::algorithm_number;

/// Initial capacity of a key's name, which is rarely longer.
const KEY_NAME_CAPACITY_BYTES: usize = 48;

/// Appends the arguments of `decide_one.lua`, or with `routes` those of `decide_anonymous.lua`.
pub(crate) fn decide_one(
    cmd: &mut Cmd,
    prefix: &str,
    plan: &Plan<'_>,
    routes: &[OverflowRoute<'_>],
    now: Option<Timestamp>,
) {
    let [check] = plan.checks() else { return };
    let overflow = routes.first().and_then(|route| route.overflow);
    cmd.arg(1 + usize::from(overflow.is_some())).arg(key_name(prefix, check.key()));
    if let Some(overflow) = overflow {
        cmd.arg(key_name(prefix, &overflow));
    }
    let mut numbers = PackedNumbers::default();
    numbers.push_take(plan, check);
    cmd.arg(numbers.into_bytes());
    if let [route] = routes {
        let mut numbers = PackedNumbers::default();
        numbers.push_micros(route.max_ttl_micros);
        cmd.arg(numbers.into_bytes());
    }
    append_injected_now(cmd, now);
}

/// Appends the arguments of `decide.lua`, to decide or to peek. With `routes`, those of its variant for anonymous subjects.
pub(crate) fn decide(
    cmd: &mut Cmd,
    prefix: &str,
    plan: &Plan<'_>,
    routes: &[OverflowRoute<'_>],
    now: Option<Timestamp>,
) {
    append_keys(cmd, prefix, plan.checks().iter().map(Check::key), routes);
    let mut numbers = PackedNumbers::default();
    numbers.push(plan.max_units());
    numbers.push(u64::from(plan.mode() == PlanMode::CountEach));
    for route in routes {
        numbers.push_micros(route.max_ttl_micros);
    }
    cmd.arg(numbers.into_bytes());
    for check in plan.checks() {
        let mut numbers = PackedNumbers::default();
        numbers.push(algorithm_number(check.gate().limit()) as u64);
        numbers.push(match check.gate().role() {
            Role::Shadow => 1,
            Role::AnyOf(group) => 2 + u64::from(group),
            _ => 0,
        });
        numbers.push_take(plan, check);
        cmd.arg(numbers.into_bytes());
    }
    append_injected_now(cmd, now);
}

/// Appends the arguments of `adjust.lua`. With an overflow bucket in `routes`, those of its variant for anonymous subjects.
pub(crate) fn adjust(
    cmd: &mut Cmd,
    prefix: &str,
    adjustments: &[Adjustment<'_>],
    routes: &[OverflowRoute<'_>],
    now: Option<Timestamp>,
) {
    let overflow_routes = if has_overflow(routes) { routes } else { &[] };
    append_keys(cmd, prefix, adjustments.iter().map(|adjustment| &adjustment.key), overflow_routes);
    for (index, Adjustment { limit, op, .. }) in adjustments.iter().enumerate() {
        let (op_number, cost, position) = match op {
            Op::Charge { cost } => (3, *cost, TakePosition::default()),
            Op::Refund { cost, position } => (4, *cost, *position),
            // `RedisStore::adjust` rejects all other operations.
            _ => (3, 0, TakePosition::default()),
        };
        let mut numbers = PackedNumbers::default();
        numbers.push(algorithm_number(limit) as u64);
        numbers.push(op_number);
        numbers.push_micros(routes.get(index).and_then(|route| route.max_ttl_micros));
        numbers.push_limit(limit, cost, None, position);
        cmd.arg(numbers.into_bytes());
    }
    append_injected_now(cmd, now);
}

/// The name of `key` on the server.
pub(crate) fn key_name(prefix: &str, key: &Key<'_>) -> Vec<u8> {
    let mut name = Vec::with_capacity(KEY_NAME_CAPACITY_BYTES);
    key.write_name(prefix, &mut name);
    name
}

/// Appends the number of keys and the keys; with `routes`, then for each key its overflow bucket or the key again.
fn append_keys<'k>(
    cmd: &mut Cmd,
    prefix: &str,
    keys: impl ExactSizeIterator<Item = &'k Key<'k>> + Clone,
    routes: &[OverflowRoute<'_>],
) {
    cmd.arg(keys.len() + routes.len());
    for key in keys.clone() {
        cmd.arg(key_name(prefix, key));
    }
    for (key, route) in keys.zip(routes) {
        cmd.arg(key_name(prefix, route.overflow.as_ref().unwrap_or(key)));
    }
}

fn append_injected_now(cmd: &mut Cmd, now: Option<Timestamp>) {
    if let Some(now) = now {
        cmd.arg(now.as_micros());
    }
}

/// Numbers as `struct.unpack` of the scripts reads them. All are integers below 2^53 or infinite.
#[derive(Default)]
struct PackedNumbers(Vec<u8>);

impl PackedNumbers {
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

    /// A duration in microseconds; `None` is infinite.
    fn push_micros(&mut self, micros: Option<u64>) {
        self.push_f64(micros.filter(|micros| *micros < 1 << 53).map_or(f64::INFINITY, |micros| micros as f64));
    }

    fn push_take(&mut self, plan: &Plan<'_>, check: &Check<'_>) {
        let take = plan.take(check, 1);
        self.push_limit(check.gate().limit(), take.cost, take.max_delay(), TakePosition::default());
    }

    /// The arguments of the limit's Lua function after `units`: cost, position and the parameters of the limit.
    fn push_limit(&mut self, limit: &Limit, cost: u64, max_delay: Option<Duration>, position: TakePosition) {
        match limit {
            Limit::TokenBucket(bucket) => {
                self.push_bucket(bucket, cost);
                self.push_f64(f64::INFINITY);
            }
            Limit::LeakyBucket(leaky) => {
                self.push_bucket(leaky.bucket(), cost);
                self.push_micros(max_delay.map(micros));
                self.push(position.slot().micros);
                self.push(position.slot().part);
            }
            Limit::FixedWindow(window) => {
                self.push_all(&[cost, position.index(), window.limit()]);
                self.push_f64(window.window_number() as f64);
            }
            Limit::SlidingLog(log) => {
                self.push_all(&[cost, position.index(), log.limit(), micros(log.window())]);
            }
            Limit::SlidingWindow(window) => {
                self.push_all(&[cost, position.index(), window.limit(), micros(window.slice()), window.slices()]);
            }
            // A new variant of `Limit` comes together with its script.
            _ => {}
        }
    }

    fn push_bucket(&mut self, bucket: &tidegate::spi::algorithm::token_bucket::TokenBucket, cost: u64) {
        let (span, burst) = (bucket.span(cost), bucket.burst());
        self.push_all(&[span.micros, span.part, bucket.refill().amount(), burst.micros, burst.part]);
    }

    fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Whole microseconds, as the scripts take them.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
