//! `HeldLease`: a lease that is renewed as long as a clone of it exists.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use crate::grant::Grant;
use crate::sync::Mutex;

/// The slots of a request, renewed by [`HeldLeases`](crate::grants::HeldLeases) and released in the background when the last clone is dropped.
///
/// A request may lose them: the limit was lowered below what is held, or the store has lost its state and others have taken the slots.
/// Then it must [end](Self::lost).
pub struct HeldLease {
    slots: Arc<HeldSlots>,
    /// Whose waker it is that waits for the loss.
    waker_id: u64,
}

/// The slots of all clones of a [`HeldLease`].
struct HeldSlots {
    id: u64,
    state: Arc<LeaseState>,
    table: Arc<dyn ReleaseById>,
}

/// A lease, and whether it is lost.
pub(super) struct LeaseState {
    pub(super) lease: Grant,
    is_lost: AtomicBool,
    wakers: Mutex<Vec<(u64, Waker)>>,
    last_waker_id: AtomicU64,
}

/// The table that a lease is in.
pub(super) trait ReleaseById: Send + Sync {
    /// Removes the lease and releases its slots.
    fn release(&self, id: u64);
}

impl HeldLease {
    pub(super) fn new(id: u64, state: Arc<LeaseState>, table: Arc<dyn ReleaseById>) -> Self {
        Self { slots: Arc::new(HeldSlots { id, state, table }), waker_id: 0 }
    }

    /// Whether the slots are lost.
    pub fn is_lost(&self) -> bool {
        self.slots.state.is_lost()
    }

    /// Completes when the slots are lost: others may hold them.
    pub async fn lost(&self) {
        let waiting = self.clone();
        poll_fn(|context| waiting.poll_lost(context)).await;
    }

    /// Polls whether the slots are lost. Each clone wakes the task that has polled it last.
    pub fn poll_lost(&self, context: &mut Context<'_>) -> Poll<()> {
        let state = &self.slots.state;
        if self.is_lost() {
            return Poll::Ready(());
        }
        let mut wakers = state.wakers.lock();
        match wakers.iter_mut().find(|(id, _)| *id == self.waker_id) {
            Some((_, waker)) => waker.clone_from(context.waker()),
            None => wakers.push((self.waker_id, context.waker().clone())),
        }
        // The loss may have come before the waker.
        if self.is_lost() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Clone for HeldLease {
    fn clone(&self) -> Self {
        let waker_id = self.slots.state.last_waker_id.fetch_add(1, Ordering::Relaxed) + 1;
        Self { slots: Arc::clone(&self.slots), waker_id }
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.slots.state.wakers.lock().retain(|(id, _)| *id != self.waker_id);
    }
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        self.table.release(self.id);
    }
}

impl LeaseState {
    pub(super) fn new(lease: Grant) -> Self {
        Self { lease, is_lost: AtomicBool::new(false), wakers: Mutex::default(), last_waker_id: AtomicU64::new(0) }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Tells the holders that the slots are lost.
    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut *self.wakers.lock());
        for (_, waker) in wakers {
            waker.wake();
        }
    }
}

impl fmt::Debug for HeldLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLease").field("is_lost", &self.is_lost()).finish_non_exhaustive()
    }
}
