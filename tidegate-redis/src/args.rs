//! The arguments of `adjust.lua`, and numbers packed as little-endian doubles, the number type of Lua.

use std::time::Duration;

use redis::Cmd;
use tidegate::limits::{Algorithm, Periods};
use tidegate::spi::algorithm::lua::{self, LuaInput};
use tidegate::spi::algorithm::{HoldOp, Op, TakePosition};
use tidegate::spi::{Adjustment, Check, Key, MAX_AMOUNT, Plan};
use tidegate::{Limit, Timestamp};

use crate::cardinality::OverflowRoute;
use crate::outbox::{LedgerPartitions, OutboxKeys, ledger_partition};
use crate::period_clock::PackTime;
use crate::scripts::AdjustVariant;

/// Initial capacity of a key's name, which is rarely longer.
const KEY_NAME_CAPACITY_BYTES: usize = 48;

/// The numbers of a quota that depend on the time: see `quota.lua`.
const PERIOD_NUMBERS: usize = 5;

/// An adjustment as `adjust.lua` takes it.
#[cfg_attr(test, derive(Default))]
#[derive(Clone)]
pub(crate) struct PackedAdjustment {
    key: Vec<u8>,
    /// The overflow bucket, if it has one.
    overflow_key: Option<Vec<u8>>,
    numbers: Vec<u8>,
    /// The periods of a quota.
    periods: Option<Periods>,
    ledger: Option<AdjustmentLedger>,
}

/// The ledger of an adjustment.
#[derive(Clone)]
struct AdjustmentLedger {
    partition: u16,
    keys: OutboxKeys,
    is_refund: bool,
    /// The generation of the take that it gives back; 0 for any.
    taken_in: u64,
}

impl PackedAdjustment {
    pub(crate) fn new(
        namespace: &str,
        adjustment: &Adjustment<'_>,
        route: OverflowRoute<'_>,
        time: &PackTime<'_>,
    ) -> Self {
        let Adjustment { key, limit, op, bundled, .. } = adjustment;
        let (op_number, cost, mut position) = match op {
            Op::Charge { cost, position } if limit.algorithm() == Algorithm::Quota => (3, *cost, *position),
            Op::Charge { cost, .. } => (3, *cost, TakePosition::default()),
            Op::Refund { cost, position } => (4, *cost, *position),
            Op::Renew { position, weight } => (5, *weight, *position),
            Op::Hold(HoldOp::Commit { cost, position }) => (7, (*cost).min(MAX_AMOUNT), *position),
            Op::Hold(HoldOp::Release { position }) => (9, 0, *position),
            // The store rejects all other operations.
            _ => (3, 0, TakePosition::default()),
        };
        let mut bytes = Vec::new();
        let mut numbers = PackedNumbers(&mut bytes);
        numbers.push(lua::function(limit).number as u64);
        numbers.push(op_number);
        numbers.push(u64::from(*bundled) + u64::from(adjustment.is_bundled_place()));
        numbers.push_micros(route.max_ttl_micros);
        if let Op::Hold(_) = op {
            // Others share an overflow bucket, so a commit makes no debt there.
            let terms = u64::from(position.is_keyed_hold()) + 2 * u64::from(position.overflow_bucket().is_some());
            numbers.push_all(&[position.index(), cost, terms]);
            position = TakePosition::default();
        }
        let input = LuaInput { cost, max_delay_micros: None, position, is_adjustment: true };
        lua::push_numbers(limit, input, || time.now(), |number| numbers.push_f64(number));
        let overflow_key = route.overflow.map(|key| key_name(namespace, &key));
        let periods = if let Limit::Quota(quota) = limit { Some(quota.periods()) } else { None };
        let ledger = ledger_partition(adjustment).map(|partition| AdjustmentLedger {
            partition,
            keys: OutboxKeys::new(namespace, partition),
            is_refund: matches!(op, Op::Refund { .. }),
            taken_in: if let Op::Refund { position, .. } = op { position.generation() } else { 0 },
        });
        Self { key: key_name(namespace, key), overflow_key, numbers: bytes, periods, ledger }
    }

    /// The partition of its ledger, if it has one.
    pub(crate) fn ledger_partition(&self) -> Option<u16> {
        self.ledger.as_ref().map(|ledger| ledger.partition)
    }

