//! `MemoryStore`: the store of a single process. Sharded and bounded, without background tasks or long pauses.
//!
//! A decision locks the shards of its keys, always in the same order, applies the functions of [`algorithm`](crate::algorithm), and
//! writes the changes. Writes remove expired keys, a few at a time. A shard has at most 896 keys, so that not even the growth of
//! its table moves more.
//!
//! A full store never drops a state that still counts. New subjects of a limit then share [overflow buckets](crate::overflow), so
//! that they are neither unlimited nor all denied: one bucket for each sixteen keys that the store has room for, chosen by the
//! network of the subject. [`MemoryStore::overflowed`] counts these decisions. (Several new subjects of one limit in one plan use
//! separate overflow buckets, since no two checks may share a state.) Unauthenticated subjects may use three quarters of the keys, so
//! that a flood of them leaves room for others.
//!
//! The shard and the overflow bucket of a subject depend on a random number, so that no client can compute whose it shares.

mod adjust;
mod ledger;
mod locked_shards;
mod outbox;
mod shard;
mod store;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::Timestamp;
use smallvec::SmallVec;

use crate::clock::{Clock, SystemClock};
use crate::key::Key;
use crate::ledger::entry_for_change;
use crate::overflow::{MAX_OVERFLOW_BUCKETS, Newcomer};
use crate::plan::{Check, Plan};
use crate::random::random_u128;
use crate::store::StoreError;
use crate::sync::{AtomicU64, Mutex};
use crate::verdict::{Ops, Verdict};
use locked_shards::{LockedShards, StateLocation, lock};
use outbox::MemoryOutbox;
use shard::{MAX_SHARD_KEYS, Shard};

/// The default maximum number of keys.
pub const DEFAULT_MAX_KEYS: usize = 1_000_000;

/// The store has an overflow bucket for each so many keys, for each limit and kind of newcomer.
const KEYS_PER_OVERFLOW_BUCKET: usize = 16;

/// A store in the memory of one process.
///
/// ```
/// use tidegate::MemoryStore;
///
/// let store = MemoryStore::new().with_max_keys(100_000);
/// assert_eq!((store.keys(), store.overflowed()), (0, 0));
/// ```
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    /// The overflow buckets. Locked after all other shards.
    overflow: Box<[Mutex<Shard>]>,
    /// The number of overflow buckets of a limit, for each kind of newcomer.
    overflow_buckets: u32,
    clock: StoreClock,
    overflowed: AtomicU64,
    /// Decides the shard of a key. Odd and random.
    shard_factor: u128,
    /// Decides the overflow bucket of a newcomer. Random.
    overflow_seed: u64,
    /// What is not in the ledger yet.
    outbox: Option<MemoryOutbox>,
}

/// The system clock is called without dynamic dispatch, since every decision reads it.
enum StoreClock {
    System(SystemClock),
    Injected(Arc<dyn Clock>),
}

/// Constructors
impl MemoryStore {
    /// A store for up to [`DEFAULT_MAX_KEYS`] keys on the system clock.
    pub fn new() -> Self {
        // Loom tests choose the shards of their keys.
        let shard_factor = if cfg!(loom) { 1 } else { random_u128() | 1 };
        Self {
            shards: Box::default(),
            overflow: Box::default(),
            overflow_buckets: 1,
            clock: StoreClock::System(SystemClock::new()),
            overflowed: AtomicU64::new(0),
            shard_factor,
            overflow_seed: random_u128() as u64,
            outbox: None,
        }
        .with_max_keys(DEFAULT_MAX_KEYS)
    }

    /// Sets the maximum number of keys, and clears the store.
    ///
    /// Each shard has an equal part as its own bound, so a shard may be full when the whole store is a few percent below the
    /// maximum. Overflow buckets are not counted: for each limit and kind of newcomer there are at most a sixteenth as many. Clamped
    /// to one billion.
    pub fn with_max_keys(mut self, max_keys: usize) -> Self {
        let max_keys = max_keys.clamp(1, 1_000_000_000);
        let buckets = (max_keys / KEYS_PER_OVERFLOW_BUCKET).clamp(1, MAX_OVERFLOW_BUCKETS as usize);
        let shards = |keys: usize, max_shard_keys: usize| -> Box<[Mutex<Shard>]> {
            (0..keys.div_ceil(MAX_SHARD_KEYS)).map(|_| Mutex::new(Shard::new(max_shard_keys))).collect()
        };
        self.shards = shards(max_keys, max_keys / max_keys.div_ceil(MAX_SHARD_KEYS));
        self.overflow = shards(buckets, usize::MAX);
        self.overflow_buckets = buckets as u32;
        self
    }

