//! `BatchArguments`: the arguments of `decide_batch.lua`.

use redis::Cmd;
use smallvec::SmallVec;
use tidegate::Timestamp;
use tidegate::spi::Role;

use super::BatchMode;
use super::index_table::IndexTable;
use crate::args::append_injected_now;
use crate::packed_plan::{LIMIT_BYTES, PackedCheck, PackedPlan, PackedRange, part_hash};
use crate::scripts::{SCRIPTS, Script};

/// From this many plans on that share a key, their takes are counted instead of applied one by one.
const MIN_COUNTED_PLANS: usize = 3;

/// The arguments of `decide_batch.lua`.
#[derive(Debug)]
pub(super) struct BatchArguments {
    keys: Parts,
    /// The keys of streams, which come after the others.
    streams: Parts,
    plans: Vec<u8>,
    limits: Parts,
    /// The numbers that plans of the general layout refer to.
    numbers: Parts,
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

/// How a plan is written: its first number. The comments of the script say what the special ones save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlanLayout {
    /// One check without a route.
    SingleCheck = 0,
    /// Only enforced checks without routes.
    Enforced = 1,
    /// Any plan.
    General = 2,
}

/// How a plan in the general layout changes states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GeneralMode {
    AllOrNothing = 0,
    EachCounts = 1,
    Peek = 2,
}

/// The width of a check in a plan with penalties, but without a reservation or a ledger.
const PENALTY_WIDTH: usize = 4;

/// How many numbers a plan in the general layout refers to, and each of its checks.
const MAX_PLAN_NUMBERS: usize = 3;
const MAX_CHECK_NUMBERS: usize = 2;

