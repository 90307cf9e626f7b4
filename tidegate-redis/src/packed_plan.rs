//! `PackedPlan`: a plan as the scripts take it. It borrows nothing, so that it can wait to be combined with others.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::LazyLock;

use smallvec::SmallVec;
use tidegate::Limit;
use tidegate::limits::Algorithm;
use tidegate::spi::algorithm::lua;
use tidegate::spi::{Check, Plan, PlanMode, ReservationTerms, Role};

use crate::args::PackedNumbers;
use crate::cardinality::OverflowRoute;
use crate::outbox::{LedgerPartitions, OutboxKeys};
use crate::period_clock::PackTime;
use crate::slot_map::slot_of;

/// The packed numbers of one check: algorithm, role, maximum TTL, and up to eight arguments of the limit.
const LIMIT_NUMBERS: usize = 11;
pub(crate) const LIMIT_BYTES: usize = 8 * LIMIT_NUMBERS;

/// The numbers of a check before the arguments of its limit.
pub(crate) const LIMIT_HEADER_BYTES: usize = 8 * 3;

/// A list of leases that can have more slots takes as much time to decide as a sliding log.
const MAX_SHORT_LEASES: u64 = 256;

/// Initial capacity for each check: the names of its keys are rarely longer.
const CHECK_CAPACITY_BYTES: usize = LIMIT_BYTES + 48;

/// The hash of names and limits. Its key is random, so that no choice of names causes collisions.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A plan as the scripts take it.
#[derive(Clone, Debug)]
pub(crate) struct PackedPlan {
    slot: u16,
    pub(crate) is_peek: bool,
    pub(crate) counts_each: bool,
    pub(crate) units: u64,
    log_checks: usize,
    /// For each check, the number of the penalty that its denial strikes, from 1, or 0. Empty for plans without a penalty.
    pub(crate) strikes: Vec<u16>,
    /// For each check its ledger, if it has one. Empty for plans without a ledger.
    pub(crate) ledgers: Vec<Option<PackedLedger>>,
    /// Whose reservation it is, if it is one.
    pub(crate) reservation: Option<ReservationTerms>,
    pub(crate) checks: SmallVec<[PackedCheck; 1]>,
    /// For each check its limit, the name of its key, and the name of its overflow bucket, if any.
    bytes: Vec<u8>,
}

/// Where the parts of a check are within the bytes of its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedCheck {
    pub(crate) algorithm: usize,
    pub(crate) role: Role,
    pub(crate) cost: u64,
    /// Whether a reservation holds the cost.
    pub(crate) is_hold: bool,
    pub(crate) has_max_ttl: bool,
    /// Whether taking n units at once is the same as taking n times one, and the state is part of the reply.
    pub(crate) is_additive: bool,
    pub(crate) limit: PackedRange,
    pub(crate) key: PackedRange,
    pub(crate) overflow: Option<PackedRange>,
}

/// The ledger of a check: the stream to which its changes are appended, and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedLedger {
    pub(crate) stream: PackedRange,
    /// The key of the generation.
    pub(crate) marker: PackedRange,
    /// The generation as this instance knows it.
    pub(crate) generation: u64,
}

/// A range of the bytes, and the hash of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedRange {
    start: u32,
    end: u32,
    pub(crate) hash: u64,
}