    /// Sets the clock.
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = StoreClock::Injected(Arc::new(clock));
        self
    }
}

/// Inspection
impl MemoryStore {
    /// The number of keys, including expired ones that are not removed yet.
    pub fn keys(&self) -> usize {
        self.shards.iter().chain(&self.overflow).map(|shard| lock(shard).len()).sum()
    }

    /// The number of decisions on an overflow bucket, because the store was full and the subject new.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// The time of the store.
    #[inline(always)]
    pub fn now(&self) -> Timestamp {
        match &self.clock {
            StoreClock::System(clock) => clock.now(),
            StoreClock::Injected(clock) => clock.now(),
        }
    }
}

/// Deciding
impl MemoryStore {
    /// [`Store::decide`](crate::spi::Store::decide) without a future; it cannot fail. A store [with a journal](Self::with_journal) can:
    /// then it is a denial, so use `decide` there.
    #[inline(always)]
    pub fn decide_now(&self, plan: &Plan<'_>) -> Verdict {
        self.try_decide_now(plan).unwrap_or_else(|_| Verdict::new(self.now(), 0, []))
    }

    /// [`Store::decide`](crate::spi::Store::decide) without a future.
    #[inline(always)]
    pub(crate) fn try_decide_now(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        match plan.checks() {
            [only] if plan.reservation().is_none() && self.outbox.is_none() => {
                self.decide_one(plan, only).map_or_else(|| self.decide_all(plan), Ok)
            }
            _ => self.decide_all(plan),
        }
    }

