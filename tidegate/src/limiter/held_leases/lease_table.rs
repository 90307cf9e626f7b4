//! `LeaseTable`: the leases that are held, in the order in which they are due. Its lock is never held during a call.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::held_lease::{LeaseState, ReleaseById};
use super::{HeldLease, INTERVAL_PARTS, interval};
use crate::grant::{Ending, Grant};
use crate::store::Store;
use crate::sync::Mutex;
use crate::{Limiter, Timestamp};

/// The leases that are held.
pub(super) struct LeaseTable<S> {
    leases: Mutex<Leases<S>>,
    /// Leases that are held, or whose release has not begun.
    held: AtomicUsize,
    lost: AtomicU64,
}

struct Leases<S> {
    by_id: HashMap<u64, LeaseEntry<S>>,
    /// Without those that are being renewed and those that are lost.
    due: BTreeSet<(Timestamp, u64)>,
    last_id: u64,
    /// When the renewals wake up by themselves; `None` if they do not.
    wakes_at: Option<Timestamp>,
    /// Set while the renewals wait.
    waker: Option<Waker>,
    /// Whether no lease will be added.
    is_closed: bool,
}

struct LeaseEntry<S> {
    state: Arc<LeaseState>,
    /// Under whose rules the slots were taken or renewed last, and are released.
    limiter: Arc<Limiter<S>>,
    interval: Duration,
    /// `None` while it is not in [`Leases::due`].
    due: Option<Timestamp>,
}

/// A lease that is being renewed.
#[derive(Clone)]
pub(super) struct DueLease {
    id: u64,
    state: Arc<LeaseState>,
}

impl DueLease {
    pub(super) fn lease(&self) -> &Grant {
        &self.state.lease
    }
}

impl<S: Store + 'static> LeaseTable<S> {
    pub(super) fn insert(
        table: &Arc<Self>,
        limiter: Arc<Limiter<S>>,
        lease: Grant,
        interval: Duration,
        due: Timestamp,
    ) -> HeldLease {
        let state = Arc::new(LeaseState::new(lease));
        let entry = LeaseEntry { state: Arc::clone(&state), limiter, interval, due: Some(due) };
        table.held.fetch_add(1, Ordering::AcqRel);
        let mut leases = table.leases.lock();
        leases.last_id += 1;
        let id = leases.last_id;
        leases.by_id.insert(id, entry);
        leases.due.insert((due, id));
        let waker = if leases.wakes_at.is_none_or(|wakes_at| due < wakes_at) { leases.waker.take() } else { None };
        drop(leases);
        waker.into_iter().for_each(Waker::wake);
        HeldLease::new(id, state, Arc::clone(table) as Arc<dyn ReleaseById>)
    }
}