    /// Whether it gives back a take of another generation than the one that was found. Without one of its own, that is the one that was
    /// known before.
    pub(crate) fn is_of_lost_take(&self, known: u64, found: u64) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| match ledger.taken_in {
            0 => ledger.is_refund && known > 0,
            taken_in => taken_in != found,
        })
    }

    /// The generation that it needs: that of the take that it gives back, or the one that is known.
    fn generation(&self, ledger: &LedgerPartitions) -> u64 {
        match &self.ledger {
            Some(AdjustmentLedger { taken_in: 0, partition, .. }) => ledger.generation(*partition),
            Some(AdjustmentLedger { taken_in, .. }) => *taken_in,
            None => 0,
        }
    }

    /// The variant of the script that it needs.
    fn variant(&self) -> AdjustVariant {
        match (&self.ledger, &self.overflow_key) {
            (Some(_), _) => AdjustVariant::WithLedger,
            (None, Some(_)) => AdjustVariant::WithRoutes,
            (None, None) => AdjustVariant::Plain,
        }
    }

    /// Whether it depends on the time at which it was packed.
    pub(crate) const fn has_periods(&self) -> bool {
        self.periods.is_some()
    }

    /// Replaces the periods of a quota by those at `now`, which come last.
    pub(crate) fn repack(&mut self, now: Timestamp) {
        if let Some(periods) = self.periods {
            self.numbers.truncate(self.numbers.len() - 8 * PERIOD_NUMBERS);
            let mut numbers = PackedNumbers(&mut self.numbers);
            periods.push_numbers(now, |number| numbers.push_f64(number));
        }
    }
}

/// The variant of `adjust.lua` that all of these need.
pub(crate) fn adjust_variant<'a>(adjustments: impl Iterator<Item = &'a PackedAdjustment>) -> AdjustVariant {
    adjustments.map(PackedAdjustment::variant).max().unwrap_or(AdjustVariant::Plain)
}

/// Appends the arguments of the [variant](adjust_variant) of `adjust.lua`, with the generations that `ledger` knows.
pub(crate) fn adjust<'a>(
    cmd: &mut Cmd,
    adjustments: impl ExactSizeIterator<Item = &'a PackedAdjustment> + Clone,
    ledger: &LedgerPartitions,
    now: Option<Timestamp>,
) {
    let variant = adjust_variant(adjustments.clone());
    let (has_overflow, has_ledger) = (variant >= AdjustVariant::WithRoutes, variant == AdjustVariant::WithLedger);
    cmd.arg(adjustments.len() * if has_ledger { 4 } else { 1 + usize::from(has_overflow) });
    for adjustment in adjustments.clone() {
        cmd.arg(&adjustment.key);
    }
    for PackedAdjustment { key, overflow_key, .. } in adjustments.clone().filter(|_| has_overflow) {
        cmd.arg(overflow_key.as_ref().unwrap_or(key));
    }
    for name in [|keys: &'a OutboxKeys| &keys.stream, |keys: &'a OutboxKeys| &keys.marker] {
        for PackedAdjustment { key, ledger, .. } in adjustments.clone().filter(|_| has_ledger) {
            cmd.arg(ledger.as_ref().map_or(key, |ledger| name(&ledger.keys)));
        }
    }
    for adjustment in adjustments {
        if has_ledger {
            let mut numbers = adjustment.numbers.clone();
            PackedNumbers(&mut numbers).push(adjustment.generation(ledger));
            cmd.arg(numbers);
        } else {
            cmd.arg(&adjustment.numbers);
        }
    }
    append_injected_now(cmd, now);
}

/// The name of `key` on the server.
pub(crate) fn key_name(namespace: &str, key: &Key<'_>) -> Vec<u8> {
    let mut name = Vec::with_capacity(KEY_NAME_CAPACITY_BYTES);
    key.write_name(namespace, &mut name);
    name
}

/// Appends the time that a test injects.
pub(crate) fn append_injected_now(cmd: &mut Cmd, now: Option<Timestamp>) {
    if let Some(now) = now {
        cmd.arg(now.as_micros());
    }
}

/// Numbers as `struct.unpack` of the scripts reads them. All are integers below 2^53 or infinite.
pub(crate) struct PackedNumbers<'b>(pub(crate) &'b mut Vec<u8>);

impl PackedNumbers<'_> {
    pub(crate) fn push(&mut self, number: u64) {
        self.push_f64(number as f64);
    }

    fn push_f64(&mut self, number: f64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn push_all(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.push(*number);
        }
    }

    /// A duration in microseconds; `None` is infinite.
    pub(crate) fn push_micros(&mut self, micros: Option<u64>) {
        self.push_f64(micros.filter(|micros| *micros < 1 << 53).map_or(f64::INFINITY, |micros| micros as f64));
    }

    pub(crate) fn push_take(&mut self, plan: &Plan<'_>, check: &Check<'_>, time: &PackTime<'_>) {
        let take = plan.take(check, 1);
        let limit = check.gate().limit();
        let owner = if limit.has_slots() { take.owner_number() } else { 0 };
        let (max_delay_micros, position) = (take.max_delay().map(micros), TakePosition::from_index(owner));
        let input = LuaInput { cost: take.cost, max_delay_micros, position, is_adjustment: false };
        lua::push_numbers(limit, input, || time.now(), |number| self.push_f64(number));
    }
}

/// Whole microseconds, as the scripts take them.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