    /// Decides a plan of one check with one lock and no lists. `None` if the overflow bucket must decide.
    #[inline(always)]
    fn decide_one<'r>(&self, plan: &Plan<'r>, check: &Check<'r>) -> Option<Verdict> {
        let id = check.key().id();
        let mut shard = lock(&self.shards[self.shard_index(id)]);
        let now = self.now();
        if check.forget_after().is_some() {
            shard.remove_expired(id, now);
        }
        if check.cost() > 0 && !shard.has_room(id, now, 0, check.is_anonymous()) {
            return None;
        }
        let mut ops = Ops::new();
        let verdict = Verdict::decide_one(plan, check, now, shard.get(id), &mut ops);
        if !ops.is_empty() {
            shard.update(id, check.gate().limit(), now, &ops, check.max_expiry(now));
            shard.sweep_if_due(now);
        }
        Some(verdict)
    }

    fn decide_all(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        let outbox = self.outbox_for(plan)?;
        let mut locked = self.lock(plan.checks().iter().map(Check::key));
        // Read under the locks, so that the time of one key never steps back between threads.
        let now = self.now();
        for (index, check) in plan.checks().iter().enumerate() {
            self.make_room(&mut locked, index, plan, check, now);
        }
        self.lock_overflow(&mut locked);
        let full = full_penalties(&mut locked, plan, now);
        let is_own = |index: usize| !locked.is_overflow(index) && !full.contains(&index);
        let (mut verdict, ops) = Verdict::decide(plan, now, &locked.states(), is_own);
        if verdict.refusal().is_some() {
            return Ok(verdict);
        }
        if let Some(outbox) = outbox {
            let is_full =
                |(index, check): (usize, &Check<'_>)| locked.is_overflow(index) && check.gate().ledger().is_some();
            if plan.checks().iter().enumerate().any(is_full) {
                return Err(ledger::full());
            }
            let entry = |(index, check): (usize, &Check<'_>)| {
                let ledger = check.gate().ledger();
                let entry = ledger.and_then(|_| {
                    entry_for_change(check.key(), check.gate().limit(), locked.get(index), &ops[index], now)
                });
                Some((index, entry?))
            };
            let (indexes, entries): (Vec<usize>, Vec<_>) = plan.checks().iter().enumerate().filter_map(entry).unzip();
            for (index, id) in indexes.into_iter().zip(outbox.append(entries)?) {
                verdict.set_entry(index, id);
            }
            outbox.set_generations(plan, &mut verdict);
        }
        for (index, ops) in ops.iter().enumerate() {
            let check = &plan.checks()[index];
            if locked.is_overflow(index) {
                let result = &mut verdict.checks_mut()[index];
                result.overflowed = true;
                if check.gate().limit().has_slots() || plan.is_hold(check) {
                    let number = locked.locations[index].id ^ check.key().overflow_id(0);
                    result.position = result.position.in_overflow_bucket(number as u32);
                }
            }
            if !ops.is_empty() {
                locked.update(index, check.gate().limit(), now, ops, check.max_expiry(now));
            }
        }
        locked.sweep_if_due(now);
        Ok(verdict)
    }

    /// Switches to the overflow bucket if the subject is new and its shard full.
    fn make_room<'s>(
        &'s self,
        locked: &mut LockedShards<'s>,
        index: usize,
        plan: &Plan<'_>,
        check: &Check<'_>,
        now: Timestamp,
    ) {
        if check.forget_after().is_some() {
            locked.remove_expired(index, now);
        }
        // A hold may have a cost of 0.
        let may_create_key = check.cost() > 0 || plan.is_hold(check);
        if may_create_key && !locked.has_room(index, now, check.is_anonymous()) {
            self.overflowed.fetch_add(u64::from(!plan.is_peek()), Ordering::Relaxed);
            self.use_overflow(locked, index, check.key(), Newcomer::in_plan(plan, check), now);
        }
    }

    /// Switches to the overflow bucket of `newcomer`, or the next one if another check of the plan uses that: no two checks of a plan
    /// may share a state. Its shard must be [locked](Self::lock_overflow) afterwards.
    fn use_overflow(
        &self,
        locked: &mut LockedShards<'_>,
        index: usize,
        key: &Key<'_>,
        newcomer: Newcomer,
        now: Timestamp,
    ) {
        let mut number = newcomer.bucket(self.overflow_buckets, self.overflow_seed, now);
        while locked.uses_overflow(key.overflow_id(number)) {
            number = number.wrapping_add(1);
        }
        locked.locations[index] = self.overflow_location(key, number);
    }

    /// Where the overflow bucket with this number is.
    fn overflow_location(&self, key: &Key<'_>, number: u32) -> StateLocation {
        let id = key.overflow_id(number);
        StateLocation { id, shard: self.shards.len() + self.scaled_hash(id, self.overflow.len()) }
    }

    /// Locks the shards of the overflow buckets that are used, in ascending order, which prevents deadlocks.
    fn lock_overflow<'s>(&'s self, locked: &mut LockedShards<'s>) {
        let first = self.shards.len();
        let shards = locked.locations.iter().map(|location| location.shard).filter(|shard| *shard >= first);
        let mut indexes: SmallVec<[usize; 4]> = shards.collect();
        indexes.sort_unstable();
        indexes.dedup();
        locked.guards.extend(indexes.into_iter().map(|index| (index, lock(&self.overflow[index - first]))));
    }

    /// Locks the shards of these keys in ascending order, which prevents deadlocks.
    fn lock<'s, 'k>(&'s self, keys: impl Iterator<Item = &'k Key<'k>>) -> LockedShards<'s> {
        let locations: SmallVec<[StateLocation; 1]> =
            keys.map(|key| StateLocation { id: key.id(), shard: self.shard_index(key.id()) }).collect();
        let guards = match &locations[..] {
            [only] => SmallVec::from_buf([(only.shard, lock(&self.shards[only.shard]))]),
            locations => {
                let mut indexes: Vec<usize> = locations.iter().map(|location| location.shard).collect();
                indexes.sort_unstable();
                indexes.dedup();
                indexes.into_iter().map(|index| (index, lock(&self.shards[index]))).collect()
            }
        };
        LockedShards { locations, guards, first_overflow: self.shards.len() }
    }

    #[inline(always)]
    fn shard_index(&self, id: u128) -> usize {
        self.scaled_hash(id, self.shards.len())
    }

    /// A hash of `id` below `count` that nobody outside can compute. It uses bits that the table of the shard does not use.
    #[inline(always)]
    fn scaled_hash(&self, id: u128, count: usize) -> usize {
        (((id.wrapping_mul(self.shard_factor) >> 64) * count as u128) >> 64) as usize
    }
}

/// The penalties that a full shard has no room for. They never use an overflow bucket: a block would hit the others who share it.
fn full_penalties(locked: &mut LockedShards<'_>, plan: &Plan<'_>, now: Timestamp) -> SmallVec<[usize; 1]> {
    if plan.is_peek() || !plan.has_penalty() {
        return SmallVec::new();
    }
    let penalties = plan.checks().iter().enumerate().filter(|(_, check)| check.gate().is_penalty());
    let full = penalties.filter(|(index, check)| !locked.has_room(*index, now, check.is_anonymous()));
    full.map(|(index, _)| index).collect()
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("shards", &self.shards.len()).finish_non_exhaustive()
    }
}
