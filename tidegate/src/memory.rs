//! `MemoryStore`: the store of a single process. Sharded and bounded, without background tasks or long pauses.
//!
//! A decision locks the shards of its keys, always in the same order, applies the functions of [`algorithm`](crate::algorithm), and
//! writes the changes. Writes remove expired keys, a few at a time. A shard has at most 896 keys, so that not even the growth of
//! its table moves more.
//!
//! A full store never drops a state that still counts. New subjects of a limit then share one overflow bucket, so that they are
//! neither unlimited nor all denied. [`MemoryStore::overflowed`] counts these decisions. (Several new subjects of one limit in one
//! plan use separate overflow buckets, since no two checks may share a state.) Unauthenticated subjects may use three quarters of
//! the keys, so that a flood of them leaves room for others.

mod locked_shards;
mod shard;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::Timestamp;
use smallvec::SmallVec;

use crate::algorithm::{self, Op};
use crate::clock::{Clock, SystemClock};
use crate::key::Key;
use crate::plan::{Check, Plan};
use crate::spi::Verdict;
use crate::store::{Adjustment, Store, StoreError, StoreErrorKind};
use crate::sync::{AtomicU64, Mutex};
use locked_shards::{LockedShards, StateLocation, lock};
use shard::{MAX_SHARD_KEYS, Shard};

/// The default maximum number of keys.
pub const DEFAULT_MAX_KEYS: usize = 1_000_000;

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
    /// The overflow buckets, one for each limit. Locked after all other shards.
    overflow: Mutex<Shard>,
    clock: StoreClock,
    overflowed: AtomicU64,
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
        Self {
            shards: shards(DEFAULT_MAX_KEYS),
            overflow: Mutex::new(Shard::new(usize::MAX)),
            clock: StoreClock::System(SystemClock::new()),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Sets the maximum number of keys, and clears the store.
    ///
    /// Each shard has an equal part as its own bound, so a shard may be full when the whole store is a few percent below the
    /// maximum. Overflow buckets, one for each limit, are not counted. Clamped to one billion.
    pub fn with_max_keys(mut self, max_keys: usize) -> Self {
        self.shards = shards(max_keys);
        self.overflow = Mutex::new(Shard::new(usize::MAX));
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
        self.shards.iter().chain([&self.overflow]).map(|shard| lock(shard).len()).sum()
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
    /// [`Store::decide`] without a future; it cannot fail.
    #[inline(always)]
    pub fn decide_now(&self, plan: &Plan<'_>) -> Verdict {
        match plan.checks() {
            [only] => self.decide_one(plan, only).unwrap_or_else(|| self.decide_all(plan)),
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
        let mut change = None;
        let verdict = Verdict::decide_one(plan, check, now, shard.get(id), &mut change);
        if let Some(change) = change {
            shard.update(id, check.gate().limit(), change, check.max_expiry(now));
            shard.sweep_if_due(now);
        }
        Some(verdict)
    }

    fn decide_all(&self, plan: &Plan<'_>) -> Verdict {
        let mut locked = self.lock(plan.checks().iter().map(Check::key));
        // Read under the locks, so that the time of one key never steps back between threads.
        let now = self.now();
        for (index, check) in plan.checks().iter().enumerate() {
            self.make_room(&mut locked, index, check, now, !plan.is_peek());
        }
        let (mut verdict, changes) = Verdict::decide(plan, now, &locked.states());
        for (index, change) in changes.into_iter().enumerate() {
            verdict.checks_mut()[index].overflowed = locked.is_overflow(index);
            if let Some(change) = change {
                let check = &plan.checks()[index];
                locked.update(index, check.gate().limit(), change, check.max_expiry(now));
            }
        }
        locked.sweep_if_due(now);
        verdict
    }

    /// Switches to the overflow bucket if the subject is new and its shard full.
    fn make_room<'s>(
        &'s self,
        locked: &mut LockedShards<'s>,
        index: usize,
        check: &Check<'_>,
        now: Timestamp,
        count: bool,
    ) {
        if check.forget_after().is_some() {
            locked.remove_expired(index, now);
        }
        if check.cost() > 0 && !locked.has_room(index, now, check.is_anonymous()) {
            self.overflowed.fetch_add(u64::from(count), Ordering::Relaxed);
            locked.use_overflow(index, check.key().overflow_id(), &self.overflow);
        }
    }

    fn adjust_now(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        if adjustments.iter().any(|adjustment| matches!(adjustment.op, Op::Take(_))) {
            return Err(StoreError::new(
                StoreErrorKind::Unexpected,
                "an adjustment must be a charge or a refund, not a take",
            ));
        }
        let mut locked = self.lock(adjustments.iter().map(|adjustment| &adjustment.key));
        let now = self.now();
        let forget_after = |adjustment: &Adjustment<'_>| adjustment.anonymous?.anonymous().forget_after;
        for (index, _) in adjustments.iter().enumerate().filter(|(_, adjustment)| forget_after(adjustment).is_some()) {
            locked.remove_expired(index, now);
        }
        let is_stuck = |(index, adjustment): (usize, &Adjustment<'_>)| {
            adjustment.is_bundled_place()
                && !algorithm::apply(locked.get(index), adjustment.limit, now, adjustment.op).admitted
        };
        let stays_taken = adjustments.iter().enumerate().any(is_stuck);
        for (index, adjustment) in adjustments.iter().enumerate() {
            let Adjustment { key, limit, op, anonymous, bundled } = adjustment;
            if *bundled && stays_taken {
                continue;
            }
            // Only charges may use the overflow bucket: a refund to it would benefit other subjects.
            if matches!(op, Op::Charge { .. }) && !locked.has_room(index, now, anonymous.is_some()) {
                locked.use_overflow(index, key.overflow_id(), &self.overflow);
            }
            if let Some(change) = algorithm::apply(locked.get(index), limit, now, *op).change {
                let max_expiry = forget_after(adjustment).map_or(u64::MAX, |after| now.plus(after).as_micros());
                locked.update(index, limit, change, max_expiry);
            }
        }
        locked.sweep_if_due(now);
        Ok(())
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
        LockedShards { locations, guards }
    }

    #[inline(always)]
    fn shard_index(&self, id: u128) -> usize {
        // Uses bits that the table of the shard does not use, scaled to the number of shards.
        (((id >> 64) * self.shards.len() as u128) >> 64) as usize
    }
}

impl Store for MemoryStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        Ok(self.decide_now(plan))
    }

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        self.adjust_now(adjustments)
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        // The only error is a take, which is a defect of the caller.
        let _ = self.adjust_now(adjustments);
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        for key in keys {
            lock(&self.shards[self.shard_index(key.id())]).remove(key.id());
        }
        Ok(())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
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

/// Shards for `max_keys`, each with at most [`MAX_SHARD_KEYS`].
fn shards(max_keys: usize) -> Box<[Mutex<Shard>]> {
    let max_keys = max_keys.clamp(1, 1_000_000_000);
    let count = max_keys.div_ceil(MAX_SHARD_KEYS);
    (0..count).map(|_| Mutex::new(Shard::new(max_keys / count))).collect()
}
