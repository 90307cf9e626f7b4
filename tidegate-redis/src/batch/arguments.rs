//! `BatchArguments`: the arguments of `decide_batch.lua`.

use redis::Cmd;
use tidegate::Timestamp;
use tidegate::spi::Role;

use super::BatchMode;
use super::index_table::IndexTable;
use crate::args::append_injected_now;
use crate::packed_plan::{LIMIT_BYTES, PackedCheck, PackedPlan, PackedRange};
use crate::scripts::{SCRIPTS, Script};

/// From this many plans on that share a key, their takes are counted instead of applied one by one.
const MIN_COUNTED_PLANS: usize = 3;

/// In place of the cost that a check of a reservation holds: it takes its cost at once. No cost is as large.
const TAKE_BIT: u64 = 1 << 63;

/// The arguments of `decide_batch.lua`.
#[derive(Debug)]
pub(super) struct BatchArguments {
    keys: Parts,
    /// The keys of streams, which come after the others.
    streams: Parts,
    plans: Vec<u8>,
    limits: Parts,
    /// Whether nothing can be written, so that the call is sent as a read.
    is_peek: bool,
}

/// Distinct byte strings, one after the other.
#[derive(Debug)]
struct Parts {
    bytes: Vec<u8>,
    /// The end of each, and its hash.
    ends: Vec<(usize, u64)>,
    table: IndexTable,
}

/// The numbers of a check's parts, from 1; the overflow bucket is 0 if there is none.
#[derive(Clone, Copy)]
struct CheckParts {
    limit: u16,
    key: u16,
    overflow: u16,
    /// The stream among the streams, the key of the generation, and the generation.
    ledger: Option<(u16, u16, u64)>,
}

/// How many plans take from a key, all with the same limit. 0 if the limits differ, or if takes cannot be counted.
#[derive(Clone, Copy, Default)]
struct KeyUse {
    limit: u16,
    plans: usize,
}

/// How the script decides a plan: the first number of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlanKind {
    /// One check without a route.
    SingleCheck = 0,
    /// Only enforced checks, without routes.
    Enforced = 1,
    /// All or nothing.
    AllOrNothing = 2,
    /// Any plan without a penalty.
    General = 3,
    /// A plan with a penalty.
    Penalty = 4,
    /// A reservation.
    Reservation = 5,
}

/// Before the plans, if there are streams among the keys.
const STREAMS: u16 = 8;

/// What is added to the kind of a plan with a ledger.
const LEDGER_KIND: u16 = 8;