impl<S> LeaseTable<S> {
    pub(super) fn new() -> Self {
        let leases = Leases {
            by_id: HashMap::new(),
            due: BTreeSet::new(),
            last_id: 0,
            wakes_at: None,
            waker: None,
            is_closed: false,
        };
        Self { leases: Mutex::new(leases), held: AtomicUsize::new(0), lost: AtomicU64::new(0) }
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn contains(&self, lease: &DueLease) -> bool {
        self.leases.lock().by_id.contains_key(&lease.id)
    }

    /// No lease will be added.
    pub(super) fn close(&self) {
        let mut leases = self.leases.lock();
        leases.is_closed = true;
        let waker = leases.waker.take();
        drop(leases);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether nothing is held, and nothing will be.
    pub(super) fn is_finished(&self) -> bool {
        self.leases.lock().is_finished()
    }

    /// When the next lease is due, if one is.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.leases.lock().next_due()
    }

    /// Waits until a lease is due before `wakes_at`, or nothing will be.
    pub(super) fn poll_changed(&self, wakes_at: Option<Timestamp>, context: &mut Context<'_>) -> Poll<()> {
        let mut leases = self.leases.lock();
        let is_earlier = leases.next_due().is_some_and(|due| wakes_at.is_none_or(|wakes_at| due < wakes_at));
        if is_earlier || leases.is_finished() {
            leases.waker = None;
            return Poll::Ready(());
        }
        leases.wakes_at = wakes_at;
        leases.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Makes due what earlier renewals were dropped with.
    pub(super) fn resume(&self, now: Timestamp) {
        let mut leases = self.leases.lock();
        let Leases { by_id, due, .. } = &mut *leases;
        for (id, entry) in by_id.iter_mut().filter(|(_, entry)| entry.due.is_none() && !entry.state.is_lost()) {
            entry.due = Some(now);
            due.insert((now, *id));
        }
    }

    /// The leases that are due, and those that go along. Each is passed to [`renewed`](Self::renewed), [`postpone`](Self::postpone) or
    /// [`lose`](Self::lose) afterwards.
    pub(super) fn take_due(&self, now: Timestamp) -> Vec<DueLease> {
        let mut leases = self.leases.lock();
        let Leases { by_id, due, .. } = &mut *leases;
        let mut taken = Vec::new();
        while let Some((at, id)) = due.first().copied() {
            let Some(entry) = by_id.get_mut(&id) else {
                due.pop_first();
                continue;
            };
            if at > now.plus(entry.interval / INTERVAL_PARTS) {
                break;
            }
            due.pop_first();
            entry.due = None;
            taken.push(DueLease { id, state: Arc::clone(&entry.state) });
        }
        taken
    }

    /// The slots were renewed under the rules of `limiter`, by a call that started at `started`.
    pub(super) fn renewed(&self, lease: &DueLease, limiter: &Arc<Limiter<S>>, started: Timestamp) {
        let mut replaced = None;
        self.schedule(lease, |entry| {
            // Without its rule, the slot is released under the old one: the rule may come back.
            let duration = entry.state.lease.current_lease(limiter.rules());
            if let Some(duration) = duration.filter(|_| !Arc::ptr_eq(&entry.limiter, limiter)) {
                entry.interval = interval(duration);
                replaced = Some(std::mem::replace(&mut entry.limiter, Arc::clone(limiter)));
            }
            started.plus(entry.interval)
        });
        // Without the lock: dropping a limiter may take long.
        drop(replaced);
    }

    /// The store failed.
    pub(super) fn postpone(&self, lease: &DueLease, now: Timestamp) {
        self.schedule(lease, |entry| now.plus(entry.interval / INTERVAL_PARTS));
    }

    /// The slots are lost. The lease stays until its holder drops it.
    pub(super) fn lose(&self, lease: &DueLease) {
        if self.contains(lease) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            lease.state.lose();
        }
    }

    /// Makes a lease that is being renewed due again, unless it was released meanwhile or is due already.
    fn schedule(&self, lease: &DueLease, due: impl FnOnce(&mut LeaseEntry<S>) -> Timestamp) {
        let mut leases = self.leases.lock();
        let Leases { by_id, due: order, .. } = &mut *leases;
        if let Some(entry) = by_id.get_mut(&lease.id).filter(|entry| entry.due.is_none()) {
            let at = due(entry);
            entry.due = Some(at);
            order.insert((at, lease.id));
        }
    }
}

impl<S: Store> ReleaseById for LeaseTable<S> {
    fn release(&self, id: u64) {
        let mut leases = self.leases.lock();
        let entry = leases.by_id.remove(&id);
        if let Some(due) = entry.as_ref().and_then(|entry| entry.due) {
            leases.due.remove(&(due, id));
        }
        let waker = if leases.is_finished() { leases.waker.take() } else { None };
        drop(leases);
        waker.into_iter().for_each(Waker::wake);
        if let Some(entry) = entry {
            entry.limiter.spawn_end_of(&entry.state.lease, &Ending::Release);
            self.held.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl<S> Leases<S> {
    fn is_finished(&self) -> bool {
        self.is_closed && self.by_id.is_empty()
    }

    fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }
}
