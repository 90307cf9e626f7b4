//! `UpstreamSlots`: how many requests may be at the upstream at a time, and how many may wait for that. It keeps an upstream that
//! has become slow from having to hold a connection for every client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::listen::{Bound, Gauge, GaugeGuard, ListenerStats};

/// Permits for requests to the upstream.
#[derive(Debug)]
pub(super) struct UpstreamSlots {
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    max_waiting: usize,
    max_wait: Duration,
    stats: Arc<ListenerStats>,
}

/// One request at the upstream, until it is dropped.
#[derive(Debug)]
pub(super) struct UpstreamSlot {
    _permit: OwnedSemaphorePermit,
    _gauge: GaugeGuard,
}

/// Decrements the number of waiting requests when it is dropped, also if the client is gone.
struct Waiting<'a>(&'a UpstreamSlots);

impl UpstreamSlots {
    pub(super) fn new(max: usize, max_waiting: usize, max_wait: Duration, stats: Arc<ListenerStats>) -> Self {
        let permits = Arc::new(Semaphore::new(max.clamp(1, Semaphore::MAX_PERMITS)));
        Self { permits, waiting: AtomicUsize::new(0), max_waiting, max_wait, stats }
    }

    /// Waits for a slot, in the order of arrival. `None` if too many wait already, or the wait takes too long.
    pub(super) async fn acquire(&self) -> Option<UpstreamSlot> {
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => self.wait().await,
        };
        let Some(permit) = permit else {
            self.stats.count(Bound::UpstreamQueue);
            return None;
        };
        Some(UpstreamSlot { _permit: permit, _gauge: self.stats.enter(Gauge::UpstreamRequests) })
    }

    async fn wait(&self) -> Option<OwnedSemaphorePermit> {
        let _waiting = self.enter()?;
        let _gauge = self.stats.enter(Gauge::UpstreamWaiting);
        let permit = Arc::clone(&self.permits).acquire_owned();
        tokio::time::timeout(self.max_wait, permit).await.ok()?.ok()
    }

    fn enter(&self) -> Option<Waiting<'_>> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let entered = Waiting(self);
        (waiting < self.max_waiting).then_some(entered)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn slots(max: usize, max_waiting: usize) -> UpstreamSlots {
        UpstreamSlots::new(max, max_waiting, Duration::from_hours(1), Arc::default())
    }

    #[tokio::test]
    async fn requests_wait_in_order_and_the_queue_is_bounded() {
        let slots = slots(1, 2);
        let first = slots.acquire().await.unwrap();
        let (mut second, mut third) = (pin!(slots.acquire()), pin!(slots.acquire()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut context).is_pending() && third.as_mut().poll(&mut context).is_pending());
        assert!(slots.acquire().await.is_none(), "two wait already");
        assert_eq!(slots.stats.reached(Bound::UpstreamQueue), 1);
        assert_eq!((slots.stats.value(Gauge::UpstreamRequests), slots.stats.value(Gauge::UpstreamWaiting)), (1, 2));
        drop(first);
        assert!(third.as_mut().poll(&mut context).is_pending());
        let Poll::Ready(Some(_slot)) = second.as_mut().poll(&mut context) else { panic!("the second is next") };
    }

    #[tokio::test]
    async fn a_request_that_is_gone_no_longer_waits() {
        let slots = slots(1, 1);
        let _first = slots.acquire().await.unwrap();
        for _ in 0..3 {
            let mut waiting = Box::pin(slots.acquire());
            assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(slots.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn without_a_queue_a_request_is_refused_at_once() {
        let slots = slots(1, 0);
        let _first = slots.acquire().await.unwrap();
        assert!(slots.acquire().await.is_none());
    }
}