impl BatchArguments {
    /// Packs plans, each with the number of times that it is decided.
    pub(super) fn pack<'p>(plans: impl Iterator<Item = (&'p PackedPlan, u64)> + Clone) -> Self {
        let keys = plans.clone().map(|(plan, _)| plan.keys()).sum();
        let mut arguments = Self {
            keys: Parts::with_capacity(keys, 48 * keys),
            streams: Parts::with_capacity(plans.clone().map(|(plan, _)| plan.ledgers.len()).sum(), 0),
            plans: Vec::with_capacity(10 * keys),
            limits: Parts::with_capacity(keys, 4 * LIMIT_BYTES),
            is_peek: plans.clone().next().is_some() && plans.clone().all(|(plan, _)| plan.is_peek),
        };
        let (mut parts, mut uses) = (Vec::with_capacity(keys), vec![KeyUse::default(); keys + 1]);
        for (plan, repeats) in plans.clone() {
            let is_enforced = PlanKind::new(plan, repeats) == PlanKind::Enforced;
            for (index, check) in plan.checks.iter().enumerate() {
                let numbers = CheckParts {
                    limit: arguments.limits.index_of(plan, &check.limit),
                    key: arguments.keys.index_of(plan, &check.key),
                    overflow: check.overflow.map_or(0, |overflow| arguments.keys.index_of(plan, &overflow)),
                    ledger: plan.ledgers.get(index).copied().flatten().map(|ledger| {
                        let stream = arguments.streams.index_of(plan, &ledger.stream);
                        (stream, arguments.keys.index_of(plan, &ledger.marker), ledger.generation)
                    }),
                };
                if is_enforced && check.is_additive {
                    uses[usize::from(numbers.key)].add(numbers.limit);
                }
                parts.push(numbers);
            }
        }
        if let streams @ 1.. = arguments.streams.ends.len() {
            arguments.push_all([STREAMS, streams as u16]);
        }
        let mut parts = &parts[..];
        for (plan, repeats) in plans {
            let (own, rest) = parts.split_at(plan.checks.len());
            arguments.push_plan(plan, repeats, own, &uses);
            parts = rest;
        }
        arguments
    }

    pub(super) fn command(&self, now: Option<Timestamp>, mode: BatchMode) -> (Cmd, &'static Script) {
        let (verb, script) = match mode {
            _ if self.is_peek => ("EVALSHA_RO", SCRIPTS.peek_batch()),
            BatchMode::Decide => ("EVALSHA", SCRIPTS.decide_batch()),
            BatchMode::OutOfMemory => ("EVALSHA", SCRIPTS.decide_batch_full()),
        };
        let bytes = self.keys.bytes.len() + self.streams.bytes.len() + self.plans.len() + self.limits.bytes.len();
        let keys = self.keys.ends.len() + self.streams.ends.len();
        let mut cmd = Cmd::with_capacity(keys + 6, bytes + 80);
        cmd.arg(verb).arg(script.hash()).arg(keys);
        for Parts { bytes, ends, .. } in [&self.keys, &self.streams] {
            let mut start = 0;
            for (end, _) in ends {
                cmd.arg(&bytes[start..*end]);
                start = *end;
            }
        }
        cmd.arg(&self.plans).arg(&self.limits.bytes);
        append_injected_now(&mut cmd, now);
        (cmd, script)
    }

    fn push_plan(&mut self, plan: &PackedPlan, repeats: u64, parts: &[CheckParts], uses: &[KeyUse]) {
        // Only a plan of one unit is repeated.
        let (kind, units, checks) = (PlanKind::new(plan, repeats), plan.units.max(repeats), parts.len() as u16);
        match kind {
            PlanKind::SingleCheck => self.push_all([kind as u16]),
            PlanKind::Enforced | PlanKind::AllOrNothing => self.push_all([kind as u16, units as u16, checks]),
            PlanKind::General | PlanKind::Penalty | PlanKind::Reservation => {
                self.push_all([kind as u16 + if plan.ledgers.is_empty() { 0 } else { LEDGER_KIND }]);
                for number in plan.reservation.iter().flat_map(|terms| [terms.owner().number(), terms.ttl_micros()]) {
                    self.push_number(number);
                }
                self.push_all([u16::from(!plan.is_peek), u16::from(plan.counts_each)]);
                self.push_number(units);
                self.push_all([checks]);
            }
        }
        for (index, CheckParts { limit, key, overflow, ledger }) in parts.iter().enumerate() {
            let is_counted = || uses[usize::from(*key)].plans >= MIN_COUNTED_PLANS;
            match kind {
                PlanKind::SingleCheck => self.push_all([*limit, *key]),
                PlanKind::Enforced => self.push_all([*limit, *key, u16::from(is_counted())]),
                PlanKind::AllOrNothing | PlanKind::General => self.push_all([*limit, *key, *overflow]),
                PlanKind::Penalty => self.push_all([*limit, *key, *overflow, plan.strikes[index]]),
                PlanKind::Reservation => {
                    let strikes = plan.strikes.get(index).copied().unwrap_or(0);
                    self.push_all([*limit, *key, *overflow, strikes]);
                    let PackedCheck { cost, is_hold, .. } = plan.checks[index];
                    self.push_number(if is_hold { cost } else { TAKE_BIT });
                }
            }
            if !plan.ledgers.is_empty() {
                let values = self.keys.ends.len() as u16;
                let (stream, marker, generation) =
                    ledger.map_or((0, 0, 0), |(stream, marker, generation)| (values + stream, marker, generation));
                self.push_all([stream, marker]);
                self.push_number(generation);
            }
        }
    }

    /// A number below 2^53, or `TAKE_BIT`, in four numbers, the lowest first.
    fn push_number(&mut self, number: u64) {
        self.push_all([0, 16, 32, 48].map(|bits| (number >> bits) as u16));
    }

    fn push_all<const N: usize>(&mut self, numbers: [u16; N]) {
        for number in numbers {
            self.plans.extend_from_slice(&number.to_le_bytes());
        }
    }
}

impl PlanKind {
    fn new(plan: &PackedPlan, repeats: u64) -> Self {
        let has_routes = plan.checks.iter().any(PackedCheck::has_route);
        let is_enforced = || plan.checks.iter().all(|check| check.role == Role::Enforced);
        match plan.units.max(repeats) {
            _ if plan.reservation.is_some() => Self::Reservation,
            _ if !plan.strikes.is_empty() => Self::Penalty,
            _ if !plan.ledgers.is_empty() => Self::General,
            1 if plan.is_plain() && !has_routes && plan.checks.len() == 1 => Self::SingleCheck,
            0..=0xffff if plan.is_plain() && !has_routes && is_enforced() => Self::Enforced,
            0..=0xffff if !plan.is_peek && !plan.counts_each => Self::AllOrNothing,
            _ => Self::General,
        }
    }
}

impl KeyUse {
    fn add(&mut self, limit: u16) {
        let is_first = self.limit == 0;
        self.plans = if is_first || self.limit == limit { self.plans + 1 } else { 0 };
        // No limit has this number, so that the next use differs too.
        self.limit = if self.plans > 0 { limit } else { u16::MAX };
    }
}

impl Parts {
    fn with_capacity(parts: usize, bytes: usize) -> Self {
        let table = IndexTable::with_capacity(parts);
        Self { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(parts), table }
    }

    /// The number of a part of `plan`, from 1. Appends it if no equal part is there yet.
    fn index_of(&mut self, plan: &PackedPlan, range: &PackedRange) -> u16 {
        let (part, hash) = (plan.part(range), range.hash);
        let Self { bytes, ends, table } = self;
        let is_equal = |index: usize| {
            let (end, other_hash) = ends[index];
            let start = index.checked_sub(1).map_or(0, |before| ends[before].0);
            other_hash == hash && bytes[start..end] == *part
        };
        let index = table.find_or_insert(hash, ends.len(), is_equal);
        if index == ends.len() {
            bytes.extend_from_slice(part);
            ends.push((bytes.len(), hash));
        }
        index as u16 + 1
    }
}
