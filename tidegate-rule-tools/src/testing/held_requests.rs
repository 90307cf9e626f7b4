//! `HeldRequests`: the requests of a test that hold slots of concurrency limits, renewed and released in virtual time as a holder
//! that lives would; and those that have reserved their cost, committed when they end.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::grants::{Costs, Retake};
use tidegate::{Ending, Grant, Limiter, ManualClock, MemoryStore, Timestamp};

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

enum HeldRequest {
    /// Slots.
    Slots { lease: Grant, ends_at: Duration },
    /// A reservation, with the actual cost.
    Reserved { reserved: Grant, actual: u64 },
}

impl<'t> HeldRequests<'t> {
    pub(super) fn new(limiter: &'t Limiter<MemoryStore>, clock: &'t ManualClock, start: Timestamp) -> Self {
        Self { limiter, clock, start, by_time: BTreeMap::new(), taken: 0 }
    }

    /// Adds a request that took its slots at `at`.
    pub(super) fn add(&mut self, lease: Grant, at: Duration, ends_at: Duration) {
        self.taken += 1;
        self.insert(lease, ends_at, at, self.taken);
    }

    /// Adds a request that has reserved its cost, and whose actual cost is known at `ends_at`.
    pub(super) fn add_reservation(&mut self, reserved: Grant, actual: u64, ends_at: Duration) {
        self.taken += 1;
        self.by_time.insert((ends_at, self.taken), HeldRequest::Reserved { reserved, actual });
    }

    fn insert(&mut self, lease: Grant, ends_at: Duration, now: Duration, number: u64) {
        let renewal = now + lease.duration().unwrap_or_default() / RENEWALS_PER_LEASE;
        self.by_time.insert((renewal.min(ends_at), number), HeldRequest::Slots { lease, ends_at });
    }

    /// Sets the clock to `at`, after the renewals and releases up to then.
    pub(super) fn advance_to(&mut self, at: Duration) {
        while let Some(entry) = self.by_time.first_entry().filter(|entry| entry.key().0 <= at) {
            let ((now, number), request) = entry.remove_entry();
            self.clock.set(self.start.plus(now));
            match request {
                HeldRequest::Reserved { mut reserved, actual } => {
                    let costs = Costs::of(&reserved, |rule| is_settled(self.limiter, rule).then_some(actual));
                    // It has not run out: a test file cannot hold a reservation for longer than it lasts.
                    _ = poll_once(self.limiter.end(&mut reserved, &Ending::Commit(costs)));
                }
                HeldRequest::Slots { mut lease, ends_at } if ends_at <= now => {
                    _ = poll_once(self.limiter.end(&mut lease, &Ending::Release));
                }
                HeldRequest::Slots { lease, ends_at } => {
                    if poll_once(self.limiter.renew(&lease, Retake::No)).is_some_and(|renewed| renewed.is_ok()) {
                        self.insert(lease, ends_at, now, number);
                    }
                }
            }
        }
        self.clock.set(self.start.plus(at));
    }
}

/// Whether the actual cost under a rule is known after the response.
pub(super) fn is_settled(limiter: &Limiter<MemoryStore>, rule: &str) -> bool {
    limiter.rules().rule(rule).is_some_and(|rule| rule.cost_header.is_some() || rule.usage.is_some())
}

/// The result of a future on a memory store, which is never pending.
pub(super) fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