impl PackedPlan {
    /// Packs `plan`. `routes` has one route for each check, or none. The periods of quotas are those at `time`.
    pub(crate) fn pack(namespace: &str, plan: &Plan<'_>, routes: &[OverflowRoute<'_>], time: &PackTime<'_>) -> Self {
        let mut bytes = Vec::with_capacity(plan.checks().len() * CHECK_CAPACITY_BYTES);
        let mut checks = SmallVec::with_capacity(plan.checks().len());
        for (index, check) in plan.checks().iter().enumerate() {
            checks.push(PackedCheck::pack(&mut bytes, namespace, plan, check, routes.get(index).copied(), time));
        }
        let is_log = |check: &&Check<'_>| match check.gate().limit() {
            // A list of holds may be long, too. What others find out from replies.
            _ if plan.is_hold(check) => true,
            Limit::SlidingLog(_) => true,
            Limit::Concurrency(limit) => limit.max() > MAX_SHORT_LEASES,
            _ => false,
        };
        Self {
            slot: plan.checks().first().map_or(0, |check| slot_of(check.key().partition())),
            is_peek: plan.is_peek(),
            counts_each: plan.mode() == PlanMode::CountEach,
            units: plan.max_units(),
            log_checks: plan.checks().iter().filter(is_log).count(),
            strikes: strikes(plan),
            ledgers: Vec::new(),
            reservation: plan.reservation().copied(),
            checks,
            bytes,
        }
    }

    /// Adds the ledgers of the checks of `plan`, the same that was packed.
    pub(crate) fn with_ledgers(mut self, namespace: &str, plan: &Plan<'_>, ledger: &LedgerPartitions) -> Self {
        if plan.checks().iter().all(|check| check.gate().ledger().is_none()) {
            return self;
        }
        let bytes = &mut self.bytes;
        let pack = |check: &Check<'_>| {
            check.gate().ledger()?;
            let partition = check.key().partition();
            let keys = OutboxKeys::new(namespace, partition);
            Some(PackedLedger {
                stream: PackedRange::append(bytes, |bytes| bytes.extend_from_slice(&keys.stream)),
                marker: PackedRange::append(bytes, |bytes| bytes.extend_from_slice(&keys.marker)),
                generation: ledger.generation(partition),
            })
        };
        self.ledgers = plan.checks().iter().map(pack).collect();
        self
    }

    /// The slot of its keys. A plan without keys may go to any server.
    pub(crate) const fn slot(&self) -> u16 {
        self.slot
    }

    /// The number of its keys, with overflow buckets and those of ledgers.
    pub(crate) fn keys(&self) -> usize {
        let checks: usize = self.checks.iter().map(|check| 1 + usize::from(check.overflow.is_some())).sum();
        checks + 2 * self.ledgers.len()
    }

    /// The number of its sliding logs, holds, and long lists of slots, which take the most time to decide.
    pub(crate) const fn log_checks(&self) -> usize {
        self.log_checks
    }

    /// A hash of the key of each check, the same in all plans of this process.
    pub(crate) fn key_hashes(&self) -> impl Iterator<Item = u64> {
        self.checks.iter().map(|check| check.key.hash)
    }

    /// Whether it consumes one unit, all or nothing, and is no reservation.
    pub(crate) fn is_plain(&self) -> bool {
        !self.is_peek && !self.counts_each && self.units == 1 && self.reservation.is_none()
    }

    /// Whether several plans equal to this one can be decided as one plan of as many units.
    fn is_repeatable(&self) -> bool {
        self.is_plain()
            && self.ledgers.is_empty()
            && self.checks.iter().all(|check| check.role == Role::Enforced && check.is_additive)
    }

    /// Whether it can be decided together with `other`, as one plan of two units.
    pub(crate) fn is_repeat_of(&self, other: &Self) -> bool {
        self.is_repeatable() && other.is_repeatable() && self.checks == other.checks && self.bytes == other.bytes
    }

    /// The same hash for plans that [repeat](Self::is_repeat_of) each other. `None` for a plan that is never repeated.
    pub(crate) fn repeat_hash(&self) -> Option<u64> {
        let combine = |hash: u64, check: &PackedCheck| hash.rotate_left(9) ^ check.key.hash ^ check.limit.hash;
        self.is_repeatable().then(|| self.checks.iter().fold(0, combine))
    }

    /// The only check of a plan that a script for one check decides.
    pub(crate) fn single_check(&self) -> Option<&PackedCheck> {
        // These scripts do not know the role: an unreadable state would fail the plan of a shadow check.
        let is_single = self.is_plain() && self.ledgers.is_empty() && self.checks.len() == 1;
        self.checks.first().filter(|check| is_single && check.role != Role::Shadow)
    }

    pub(crate) fn part(&self, range: &PackedRange) -> &[u8] {
        self.bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
    }
}

/// The [strikes](PackedPlan::strikes) of `plan`.
fn strikes(plan: &Plan<'_>) -> Vec<u16> {
    if !plan.has_penalty() {
        return Vec::new();
    }
    // A plan has a few dozen checks at most.
    (0..plan.checks().len()).map(|index| plan.penalty_of(index).map_or(0, |penalty| penalty as u16 + 1)).collect()
}

impl PackedCheck {
    /// Whether its key has a maximum TTL or an overflow bucket, as keys of anonymous subjects may have.
    pub(crate) const fn has_route(&self) -> bool {
        self.has_max_ttl || self.overflow.is_some()
    }

    fn pack(
        bytes: &mut Vec<u8>,
        namespace: &str,
        plan: &Plan<'_>,
        check: &Check<'_>,
        route: Option<OverflowRoute<'_>>,
        time: &PackTime<'_>,
    ) -> Self {
        let max_ttl_micros = route.and_then(|route| route.max_ttl_micros);
        let algorithm = lua::function(check.gate().limit()).number;
        let limit = PackedRange::append(bytes, |bytes| {
            let end = bytes.len() + LIMIT_BYTES;
            let mut numbers = PackedNumbers(bytes);
            numbers.push(algorithm as u64);
            numbers.push(match check.gate().role() {
                Role::Shadow => 1,
                Role::AnyOf(group) => 2 + u64::from(group),
                _ => 0,
            });
            numbers.push_micros(max_ttl_micros);
            numbers.push_take(plan, check, time);
            bytes.resize(end, 0);
        });
        Self {
            algorithm,
            role: check.gate().role(),
            cost: check.cost(),
            is_hold: plan.is_hold(check),
            has_max_ttl: max_ttl_micros.is_some(),
            is_additive: matches!(
                check.gate().limit().algorithm(),
                Algorithm::TokenBucket | Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::Quota
            ),
            limit,
            key: PackedRange::append(bytes, |bytes| check.key().write_name(namespace, bytes)),
            overflow: route
                .and_then(|route| route.overflow)
                .map(|key| PackedRange::append(bytes, |bytes| key.write_name(namespace, bytes))),
        }
    }
}

/// The hash of a name, a limit or a number.
pub(crate) fn part_hash(part: &[u8]) -> u64 {
    HASHER.hash_one(part)
}

impl PackedRange {
    fn append(bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let start = bytes.len();
        write(bytes);
        let hash = part_hash(&bytes[start..]);
        // A plan has at most a few dozen names of bounded length.
        Self { start: start as u32, end: bytes.len() as u32, hash }
    }
}
