//! `SlotReleases`: wakes callers of [`Limiter::acquire`] that wait for a slot of a concurrency limit when one is released on this
//! instance.
//!
//! A release wakes one caller for each key, the one that has waited longest. One that was woken and is served, goes away, or is denied by
//! another limit wakes the next one, since it may have left room. So a release costs about two calls to the store, however many wait, and
//! nothing but an atomic load if nobody does.
//!
//! [`Limiter::acquire`]: crate::Limiter::acquire

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use crate::plan::Plan;
use crate::store::Adjustment;
use crate::sync::Mutex;

/// The callers that wait for slots.
#[derive(Debug, Default)]
pub(crate) struct SlotReleases {
    waiting: AtomicUsize,
    waiters: Mutex<Waiters>,
}

#[derive(Debug, Default)]
struct Waiters {
    /// The numbers of those who wait for a slot under a key, in the order of arrival.
    by_key: HashMap<u128, VecDeque<u64>>,
    states: HashMap<u64, WaiterState>,
    entered: u64,
}

#[derive(Debug, Default)]
struct WaiterState {
    is_woken: bool,
    waker: Option<Waker>,
}

/// A caller that waits for slots. Dropping it wakes the next one if this one was woken.
#[derive(Debug)]
pub(crate) struct SlotWaiter<'w> {
    releases: &'w SlotReleases,
    keys: SmallVec<[u128; 1]>,
    number: u64,
    /// Whether it was woken, and has not found since that the slots are taken.
    is_woken: bool,
}

impl SlotReleases {
    /// Enters before the decision, so that no release after it is missed. `None` if the plan takes no slots.
    pub(crate) fn enter(&self, plan: &Plan<'_>) -> Option<SlotWaiter<'_>> {
        plan.lease_owner()?;
        let held = plan.checks().iter().filter(|check| check.gate().limit().has_slots());
        let keys: SmallVec<[u128; 1]> = held.map(|check| check.key().id()).collect();
        let mut waiters = self.waiters.lock();
        waiters.entered += 1;
        let number = waiters.entered;
        for key in &keys {
            waiters.by_key.entry(*key).or_default().push_back(number);
        }
        waiters.states.insert(number, WaiterState::default());
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Some(SlotWaiter { releases: self, keys, number, is_woken: false })
    }

    /// Wakes those who wait for what `adjustments` released.
    #[inline]
    pub(crate) fn notify(&self, adjustments: &[Adjustment<'_>]) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let releases = adjustments.iter().filter(|adjustment| adjustment.is_release());
            self.wake_next(releases.map(|release| release.key.id()));
        }
    }

    /// Wakes for each key the first who is not woken yet.
    #[cold]
    fn wake_next(&self, keys: impl Iterator<Item = u128>) {
        let mut waiters = self.waiters.lock();
        let wakers: Vec<Waker> = keys.filter_map(|key| waiters.wake_next(key)).collect();
        drop(waiters);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Waiters {
    fn wake_next(&mut self, key: u128) -> Option<Waker> {
        for number in self.by_key.get(&key)? {
            if let Some(state) = self.states.get_mut(number).filter(|state| !state.is_woken) {
                state.is_woken = true;
                return state.waker.take();
            }
        }
        None
    }
}

impl SlotWaiter<'_> {
    /// Completes when a slot under one of the keys was released.
    pub(crate) fn poll_released(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut waiters = self.releases.waiters.lock();
        if let Some(state) = waiters.states.get_mut(&self.number)
            && !std::mem::take(&mut state.is_woken)
        {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        self.is_woken = true;
        Poll::Ready(())
    }

    /// Records that this caller was denied: by the slots, or by another limit. Then the next one may use the slots.
    pub(crate) fn record_denial(&mut self, by_slots: bool) {
        if std::mem::take(&mut self.is_woken) && !by_slots {
            self.wake_next();
        }
    }

    fn wake_next(&self) {
        self.releases.wake_next(self.keys.iter().copied());
    }
}

impl Drop for SlotWaiter<'_> {
    fn drop(&mut self) {
        let mut waiters = self.releases.waiters.lock();
        let is_woken = waiters.states.remove(&self.number).is_some_and(|state| state.is_woken) || self.is_woken;
        for key in &self.keys {
            let Some(numbers) = waiters.by_key.get_mut(key) else { continue };
            numbers.retain(|number| *number != self.number);
            if numbers.is_empty() {
                waiters.by_key.remove(key);
            }
        }
        drop(waiters);
        self.releases.waiting.fetch_sub(1, Ordering::SeqCst);
        if is_woken {
            self.wake_next();
        }
    }
}
