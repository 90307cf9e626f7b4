//! `DenialCache`: refuses in the process what the store denied a moment ago, so that a flood by an exhausted subject does not reach
//! the server.
//!
//! An entry holds the state on which the store denied a check. A later request is decided on that state, at the time of that
//! decision plus the time since its call was sent, by the same functions as in the store. So a request of any cost is denied only
//! if the limit denies it, with the retry and the reset that the store would answer, and nobody is denied longer than the limit
//! says: the call was sent before it was decided, so the estimated time is never behind the server's.
//!
//! An entry lives until the denied request would pass, but at most [`MAX_ENTRY_AGE`]. Refunds, charges and deletions by this
//! instance drop it at once, also one that is still on its way; those by another instance are seen when it ends.
//!
//! | never cached, nor answered | why |
//! |---|---|
//! | peeks | they ask for the state of the store |
//! | any-of checks | another member of the group may admit |
//! | plans that count each check | denied requests count in the store |
//! | shadow checks | they deny nothing |
//! | checks decided on an overflow bucket, or not stored by a full server | the state is not the subject's own |
//! | limits with another amount than at the denial | the rules have changed |
//! | concurrency limits | others may release a slot at any time |
//! | reservations with an idempotency key | a repeated one finds its hold |
//! | states with holds | their owners may end them at any time |
//! | rules with `denial_cache: false` | |
//! | limits of a rule with a penalty, unless the subject is blocked | the store counts each denial as a strike, but none during a block |

mod change_counts;
mod denied_state;
mod shard;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::Clock;
use tidegate::spi::algorithm::State;
use tidegate::spi::{Check, Key, KnownDenial, Plan, PlanMode, ReservationTerms, Role, Verdict};
use tidegate::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::reply::Reply;
use crate::store::RedisStore;
use crate::timer;
use change_counts::ChangeCounts;
use denied_state::DeniedState;
use shard::Shard;

/// How long an entry is used: another instance's refund is seen within this time.
const MAX_ENTRY_AGE: Duration = Duration::from_secs(1);

/// The maximum number of entries. They take about 16 MiB, or up to 80 MiB with sliding windows of 120 slices.
pub(crate) const MAX_ENTRIES: usize = 65_536;

const SHARDS: usize = 64;

/// Recent denials of the store.
pub(crate) struct DenialCache {
    shards: Box<[Mutex<Shard>]>,
    /// The number of entries, so that an empty cache costs one read.
    entries: AtomicIsize,
    changes: ChangeCounts,
    hasher: RandomState,
    clock: MonotonicClock,
}

/// Identifies a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct KeyId {
    id: u128,
    partition: u16,
}

/// Taken before a plan is sent. Without it, a denial could be cached that was decided before a refund of this instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DenialTicket {
    sent: Duration,
    generation: u64,
}

/// Keys whose state is being changed by other means than a decision. Their entries are dropped when it is created and when it is
/// dropped, and denials that were decided in between are not cached.
pub(crate) struct StateChange {
    cache: Arc<DenialCache>,
    /// `None` for all keys.
    keys: Option<SmallVec<[KeyId; 4]>>,
}

/// A clock that is never set: tokio's, or in tests the one injected into the store.
struct MonotonicClock {
    started: Instant,
    injected: Option<Arc<dyn Clock>>,
}

/// Reading
impl DenialCache {
    /// The denial of `plan`, if a recent one of the store still holds. Of several, the one with the longest retry.
    pub(crate) fn known_denial(&self, plan: &Plan<'_>) -> Option<KnownDenial> {
        if self.entries.load(Ordering::Relaxed) <= 0 || !is_cacheable_plan(plan) {
            return None;
        }
        let now = self.clock.now();
        let known = plan.checks().iter().enumerate().filter(|(_, check)| is_cacheable(check));
        let known = known.filter_map(|(index, check)| {
            let (hash, key) = self.locate(check.key());
            let shard = self.shard(hash);
            let (verdict, decided_at) = shard.get(hash, &key)?.deny(plan, check, now)?;
            Some(KnownDenial { check: index, verdict, decided_at })
        });
        let known: SmallVec<[KnownDenial; 4]> = known.collect();
        let is_known = |index: usize| known.iter().any(|denial| denial.check == index);
        let counts = |denial: &&KnownDenial| plan.penalty_of(denial.check).is_none_or(is_known);
        // The first of equals, as in a decision of the store.
        known
            .iter()
            .filter(counts)
            .copied()
            .reduce(|longest, next| if retry(&next) > retry(&longest) { next } else { longest })
    }

