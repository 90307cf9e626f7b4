//! `MemoryStore`: the store of a single process. Sharded, bounded, without a background task and without pauses.
//!
//! A plan locks the shards of its keys, always in the same order, judges its checks with the pure functions of
//! [`algorithm`](crate::algorithm), and writes. Keys that have become irrelevant are dropped a few at a time by the calls
//! that write; a shard has at most about a thousand keys, so not even the growth of its table moves more than that.
//!
//! At the bound nothing that still holds spent state is ever dropped. New subjects of a limit then share one overflow
//! bucket: they are neither let through freely nor all denied. [`MemoryStore::overflowed`] counts how often. (Several new
//! subjects of one limit in one plan take from buckets beside each other, since no two checks may share a state.) For subjects
//! that nobody vouches for the bound is three quarters of the room, so that the others still find some in a flood of them.

mod locked;
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
use locked::{Locked, Spot, lock};
use shard::{LARGEST_SHARD, Shard};

/// How many keys a store has room for unless told otherwise.
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
    /// The overflow buckets: one for each limit, whatever shard its subjects fall into. Locked after any shard.
    overflow: Mutex<Shard>,
    clock: Time,
    overflowed: AtomicU64,
}

/// The machine's clock is called directly: it is read once for every decision.
enum Time {
    System(SystemClock),
    Injected(Arc<dyn Clock>),
}

/// Constructors
impl MemoryStore {
    /// A store for up to [`DEFAULT_MAX_KEYS`] keys on the machine's clock.
    pub fn new() -> Self {
        Self {
            shards: shards(DEFAULT_MAX_KEYS),
            overflow: Mutex::new(Shard::new(usize::MAX)),
            clock: Time::System(SystemClock::new()),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Sets how many keys there may be; what is stored so far is forgotten.
    ///
    /// Each shard holds an equal share and has its own bound, so the first new subject may find its shard full when the
    /// whole store is a few percent short of the bound. Overflow buckets, one for each limit, come on top. More than a
    /// billion keys are taken for a billion.
    pub fn with_max_keys(mut self, max_keys: usize) -> Self {
        self.shards = shards(max_keys);
        self.overflow = Mutex::new(Shard::new(usize::MAX));
        self
    }

    /// Tells the time by `clock` instead of the machine's.
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Time::Injected(Arc::new(clock));
        self
    }
}

/// Looking at the store
impl MemoryStore {
    /// How many keys it holds, outdated ones that were not met yet included.
    pub fn keys(&self) -> usize {
        self.shards.iter().chain([&self.overflow]).map(|shard| lock(shard).len()).sum()
    }

    /// How many times a decision fell to an overflow bucket, because the store was full and the subject new.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// The time by which it decides.
    #[inline(always)]
    pub fn now(&self) -> Timestamp {
        match &self.clock {
            Time::System(clock) => clock.now(),
            Time::Injected(clock) => clock.now(),
        }
    }
}

/// Deciding, without waiting for anything but a lock
impl MemoryStore {
    /// [`Store::decide`], which cannot fail here.
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
        let mut shard = lock(&self.shards[self.home(id)]);
        let now = self.now();
        if check.forget_after().is_some() {
            shard.forget_outdated(id, now);
        }
        if check.cost() > 0 && !shard.has_room(id, now, 0, check.is_anonymous()) {
            return None;
        }
        let mut change = None;
        let verdict = Verdict::decide_one(plan, check, now, shard.get(id), &mut change);
        if let Some(change) = change {
            shard.update(id, check.gate().limit(), change, check.latest(now));
            shard.tidy(now);
        }
        Some(verdict)
    }

    fn decide_all(&self, plan: &Plan<'_>) -> Verdict {
        let mut locked = self.lock(plan.checks().iter().map(Check::key));
        // Under the locks, so that for one key time never runs backwards between two threads.
        let now = self.now();
        for (index, check) in plan.checks().iter().enumerate() {
            self.make_room(&mut locked, index, check, now, !plan.is_peek());
        }
        let (mut verdict, changes) = Verdict::decide(plan, now, &locked.states());
        for (index, change) in changes.into_iter().enumerate() {
            verdict.checks_mut()[index].overflowed = locked.is_overflow(index);
            if let Some(change) = change {
                let check = &plan.checks()[index];
                locked.update(index, check.gate().limit(), change, check.latest(now));
            }
        }
        locked.tidy(now);
        verdict
    }

    /// Switches to the overflow bucket if the subject is new and its shard full.
    fn make_room<'s>(&'s self, locked: &mut Locked<'s>, index: usize, check: &Check<'_>, now: Timestamp, count: bool) {
        if check.forget_after().is_some() {
            locked.forget_outdated(index, now);
        }
        if check.cost() > 0 && !locked.has_room(index, now, check.is_anonymous()) {
            self.overflowed.fetch_add(u64::from(count), Ordering::Relaxed);
            locked.turn_to_overflow(index, check.key().overflow_id(), &self.overflow);
        }
    }

    fn adjust_now(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        if adjustments.iter().any(|adjustment| matches!(adjustment.op, Op::Take(_))) {
            return Err(StoreError::new(StoreErrorKind::Unexpected, "a take is decided, not adjusted"));
        }
        for Adjustment { key, limit, op, anonymous } in adjustments {
            let mut locked = self.lock(std::iter::once(key));
            let now = self.now();
            let forget_after = anonymous.and_then(|gate| gate.anonymous().forget_after);
            if forget_after.is_some() {
                locked.forget_outdated(0, now);
            }
            // What a newcomer gives back must not go to those who share the overflow bucket.
            if matches!(op, Op::Charge { .. }) && !locked.has_room(0, now, anonymous.is_some()) {
                locked.turn_to_overflow(0, key.overflow_id(), &self.overflow);
            }
            if let Some(change) = algorithm::apply(locked.get(0), limit, now, *op).change {
                let latest = forget_after.map_or(u64::MAX, |after| now.plus(after).as_micros());
                locked.update(0, limit, change, latest);
                locked.tidy(now);
            }
        }
        Ok(())
    }

    /// Locks the shards of these keys, in the order of the shards, so that no two plans wait for each other.
    fn lock<'s, 'k>(&'s self, keys: impl Iterator<Item = &'k Key<'k>>) -> Locked<'s> {
        let spots: SmallVec<[Spot; 1]> = keys.map(|key| Spot { id: key.id(), home: self.home(key.id()) }).collect();
        let guards = match &spots[..] {
            [only] => SmallVec::from_buf([(only.home, lock(&self.shards[only.home]))]),
            spots => {
                let mut homes: Vec<usize> = spots.iter().map(|spot| spot.home).collect();
                homes.sort_unstable();
                homes.dedup();
                homes.into_iter().map(|home| (home, lock(&self.shards[home]))).collect()
            }
        };
        Locked { spots, guards }
    }

    #[inline(always)]
    fn home(&self, id: u128) -> usize {
        // By bits that the table of the shard does not use, scaled to the number of shards.
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
        // It can only refuse a take, which `adjust` reports to whoever waits for it.
        let _ = self.adjust_now(adjustments);
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        for key in keys {
            lock(&self.shards[self.home(key.id())]).remove(key.id());
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

/// So many shards that each holds at most [`LARGEST_SHARD`] keys.
fn shards(most_keys: usize) -> Box<[Mutex<Shard>]> {
    let most_keys = most_keys.clamp(1, 1_000_000_000);
    let count = most_keys.div_ceil(LARGEST_SHARD);
    (0..count).map(|_| Mutex::new(Shard::new(most_keys / count))).collect()
}
