//! `BatchArguments`: the arguments of `decide_batch.lua`.

use redis::Cmd;
use tidegate::Timestamp;

use super::BatchMode;
use super::index_table::IndexTable;
use crate::args::append_injected_now;
use crate::packed_plan::{LIMIT_BYTES, PackedPlan, PackedRange};
use crate::scripts::{SCRIPTS, Script};

/// The arguments of `decide_batch.lua`.
#[derive(Debug)]
pub(super) struct BatchArguments {
    keys: Parts,
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

impl BatchArguments {
    /// Packs plans, each with the number of times that it is decided.
    pub(super) fn pack<'p>(plans: impl Iterator<Item = (&'p PackedPlan, u64)> + Clone) -> Self {
        let keys = plans.clone().map(|(plan, _)| plan.keys()).sum();
        let mut arguments = Self {
            keys: Parts::with_capacity(keys, 48 * keys),
            plans: Vec::with_capacity(8 * keys),
            limits: Parts::with_capacity(keys, 4 * LIMIT_BYTES),
            is_peek: plans.clone().next().is_some() && plans.clone().all(|(plan, _)| plan.is_peek),
        };
        for (plan, repeats) in plans {
            arguments.push_plan(plan, repeats);
        }
        arguments
    }

    pub(super) fn command(&self, now: Option<Timestamp>, mode: BatchMode) -> (Cmd, &'static Script) {
        let (verb, script) = match mode {
            _ if self.is_peek => ("EVALSHA_RO", SCRIPTS.peek_batch()),
            BatchMode::Decide => ("EVALSHA", SCRIPTS.decide_batch()),
            BatchMode::OutOfMemory => ("EVALSHA", SCRIPTS.decide_batch_full()),
        };
        let bytes = self.keys.bytes.len() + self.plans.len() + self.limits.bytes.len();
        let mut cmd = Cmd::with_capacity(self.keys.ends.len() + 6, bytes + 80);
        cmd.arg(verb).arg(script.hash()).arg(self.keys.ends.len());
        let mut start = 0;
        for (end, _) in &self.keys.ends {
            cmd.arg(&self.keys.bytes[start..*end]);
            start = *end;
        }
        cmd.arg(&self.plans).arg(&self.limits.bytes);
        append_injected_now(&mut cmd, now);
        (cmd, script)
    }

    fn push_plan(&mut self, plan: &PackedPlan, repeats: u64) {
        let is_plain = !plan.is_peek && !plan.counts_each;
        match &plan.checks[..] {
            [check] if is_plain && plan.units.max(repeats) == 1 && check.overflow.is_none() && !check.has_max_ttl => {
                let limit = self.limits.index_of(plan, &check.limit);
                let key = self.keys.index_of(plan, &check.key);
                return self.push_all([0, limit, key]);
            }
            // Only a plan of one unit is repeated.
            checks => match u16::try_from(plan.units.max(repeats)) {
                Ok(units) if is_plain => self.push_all([1, units, checks.len() as u16]),
                _ => {
                    self.push_all([2, u16::from(!plan.is_peek), u16::from(plan.counts_each)]);
                    self.push_all([0, 16, 32, 48].map(|bits| (plan.units >> bits) as u16));
                    self.push_all([checks.len() as u16]);
                }
            },
        }
        for check in &plan.checks {
            let limit = self.limits.index_of(plan, &check.limit);
            let key = self.keys.index_of(plan, &check.key);
            let overflow = check.overflow.map_or(0, |overflow| self.keys.index_of(plan, &overflow));
            self.push_all([limit, key, overflow]);
        }
    }

    fn push_all<const N: usize>(&mut self, numbers: [u16; N]) {
        for number in numbers {
            self.plans.extend_from_slice(&number.to_le_bytes());
        }
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