    /// The number of entries that are still used. Removes the others.
    pub(crate) fn entries(&self) -> usize {
        let now = self.clock.now();
        let count = |shard: &Mutex<Shard>| {
            let (remaining, removed) = lock(shard).remove_ended(now);
            self.entries.fetch_sub(removed, Ordering::Relaxed);
            remaining
        };
        self.shards.iter().map(count).sum()
    }
}

/// Writing
impl DenialCache {
    /// An empty cache. `injected` is the clock of the store in tests.
    pub(crate) fn new(injected: Option<Arc<dyn Clock>>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(MAX_ENTRIES / SHARDS))).collect(),
            entries: AtomicIsize::new(0),
            changes: ChangeCounts::new(),
            hasher: RandomState::new(),
            clock: MonotonicClock { started: timer::now(), injected },
        }
    }

    /// The ticket of `plan`, which is about to be sent.
    pub(crate) fn ticket(&self, plan: &Plan<'_>) -> DenialTicket {
        DenialTicket { sent: self.clock.now(), generation: self.generation(plan) }
    }

    /// Records the store's `verdict` on `plan`, of which a ticket was taken before it was sent.
    pub(crate) fn record(&self, plan: &Plan<'_>, reply: &Reply, verdict: &Verdict, ticket: DenialTicket) {
        if verdict.granted() == 0 {
            self.record_denial(plan, reply, verdict, ticket);
        } else if self.entries.load(Ordering::Relaxed) > 0 && !plan.is_peek() {
            // An entry on which a dearer request was denied shows more than is left now.
            let consumed = plan.checks().iter().zip(verdict.checks()).filter(|(_, verdict)| verdict.consumed);
            consumed.for_each(|(check, _)| self.remove(KeyId::new(check.key())));
        }
    }

    /// Drops the entries of `keys`, now and when the result is dropped: after the store has replied.
    pub(crate) fn begin_change<'k, 'r: 'k>(
        self: &Arc<Self>,
        keys: impl IntoIterator<Item = &'k Key<'r>>,
    ) -> StateChange {
        let keys = keys.into_iter().map(KeyId::new).collect();
        let change = StateChange { cache: Arc::clone(self), keys: Some(keys) };
        change.drop_entries();
        change
    }

    /// Drops all entries, now and when the result is dropped.
    pub(crate) fn begin_change_of_all(self: &Arc<Self>) -> StateChange {
        let change = StateChange { cache: Arc::clone(self), keys: None };
        change.drop_entries();
        change
    }

    fn record_denial(&self, plan: &Plan<'_>, reply: &Reply, verdict: &Verdict, ticket: DenialTicket) {
        if !is_cacheable_plan(plan) {
            return;
        }
        let checks = plan.checks().iter().zip(verdict.checks()).enumerate();
        for (index, (check, check_verdict)) in checks {
            let own_state = !check_verdict.overflowed && !check_verdict.stateless;
            if check_verdict.outcome.admitted || !own_state || !is_cacheable(check) {
                continue;
            }
            let is_strike = |penalty: usize| verdict.checks().get(penalty).is_none_or(|block| block.outcome.admitted);
            if plan.penalty_of(index).is_some_and(is_strike) {
                continue;
            }
            let Some(ends) = life(check, check_verdict.outcome.retry_after, reply.remaining_ttl(index)) else {
                continue;
            };
            let state = reply.state(index);
            if matches!(state, Some(State::WithHolds(_))) {
                continue;
            }
            let state = DeniedState::new(plan, check, state, verdict.decided_at(), ticket.sent, ends);
            let (hash, key) = self.locate(check.key());
            let mut shard = self.shard(hash);
            // Under the lock: a change that begins later removes the entry.
            if self.generation(plan) != ticket.generation {
                return;
            }
            let change = shard.insert(hash, key, state, self.clock.now());
            self.entries.fetch_add(change, Ordering::Relaxed);
        }
    }

    fn remove(&self, key: KeyId) {
        let hash = self.hasher.hash_one(key);
        let removed = self.shard(hash).remove(hash, &key);
        self.entries.fetch_sub(isize::from(removed), Ordering::Relaxed);
    }

    fn generation(&self, plan: &Plan<'_>) -> u64 {
        self.changes.sum(plan.checks().iter().map(|check| KeyId::new(check.key())))
    }

    fn locate(&self, key: &Key<'_>) -> (u64, KeyId) {
        let key = KeyId::new(key);
        (self.hasher.hash_one(key), key)
    }

    /// The table uses the other end of the hash.
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(hash >> 32) as usize % SHARDS])
    }
}

