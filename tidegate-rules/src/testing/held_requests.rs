//! `HeldRequests`: the requests of a test that hold slots of concurrency limits, renewed and released in virtual time as a holder
//! that lives would.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{Lease, Limiter, ManualClock, MemoryStore, Timestamp};

/// A lease is renewed after this part of its duration, as by [`Limiter::hold`].
const RENEWALS_PER_LEASE: u32 = 3;

/// The requests of one test that hold slots.
pub(super) struct HeldRequests<'t> {
    limiter: &'t Limiter<MemoryStore>,
    clock: &'t ManualClock,
    start: Timestamp,
    /// By the time of the next renewal or release after the start, the earliest first, then in the order of their takes.
    by_time: BTreeMap<(Duration, u64), HeldRequest>,
    taken: u64,
}

struct HeldRequest {
    lease: Lease,
    ends_at: Duration,
}

impl<'t> HeldRequests<'t> {
    pub(super) fn new(limiter: &'t Limiter<MemoryStore>, clock: &'t ManualClock, start: Timestamp) -> Self {
        Self { limiter, clock, start, by_time: BTreeMap::new(), taken: 0 }
    }

    /// Adds a request that took its slots at `at`.
    pub(super) fn add(&mut self, lease: Lease, at: Duration, ends_at: Duration) {
        self.taken += 1;
        self.insert(HeldRequest { lease, ends_at }, at, self.taken);
    }

    fn insert(&mut self, request: HeldRequest, now: Duration, number: u64) {
        let renewal = now + request.lease.duration() / RENEWALS_PER_LEASE;
        self.by_time.insert((renewal.min(request.ends_at), number), request);
    }

    /// Sets the clock to `at`, after the renewals and releases up to then.
    pub(super) fn advance_to(&mut self, at: Duration) {
        while let Some(entry) = self.by_time.first_entry().filter(|entry| entry.key().0 <= at) {
            let ((now, number), request) = entry.remove_entry();
            self.clock.set(self.start.plus(now));
            if request.ends_at <= now {
                poll_once(self.limiter.release(request.lease));
            } else if poll_once(self.limiter.renew(&request.lease)).is_some_and(|renewed| renewed.is_ok()) {
                self.insert(request, now, number);
            }
        }
        self.clock.set(self.start.plus(at));
    }
}

/// The result of a future on a memory store, which is never pending.
fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