impl BatchArguments {
    /// Packs plans, each with the number of times that it is decided.
    pub(super) fn pack<'p>(plans: impl Iterator<Item = (&'p PackedPlan, u64)>) -> Self {
        let plans: SmallVec<[_; 32]> =
            plans.map(|(plan, repeats)| (plan, repeats, PlanLayout::new(plan, repeats))).collect();
        let keys = plans.iter().map(|(plan, ..)| plan.keys()).sum();
        let general = || plans.iter().filter(|(.., layout)| *layout == PlanLayout::General).map(|(plan, ..)| plan);
        let numbers = general().map(|plan| MAX_PLAN_NUMBERS + MAX_CHECK_NUMBERS * plan.checks.len()).sum();
        let mut arguments = Self {
            keys: Parts::with_capacity(keys, 48 * keys),
            streams: Parts::with_capacity(plans.iter().map(|(plan, ..)| plan.ledgers.len()).sum(), 0),
            plans: Vec::with_capacity(10 * keys),
            limits: Parts::with_capacity(keys, 4 * LIMIT_BYTES),
            numbers: Parts::with_capacity(numbers, 0),
            is_peek: !plans.is_empty() && plans.iter().all(|(plan, ..)| plan.is_peek),
        };
        let has_enforced = plans.iter().any(|(.., layout)| *layout == PlanLayout::Enforced);
        let largest_width = general().map(|plan| check_width(plan)).max().unwrap_or(0);
        let (mut parts, mut uses) = (Vec::with_capacity(keys), vec![KeyUse::default(); keys + 1]);
        for (plan, _, layout) in &plans {
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
                if *layout == PlanLayout::Enforced && check.is_additive {
                    uses[usize::from(numbers.key)].add(numbers.limit);
                }
                parts.push(numbers);
            }
        }
        arguments.push_all([arguments.streams.ends.len() as u16, u16::from(has_enforced), largest_width as u16]);
        let mut parts = &parts[..];
        for (plan, repeats, layout) in &plans {
            let (own, rest) = parts.split_at(plan.checks.len());
            // Only a plan of one unit is repeated.
            arguments.push_plan(plan, *layout, plan.units.max(*repeats), own, &uses);
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
        let parts = [&self.keys, &self.streams, &self.limits, &self.numbers];
        let bytes = self.plans.len() + parts.iter().map(|parts| parts.bytes.len()).sum::<usize>();
        let keys = self.keys.ends.len() + self.streams.ends.len();
        let mut cmd = Cmd::with_capacity(keys + 7, bytes + 80);
        cmd.arg(verb).arg(script.hash()).arg(keys);
        for Parts { bytes, ends, .. } in [&self.keys, &self.streams] {
            let mut start = 0;
            for (end, _) in ends {
                cmd.arg(&bytes[start..*end]);
                start = *end;
            }
        }
        cmd.arg(&self.plans).arg(&self.limits.bytes).arg(&self.numbers.bytes);
        append_injected_now(&mut cmd, now);
        (cmd, script)
    }

    fn push_plan(&mut self, plan: &PackedPlan, layout: PlanLayout, units: u64, parts: &[CheckParts], uses: &[KeyUse]) {
        let (checks, width) = (parts.len() as u16, check_width(plan));
        self.push_all([layout as u16]);
        match layout {
            PlanLayout::SingleCheck => {}
            PlanLayout::Enforced => self.push_all([units as u16, checks]),
            PlanLayout::General => {
                let units = self.numbers.index_of_number(units);
                self.push_all([GeneralMode::new(plan) as u16, width as u16, checks, units]);
                if width > PENALTY_WIDTH {
                    let terms = plan.reservation.map_or([0; 2], |terms| {
                        [terms.owner().number(), terms.ttl_micros()].map(|number| self.numbers.index_of_number(number))
                    });
                    self.push_all(terms);
                }
            }
        }
        for (index, CheckParts { limit, key, overflow, ledger }) in parts.iter().enumerate() {
            let is_counted = || uses[usize::from(*key)].plans >= MIN_COUNTED_PLANS;
            match layout {
                PlanLayout::SingleCheck => self.push_all([*limit, *key]),
                PlanLayout::Enforced => self.push_all([*limit, *key, u16::from(is_counted())]),
                PlanLayout::General => {
                    let strikes = plan.strikes.get(index).copied().unwrap_or(0);
                    let check = plan.checks[index];
                    let held = if check.is_hold { self.numbers.index_of_number(check.cost) } else { 0 };
                    let values = self.keys.ends.len() as u16;
                    let [stream, marker, generation] = ledger.map_or([0; 3], |(stream, marker, generation)| {
                        [values + stream, marker, self.numbers.index_of_number(generation)]
                    });
                    let numbers = [*limit, *key, *overflow, strikes, held, stream, marker, generation];
                    numbers.into_iter().take(width).for_each(|number| self.push_all([number]));
                }
            }
        }
    }

    fn push_all<const N: usize>(&mut self, numbers: [u16; N]) {
        for number in numbers {
            self.plans.extend_from_slice(&number.to_le_bytes());
        }
    }
}

impl PlanLayout {
    fn new(plan: &PackedPlan, repeats: u64) -> Self {
        let has_routes = || plan.checks.iter().any(PackedCheck::has_route);
        let is_enforced = || plan.checks.iter().all(|check| check.role == Role::Enforced);
        let is_simple = plan.is_plain() && plan.strikes.is_empty() && plan.ledgers.is_empty() && !has_routes();
        match plan.checks.len() {
            1 if is_simple && repeats == 1 => Self::SingleCheck,
            _ if is_simple && is_enforced() => Self::Enforced,
            _ => Self::General,
        }
    }
}

impl GeneralMode {
    const fn new(plan: &PackedPlan) -> Self {
        match (plan.is_peek, plan.counts_each) {
            (true, _) => Self::Peek,
            (false, true) => Self::EachCounts,
            (false, false) => Self::AllOrNothing,
        }
    }
}

/// How many numbers a check of a plan in the general layout has: the last ones are left out if no check needs them.
fn check_width(plan: &PackedPlan) -> usize {
    match plan {
        _ if !plan.ledgers.is_empty() => 8,
        _ if plan.reservation.is_some() => 5,
        _ if !plan.strikes.is_empty() => PENALTY_WIDTH,
        _ => 3,
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
        self.index_of_part(plan.part(range), range.hash)
    }

    /// Likewise, of a packed number.
    fn index_of_number(&mut self, number: u64) -> u16 {
        let part = (number as f64).to_le_bytes();
        self.index_of_part(&part, part_hash(&part))
    }

    fn index_of_part(&mut self, part: &[u8], hash: u64) -> u16 {
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