/// Monitoring the denial cache
impl RedisStore {
    /// How many denials of the last second this store still answers without its servers, at most 65,536. Removes those that have
    /// ended.
    pub fn denial_cache_entries(&self) -> usize {
        self.denial_cache.entries()
    }
}

/// Whether a plan is denied if one of its enforced checks is, without an effect on the store.
fn is_cacheable_plan(plan: &Plan<'_>) -> bool {
    let is_repeatable = plan.reservation().is_some_and(ReservationTerms::is_keyed);
    !plan.is_peek() && plan.mode() == PlanMode::AllOrNothing && !is_repeatable
}

/// Whether denials of the check are cached.
fn is_cacheable(check: &Check<'_>) -> bool {
    check.gate().role() == Role::Enforced && check.denial_cache() && !check.gate().limit().has_slots()
}

/// How long an entry is used: until the request would pass or the store forgets the state. `None` if that is unknown.
fn life(check: &Check<'_>, retry_after: Option<Duration>, remaining_ttl: Option<Duration>) -> Option<Duration> {
    let forgotten_after = if check.forget_after().is_some() { remaining_ttl? } else { Duration::MAX };
    let life = retry_after.unwrap_or(Duration::MAX).min(forgotten_after).min(MAX_ENTRY_AGE);
    Some(life).filter(|life| !life.is_zero())
}

/// The retry for comparison: a permanent denial is the longest.
fn retry(denial: &KnownDenial) -> Duration {
    denial.verdict.outcome.retry_after.unwrap_or(Duration::MAX)
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock()
}

// === impl KeyId ===

impl KeyId {
    fn new(key: &Key<'_>) -> Self {
        Self { id: key.id(), partition: key.partition() }
    }
}

// === impl StateChange ===

impl StateChange {
    fn drop_entries(&self) {
        // First the changes: a denial recorded afterwards is ignored, one recorded before is removed.
        let cache = &self.cache;
        if let Some(keys) = &self.keys {
            for key in keys {
                cache.changes.advance(key);
                cache.remove(*key);
            }
        } else {
            cache.changes.advance_all();
            for shard in &cache.shards {
                let mut shard = lock(shard);
                cache.entries.fetch_sub(shard.clear(), Ordering::Relaxed);
            }
        }
    }
}

impl Drop for StateChange {
    fn drop(&mut self) {
        self.drop_entries();
    }
}

// === impl MonotonicClock ===

impl MonotonicClock {
    fn now(&self) -> Duration {
        match &self.injected {
            Some(clock) => Duration::from_micros(clock.now().as_micros()),
            None => timer::now().saturating_duration_since(self.started),
        }
    }
}

#[cfg(test)]
mod tests;
